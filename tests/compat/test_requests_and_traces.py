"""Request-reply, compression, broadcasting, traces and namespaces, by each official client.

What came is compared with what was sent; what lies in the store with what the client said it sent.
"""

import zlib
from base64 import b64decode
from dataclasses import replace
from random import Random

from protocol.codes import COMPRESSED
from protocol.message import MessageRecord, decode_records
from tests.compat.agent import Agent, Event
from tests.compat.comparison import assert_same, order_differences, serial_of
from tests.compat.conftest import wait_for_route
from tests.compat.corpus import Outgoing, varied
from tests.compat.groups import receive
from tests.compat.patience import wait_until
from tests.compat.remoting import ask, has_route
from tests.compat.side_by_side import KINDS, Agents, each_kind, new_topic

PULL_MESSAGE = 11
PULL_WITH_SUBSCRIPTION = 4


# --- request and reply

QUESTIONS = (b"a question", "sch\u00f6n \u6f22\u5b57".encode(), b"compressible " * 2000, b"")


def test_every_client_answers_requests_of_every_other(agents: Agents) -> None:
    for kind in KINDS:
        topic = new_topic(agents, f"CS-requests-{kind}", 2)
        agents[kind].join(f"replier-{kind}", f"repliers-{kind}", topic, replies=True)
    each_kind(agents, _asks)
    for kind in KINDS:
        told = agents[kind].replied(f"replier-{kind}")
        replied = [event for event in told if event["serial"] != "warm"]
        assert {event["status"] for event in replied} == {"SEND_OK"}, replied
        assert len(replied) == 6 * 3
        agents[kind].leave(f"replier-{kind}")


def _asks(agents: Agents, kind: str) -> None:
    agent, group = agents[kind], f"askers-{kind}"
    if kind == "go":
        wait_until(lambda: _is_known(agent, group), "a heartbeat of the Go client")
    for replier in KINDS:
        for way in ("request", "request-async"):
            messages = [
                Outgoing(f"{kind}-{replier}-{way}-{number}", body, keys=f"key-{number}")
                for number, body in enumerate(body for body in QUESTIONS if body)
            ]
            sent = agent.send(way, f"CS-requests-{replier}", messages, group=group)
            for message, told in zip(messages, sent.results, strict=True):
                assert "error" not in told, (kind, replier, way, told)
                _check_reply(agent, message, told)


def _is_known(agent: Agent, group: str) -> bool:
    """The Go client asks its first questions before it has told the broker who it is."""
    warm = [Outgoing("warm", b"warm")]
    try:
        agent.send("request", "CS-requests-go", warm, group=group, timeout=300)
    except AssertionError:
        return False
    return True


