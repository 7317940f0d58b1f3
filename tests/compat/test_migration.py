"""docs/migration.md as a test: from the official broker to ours and back, on one store.

What is under way at each change goes over: messages not consumed, offsets of groups, messages on
their way to a delay, open transactions. Clients are only restarted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.compat.agent import closing, java_agent
from tests.compat.conftest import MakeBroker, MakeNameServer, wait_for_route
from tests.compat.corpus import Outgoing
from tests.compat.patience import wait_until
from tests.compat.python_clients import PATIENT, new_topic
from tests.compat.servers import Broker
from tests.compat.test_store import exit_code_is_good
from tests.compat.toolchain import Java
from troupemq import (
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from troupemq.client.consuming.consumer_offsets import ConsumeFrom

pytestmark = pytest.mark.slow(seconds=40)

TOPIC, GROUP, ORDERS = "Orders", "billing", "orders"
DELAY_LEVEL = 5
"""A minute: it is not over when the broker is changed."""

DELAYED, OPEN = 20, 5
"""So many at each change."""

BATCH = 100
START_DEADLINE_S = 240.0
"""A JVM on a crowded machine, with a store of 100,000 messages."""

CONSUME_DEADLINE_S = 200.0


class Story:
    """Sent and received messages, and the states that the transaction producer knows."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.came: Counter[str] = Counter()
        self.commits = False

    def take(self, views: Sequence[MessageView]) -> None:
        self.came.update(view.body.decode() for view in views)

    def send(self, producer: Producer, label: str, count: int) -> None:
        """`count` messages, in batches."""
        bodies = [f"{label}-{number}" for number in range(count)]
        for at in range(0, count, BATCH):
            messages = [Message(TOPIC, each.encode()) for each in bodies[at : at + BATCH]]
            producer.send_batch(messages)
        self.sent.update(bodies)

    def leave_under_way(self, producer: Producer, orders: TransactionProducer, label: str) -> None:
        """Leave open work when the broker stops: delayed messages and open transactions."""
        for number in range(OPEN):
            body = f"{label}-open-{number}"
            orders.send_in_transaction(
                Message(TOPIC, body.encode()), lambda *_: TransactionState.UNKNOWN
            )
            self.sent.add(body)
        for number in range(DELAYED):
            body = f"{label}-later-{number}"
            producer.send(Message(TOPIC, body.encode(), delay_level=DELAY_LEVEL))
            self.sent.add(body)

    def check(self, _: MessageView) -> TransactionState:
        """Check the check-back answers of the transaction producer."""
        return TransactionState.COMMIT if self.commits else TransactionState.UNKNOWN

    def missing(self, label: str = "") -> set[str]:
        return {body for body in self.sent if body.startswith(label)} - self.came.keys()


@pytest.fixture
def phase(
    make_name_server: MakeNameServer, make_broker: MakeBroker, tmp_path: Path
) -> Callable[..., AbstractContextManager[Broker]]:
    """A broker of a kind on the store, with its name server, stopped in order at the end."""

    @contextmanager
    def serving(kind: str, name: str, store: Path | None) -> Iterator[Broker]:
        settings = {
            "transactionCheckInterval": "1000",
            "transactionTimeOut": "1000",
            "transactionCheckMax": "1000",
            "waitTimeMillsInSendQueue": "30000",  # of the official one, on a crowded machine
        }
        with make_name_server(kind, tmp_path / f"{name}-names") as names:
            broker = make_broker(kind, tmp_path / name, names, store, **settings)
            broker.start_deadline_s = START_DEADLINE_S
            with broker:
                yield broker
                assert exit_code_is_good(broker, broker.stop()), broker.child.last_words()

    return serving


@contextmanager
def clients(broker: Broker, story: Story) -> Iterator[tuple[Producer, TransactionProducer]]:
    """The application: a producer, one of transactions, a consumer; restarted at each change."""
    address = broker.name_server.address
    with (
        Producer("shop", address, settings=PATIENT) as producer,
        TransactionProducer(ORDERS, story.check, address, settings=PATIENT) as orders,
        PushConsumer(GROUP, story.take, address, begin=ConsumeFrom.FIRST_OFFSET) as consumer,
    ):
        consumer.subscribe(TOPIC, "*")
        # As any producer it is known to the brokers of a topic that it has sent to.
        body = f"first-of-{broker.scratch.name}"
        orders.send_in_transaction(
            Message(TOPIC, body.encode()), lambda *_: TransactionState.COMMIT
        )
        story.sent.add(body)
        yield producer, orders


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.whole)])
def test_a_migration_to_our_broker_and_back_loses_nothing(
    count: int,
    phase: Callable[..., AbstractContextManager[Broker]],
    java_tools: Java,
    tmp_path: Path,
) -> None:
    story = Story()

    def has_all(label: str) -> None:
        def nothing_is_missing() -> bool:
            return not story.missing(label)

        try:
            wait_until(nothing_is_missing, label, CONSUME_DEADLINE_S)
        except AssertionError:
            raise AssertionError(f"{label}: {sorted(story.missing(label))[:20]}") from None

    def has_all_but_what_is_under_way(label: str) -> None:
        late = DELAYED + OPEN
        wait_until(lambda: len(story.missing(label)) <= late, label, CONSUME_DEADLINE_S)
        kinds = {body.split("-")[1] for body in story.missing(label)}
        assert kinds <= {"later", "open"}, kinds

    with phase("official", "before", None) as before:
        new_topic(before, TOPIC)
        with clients(before, story) as (producer, orders):
            story.send(producer, "before", count // 2)
            wait_until(lambda: len(story.came) > count // 10, "some", CONSUME_DEADLINE_S)
            story.leave_under_way(producer, orders, "before")
    assert len(story.missing("before-later")) == DELAYED, "they were due before the change"
    assert len(story.missing("before-open")) == OPEN

    # To TroupeMQ: the same store, the same settings; the clients are started again.
    with phase("ours", "meanwhile", before.store) as ours:
        wait_for_route(ours, TOPIC)
        story.commits = True
        with clients(ours, story) as (producer, orders):
            story.send(producer, "meanwhile", count // 4)
            has_all("before")
            has_all_but_what_is_under_way("meanwhile")
            story.commits = False
            story.leave_under_way(producer, orders, "meanwhile")
    twice = sum(story.came.values()) - len(story.came)
    assert len(story.missing("meanwhile-later")) == DELAYED

    # And back.
    with phase("official", "after", before.store) as after:
        wait_for_route(after, TOPIC)
        story.commits = True
        with clients(after, story) as (producer, orders):
            story.send(producer, "after", count - count // 2 - count // 4)
            has_all("")
        with closing(java_agent("late", java_tools, tmp_path, after)) as java:
            late = java.send("sync", TOPIC, [Outgoing("last", b"last", "T", "k", {})])
            assert late.results
    assert story.came.keys() == story.sent and len(story.sent) == count + 2 * (DELAYED + OPEN) + 3
    # What a group has not yet committed when it is stopped comes again, and no more than that.
    assert twice < count // 10
    assert (Path(before.store) / "troupemq" / "format.json").is_file(), "RocketMQ leaves it alone"
