"""Bits of subscriptions: Murmur3 and the positions that the original has written."""

import pytest

from protocol.bloom import BloomFilter, murmur3_first_64


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", 0x0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"hello, world", 0x342FAC623A5EBC8E),
        (b"19 Jan 2038 at 3:14:07 AM", 0xB89E5988B737AFFC),
        (b"The quick brown fox jumps over the lazy dog.", 0xCD99481F9EE902C9),
    ],
)
def test_murmur3_of_known_texts(data: bytes, wanted: int) -> None:
    assert murmur3_first_64(data) == wanted


def test_bit_positions_equal_the_captured_ones() -> None:
    bloom = BloomFilter.of()
    assert (bloom.bit_count, bloom.hash_count) == (112, 3)
    assert bloom.positions("GS_CGsql0", "GS_Sql") == (55, 87, 7)
    assert bloom.positions("GS_CGsql1", "GS_Sql") == (68, 8, 85)
    assert bloom.positions("GS_CGsql2", "GS_Sql") == (76, 24, 18)


def test_bit_positions_for_other_settings_equal_the_originals() -> None:
    name = "grüppe", "topic with 32 chars.........."
    assert BloomFilter.of().positions(*name) == (95, 40, 79)
    assert BloomFilter.of(10, 128).positions(*name) == (543, 432, 135, 224)
    assert BloomFilter.of(1, 1).positions(*name) == (15, 8, 15, 8, 15, 7, 0)


def test_bits_are_counted_from_the_least_significant() -> None:
    assert BloomFilter(16, 1).bit_map((0, 9)) == bytes((0b1, 0b10))
    assert BloomFilter(16, 1).bit_map(()) == bytes(2)


@pytest.mark.parametrize(
    ("error_percent", "count", "bits", "hashes"), [(10, 128, 616, 4), (1, 1, 16, 7), (99, 1, 8, 1)]
)
def test_sizes_follow_from_error_rate_and_count(
    error_percent: int, count: int, bits: int, hashes: int
) -> None:
    assert BloomFilter.of(error_percent, count) == BloomFilter(bits, hashes)


@pytest.mark.parametrize(("error_percent", "count"), [(0, 1), (100, 1), (20, 0)])
def test_impossible_filters_are_refused(error_percent: int, count: int) -> None:
    with pytest.raises(ValueError):
        BloomFilter.of(error_percent, count)
