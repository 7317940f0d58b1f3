"""Groups that filter by expressions, come and go, and change their minds; a broker that dies.

Whatever has happened, a group finds exactly those of all messages that match its expression.
"""

from dataclasses import replace
from random import Random

import pytest

from protocol.codes import ResponseCode
from protocol.message import decode_records
from protocol.properties import format as properties_text
from protocol.properties import parse
from protocol.sql92 import compile_filter
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from troupemq.testing.fake_disk import FakeDisk

STEPS = 60
GROUPS = ("one", "two", "three")
EXPRESSIONS = (
    "a > 5",
    "a <= 5",
    "colour = 'red' OR a = 3",
    "colour IS NULL",
    "TAGS IN ('x', 'y') AND NOT (a BETWEEN 2 AND 4)",
    "colour <> 'red'",
)
Expressions = dict[str, str]


def send_some(made: SimulatedBroker, random: Random) -> None:
    for _ in range(random.randrange(20)):
        chosen = {
            "a": str(random.randrange(10)),
            "colour": random.choice(("red", "green")),
            "TAGS": random.choice("xyz"),
        }
        kept = {name: value for name, value in chosen.items() if random.random() < 0.7}
        made.start_send(b"body", properties=properties_text(kept).decode())
        if random.random() < 0.3:
            made.system.advance(random.choice((0.5, 5)))
    made.system.drain()


def pulled(made: SimulatedBroker, group: str, version: int) -> list[int]:
    """The queue offsets that the group finds."""
    offset, found = 0, list[int]()
    while True:
        answer = made.pull(offset, expression=None, consumer_group=group, sub_version=version)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        assert answer.fields is not None
        found += [each.queue_offset for each in decode_records(bytes(answer.body or b""))]
        offset = int(answer.fields["nextBeginOffset"])


def check(made: SimulatedBroker, known: Expressions, version: int) -> None:
    """Every group says that it is there, and finds what a look at all finds."""
    everything = made.messages()
    for group, expression in known.items():
        made.subscribe(expression, kind="SQL92", group=group, version=version)
        matches = compile_filter(expression)
        wanted = [r.queue_offset for r in everything if matches(parse(r.properties))]
        assert pulled(made, group, version) == wanted, (group, expression)


@pytest.mark.trial(short=1, long=300)
@pytest.mark.parametrize("with_bits", [True, False])
def test_a_group_finds_exactly_the_matching_messages(seed: int, with_bits: bool) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    disk = FakeDisk()
    made = SimulatedBroker(
        seed,
        disk,
        replace(BROKER, property_filter_enable=True, calc_filter_bit_map_enable=with_bits),
        replace(STORE, enable_consume_queue_ext=with_bits),
    )
    made.make_topic()
    made.system.advance(2_000)  # the topic is in its file
    known: Expressions = {}
    for version in range(1, STEPS):
        action = random.random()
        if action < 0.45:
            send_some(made, random)
        elif action < 0.7:
            group = random.choice(GROUPS)
            known[group] = random.choice(EXPRESSIONS)
            made.subscribe(known[group], kind="SQL92", group=group, version=version)
        elif action < 0.76:
            made.client.close()
            made.client = made.new_client(version)
        elif action < 0.82:
            made.crash()
            made.disk = disk = disk.killed()
            made.start()
        elif action < 0.88:
            made.stop()
            made.start_ms = made.system.clock.now_ms()
            made.start()
        elif action < 0.94:
            made.system.advance(random.choice((1, 100, 12_000)))
        else:
            check(made, known, version)
    check(made, known, STEPS)
