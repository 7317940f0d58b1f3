"""A pull that meets a flipped bit: it waits until that is verified, and always gets on."""

from collections.abc import Callable

import pytest

from actors.dispatching.messages import CaughtUp, UnitVerified, VerifyUnit
from actors.engine.actor import Actor, handles
from actors.pulling.pull_message import VERIFY_MS
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from tests.support.brokers import STORE, SimulatedBroker, pull_command
from tests.support.pulls import broker, code_and_bodies, fill, outcome, tagged
from troupemq.testing.fake_disk import FakeDisk

COUNT = 6
HOLD_MS = 15_000
LOG = STORE.commit_log_dir + "/" + "0" * 20
QUEUE = STORE.consume_queue_dir + "/Topic/0/" + "0" * 20
BODY_POSITION = 90


class Silent(Actor):
    """A scrubber that is asked and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[VerifyUnit] = []

    @handles(VerifyUnit)
    def on_verify_unit(self, message: VerifyUnit) -> None:
        self.asked.append(message)


def old_broker(
    damage: Callable[[SimulatedBroker, FakeDisk], None],
    *,
    count: int = COUNT,
    scrubber: Actor | None = None,
) -> SimulatedBroker:
    """A broker started again on a store in which something changed meanwhile."""
    made = broker()
    for number in range(count):
        made.send(b"body %d" % number, properties=tagged("AB"[number % 2]))
    made.stop()
    assert isinstance(made.disk, FakeDisk)
    if scrubber is not None:
        made.instead = {"scrubber": lambda _: scrubber}
    made.start()
    damage(made, made.disk)
    return made


def flip_body(number: int) -> Callable[[SimulatedBroker, FakeDisk], None]:
    def flip(made: SimulatedBroker, disk: FakeDisk) -> None:
        disk.flip_bit(LOG, place(made, number)[0] + BODY_POSITION, 3)

    return flip


def flip_unit(number: int, bit: int) -> Callable[[SimulatedBroker, FakeDisk], None]:
    return lambda _, disk: disk.flip_bit(QUEUE, number * 20 + bit // 8, bit % 8)


def nothing(_: SimulatedBroker, __: FakeDisk) -> None:
    """Leave broker and disk unchanged."""


def place(made: SimulatedBroker, number: int) -> tuple[int, int]:
    queue = made.broker.store.consume_queues.get("Topic", 0)
    assert queue is not None
    unit = queue.unit(number)
    assert unit is not None
    return unit[:2]


def start_pull(made: SimulatedBroker, offset: int, **options: object) -> list[RemotingCommand]:
    answers: list[RemotingCommand] = []
    made.client.start(pull_command(offset, **options), answers.append)  # type: ignore[arg-type]
    return answers


def bodies(*numbers: int) -> list[bytes]:
    return [b"body %d" % number for number in numbers]


@pytest.mark.parametrize("hold_ms", [0, HOLD_MS])
def test_a_damaged_message_is_skipped_and_all_others_delivered(hold_ms: int) -> None:
    made = old_broker(flip_body(2))
    assert code_and_bodies(made.pull(0, hold_ms=hold_ms)) == (0, bodies(0, 1))
    assert code_and_bodies(made.pull(2, hold_ms=hold_ms)) == (0, bodies(3, 4, 5))
    assert made.broker.store.damage
    assert code_and_bodies(made.pull(0)) == (0, bodies(0, 1, 3, 4, 5))


def test_a_damaged_only_message_is_skipped_in_one_answer() -> None:
    made = old_broker(flip_body(0), count=1)
    outcome(made.pull(0, hold_ms=HOLD_MS), 20, "NO_MATCHED_MESSAGE", 1, 0, 1)
    outcome(made.pull(1), 19, "OFFSET_OVERFLOW_ONE", 1, 0, 1)
    fill(made, 1)
    assert code_and_bodies(made.pull(1)) == (0, [b"body"])


@pytest.mark.parametrize("bit", [0, 20, 58, 63, 64, 70, 88, 90, 95, 96, 130, 159])
def test_a_flipped_unit_costs_no_message(bit: int) -> None:
    made = old_broker(flip_unit(3, bit))
    found: list[bytes] = []
    offset = pulls = 0
    while offset < COUNT:
        answer = made.pull(offset)
        code, some = code_and_bodies(answer)
        assert code in (0, 20) and answer.fields
        found, offset, pulls = found + some, int(answer.fields["nextBeginOffset"]), pulls + 1
    assert found == bodies(*range(COUNT))
    assert pulls <= 3
    assert code_and_bodies(made.pull(0)) == (0, bodies(*range(COUNT)))
    assert not made.broker.store.damage


def test_a_flipped_tags_code_hides_no_message_of_the_tag() -> None:
    made = old_broker(flip_unit(2, 159))
    assert code_and_bodies(made.pull(1, expression="A")) == (20, [])
    assert code_and_bodies(made.pull(2, expression="A")) == (0, bodies(2, 4))


def test_a_pull_waits_for_the_scrubber_up_to_its_timeout() -> None:
    scrubber = Silent()
    made = old_broker(flip_body(2), scrubber=scrubber)
    for hold_ms, waits_ms in ((HOLD_MS, HOLD_MS), (0, VERIFY_MS)):
        answers = start_pull(made, 2, hold_ms=hold_ms)
        made.system.advance(waits_ms - 200)
        assert answers == []
        made.system.advance(400)
        outcome(answers[0], 19, "OFFSET_FOUND_NULL", 2, 0, COUNT)
    asked = [(each.topic, each.queue_id, each.queue_offset) for each in scrubber.asked]
    assert asked == [("Topic", 0, 2)] * 2


def test_new_messages_do_not_wake_a_pull_that_waits_for_the_scrubber() -> None:
    scrubber = Silent()
    made = old_broker(flip_body(2), scrubber=scrubber)
    answers = start_pull(made, 2, hold_ms=HOLD_MS)
    made.system.advance(100)
    fill(made, 3)
    made.system.advance(100)
    assert answers == [] and len(scrubber.asked) == 1
    damage = made.broker.store.damage
    offset, size = place(made, 2)
    damage.add(offset, offset + size, "its body")
    scrubber.asked[0].reply_to.tell(UnitVerified("Topic", 0, 2))
    made.system.advance(100)
    assert code_and_bodies(answers[0]) == (0, [*bodies(3, 4, 5), *[b"body"] * 3])


def test_a_verified_unreadable_unit_is_skipped_and_not_verified_again() -> None:
    scrubber = Silent()
    made = old_broker(flip_body(2), scrubber=scrubber)
    answers = start_pull(made, 2, hold_ms=HOLD_MS)
    made.system.advance(100)
    for other in (
        UnitVerified("Topic", 0, 3),
        UnitVerified("Topic", 1, 2),
        UnitVerified("Other", 0, 2),
    ):
        made.system.address("pull_hold").tell(other)
    made.system.advance(100)
    assert answers == []
    scrubber.asked[0].reply_to.tell(UnitVerified("Topic", 0, 2))
    made.system.advance(100)
    assert code_and_bodies(answers[0]) == (0, bodies(3, 4, 5))
    assert len(scrubber.asked) == 1


def test_a_restarted_dispatcher_does_not_delay_a_waiting_pull() -> None:
    scrubber = Silent()
    made = old_broker(flip_body(2), scrubber=scrubber)
    answers = start_pull(made, 2, hold_ms=HOLD_MS)
    for _ in range(3):
        made.system.advance(HOLD_MS / 3 - 100)
        made.system.address("pull_hold").tell(CaughtUp())
        made.system.advance(50)
        assert answers == []
    made.system.advance(300)
    outcome(answers[0], 19, "OFFSET_FOUND_NULL", 2, 0, COUNT)
    assert len(scrubber.asked) == 4


def test_a_stopping_broker_answers_pulls_that_wait_for_the_scrubber() -> None:
    made = old_broker(flip_body(2), scrubber=Silent())
    answers = start_pull(made, 2, hold_ms=HOLD_MS)
    made.system.advance(100)
    made.stop()
    outcome(answers[0], 19, "OFFSET_FOUND_NULL", 2, 0, COUNT)


def test_a_pull_of_a_closed_connection_is_dropped() -> None:
    scrubber = Silent()
    made = old_broker(flip_body(2), scrubber=scrubber)
    answers = start_pull(made, 2, hold_ms=HOLD_MS)
    made.system.advance(100)
    made.client.close()
    made.system.advance(HOLD_MS)
    assert answers == []
    made.client = made.new_client(7)


def test_an_intact_store_causes_no_verification() -> None:
    scrubber = Silent()
    made = old_broker(nothing, scrubber=scrubber)
    assert code_and_bodies(made.pull(0)) == (0, bodies(*range(COUNT)))
    assert code_and_bodies(made.pull(0, expression="B")) == (0, bodies(1, 3, 5))
    assert scrubber.asked == []
    assert made.broker.pull_stats.doubt_count == 0


def test_time_queries_work_despite_damage() -> None:
    made = old_broker(flip_unit(0, 20))
    fields = {"topic": "Topic", "queueId": "0", "timestamp": "0"}
    answer = made.ask(RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))
    assert answer.fields == {"offset": "1"}
    answer = made.ask(RemotingCommand(RequestCode.GET_EARLIEST_MSG_STORETIME, fields))
    assert int((answer.fields or {})["timestamp"]) > 0
