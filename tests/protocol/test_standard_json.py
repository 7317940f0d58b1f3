"""Standard JSON with orjson and without it: the same values, the same texts, the same refusals."""

import subprocess
import sys
from random import Random
from typing import Any

import pytest

from protocol.standard_json import dumps, library_dumps, library_loads, loads
from tests.support.golden import REPOSITORY

TEXTS = [
    b'{"code":0,"extFields":{"a":"b\\u0000\\ud83d\\ude80","c":null},"flag":1,"version":407}',
    b"[0,-0,-0.0,1E5,0.1e-500,1.7976931348623159e307,true,false,null]",
    b"[18446744073709551615,18446744073709551616,-9223372036854775808,-9223372036854775809]",
    b'{"a":1,"a":2}',
    b" \t\r\n{} \n",
    '"\x7f\u2028é\U0001f680"'.encode(),
    b"[" * 200 + b"]" * 200,
    b"",
    b" ",
    b"NaN",
    b"[Infinity]",
    b"[-Infinity]",
    b"1e400",
    b"1" * 400,
    b"1" * 5000,
    b"01",
    b"1.",
    b"+1",
    b'"\\ud800"',
    b'{"\\udc00":1}',
    b'"\\ude80\\ud83d"',
    b'"a\nb"',
    b"\xff",
    b'"\xed\xa0\x80"',
    b"\xef\xbb\xbf{}",
    "{}".encode("utf-16"),
    b"{}\x0b",
    b"{a:1}",
    b"{'a':1}",
    b"[1,]",
    b"{} x",
    b"[" * 100_000,
]

orjson = pytest.importorskip("orjson", reason="orjson is not made for PyPy")


def outcome(read: Any, text: bytes) -> str:
    """Return the value with its types, or that the text is refused."""
    try:
        return repr(read(text))
    except ValueError:
        return "refused"


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_orjson_and_the_standard_reader_agree(text: bytes) -> None:
    assert outcome(library_loads, text) == outcome(orjson.loads, text)


@pytest.mark.trial(short=2, long=200)
def test_orjson_and_the_standard_reader_agree_on_any_bytes(seed: int) -> None:
    random = Random(seed)
    pieces = [
        b'{"',
        b'":',
        b'"',
        b"\\u",
        b"d83d",
        b"\\",
        b"[",
        b"]",
        b"}",
        b",",
        b"-",
        b"1e3",
        b" ",
    ]
    pieces += [b"null", b"12", b"\xc3\xa9", b"\xc3", b"\x01", b"0", b"."]
    for number in range(3000):
        text = random.choice(TEXTS[:7]) if number % 2 else b"".join(random.choices(pieces, k=9))
        if number % 2:
            at = random.randrange(len(text))
            text = text[:at] + random.choice(pieces) + text[at + random.randrange(3) :]
        assert outcome(library_loads, text) == outcome(orjson.loads, text), text


@pytest.mark.parametrize(
    "value",
    [
        {
            "code": 310,
            "language": "GO",
            "extFields": {"a": 'b"\\/<>&', "": "\x7f\u2028é\U0001f680"},
        },
        "".join(map(chr, range(128))),
        [None, 0, -1, 1 << 40, {}, []],
    ],
)
def test_orjson_and_the_standard_writer_agree(value: object) -> None:
    assert library_dumps(value) == orjson.dumps(value)


def test_orjson_and_the_standard_writer_refuse_a_lone_surrogate() -> None:
    for write in (library_dumps, orjson.dumps):
        with pytest.raises(TypeError):
            write({"a": "\ud800"})


def test_orjson_is_used_if_installed() -> None:
    assert (loads, dumps) == (orjson.loads, orjson.dumps)


@pytest.mark.slow
def test_frames_are_the_same_without_orjson() -> None:
    """In a process that cannot import it."""
    program = (
        "import sys; sys.modules['orjson'] = None\n"
        "from protocol.frame import RemotingCommand\n"
        "from protocol.frame import decode_frame, encode\n"
        "for language in (0, 9):\n"
        "    made = RemotingCommand(11, {'a': 'ü\"'}, b'x', 7, language=language, remark='<r>')\n"
        "    print(encode(made).hex(), decode_frame(encode(made)[4:]))\n"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", text],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for text in (program, program.replace("sys.modules['orjson'] = None", ""))
    ]
    assert outputs[0] == outputs[1] != b""
