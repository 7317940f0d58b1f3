"""The heads of answers to pulls are those that the general encoder makes."""

from itertools import product

import pytest

from protocol.codes import ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.frame import encode_head
from protocol.pull_reply import PullReplies

NUMBERS = (0, 7, 10, 12_345_678_901, (1 << 63) - 1, -1)


def plain_head(
    request: RemotingCommand, code: int, remark: str, values: tuple[int, ...], body_bytes: int
) -> bytes:
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    fields = {name: str(value) for name, value in zip(names, values, strict=True)}
    return encode_head(request.answer(code, fields, remark=remark), body_bytes)


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize(
    "code, remark",
    [
        (ResponseCode.SUCCESS, "FOUND"),
        (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        (ResponseCode.SUCCESS, '100% "%b" of 0000'),
    ],
)
def test_every_head_is_that_of_the_general_encoder(
    kind: SerializeType, code: ResponseCode, remark: str
) -> None:
    replies = PullReplies()
    for opaque in (0, 5, 111, -3, -(1 << 31), (1 << 31) - 1):
        request = RemotingCommand(11, opaque=opaque, serialize_type=kind)
        for low, high in product(NUMBERS, NUMBERS):
            for values in ((0, low, high, low), (1, high, low, high)):
                wanted = plain_head(request, code, remark, values, 300)
                for _ in range(2):  # the second time out of the template
                    assert replies.head(request, code, remark, *values, 300) == wanted


def test_the_length_of_the_frame_counts_the_body() -> None:
    replies = PullReplies()
    request = RemotingCommand(11, opaque=1)
    for body_bytes in (0, 1, 256 << 10):
        head = replies.head(request, 0, "FOUND", 0, 1, 0, 1, body_bytes)
        assert int.from_bytes(head[:4]) == len(head) - 4 + body_bytes


def test_templates_do_not_grow_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.pull_reply._TEMPLATES_MAX", 3)
    replies = PullReplies()
    for digits in range(1, 12):
        request = RemotingCommand(11, opaque=0)
        values = (0, 10**digits, 0, 10**digits)
        wanted = plain_head(request, 0, "FOUND", values, 0)
        assert replies.head(request, 0, "FOUND", *values, 0) == wanted
