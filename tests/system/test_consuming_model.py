"""Random sends, pulls, commits, send-backs, members and crashes against a model of plain lists.

The broker promises SYNC_FLUSH.  After every step it must agree with the model: nothing acknowledged
is lost, nothing is invented, a queue keeps its order, a delayed or returned message comes when its
time has come and not before, and an offset is one that was committed.

`make test` takes a few seeds; `make trials` many (ROUNDS=1 SEED=7 repeats one of them).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import integers, lists, sampled_from

from protocol.bodies import ConsumerData, ConsumerList, HeartbeatData, SubscriptionData
from protocol.codes import PULL_COMMIT_OFFSET, RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    GetConsumerListHeader,
    QueryConsumerOffsetHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.message import MessageRecord, decode_records
from tests.support.brokers import STORE, SimulatedBroker, send_command
from troupemq.testing.fake_disk import FakeDisk
from troupemq.testing.virtual_broker import LocalClient

QUEUES = 3
DELAYED_QUEUE = 3
"""The queue of `Topic` that gets nothing but delayed messages."""
LEVELS_MS = (1000, 2000, 3000, 4000, 5000, 6000)
SYNC = replace(STORE, flush_disk_type="SYNC_FLUSH", message_delay_level="1s 2s 3s 4s 5s 6s")
RETRY_MAX = 2
SAVED_MS = 5_200
"""Time after which the offsets are in their file."""
LATE_MS = 100

GROUPS = sampled_from(("one", "two"))
QUEUE_IDS = integers(0, QUEUES - 1)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that is to come later."""

    topic: str
    queue_id: int
    body: bytes
    times: int
    level: int
    due_ms: int


