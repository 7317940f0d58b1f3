"""The filters of groups: their file as the original writes it, and the bits of each message."""

from pathlib import Path
from struct import Struct

import pytest

from protocol.bloom import BloomFilter
from storage.dispatching.dispatch import entry_of
from storage.tables import consumer_filters
from storage.tables.consumer_filters import (
    ConsumerFilters,
    FilterBitMaps,
    format_filters,
    parse_filters,
)
from tests.storage.derived import entry, golden_heads
from tests.support.golden import manifest, store

BLOOM = BloomFilter.of()
EXT_UNIT = Struct(">hqqh")  # size, tags code, store timestamp, bytes of the bit map
NOW_MS = 1_700_000_000_000


def filters(*groups: str) -> ConsumerFilters:
    """One filter `a > 5` of the topic T for each of these groups."""
    made = ConsumerFilters(BLOOM)
    for group in groups:
        assert made.register("T", group, "a > 5", "SQL92", 1, NOW_MS)
    return made


def test_the_originals_file_is_rewritten_byte_for_byte(tmp_path: Path) -> None:
    text = (store("ext", tmp_path, "config") / "config" / "consumerFilter.json").read_text()
    parsed = parse_filters(text, BLOOM)
    assert len(parsed) == 3
    assert format_filters(parsed) == text
    for each in parsed:
        assert each.positions == BLOOM.positions(each.group, each.topic)
        assert each.compiled() is not None
        assert each.is_dead


def test_every_bit_map_of_the_original_follows_from_the_records(tmp_path: Path) -> None:
    root = store("ext", tmp_path)
    text = (root / "config" / "consumerFilter.json").read_text()
    parsed = parse_filters(text, BLOOM)
    ext = (root / "consumequeue_ext" / "GS_Sql" / "0" / f"{0:020d}").read_bytes()
    heads = {head.physical_offset: head for head in golden_heads(root)}
    units = [
        unit
        for name, units in manifest("ext")["consumeQueues"].items()
        for unit in units
        if name == "GS_Sql/0"
    ]
    kinds = set()
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    bit_maps = FilterBitMaps(
        lambda: parsed, lambda offset, size: memoryview(log)[offset : offset + size]
    )
    for _, physical_offset, _, address in units:
        position = address + (1 << 63)
        size, _, _, length = EXT_UNIT.unpack_from(ext, position)
        assert size == EXT_UNIT.size + length
        found = ext[position + EXT_UNIT.size : position + size]
        assert parsed.bit_map("GS_Sql", heads[physical_offset].properties) == found
        assert bit_maps(entry_of(heads[physical_offset], ())) == found
        kinds.add(found)
    assert len(kinds) > 2


def test_an_unreadable_record_has_no_bit_map() -> None:
    made = filters("G")
    bit_maps = FilterBitMaps(lambda: made, lambda offset, size: memoryview(bytes(size)))
    assert bit_maps(entry(1, topic=b"T")) is None
    assert bit_maps(entry(1, topic=b"Other")) is None


def test_a_topic_without_filters_has_no_bit_map() -> None:
    assert filters("G").bit_map("Other", b"a\x017") is None
    assert filters("G").bit_map("T", b"a\x011") == bytes(14)


def test_an_expression_that_cannot_be_evaluated_sets_no_bits() -> None:
    made = filters("G", "H")
    made.register("T", "H", "b = 'x'", "SQL92", 2, NOW_MS)
    wanted = BLOOM.bit_map(BLOOM.positions("H", "T"))
    assert made.bit_map("T", b"a\x01word\x02b\x01x") == wanted


@pytest.mark.parametrize(
    ("kind", "expression"), [("TAG", "a"), ("", "a"), ("SQL92", ""), ("SQL92", "a >"), ("X", "a")]
)
def test_only_sql_filters_are_registered(kind: str, expression: str) -> None:
    made = ConsumerFilters(BLOOM)
    assert not made.register("T", "G", expression, kind, 1, NOW_MS)
    assert made.get("T", "G") is None


