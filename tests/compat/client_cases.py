"""Cases of each official client at guarded servers: with accounts, with TLS, with both.

Each case has its own topic of `topics_of`, whose route is known.
"""

from base64 import b64decode

from tests.compat.agent import Agent, Event
from tests.compat.corpus import SERIAL, Outgoing
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.test_transactions import transaction
from troupemq import ConsumeFrom, Credentials, PullConsumer, Tls

KINDS = ("Sent", "Ordered", "Halves", "Asked")
OFTEN = {"transactionCheckInterval": "1000", "transactionTimeOut": "1000"}
"""Settings of a broker that soon asks about open transactions."""
TRACES = {"traceTopicEnable": "true"}
WAYS = ("sync", "async", "oneway", "batch")


def topics_of(client: str) -> list[str]:
    return [f"{kind}-{client}" for kind in KINDS]


def numbered(count: int, body: bytes = b"body") -> list[Outgoing]:
    return [Outgoing(f"message-{number}", body + b" %d" % number) for number in range(count)]


def sends_in_all_ways_and_consumes(client: Agent) -> None:
    """Bodies of 20 KB, too: more than a record of TLS holds."""
    topic, expected = f"Sent-{client.name}", 0
    client.join("eater", f"of-{topic}", topic)
    for way in WAYS:
        messages = [*numbered(2), *numbered(1, b"long " * 4000)]
        sent = client.send(way, topic, messages, group=f"senders-{client.name}")
        assert {each["status"] for each in sent.results} <= {"SEND_OK"}, sent.results
        expected += len(messages)
    receive(client, "eater", expected)
    client.leave("eater")


def consumes_in_order(client: Agent) -> None:
    topic = f"Ordered-{client.name}"
    client.join("orderly", f"of-{topic}", topic, orderly=True)
    client.send("sync", topic, numbered(8))
    receive(client, "orderly", 8)
    client.leave("orderly")


def has_transactions(client: Agent) -> None:
    """Two are committed, one of them when the broker asks again; one is not."""
    topic = f"Halves-{client.name}"
    client.join("halves", f"of-{topic}", topic)
    outcomes = [
        transaction("commit", "commit"),
        transaction("rollback", "rollback"),
        transaction("later", "unknown", checked="unknown,commit"),
    ]
    client.transact(f"halving-{client.name}", topic, outcomes)
    wait_until(lambda: serials(client, "halves") == {"commit", "later"}, "what is committed")
    assert client.checks()
    client.leave("halves")


def serials(agent: Agent, member: str) -> set[str]:
    return {event["properties"][SERIAL] for event in agent.received(member)}


def asks_and_is_answered(client: Agent) -> None:
    """Return the clients whose replies pass through the broker's own topic."""
    topic = f"Asked-{client.name}"
    client.join("replier", f"of-{topic}", topic, replies=True)
    way = "request"
    group = f"askers-{client.name}"
    answers: list[Event] = []

    def is_answered() -> bool:
        """The Go client asks its first question before it has told the broker who it is."""
        try:
            answers[:] = client.send(way, topic, numbered(1), group=group, timeout=2000).results
        except AssertionError:
            return False
        return "error" not in answers[0]

    wait_until(is_answered, "an answer")
    assert answers[0]["properties"]["MSG_TYPE"] == "reply"
    client.leave("replier")


def writes_traces(
    client: Agent, credentials: Credentials | None = None, tls: Tls | None = None
) -> None:
    """Read by our client, as that account and over that TLS."""
    topic = f"Sent-{client.name}"
    client.send("sync", topic, numbered(1), group="traced", trace=True)
    with PullConsumer(
        f"trace-readers-{client.name}",
        client.broker.name_server.address,
        begin=ConsumeFrom.FIRST_OFFSET,
        credentials=credentials,
        tls=tls,
    ) as reader:
        reader.subscribe("RMQ_SYS_TRACE_TOPIC")
        traced = topic.encode()
        wait_until(lambda: any(traced in each.body for each in reader.poll(1000)), "a trace")


def reads_traces(client: Agent, reader: tuple[str, str] | None = None) -> None:
    """Read the traces of a producer and a consumer with the same client, as that account if one is
    named. A 5.x consumer traces only messages with MSG_REGION, which 4.9.7 adds only for its hooks.
    """
    topic, own = f"Sent-{client.name}", client.account
    group = f"of-{topic}"
    client.join("traced", group, topic, trace=True)
    client.account = reader or own
    client.join("auditor", "auditors", "RMQ_SYS_TRACE_TOPIC")
    client.account = own
    client.send("sync", topic, numbered(1), group=f"traced-by-{client.name}", trace=True)
    wanted = {("Pub", topic)} | ({("SubBefore", group)} if "java-5" not in client.name else set())

    def told() -> set[tuple[str, str]]:
        texts = [b64decode(event["body"]).decode() for event in client.received("auditor")]
        lines = [line.split("\x01") for text in texts for line in text.split("\x02") if line]
        return {(line[0], line[4] if line[0] == "Pub" else line[3]) for line in lines}

    wait_until(lambda: told() >= wanted, "the traces")
    client.leave("auditor")
    client.leave("traced")
