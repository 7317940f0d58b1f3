"""The heads of answers to pulls, filled into a template instead of encoded field by field.

An answer to a pull has the same four fields whatever it says; only their numbers change. The head
for given lengths of its decimal numbers is made once by the general encoder, its numbers replaced
by holes, and filled by one bytes format.
"""

import re
from typing import Final

from protocol.codes import SerializeType
from protocol.command import RemotingCommand
from protocol.frame import encode_head

_NAMES: Final = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
_DIGIT: Final = "0"
_LENGTH_BYTES: Final = 4
_BINARY_OPAQUE_AT: Final = 13
"""In the frame: behind its length and mark, code, language and version."""
_TEMPLATES_MAX: Final = 4096
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)

_Key = tuple[int, int, str, int, int, int, int, int]


class PullReplies:
    """Makes the heads of one broker's answers. Not shared between threads."""

    def __init__(self) -> None:
        self._templates: dict[_Key, tuple[int, bytes, tuple[int, ...]]] = {}

    def head(
        self,
        request: RemotingCommand,
        code: int,
        remark: str,
        suggested: int,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        body_bytes: int,
    ) -> bytes:
        """The frame up to its body of `body_bytes`; `remark` is one of a few."""
        is_binary = request.serialize_type == _ROCKETMQ
        values = (
            b"%d" % suggested,
            b"%d" % next_offset,
            b"%d" % min_offset,
            b"%d" % max_offset,
            request.opaque.to_bytes(4, signed=True) if is_binary else b"%d" % request.opaque,
        )
        a, b, c, d, e = values
        key = (request.serialize_type, code, remark, len(a), len(b), len(c), len(d), len(e))
        made = self._templates.get(key) or self._make(key)
        rest_bytes, template, (p, q, r, s, t) = made
        return template % (
            (rest_bytes + body_bytes).to_bytes(_LENGTH_BYTES),
            values[p],
            values[q],
            values[r],
            values[s],
            values[t],
        )

    def _make(self, key: _Key) -> tuple[int, bytes, tuple[int, ...]]:
        """Length behind the length field, the template, and which value goes into which hole."""
        kind, code, remark, *lengths, opaque_bytes = key
        fields = {name: _DIGIT * length for name, length in zip(_NAMES, lengths, strict=True)}
        is_binary = kind == _ROCKETMQ
        opaque_text = b"1" * opaque_bytes
        sample = RemotingCommand(0, opaque=0 if is_binary else int(opaque_text))
        sample.serialize_type = kind
        head = encode_head(sample.answer(code, fields, remark=remark), 0)
        holes = [(0, _LENGTH_BYTES, -1)]
        for number, (name, length) in enumerate(zip(_NAMES, lengths, strict=True)):
            between = rb"...." if is_binary else rb'":"'
            digits = _DIGIT.encode() * length
            found = re.search(name.encode() + between + digits, head, re.DOTALL)
            assert found is not None
            holes.append((found.end() - length, found.end(), number))
        opaque_at = _BINARY_OPAQUE_AT
        if not is_binary:
            opaque_at = head.index(b'"opaque":') + len(b'"opaque":')
        holes.append((opaque_at, opaque_at + opaque_bytes, len(_NAMES)))
        holes.sort()
        pieces, position = [], 0
        for start, end, _ in holes:
            pieces.append(head[position:start].replace(b"%", b"%%") + b"%b")
            position = end
        pieces.append(head[position:].replace(b"%", b"%%"))
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        order = tuple(number for _, _, number in holes[1:])
        made = self._templates[key] = len(head) - _LENGTH_BYTES, b"".join(pieces), order
        return made
