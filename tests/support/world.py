"""A simulated broker with its clients, what they saw, and what befalls them, from one seed.

    world = World(seed)
    producer = world.producer()
    member = world.consumer("group", {"Topic": "a || b"})
    producer.send(b"1", tag="a")
    world.pass_time(1000)
    world.cut_power()
    world.settle()
    world.check()

Bodies are unique.  `check` says what holds whatever has happened; what a test alone can know is in
the test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any, TypeVar

from actors.config import BrokerConfig
from actors.dispatching.messages import WritesForbidden
from actors.engine.supervisor import ChildSpec
from protocol.bodies import MessageQueue
from protocol.frame import RemotingCommand
from protocol.message import MessageRecord
from protocol.properties import parse
from storage.config import StoreConfig
from tests.support.askers import Asker
from tests.support.brokers import BROKER, STORE, SimulatedBroker, running, subscription
from tests.support.consumers import HEARTBEAT_MS, Consumer
from tests.support.producers import Producer, Sent
from tests.support.receivers import Receiver, Settling
from tests.support.receiving import Received
from tests.support.seats import Client, Do, Seat
from tests.support.transactors import Transactor, Verdicts
from troupemq.testing.fake_disk import FakeDisk

C = TypeVar("C", bound=Client)

SEATS = 12
"""For clients; there is one more, on which the world itself waits for something."""
SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH", message_delay_level="1s 2s 3s 4s 5s 6s")
"""The store of most trials: it promises most, and its delays are short."""

MAY_FAIL = (
    "clients",
    "cold_read",
    "config_writer",
    "consumer_offsets",
    "delay_offsets",
    "groups",
    "pull_hold",
    "pull_message",
    "put_message",
    "queue_offsets",
    "receipts",
    "reput",
    "schedule_1",
    "send_back",
    "topics",
)
"""Actors that a trial lets fail; the supervisor brings them back."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """One message that a listener has seen."""

    group: str
    client_id: str
    queue: MessageQueue
    queue_offset: int
    body: bytes
    at_ms: int
    done: bool
    reconsume_times: int
    record: MessageRecord

    @property
    def properties(self) -> dict[str, str]:
        return parse(self.record.properties)


CALM = {"nothing": 1}
ROUGH = {"nothing": 16, "power": 1, "kill": 1, "restart": 1, "fail": 2, "full": 1}
"""Probability of each fault of a broker."""
FAILURES_APART_MS = 3_000.0
"""A supervisor gives up when failures come closer than this."""


class Fail:
    """A message that no actor of the broker knows: it fails at it."""


class World:
    """The broker, the clients, and what there is to know about them."""

    def __init__(
        self, seed: int, *, store: StoreConfig = SYNC, config: BrokerConfig = BROKER
    ) -> None:
        self.seed, self.random = seed, Random(f"world/{seed}")
        self.failures: list[BaseException] = []
        self.clients: list[Client] = []
        self.acknowledged: dict[bytes, Sent] = {}
        self.refusals: list[RemotingCommand | None] = []
        self.seen: list[Consumed] = []
        self.commit_log: list[tuple[int, str, MessageQueue, int]] = []
        """Time, group, queue and offset of each commit."""
        self.pulls: list[tuple[int, int, RemotingCommand]] = []
        """Times of request and answer, and the result."""
        self.is_exclusive = True
        """Whether no two members of a group may process messages of an orderly queue at a time."""
        self._inside: dict[tuple[str, MessageQueue], Consumer] = {}
        self._numbers = count()
        self._restarts = 0
        self._failed_ms = -FAILURES_APART_MS
        seats = [
            ChildSpec(f"seat_{n}", lambda _: Seat(self.failures), restart="temporary")
            for n in range(SEATS + 1)
        ]
        self.made = SimulatedBroker(seed, config=config, store_config=store, before=seats)
        running.append(self)

    # --- processes

    def producer(self, **options: Any) -> Producer:
        """A new one."""
        return self._seated(lambda name, place: Producer(self, f"p{name}", place, **options))

    def asker(self) -> Asker:
        """A new producer of requests that want a reply."""
        return self._seated(lambda name, place: Asker(self, f"a{name}", place))

    def transactor(self, verdicts: Verdicts, group: str = "producers") -> Transactor:
        """A new producer of transactions."""
        return self._seated(
            lambda name, place: Transactor(self, f"t{name}", place, verdicts=verdicts, group=group)
        )

    def consumer(
        self, group: str, subscriptions: Mapping[str, str], *, kind: str = "TAG", **options: Any
    ) -> Consumer:
        """A new member of a group; `subscriptions` are expressions by topic."""
        data = {
            topic: subscription(topic, expression, kind=kind)
            for topic, expression in subscriptions.items()
        }
        return self._seated(
            lambda name, place: Consumer(
                self, f"c{name}", place, group=group, subscriptions=data, **options
            )
        )

    def receiver(self, settling: Settling) -> Receiver:
        """A new member of a group that settles its messages one by one."""
        return self._seated(
            lambda name, place: Receiver(self, f"r{name}", place, settling=settling)
        )

    def _seated(self, make: Callable[[str, int], C]) -> C:
        """A client on a free seat."""
        self.clients = [client for client in self.clients if client.is_alive]
        taken = {client.place for client in self.clients}
        free = next(place for place in range(SEATS) if place not in taken)
        client = make(f"{next(self._numbers):03}", free)
        self.clients.append(client)
        return client

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, as a name server would give them."""
        config = self.made.broker.tables.topics.value.get(topic)
        queue_nums = 0 if config is None else config.read_queue_nums
        name = self.made.config.broker_name
        return [MessageQueue(topic, name, n) for n in range(queue_nums)]

    @property
    def at_ms(self) -> int:
        """The virtual time, on the wall: it goes on over a broker's end."""
        return self.made.clock.now_ms()

    # --- what befalls them

    def pass_time(self, ms: float) -> None:
        """Virtual time; a client that has raised fails the test."""
        self.made.system.advance(ms)
        self.check_failures()

    def sleep(self, ms: int) -> None:
        """The wall clock alone goes on, as on a machine that was suspended."""
        self.made.clock.set_wall(self.made.clock.now_ms() + ms)

    def cut_power(self) -> None:
        """Whatever was not synced is there afterwards, or not."""
        flushed = self.made.broker.store.commit_log.flushed_offset
        if self.made.store_config.flush_disk_type != "SYNC_FLUSH":
            self.acknowledged = {
                body: sent
                for body, sent in self.acknowledged.items()
                if sent.physical_offset < flushed
            }
        self._crash(power=True)

    def kill(self) -> None:
        """The process dies; the machine goes on."""
        self._crash(power=False)

    def _crash(self, *, power: bool) -> None:
        made = self.made
        made.crash()
        for client in self.clients:
            client.lose_broker()
        assert isinstance(made.disk, FakeDisk)
        self._restarts += 1
        seed = self.seed * 1000 + self._restarts
        made.disk = made.disk.crashed(seed) if power else made.disk.killed()
        self._start()

    def restart(self) -> None:
        """A clean stop, and a start."""
        self.made.stop()
        for client in self.clients:
            client.lose_broker()
        self.made.start_ms = self.made.clock.now_ms()
        self._start()

    def _start(self) -> None:
        self._inside.clear()
        self._failed_ms = -FAILURES_APART_MS
        self.made.start()
        for client in self.clients:
            if client.is_alive:
                client.do(client.connect)

    def fail(self, name: str) -> None:
        """An actor of the broker fails; what it had in hand is refused, and it is restarted."""
        now_ms = self.made.clock.monotonic_ms()
        if now_ms - self._failed_ms >= FAILURES_APART_MS:
            self._failed_ms = now_ms
            self.made.system.address(name).tell(Fail())

    def fill_disk(self, for_ms: float) -> None:
        """The broker takes no messages for a while; what it has to put itself has to wait."""
        system = self.made.system
        put_message = system.address("put_message")
        put_message.tell(WritesForbidden("the disk is full", "trial"))
        lift = partial(put_message.tell, WritesForbidden(None, "trial"))
        seat = system.address(f"seat_{SEATS}").receiver
        assert isinstance(seat, Seat)
        seat.after(for_ms, Do(lift))

    def befall(self, likely: Mapping[str, int] = ROUGH, may_fail: Sequence[str] = MAY_FAIL) -> str:
        """One of the things that may happen to a broker; says which."""
        (kind,) = self.random.choices([*likely], [*likely.values()])
        if kind == "fail":
            self.fail(self.random.choice(may_fail))
        elif kind == "full":
            self.fill_disk(self.random.choice((100, 1000, 4000)))
        else:
            acts = {"power": self.cut_power, "kill": self.kill, "restart": self.restart}
            acts.get(kind, lambda: None)()
        return kind

    def break_link(self, client: Client, for_ms: float = 1000) -> None:
        """A client's connection breaks, and is there again later."""
        client.do(client.lose_link)
        client.do(lambda: client.after(for_ms, client.connect))

    def end(self, client: Client, how: str) -> None:
        """stop: in good order; die: its connection is closed; vanish: it just does not go on."""
        if how == "stop" and isinstance(client, Consumer):
            client.do(client.stop)
        else:
            client.do(lambda: client.die(silently=how == "vanish"))

    # --- what consumers say

    def enter(self, consumer: Consumer, queue: MessageQueue, offset: int) -> None:
        """A listener begins with a message."""
        if consumer.is_orderly:
            other = self._inside.setdefault((consumer.group, queue), consumer)
            assert other is consumer or not self.is_exclusive, (
                f"{consumer.client_id} begins {queue} {offset} beside {other.client_id}"
            )

    def leave(self, consumer: Consumer, queue: MessageQueue, _offset: int) -> None:
        """Record that a consumer has left the message, done or stopped."""
        if self._inside.get((consumer.group, queue)) is consumer:
            del self._inside[consumer.group, queue]

    def consumed(self, consumer: Consumer, record: MessageRecord, *, done: bool) -> None:
        """Record the result of a consumed record."""
        queue = MessageQueue(record.topic, self.made.config.broker_name, record.queue_id)
        self.seen.append(
            Consumed(
                consumer.group,
                consumer.client_id,
                queue,
                record.queue_offset,
                record.body,
                self.at_ms,
                done,
                record.reconsume_times,
                record,
            )
        )

    def began(self, consumer: Consumer, queue: MessageQueue, offset: int) -> None:
        """A member has taken over a queue, there."""

    def commits(self, consumer: Consumer, queue: MessageQueue, offset: int) -> None:
        """A member says how far it has come."""
        self.commit_log.append((self.at_ms, consumer.group, queue, offset))

    def pulled(
        self,
        consumer: Consumer,
        queue: MessageQueue,
        asked_ms: int,
        offset: int,
        answer: RemotingCommand,
    ) -> None:
        """A pull was answered."""
        self.pulls.append((asked_ms, self.at_ms, answer))

    def received(self, settling: Settling, message: Received) -> None:
        """A receiver has got a message; trials look at it."""

    # --- what must hold

    def check_failures(self) -> None:
        for failure in self.failures:
            raise AssertionError(f"seed {self.seed}: {failure}") from failure

    def bodies(self, group: str) -> list[bytes]:
        """Return the messages that a group has processed, in the order of time."""
        return [each.body for each in self.seen if each.group == group and each.done]

    def settle(self, limit_ms: float = 300_000) -> None:
        """Lets time pass until producers are through, and what is gone has been replaced."""
        producers = [each for each in self.clients if isinstance(each, Producer) and each.is_alive]
        self.made.system.run_until(lambda: all(each.is_done for each in producers), limit_ms)
        self.pass_time(2 * HEARTBEAT_MS)  # until the forgotten member has reported again

    def check(self, group: str, wanted: Callable[[Sent], bool] = lambda _: True) -> None:
        """At least once, and nothing else: what was acknowledged and is wanted by the group."""
        self.check_failures()
        found = set(self.bodies(group))
        due = {body for body, sent in self.acknowledged.items() if wanted(sent)}
        assert due <= found, f"seed {self.seed}: {group} misses {sorted(due - found)[:5]}"
        timeouts = sum(client.timeouts for client in self.clients)
        assert not timeouts, f"seed {self.seed}: {timeouts} requests without an answer"

    def check_order(self, group: str) -> None:
        """In each queue the first sight of each message comes in the queue's order."""
        by_queue: dict[MessageQueue, list[int]] = {}
        for each in self.seen:
            if each.group == group:
                by_queue.setdefault(each.queue, []).append(each.queue_offset)
        for queue, offsets in by_queue.items():
            first = list(dict.fromkeys(offsets))
            assert first == sorted(first), f"seed {self.seed}: {queue}: {first}"

    def stop(self) -> None:
        """Stop the broker and raise the first failure. The end of a test does this."""
        self.made.stop()
        self.check_failures()