@pytest.mark.parametrize("version", [-(1 << 63), (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 1 << 70])
def test_any_stored_version_number_is_readable(version: int) -> None:
    made = filters("G")
    assert made.register("T", "H", "a > 5", "SQL92", version, NOW_MS) == (
        -1 << 63 <= version < 1 << 63
    )
    assert [each.group for each in parse_filters(format_filters(made), BLOOM)] == [
        each.group for each in made
    ]


def test_a_newer_version_replaces_and_an_older_changes_nothing() -> None:
    made = filters("G")
    assert made.register("T", "G", "a > 6", "SQL92", 3, NOW_MS + 1)
    assert not made.register("T", "G", "a > 7", "SQL92", 2, NOW_MS + 2)
    found = made.get("T", "G")
    assert found is not None
    assert (found.expression, found.born_ms, found.client_version) == ("a > 6", NOW_MS + 1, 3)
    assert made.register("T", "G", "a > 6", "SQL92", 4, NOW_MS + 3)
    again = made.get("T", "G")
    assert again is not None
    assert (again.born_ms, again.client_version) == (NOW_MS + 1, 4)
    assert not made.register("T", "G", "a >", "SQL92", 5, NOW_MS + 4)
    assert made.get("T", "G") is None


def test_a_group_that_comes_back_is_alive_again() -> None:
    made = filters("G", "H")
    list(made.unregister("G", NOW_MS + 10))
    dead, alive = made.get("T", "G"), made.get("T", "H")
    assert dead is not None and alive is not None
    assert dead.is_dead and not alive.is_dead
    assert made.register("T", "G", "a > 5", "SQL92", 1, NOW_MS + 20)
    again = made.get("T", "G")
    assert again is not None and not again.is_dead and again.born_ms == NOW_MS


def test_an_older_version_is_accepted_after_the_group_was_offline() -> None:
    """The group's only client was restarted with another expression and an earlier clock."""
    made = filters("G")
    made.register("T", "G", "a > 5", "SQL92", 9, NOW_MS + 1)
    list(made.unregister("G", NOW_MS + 10))
    assert made.register("T", "G", "a > 6", "SQL92", 8, NOW_MS + 20)
    again = made.get("T", "G")
    assert again is not None and not again.is_dead
    assert (again.expression, again.client_version) == ("a > 6", 8)


def test_a_topic_that_is_no_longer_subscribed_is_dead_for_the_group() -> None:
    made = filters("G")
    made.register("U", "G", "a > 5", "SQL92", 1, NOW_MS)
    list(made.keep_only("G", ["U"], NOW_MS + 1))
    assert [each.topic for each in made if each.is_dead] == ["T"]


def test_a_filter_dead_for_a_day_is_dropped() -> None:
    made = filters("G", "H")
    list(made.unregister("G", NOW_MS))
    assert made.forget_long_dead(NOW_MS + 86_399_999) == 0
    assert made.forget_long_dead(NOW_MS + 86_400_000) == 1
    assert [each.group for each in made] == ["H"]
    list(made.unregister("H", NOW_MS))
    made.forget_long_dead(NOW_MS + 86_400_000)
    assert format_filters(made) == '{\n\t"filterDataByTopic":{}\n}'


def test_many_dead_filters_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 that were dead for a day took 80 ms at once."""
    monkeypatch.setattr(consumer_filters, "FORGOTTEN_MAX", 2)
    made = filters(*(f"G{number}" for number in range(5)))
    for number in range(5):
        assert len([*made.unregister(f"G{number}", NOW_MS)]) == 1
    assert [made.forget_long_dead(NOW_MS, 0) for _ in range(4)] == [2, 2, 1, 0]


def test_a_new_filter_takes_the_place_of_the_longest_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filters, "FILTERS_MAX", 3)
    made = filters("G", "H", "I")
    list(made.unregister("H", NOW_MS + 1))
    list(made.unregister("G", NOW_MS + 2))
    assert made.register("U", "J", "a > 5", "SQL92", 1, NOW_MS + 3) and not made.is_full
    assert [each.group for each in made] == ["G", "I", "J"] and not made.has_group("H")
    assert made.register("T", "G", "a > 6", "SQL92", 2, NOW_MS + 4), "it has its place"
    assert made.is_full and not made.register("T", "K", "a > 5", "SQL92", 1, NOW_MS + 5)
    assert len(made) == 3 and made.get("T", "K") is None and not made.has_group("K")


def test_a_copy_is_not_changed_with_its_table() -> None:
    made = filters("G", "H")
    copies = made.copy(), made.copy().copy()
    made.register("T", "G", "a > 6", "SQL92", 2, NOW_MS)
    made.register("U", "G", "a > 6", "SQL92", 2, NOW_MS)
    list(made.unregister("H", NOW_MS))
    assert made.forget_long_dead(NOW_MS, 0) == 1
    for copy in copies:
        assert [(each.topic, each.expression) for each in copy] == [("T", "a > 5")] * 2
        assert len(copy) == 2 and copy.has_group("H") and not copy.of_topic("U")
        list(copy.unregister("G", NOW_MS + 9))
        assert copy.forget_long_dead(NOW_MS + 9, 0) == 1 and not copy.has_group("G")
    assert len(made) == 2 and not made.has_group("H")
    assert {each.topic: each.is_dead for each in made} == {"T": False, "U": False}


def test_after_a_start_filters_are_dead_until_registered_again() -> None:
    text = format_filters(filters("G"))
    assert [each.dead_ms for each in parse_filters(text, BLOOM).loaded(NOW_MS + 60_000)] == [
        NOW_MS + 30_000
    ]
    assert [each.dead_ms for each in parse_filters(text, BLOOM).loaded(NOW_MS)] == [NOW_MS]


def test_filters_with_another_bit_map_size_are_not_loaded() -> None:
    text = format_filters(filters("G"))
    assert len(parse_filters(text, BloomFilter.of(10, 32)).loaded(NOW_MS)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"filterDataByTopic":{"T":1}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":1}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bornTime":"x"}}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":'
        '{"bitNum":8,"bitPos":[8]}}}}}}',
    ],
)
def test_an_invalid_filter_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_filters(text, BLOOM)
