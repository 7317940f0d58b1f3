"""Filter decisions from queue units and extension units."""

from dataclasses import dataclass

import pytest

from storage.queues.message_filter import BloomBits, MessageFilter, low_32_bits

ADDRESS = -(1 << 63) + 46
TAG = 65


@dataclass
class Unit:
    """Extension data of one message."""

    tags_code: int = TAG
    store_timestamp: int = 1000
    bitmap: bytes | None = None


class Queue:
    """Queue with a single extension unit."""

    def __init__(self, unit: Unit | None = None) -> None:
        self.unit = unit

    def ext(self, address: int) -> Unit | None:
        assert address == ADDRESS
        return self.unit


def wants(wanted: MessageFilter, code: int, unit: Unit | None = None) -> bool:
    return wanted.wants_unit(code, Queue(unit))


def test_an_empty_filter_matches_every_message() -> None:
    assert wants(MessageFilter(), 7)
    assert wants(MessageFilter(), ADDRESS, Unit())


def test_an_extension_address_yields_the_messages_tag() -> None:
    assert wants(MessageFilter({TAG}), ADDRESS, Unit(TAG))
    assert not wants(MessageFilter({TAG}), ADDRESS, Unit(TAG + 1))


def test_a_unit_with_an_invalid_extension_address_matches() -> None:
    assert wants(MessageFilter({TAG}), ADDRESS)
    assert wants(MessageFilter({TAG}, BloomBits(8, (1,))), ADDRESS)


@pytest.mark.parametrize("code, is_address", [(-(1 << 31) - 1, True), (-(1 << 31), False)])
def test_extension_addresses_are_distinguished_from_tag_codes(code: int, is_address: bool) -> None:
    asked: list[int] = []

    class Asked:
        def ext(self, address: int) -> None:
            asked.append(address)

    assert MessageFilter({TAG}).wants_unit(code, Asked()) is is_address
    assert asked == ([code] if is_address else [])


def test_the_low_32_bits_of_a_long_tag_code_are_compared() -> None:
    assert low_32_bits((7 << 32) | 5) == 5
    assert low_32_bits((7 << 32) | 0xFFFFFFFE) == -2
    assert low_32_bits(-(1 << 31)) == -(1 << 31)
    assert wants(MessageFilter({-2}), (7 << 32) | 0xFFFFFFFE)
    assert wants(MessageFilter({5}), ADDRESS, Unit((3 << 32) | 5))


BITS = BloomBits(16, (1, 9, 15), since_ms=500)


@pytest.mark.parametrize(
    "bitmap, matches",
    [
        (bytes((0b10, 0b10000010)), True),
        (b"\xff\xff", True),
        (bytes((0b10, 0b10)), False),
        (bytes((0b00, 0b10000010)), False),
        (b"\0\0", False),
        (None, True),
        (b"\0", True),
        (bytes(3), True),
    ],
)
def test_a_bit_map_with_a_missing_bit_does_not_match(bitmap: bytes | None, matches: bool) -> None:
    assert wants(MessageFilter(bits=BITS), ADDRESS, Unit(bitmap=bitmap)) is matches


def test_messages_older_than_the_subscription_and_those_without_extension_may_match() -> None:
    assert wants(MessageFilter(bits=BITS), ADDRESS, Unit(store_timestamp=500, bitmap=b"\0\0"))
    assert not wants(MessageFilter(bits=BITS), ADDRESS, Unit(store_timestamp=501, bitmap=b"\0\0"))
    assert wants(MessageFilter(bits=BITS), 7)


def test_tag_and_bits_must_both_agree() -> None:
    both = MessageFilter({TAG}, BITS)
    assert wants(both, ADDRESS, Unit(TAG, bitmap=b"\xff\xff"))
    assert not wants(both, ADDRESS, Unit(TAG, bitmap=b"\0\0"))
    assert not wants(both, ADDRESS, Unit(TAG + 1, bitmap=b"\xff\xff"))
    assert wants(both, TAG)
    assert not wants(both, TAG + 1)