def _check_reply(agent: Agent, message: Outgoing, told: Event) -> None:
    properties = told["properties"]
    assert b64decode(told["body"]) == b"reply to " + message.body
    assert properties["serial"] == message.serial
    assert properties["MSG_TYPE"] == "reply"
    assert told["topic"] == "DefaultCluster_REPLY_TOPIC"
    for name in ("CORRELATION_ID", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"):
        assert properties[name], name
    assert "@" in properties["REPLY_TO_CLIENT"]
    if "storeHost" in told:  # of Java only
        assert told["storeHost"] == agent.broker.address
        assert told["bornHost"].startswith("127.0.0.1:")
        assert 0 <= told["storeTimestamp"] - told["bornTimestamp"] < 10_000


# --- what lies in the store


def test_compressed_and_large_messages_arrive_unchanged_and_are_stored_as_received(
    agents: Agents,
) -> None:
    each_kind(agents, _large)


def _large(agents: Agents, kind: str) -> None:
    topic, agent, member = new_topic(agents, f"CS-large-{kind}", 1), agents[kind], f"large-{kind}"
    bodies = (b"z" * 4095, b"z" * 4097, Random(2).randbytes(1 << 20), b"compressible " * 50_000)
    large = {"large": "v\u00e4lue" * 5000, "other": "x"}  # 30,000 of the 32,767 bytes
    messages = [
        Outgoing(f"{kind}-large-{number}", body, properties=large if number % 2 else {})
        for number, body in enumerate(bodies)
    ]
    sent = agent.send("sync", topic, messages)
    agent.join(member, f"group-{topic}", topic)
    got = receive(agent, member, len(messages))
    agent.leave(member)
    assert_same([sent], got, agent.broker)
    for message, event in zip(messages, got, strict=True):
        record = stored(agent, topic, event["queueOffset"])
        compressed = bool(record.sys_flag & COMPRESSED)
        assert compressed == (len(message.body) > 4096)
        body = zlib.decompress(record.body) if compressed else record.body
        assert body == message.body
        assert event["bodyCrc"] == zlib.crc32(record.body) & 0x7FFFFFFF
        if sent.wire:  # what the client says that it sent
            frame = next(each for each in sent.wire if each["uniqueKey"] == event["msgId"])
            assert record.sys_flag == frame["sysFlag"]


def stored(agent: Agent, topic: str, offset: int) -> MessageRecord:
    """The record as the broker hands it out."""
    fields = {
        "consumerGroup": "looks",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "1",
        "sysFlag": str(PULL_WITH_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    code, body = ask(agent.broker.address, PULL_MESSAGE, fields)
    assert code == 0, code
    return next(iter(decode_records(body)))


# --- broadcasting, traces, namespaces


def test_every_member_of_a_broadcast_group_gets_every_message(agents: Agents) -> None:
    each_kind(agents, _broadcast)


def _broadcast(agents: Agents, kind: str) -> None:
    topic, agent = new_topic(agents, f"CS-broadcast-{kind}"), agents[kind]
    members = [f"{name}-{kind}" for name in ("hears", "listens")]
    before = agent.send("sync", topic, varied(f"{kind}-before", 12))
    for member in members:
        agent.join(member, f"group-{topic}", topic, broadcast=True)
    for member in members:
        receive(agent, member, 12)
    after = agent.send("sync", topic, varied(f"{kind}-after", 30))
    for member in members:
        receive(agent, member, 42)
        agent.leave(member)
        got = agent.received(member)
        assert_same([before, after], got, agent.broker)
        if kind != "go":  # the Go client hands its messages to goroutines
            assert order_differences(got) == []


def test_traces_report_the_outcome_of_each_message(agents: Agents) -> None:
    each_kind(agents, _traced)


def _traced(agents: Agents, kind: str) -> None:
    topic, agent, member = new_topic(agents, f"CS-traced-{kind}", 1), agents[kind], f"traced-{kind}"
    messages = [
        Outgoing(f"{kind}-traced-{n}", b"b" * (n + 1), tags=f"Tag{n}", keys=f"key{n}")
        for n in range(5)
    ]
    group, producer = f"group-{topic}", f"traced-producer-{kind}"
    sent = agent.send("sync", topic, messages, group=producer, trace=True)
    agent.join(member, group, topic, trace=True)
    got = receive(agent, member, len(messages))
    assert_same([sent], got, agent.broker)
    reader = f"trace-reader-{kind}"
    agent.join(reader, f"readers-of-{topic}", "RMQ_SYS_TRACE_TOPIC")

    def lines(first: str) -> list[list[str]]:
        texts = (b64decode(event["body"]).decode() for event in agent.received(reader))
        found = (line.split("\x01") for text in texts for line in text.split("\x02") if line)
        return [line for line in found if line[0] == first]

    def published() -> list[list[str]]:
        return [line for line in lines("Pub") if line[4] == topic]

    def begun() -> list[list[str]]:
        return [line for line in lines("SubBefore") if line[3] == group]

    # A 5.x consumer traces only messages with MSG_REGION, which 4.9.7 adds only for its hooks.
    consumed = 0 if kind == "java-5" else len(messages)
    wait_until(lambda: len(published()) >= 5 and len(begun()) >= consumed, f"the traces of {kind}")
    by_id = {event["msgId"]: event for event in got}
    requests = {line[4]: line for line in begun()}
    wait_until(
        lambda: len([line for line in lines("SubAfter") if line[1] in requests]) >= consumed,
        f"the ends of {kind}",
    )
    agent.leave(member)
    agent.leave(reader)
    assert sorted(line[5] for line in published()) == sorted(by_id)
    for line in published():
        event = by_id[line[5]]
        _, time, region, by, _, _, tags, keys, store_host, body_bytes, _, _, offset_id = line[:13]
        assert (region, by, tags, keys) == (
            "DefaultRegion",
            producer,
            event["tags"],
            event["keys"],
        )
        assert (store_host, offset_id, line[13]) == (
            agent.broker.address,
            event["offsetMsgId"],
            "true",
        )
        assert int(body_bytes) == len(b64decode(event["body"]))
        assert sent.began_ms - 1 <= int(time) <= sent.ended_ms
    assert sorted(line[5] for line in begun()) == (sorted(by_id) if consumed else [])
    for line in begun():
        assert (line[6], line[7]) == ("0", by_id[line[5]]["keys"])
    for line in lines("SubAfter"):
        if line[1] in requests:
            assert (line[2], line[4]) == (requests[line[1]][5], "true")


def test_a_namespace_is_part_of_the_topic_name(agents: Agents) -> None:
    each_kind(agents, _namespaced)


def _namespaced(agents: Agents, kind: str) -> None:
    agent, space, topic = agents[kind], f"SPACE-{kind}", f"CS-spaced-{kind}"
    full = f"{space}%{topic}"
    new_topic(agents, full)
    group, producer = f"group-{topic}", f"spaced-producer-{kind}"
    sent = agent.send("sync", topic, varied(f"{kind}-spaced", 16), group=producer, namespace=space)
    agent.join(f"inside-{kind}", group, topic, namespace=space)
    agent.join(f"outside-{kind}", f"outside-{group}", full)
    inside = receive(agent, f"inside-{kind}", 16)
    outside = receive(agent, f"outside-{kind}", 16)
    agent.leave(f"inside-{kind}")
    agent.leave(f"outside-{kind}")
    if kind != "go":  # the Java client says so in a property
        marked = {"INSTANCE_ID": space}
        messages = [
            replace(each, properties={**each.properties, **marked}) for each in sent.messages
        ]
        sent = replace(sent, messages=messages)
    assert_same([replace(sent, topic=full)], outside, agent.broker)
    assert {serial_of(event) for event in inside} == {serial_of(event) for event in outside}
    wait_for_route(agent.broker, f"%RETRY%{space}%{group}")
    assert not has_route(agent.broker.name_server.address, f"%RETRY%{group}")
