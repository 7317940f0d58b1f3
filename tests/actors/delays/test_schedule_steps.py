"""A busy delay level delivers in steps: never early, and what is due together comes together."""

from dataclasses import replace

from actors.delays import schedule
from storage.reading.delayed import BATCH_COUNT
from tests.support.brokers import STORE, SimulatedBroker


def broker() -> SimulatedBroker:
    made = SimulatedBroker(1, store_config=replace(STORE, message_delay_level="1s"))
    made.make_topic()
    return made


def delayed(made: SimulatedBroker, body: bytes) -> None:
    assert made.send(body, properties="DELAY\x011").code == 0


def test_a_busy_level_delivers_in_steps_and_nothing_before_its_time() -> None:
    made = broker()
    for number in range(100):
        delayed(made, b"%d" % number)
        made.system.advance(1)
    made.system.advance(2_000)
    delayed(made, b"alone")
    made.system.advance(2_000)
    assert [record.body for record in made.messages(queue_id=0)] == [
        *(b"%d" % number for number in range(100)),
        b"alone",
    ]
    waited = [record for record in made.records() if record.topic == "SCHEDULE_TOPIC_XXXX"]
    at = [record.store_timestamp for record in made.messages()]
    late = [came - each.store_timestamp - 1000 for came, each in zip(at, waited, strict=True)]
    assert min(late) == 0 and max(late) <= schedule.STEP_MS
    assert len({*at[:-1]}) <= 100 / schedule.STEP_MS + 2
    assert late[-1] == 0  # nothing was delivered just before


def test_messages_due_at_once_are_delivered_at_once_in_several_batches() -> None:
    made = broker()
    for number in range(2 * BATCH_COUNT + 1):
        delayed(made, b"%d" % number)
    made.system.advance(2_000)
    assert len({record.store_timestamp for record in made.messages()}) == 1