class Consuming(RuleBasedStateMachine):
    """The broker beside its model."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.made = SimulatedBroker(number, store_config=SYNC)
        self.made.make_topic(queues=QUEUES + 1)
        self.queues: list[list[bytes]] = [[] for _ in range(QUEUES)]
        self.waiting: list[Waiting] = []
        self.come: list[Waiting] = []
        self.places: dict[str, list[int]] = {}
        """Pulled offsets of each group, by queue."""
        self.offsets: dict[tuple[str, int], list[int]] = {}
        """Offsets that each group may find after a crash; the last one is the current one."""
        self.pulled: dict[str, dict[tuple[bytes, int], MessageRecord]] = {}
        self.members: dict[str, dict[str, LocalClient]] = {"one": {}, "two": {}}
        self.has_crashed = False
        self.numbers = count()
        for group in self.members:
            self.made.make_group(group, retry_max_times=RETRY_MAX)
            self.places[group] = [0] * QUEUES
            self.pulled[group] = {}

    # --- short ways

    def ask(self, code: RequestCode, header: Any) -> RemotingCommand:
        return self.made.ask(RemotingCommand(code, header.encode()))

    def new_body(self) -> bytes:
        return b"%d" % next(self.numbers)

    @property
    def now_ms(self) -> int:
        return self.made.clock.now_ms()

    # --- sends

    @rule(queue_id=QUEUE_IDS)
    def send(self, queue_id: int) -> None:
        body = self.new_body()
        answer = self.made.send(body, queue_id=queue_id)
        assert answer.code == 0 and answer.fields is not None
        assert int(answer.fields["queueOffset"]) == len(self.queues[queue_id])
        self.queues[queue_id].append(body)

    @rule(level=integers(1, len(LEVELS_MS)))
    def send_delayed(self, level: int) -> None:
        body = self.new_body()
        answer = self.made.send(body, queue_id=DELAYED_QUEUE, properties=f"DELAY\x01{level}")
        assert answer.code == 0
        self.wait_for("Topic", DELAYED_QUEUE, body, 0, level)

    def wait_for(self, topic: str, queue_id: int, body: bytes, times: int, level: int) -> None:
        due_ms = self.now_ms + LEVELS_MS[level - 1]
        self.waiting.append(Waiting(topic, queue_id, body, times, level, due_ms))

    # --- pulls and offsets

    @rule(group=GROUPS, queue_id=QUEUE_IDS, limit=integers(1, 33), commits=sampled_from((0, 1)))
    def pull(self, group: str, queue_id: int, limit: int, commits: int) -> None:
        self.made.system.drain()
        queue, place = self.queues[queue_id], self.places[group][queue_id]
        answer = self.made.pull(
            place,
            queue_id=queue_id,
            count=limit,
            consumer_group=group,
            sys_flag=commits * PULL_COMMIT_OFFSET,
            commit_offset=place,
        )
        assert answer.fields is not None
        records = list(decode_records(bytes(answer.body or b"")))
        found = [record.body for record in records]
        assert found == queue[place : place + min(limit, 32)]
        assert [record.queue_offset for record in records] == [*range(place, place + len(found))]
        assert answer.code == (0 if found else ResponseCode.PULL_NOT_FOUND)
        assert answer.fields["minOffset"] == "0"
        assert answer.fields["maxOffset"] == str(len(queue))
        assert answer.fields["nextBeginOffset"] == str(place + len(found))
        self.places[group][queue_id] = place + len(found)
        self.pulled[group] |= {(each.body, 0): each for each in records}
        if commits:
            self.made.system.drain()
            self.offsets.setdefault((group, queue_id), [0]).append(place)

    @rule(group=GROUPS, queue_id=QUEUE_IDS)
    def commit(self, group: str, queue_id: int) -> None:
        place = self.places[group][queue_id]
        header = UpdateConsumerOffsetHeader(group, "Topic", queue_id, place)
        assert self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0
        self.offsets.setdefault((group, queue_id), [0]).append(place)

    @rule(group=GROUPS, queue_id=QUEUE_IDS)
    def take_over(self, group: str, queue_id: int) -> None:
        """Continue at the committed offset with another member: uncommitted messages are
        redelivered.
        """
        header = QueryConsumerOffsetHeader(group, "Topic", queue_id)
        answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        assert answer.code == 0 and answer.fields is not None
        offset = int(answer.fields["offset"])
        assert offset == self.offsets.get((group, queue_id), [0])[-1]
        self.places[group][queue_id] = offset

    # --- send-backs

    @precondition(lambda self: any(self.pulled.values()))
    @rule(group=GROUPS, which=integers(0, 1000))
    def send_back(self, group: str, which: int) -> None:
        choices = self.pulled[group]
        if not choices:
            return
        (body, times), record = [*choices.items()][which % len(choices)]
        header = ConsumerSendMsgBackHeader(record.physical_offset, group, 0)
        assert self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == 0
        del choices[body, times]
        if times >= RETRY_MAX:
            self.come.append(Waiting(f"%DLQ%{group}", 0, body, times + 1, 0, self.now_ms))
        else:
            level = min(3 + times, len(LEVELS_MS))
            self.wait_for(f"%RETRY%{group}", 0, body, times + 1, level)

    @rule(group=GROUPS)
    def pull_retries(self, group: str) -> None:
        """Pull the retries, which may be sent back again."""
        topic = f"%RETRY%{group}"
        if topic in self.made.broker.tables.topics.value:
            for record in self.made.messages(topic):
                self.pulled[group][record.body, record.reconsume_times] = record

    # --- members

    @rule(group=GROUPS)
    def join(self, group: str) -> None:
        members = self.members[group]
        if len(members) == 4:
            return
        name = f"member-{next(self.numbers)}"
        members[name] = self.made.new_client(1 + next(self.numbers))
        self.forget_notices(group)
        self.heartbeat(group, name)
        self.check_notices(group)

    def heartbeat(self, group: str, name: str) -> None:
        data = ConsumerData(
            group, "CONSUME_PASSIVELY", "CLUSTERING", None, [SubscriptionData("Topic")]
        )
        body = HeartbeatData(name, consumer_data_set=[data]).encode()
        command = RemotingCommand(RequestCode.HEART_BEAT, body=body)
        assert self.members[group][name].request(command).code == 0

    @precondition(lambda self: any(self.members.values()))
    @rule(group=GROUPS, how=sampled_from(("unregister", "close", "vanish")))
    def leave(self, group: str, how: str) -> None:
        members = self.members[group]
        if not members:
            return
        name = min(members)
        client = members.pop(name)
        self.forget_notices(group)
        if how == "unregister":
            header = UnregisterClientHeader(name, None, group)
            command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode())
            assert client.request(command).code == 0
        elif how == "close":
            client.close()
        else:
            for _ in range(5):
                self.pass_time(30_000)
                for other_group, others in self.members.items():
                    for other in others:
                        self.heartbeat(other_group, other)
        self.made.system.drain()
        self.check_notices(group)

    def forget_notices(self, group: str) -> None:
        for client in self.members[group].values():
            client.received.clear()

    def check_notices(self, group: str) -> None:
        """Check that every member got its notices."""
        self.made.system.drain()
        for client in self.members[group].values():
            codes = {command.code for command in client.received}
            assert codes == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}

    # --- time and crashes

    @rule(ms=sampled_from((0, 7, 150, 1100, 6000)))
    def pass_time(self, ms: int) -> None:
        self.made.system.advance(ms)
        if ms >= SAVED_MS:
            self.saved()
        now_ms = self.now_ms
        self.come += [each for each in self.waiting if each.due_ms + LATE_MS <= now_ms]
        self.waiting = [each for each in self.waiting if each.due_ms + LATE_MS > now_ms]

    def saved(self) -> None:
        self.offsets = {key: values[-1:] for key, values in self.offsets.items()}

    @rule(
        power=sampled_from((True, False)),
        unsure=lists(QUEUE_IDS, max_size=8),
        steps=integers(0, 60),
    )
    def crash(self, power: bool, unsure: list[int], steps: int) -> None:
        """In the middle of some sends; those that were not answered are there, or not."""
        answers: list[tuple[int, bytes, list[RemotingCommand]]] = []
        for queue_id in unsure:
            body = self.new_body()
            got: list[RemotingCommand] = []
            self.made.client.start(send_command(body, queue_id=queue_id), got.append)
            answers.append((queue_id, body, got))
        taken = count()
        with suppress(TimeoutError):
            self.made.system.run_until(lambda: next(taken) >= steps, 50)
        made = self.made
        made.crash()
        disk = made.disk
        assert isinstance(disk, FakeDisk)
        made.disk = disk.crashed(next(self.numbers)) if power else disk.killed()
        made.start()
        self.adopt(answers)
        self.has_crashed = True

    @rule()
    def restart(self) -> None:
        self.made.stop()
        self.saved()
        self.made.start_ms = self.now_ms
        self.made.start()
        self.adopt([])

    def adopt(self, answers: list[tuple[int, bytes, list[RemotingCommand]]]) -> None:
        """The broker is there again: the model takes over what it could not know."""
        for members in self.members.values():
            members.clear()
        for queue_id, queue in enumerate(self.queues):
            found = [record.body for record in self.made.messages(queue_id=queue_id)]
            own = [each for each in answers if each[0] == queue_id]
            sure = max((n for n, each in enumerate(own, 1) if each[2]), default=0)
            bodies = [body for _, body, _ in own]
            assert found[: len(queue)] == queue, "acknowledged messages are gone"
            more = found[len(queue) :]
            assert len(more) >= sure, "acknowledged messages are gone"
            assert more == bodies[: len(more)], "not what was sent, or not in this order"
            queue += more
        for (group, queue_id), values in self.offsets.items():
            header = QueryConsumerOffsetHeader(group, "Topic", queue_id)
            answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
            offset = int((answer.fields or {}).get("offset", -1))
            assert offset in values, f"{group} is at {offset}, not one of {values}"
            self.offsets[group, queue_id] = [offset]

    # --- what holds after each step

    @invariant()
    def every_queue_has_its_ends(self) -> None:
        self.made.system.drain()
        for queue_id, queue in enumerate(self.queues):
            assert self.made.offset(RequestCode.GET_MIN_OFFSET, queue_id=queue_id) == 0
            assert self.made.offset(RequestCode.GET_MAX_OFFSET, queue_id=queue_id) == len(queue)

    @invariant()
    def members_are_known(self) -> None:
        for group, members in self.members.items():
            answer = self.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListHeader(group))
            if members:
                assert sorted(ConsumerList.decode(answer.body).consumer_id_list) == sorted(members)
            else:
                assert answer.code == ResponseCode.SYSTEM_ERROR

    @invariant()
    def what_is_due_has_come_and_nothing_else(self) -> None:
        """At least once after a crash, once without; in the order of the level."""
        topics = {(each.topic, each.queue_id) for each in (*self.come, *self.waiting)}
        known = self.made.broker.tables.topics.value
        for topic, queue_id in topics:
            records = self.made.messages(topic, queue_id) if topic in known else []
            found = [(record.body, record.reconsume_times) for record in records]
            here = [each for each in self.come if (each.topic, each.queue_id) == (topic, queue_id)]
            due = Counter((each.body, each.times) for each in here)
            soon = {
                (each.body, each.times)
                for each in self.waiting
                if each.due_ms <= self.now_ms and each.topic == topic
            }
            assert due.keys() <= {*found}, f"{due.keys() - {*found}} did not come"
            assert {*found} <= due.keys() | soon, "too early, or never sent"
            if not self.has_crashed:
                assert Counter(found) <= due + Counter(soon)
            first = {each: place for place, each in reversed([*enumerate(found)])}
            for level in {each.level for each in here}:
                places = [first[each.body, each.times] for each in here if each.level == level]
                assert places == sorted(places), f"level {level} is out of order"

    def teardown(self) -> None:
        self.made.stop()


def check_model(number: int, *, examples: int, steps: int) -> None:
    """Some runs of the model from one seed."""

    class Machine(Consuming):
        def __init__(self) -> None:
            super().__init__(number)

    run_state_machine_as_test(
        seed(number)(Machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[*HealthCheck],
            print_blob=False,
        ),
    )


@pytest.mark.trial(short=1, long=100)
def test_the_broker_agrees_with_a_model_of_plain_lists(seed: int) -> None:
    check_model(seed, examples=15, steps=40)
