"""What a connection remembers of requests is short, however long the requests are."""

import pytest

from protocol.codes import SerializeType
from protocol.pull_wire import PullDecoder
from protocol.send_wire import SendDecoder
from tests.protocol import test_pull_wire, test_send_wire
from tests.support.reachable import reachable_bytes

LONG = "x" * (100 << 10)


@pytest.mark.parametrize("kind", test_send_wire.KINDS, ids=lambda kind: kind.name)
def test_of_sends(kind: SerializeType) -> None:
    decoder = SendDecoder()
    for number in range(20):
        frame = test_send_wire.frame_of(kind, {"n": f"{number}{LONG}"})
        assert test_send_wire.same(frame, decoder)
    assert reachable_bytes(decoder) < 5 * len(LONG)


@pytest.mark.parametrize("kind", test_pull_wire.KINDS, ids=lambda kind: kind.name)
def test_of_pulls(kind: SerializeType) -> None:
    decoder = PullDecoder()
    for number in range(20):
        frame = test_pull_wire.frame_of(kind, {"subscription": f"{number}{LONG}"})
        assert test_pull_wire.same(frame, decoder)
    assert reachable_bytes(decoder) < 5 * len(LONG)
