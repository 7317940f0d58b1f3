"""Our Python producer's transactions and requests, against the official broker and ours."""

from base64 import b64decode
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.compat.agent import Agent
from tests.compat.patience import wait_until
from tests.compat.python_clients import PATIENT, new_topic
from tests.compat.servers import Broker
from troupemq import (
    ConsumeFrom,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
    create_reply_message,
)

pytestmark = pytest.mark.slow(seconds=2)

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
UNKNOWN = TransactionState.UNKNOWN
REQUEST_TIMEOUT_MS = 60_000


# --- transactions


OUTCOMES = {
    "commit": (COMMIT, None),
    "rollback": (ROLLBACK, None),
    "commit-when-asked": (UNKNOWN, COMMIT),
    "rollback-when-asked": (UNKNOWN, ROLLBACK),
    "raises-then-commit": (None, COMMIT),
}


def test_transactions_end_as_the_application_decides(
    any_broker: Broker, java_beside: Agent
) -> None:
    topic = new_topic(any_broker, "PY-transactions")
    asked: Counter[str] = Counter()

    def check(view: MessageView) -> TransactionState | None:
        outcome = view.keys[0]
        asked[outcome] += 1
        if asked[outcome] == 1:
            return None  # the broker asks again
        return OUTCOMES[outcome][1]

    def execute(message: Message, transaction_id: str) -> TransactionState:
        state = OUTCOMES[message.keys[0]][0]
        if state is None:
            raise RuntimeError("nobody knows")
        return state

    java_beside.join(topic, f"group-of-{topic}", topic)
    with TransactionProducer(
        "python-transactions", check, any_broker.name_server.address, settings=PATIENT
    ) as producer:
        results = {
            outcome: producer.send_in_transaction(
                Message(topic, b"compressible " * 500, tags="t", keys=outcome), execute
            )
            for outcome in OUTCOMES
        }
        visible = {"commit", "commit-when-asked", "raises-then-commit"}
        wait_until(
            lambda: {event["keys"] for event in java_beside.received(topic)} >= visible,
            "the committed messages",
            120.0,
        )
        wait_until(lambda: asked["rollback-when-asked"] >= 2, "all questions", 120.0)
    java_beside.leave(topic)
    events = java_beside.received(topic)
    assert Counter(event["keys"] for event in events) == dict.fromkeys(visible, 1)
    for event in events:
        result = results[event["keys"]]
        assert event["msgId"] == result.transaction_id
        assert b64decode(event["body"]) == b"compressible " * 500
        assert event["sysFlag"] & 0xC == 0x8
    assert {o: r.told for o, r in results.items() if r.told} == {"commit": True, "rollback": True}
    assert set(asked) == {o for o, (state, _) in OUTCOMES.items() if state in (UNKNOWN, None)}


def test_another_producer_of_the_group_answers_the_check_back(
    any_broker: Broker, java_beside: Agent
) -> None:
    topic, group = new_topic(any_broker, "PY-heir"), "python-heirs"
    address = any_broker.name_server.address
    with TransactionProducer(group, lambda view: None, address, settings=PATIENT) as first:
        message = Message(topic, b"left behind", keys="k")
        result = first.send_in_transaction(message, lambda message, transaction: UNKNOWN)
    java_beside.join(topic, f"group-of-{topic}", topic)
    with TransactionProducer(group, lambda view: COMMIT, address, settings=PATIENT) as heir:
        heir.send(Message(topic, b"first contact"))
        wait_until(lambda: len(java_beside.received(topic)) >= 2, "both messages", 120.0)
    java_beside.leave(topic)
    assert result.transaction_id in {event["msgId"] for event in java_beside.received(topic)}


# --- request and reply


class Replier:
    """A Python consumer that answers each message with its body and `suffix`."""

    def __init__(self, producer: Producer, suffix: bytes) -> None:
        self._producer = producer
        self._suffix = suffix

    def __call__(self, views: Sequence[MessageView]) -> None:
        for view in views:
            self._producer.send(create_reply_message(view, view.body + self._suffix))


LONG = b"a long question " * 1000
REPLIERS = ("python", "java")


@pytest.mark.parametrize("replier", REPLIERS)
def test_a_python_request_gets_its_reply(
    any_broker: Broker, java_beside: Agent, replier: str
) -> None:
    topic = new_topic(any_broker, f"PY-asks-{replier}")
    group = f"repliers-of-{topic}"
    address = any_broker.name_server.address
    with Producer("python-asks", address, settings=PATIENT) as producer:
        if replier == "java":
            java_beside.reply(group, topic, b" -> reply")
            replies = ask_all(producer, topic)
        else:
            consumer = PushConsumer(
                group, Replier(producer, b" -> reply"), address, begin=ConsumeFrom.FIRST_OFFSET
            )
            consumer.subscribe(topic)
            with consumer:
                replies = ask_all(producer, topic)
    assert replies == [body + b" -> reply" for body in (b"short", LONG, b"again")]


def ask_all(producer: Producer, topic: str) -> list[bytes]:
    """Three requests at once, one of them long enough to be compressed, as is its reply."""
    futures = [
        producer.request_async(Message(topic, body), REQUEST_TIMEOUT_MS)
        for body in (b"short", LONG, b"again")
    ]
    return [future.result().body for future in futures]


def test_a_java_request_gets_its_reply_from_python(any_broker: Broker, java_beside: Agent) -> None:
    topic = new_topic(any_broker, "PY-replies")
    address = any_broker.name_server.address
    with Producer("python-replies", address, settings=PATIENT) as producer:
        consumer = PushConsumer(
            f"repliers-of-{topic}",
            Replier(producer, b" -> reply"),
            address,
            begin=ConsumeFrom.FIRST_OFFSET,
        )
        consumer.subscribe(topic)
        with consumer:
            # Java's heartbeat may come after its request: it waits for the next one, 30 s.
            for body in (b"short", LONG):
                got = java_beside.ask("java-asks", topic, body, REQUEST_TIMEOUT_MS)
                assert got == body + b" -> reply"
