"""The cache of send heads that a port's connections share is bounded and changes no send."""

from random import Random

import pytest

from protocol.codes import SerializeType
from protocol.send_values import HEAD_BYTES_MAX, HEADS_BYTES_MAX, HEADS_MAX, Heads, SendShape
from protocol.send_wire import BINARY_E, SendDecoder
from tests.protocol.test_send_wire import KINDS, fast, frame_of, same
from tests.support.reachable import reachable_bytes

SHAPE = SendShape(310, 399, 0, "group", "Topic", b"Topic", "TBW102", 4)


def test_cached_heads_are_found() -> None:
    heads = Heads()
    assert heads.get(b"head") is None
    assert heads.keep(b"head", 4, SHAPE)
    assert heads.get(b"head") is SHAPE


def test_over_the_head_limit_the_cache_is_cleared() -> None:
    heads = Heads()
    for number in range(HEADS_MAX + 1):
        assert heads.keep(b"%d" % number, 5, SHAPE)
    assert heads.get(b"0") is None
    assert heads.get(b"%d" % HEADS_MAX) is SHAPE


def test_over_the_byte_limit_the_cache_is_cleared() -> None:
    heads, fit = Heads(), HEADS_BYTES_MAX // HEAD_BYTES_MAX
    names = [b"%*d" % (HEAD_BYTES_MAX, number) for number in range(fit + 1)]
    for name in names[:fit]:
        assert heads.keep(name, len(name), SHAPE)
    assert heads.get(names[0]) is SHAPE
    assert heads.keep(names[fit], HEAD_BYTES_MAX, SHAPE)
    assert heads.get(names[0]) is None
    assert heads.get(names[fit]) is SHAPE
    assert reachable_bytes(heads) < HEADS_BYTES_MAX


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_cache_of_long_tails_is_bounded(kind: SerializeType) -> None:
    decoder, long = SendDecoder(), "x" * (100 << 10)
    for number in range(20):
        same(frame_of(kind, {"n": f"{number}{long}"}), decoder)
    assert reachable_bytes(decoder) < 5 * len(long)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_too_long_head_is_decoded_generally_and_not_cached(kind: SerializeType) -> None:
    heads = Heads()
    decoder = SendDecoder(heads)
    before = reachable_bytes(heads)
    for number in range(3):
        assert fast(frame_of(kind, {"a": f"{number}" + "g" * HEAD_BYTES_MAX}), decoder) is None
    assert reachable_bytes(heads) == before
    assert same(frame_of(kind), decoder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_all_connections_of_a_port_share_shapes(kind: SerializeType) -> None:
    heads = Heads()
    one, other = (fast(frame_of(kind), SendDecoder(heads)) for _ in range(2))
    newer = fast(frame_of(kind, version=401), SendDecoder(heads))
    again = fast(frame_of(kind), SendDecoder(heads))
    assert one and other and newer and again
    assert one.shape is other.shape is again.shape is not newer.shape
    assert newer.shape.version == 401


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_sends_to_many_topics_in_any_order_are_decoded_correctly(kind: SerializeType) -> None:
    """Whether or not the head was learnt, by this connection or by another one."""
    random, heads = Random(7), Heads()
    known = [SendDecoder(heads), SendDecoder(heads)]
    topics = ["T", "Topic", "Topid", "Topic" * 20, BINARY_E.decode(), f"T{BINARY_E.decode()}"]
    for _ in range(600):
        fields = {
            "a": random.choice(("group", "groups")),
            "b": random.choice(topics if kind == SerializeType.ROCKETMQ else topics[:4]),
            "d": random.choice(("4", "16")),
            "e": random.choice(("-1", "0", "7", "12", "1023", "1024", "", "x")),
            "f": random.choice(("0", "0", "16")),
            "g": random.choice(("1700000000000", "1", "1234567890123x")),
            "h": random.choice(("0", "0", "-1")),
        }
        options = {"code": random.choice((310, 320)), "version": random.choice((399, 401))}
        frame = frame_of(kind, fields, **options)
        taken = {same(frame, decoder) for decoder in (random.choice(known), SendDecoder())}
        assert len(taken) == 1, frame
