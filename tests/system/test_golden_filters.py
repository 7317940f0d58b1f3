"""A store with filter bits that the original wrote: our pulls find by SQL92 what must be found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.message import decode_records
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from tests.support.brokers import BROKER, SimulatedBroker, pull_command
from tests.support.golden import manifest, store

TOPIC = "GS_Sql"
AFTERWARDS_MS = 1_795_200_000_000
Properties = dict[str, str]

WANTED: dict[str, Callable[[Properties], bool]] = {
    "GS_CGsql0": lambda p: "a" in p and int(p["a"]) > 5,
    "GS_CGsql1": lambda p: "a" in p and int(p["a"]) <= 5 and "color" in p,
    "GS_CGsql2": lambda p: p.get("color") == "red" or ("a" in p and 2 <= int(p["a"]) <= 3),
}
"""The groups' expressions, told in another way."""
EXPRESSIONS = {
    "GS_CGsql0": "a > 5",
    "GS_CGsql1": "a <= 5 AND color IS NOT NULL",
    "GS_CGsql2": "color = 'red' OR a BETWEEN 2 AND 3",
}


def broker_on(root: Path, *, ext: bool) -> SimulatedBroker:
    made_of = StoreConfig(
        root=str(root),
        commit_log_file_bytes=65_536,
        consume_queue_file_bytes=6_000,
        max_hash_slots=64,
        max_index_entries=200,
        enable_consume_queue_ext=ext,
        consume_queue_ext_file_bytes=8_192,
    )
    config = replace(BROKER, property_filter_enable=True, calc_filter_bit_map_enable=ext)
    return SimulatedBroker(
        1, RealDisk(), config=config, store_config=made_of, start_ms=AFTERWARDS_MS
    )


def expected(group: str) -> list[int]:
    """The queue offsets of what the group wants, by what the original's client was given."""
    messages = manifest("ext")["officialClient"]["messages"]
    return [
        message["queueOffset"]
        for message in messages
        if message["topic"] == TOPIC and WANTED[group](message["properties"])
    ]


def pulled(made: SimulatedBroker, group: str, expression: str | None) -> list[int]:
    """Return the messages that the group finds, by its own expression or a given one."""
    offset, found = 0, list[int]()
    kind = "TAG" if expression is None else "SQL92"
    while True:
        command = pull_command(
            offset,
            topic=TOPIC,
            consumer_group=group,
            expression=expression,
            expression_type=kind,
        )
        answer = made.ask(command)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer
        assert answer.fields is not None
        found += [each.queue_offset for each in decode_records(bytes(answer.body or b""))]
        offset = int(answer.fields["nextBeginOffset"])


@pytest.mark.parametrize("ext", [True, False])
@pytest.mark.parametrize("group", WANTED)
def test_every_group_of_the_original_finds_its_messages(
    group: str, ext: bool, tmp_path: Path
) -> None:
    made = broker_on(store("ext", tmp_path), ext=ext)
    assert len(made.broker.tables.filters.value) == 3, "its consumerFilter.json is taken"
    made.subscribe(EXPRESSIONS[group], topic=TOPIC, group=group, version=1 << 62, kind="SQL92")
    wanted = expected(group)
    assert 0 < len(wanted) < 120
    assert pulled(made, group, None) == wanted
    assert pulled(made, group, EXPRESSIONS[group]) == wanted


def test_the_originals_bit_maps_decide_without_reading_records(tmp_path: Path) -> None:
    """Taken as if they were of another group's expression, they hide what this one would find."""
    made = broker_on(store("ext", tmp_path), ext=True)
    group = "GS_CGsql0"
    made.subscribe(EXPRESSIONS[group], topic=TOPIC, group=group, version=1 << 62, kind="SQL92")
    filters = made.broker.tables.filters.value.copy()
    one, other = filters.get(TOPIC, group), filters.get(TOPIC, "GS_CGsql1")
    assert one is not None and other is not None
    filters._put(replace(one, positions=other.positions))
    made.broker.tables.filters.value = filters
    found = pulled(made, group, None)
    assert set(found) < set(expected(group)), "no number is above 5 and below it"


def test_the_saved_filter_file_keeps_the_originals_content(tmp_path: Path) -> None:
    root = store("ext", tmp_path)
    made = broker_on(root, ext=True)
    before = {each.group: each for each in made.broker.tables.filters.value}
    beat = RemotingCommand(RequestCode.HEART_BEAT, body=b'{"clientID":"c"}')
    assert made.ask(beat).code == 0
    made.stop()
    made.start()
    assert {each.group: each for each in made.broker.tables.filters.value} == before
    assert len(before) == 3
