"""The fastjson dialect, checked against what fastjson 1.2.69 printed and read."""

from time import process_time

import pytest

from protocol import fastjson_reader
from protocol.fastjson import dumps, java_double, loads, loads_object, quote
from protocol.fastjson_limits import DEPTH_MAX, NODES_MAX, SHORT_NODES_MAX, FastjsonError

QUEUE = (("brokerName", "b"), ("queueId", 3), ("topic", "t"))
CASES: dict[str, tuple[object, bytes]] = {
    "bare integer keys": ({"offsetTable": {0: 5, -1: 11}}, b'{"offsetTable":{0:5,-1:11}}'),
    "object keys": (
        {"offsetTable": {QUEUE: {"maxOffset": 6}}},
        b'{"offsetTable":{{"brokerName":"b","queueId":3,"topic":"t"}:{"maxOffset":6}}}',
    ),
    "a list of all kinds": (
        ["x", 1, True, False, None, 2.0, [], {}],
        b'["x",1,true,false,null,2.0,[],{}]',
    ),
    "text outside ASCII is raw": ({"k": "Köln 東京 🚀/"}, '{"k":"Köln 東京 🚀/"}'.encode()),
    "control characters": (
        '"\\\b\f\n\r\t\x00\x0b\x1f\x7f\x85\xa0\u2028\u2029',
        b'"\\"\\\\\\b\\f\\n\\r\\t\\u0000\\u000B\\u001F\\u007F\\u0085\xc2\xa0\\u2028\\u2029"',
    ),
    "a long": ({"n": 9223372036854775807}, b'{"n":9223372036854775807}'),
}


@pytest.mark.parametrize(("value", "text"), CASES.values(), ids=CASES.keys())
def test_values_are_written_and_read_as_by_fastjson(value: object, text: bytes) -> None:
    assert dumps(value) == text
    assert loads(text) == value
    assert loads(text.decode()) == value
    assert loads(memoryview(b"  " + text + b"\n")) == value


READ: dict[str, object] = {
    "": None,
    " \n": None,
    "{a:1,$b:2,_c:3}": {"a": 1, "$b": 2, "_c": 3},
    "{'a':'b\"'}": {"a": 'b"'},
    "[1,2,]": [1, 2],
    "[,1,,2]": [1, 2],
    "[1 2]": [1, 2],
    '{,"a":1,}': {"a": 1},
    '{"a":01}': {"a": 1},
    "[1L,2.5F,3D,4S,5B]": [1, 2.5, 3.0, 4, 5],
    '{{"x":1}:2}': {(("x", 1),): 2},
    "{null:2,true:1}": {"null": 2, "true": 1},
    "{1.5:2}": {"1.5": 2},
    "/*c\n*/{//d\n}": {},
    "[NaN,undefined]": [None, None],
    r'{"a":"\x41\u0041\/\'\v\0"}': {"a": "AA/'\v\0"},
    '{"a":"x\ny"}': {"a": "x\ny"},
    r'"\ud83d\ude80"': "🚀",
    r'"\ud83d!\ude80"': "?!?",
    '{"a":+1,"b":-2e3}': {"a": 1, "b": -2000.0},
    "[1.]": [1],
    "\ufeff{}": {},
    '{"a":12345678901234567890123}': {"a": 12345678901234567890123},
}


@pytest.mark.parametrize(("text", "value"), READ.items())
def test_the_reader_accepts_what_fastjson_accepts(text: str, value: object) -> None:
    assert loads(text) == value


REFUSED = ["{} x", '{"a":1}}', '{"a" 1}', '{"a":1 "b":2}', '{"a":}', "{", "[", "tru", "{a.b:1}"]
REFUSED += ["{a-b:1}", r'{"a":"\q"}', '"open', "[.5]", "not json", "{,", "-", "{'a':1", r'"\u12"']
REFUSED += [
    "[1e999]",
    "[-1e999]",
    "{[1]:2}",
    "{{a:[1]}:2}",
    "{{a:{b:1}}:2}",
    "{{1:2}:3}",
    "{{a:9223372036854775808}:1}",
]
REFUSED += ["[" * 300, '{"a":' * 300, "9" * 5000]


@pytest.mark.parametrize("text", REFUSED)
def test_the_reader_refuses_what_fastjson_refuses(text: str) -> None:
    with pytest.raises(FastjsonError):
        loads(text)
    with pytest.raises(FastjsonError):
        loads_object(text)


REFERENCES: dict[str, object] = {
    '{"a":{"b":1},"c":{"$ref":"$.a"}}': {"a": {"b": 1}, "c": {"b": 1}},
    '{"a":[{"b":1}],"c":{"$ref":"$.a[0]"}}': {"a": [{"b": 1}], "c": {"b": 1}},
    '{"im":{5:{"u":1}},"y":{"$ref":"$.im[5]"}}': {"im": {5: {"u": 1}}, "y": {"u": 1}},
    r'{"a@b":{"k":1},"z":{"$ref":"$.a\\@b"}}': {"a@b": {"k": 1}, "z": {"k": 1}},
    '{"a":{"b":1},"c":[{"$ref":"$.a.b"},{"$ref":"$.a.x"}]}': {"a": {"b": 1}, "c": [1, None]},
    '{"a":[1],"c":[{"$ref":"$.a[7]"},{"$ref":"?"},{"$ref":"$.["}]}': {
        "a": [1],
        "c": [None, None, None],
    },
    '{"$ref":5}': {"$ref": 5},
}


@pytest.mark.parametrize(("text", "value"), REFERENCES.items())
def test_a_reference_becomes_its_target(text: str, value: object) -> None:
    assert loads(text.encode()) == value


@pytest.mark.parametrize("path", ["..", "@", "$", "$.a", "$.a.b"])
def test_a_reference_to_an_enclosing_object_is_kept(path: str) -> None:
    """The value would be infinite: writers and readers ran into Python's recursion limit."""
    value = {"a": {"b": {"c": {"$ref": path}}}}
    assert loads(dumps(value)) == value
    itself = {"a": {"$ref": "$.a"}}
    assert loads(dumps(itself)) == itself


def test_a_path_is_followed_no_further_than_the_text_is_deep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A path of 1 MiB with 500,000 steps held up its reader for 0.7 s."""
    steps: list[object] = []

    def counted(target: object, name: str | None, index: str | None) -> object:
        steps.append(name)
        return step(target, name, index)

    step = fastjson_reader._step
    monkeypatch.setattr(fastjson_reader, "_step", counted)
    assert loads_object('{"a":{"b":[]},"c":{"$ref":"$.a.b%s"}}' % (".b" * 1000))["c"] is None
    assert len(steps) == 3


def test_reference_to_a_container_around_its_own_target_is_kept() -> None:
    """The reader raised KeyError, which is no error of its own."""
    found = loads_object('{"a":{"b":{"c":{"$ref":"$.a"}}},"d":{"$ref":"$.a.b"}}')
    kept = {"$ref": "$.a"}
    assert found == {"a": {"b": {"c": kept}}, "d": {"c": {"b": {"c": kept}}}}


def test_references_give_copies() -> None:
    """A table that puts an entry back changes no other entry."""
    found = loads_object('{"a":{"b":[1]},"c":{"$ref":"$.a"},"d":{"$ref":"$.a.b"}}')
    assert found["a"] == found["c"] and found["a"] is not found["c"]
    assert isinstance(found["c"], dict) and found["c"]["b"] is not found["d"]


def doubling(levels: int, last: str) -> bytes:
    """A text with 2^levels values behind its references."""
    parts = [f'"r0":["x"],{last}']
    for level in range(levels):
        parts.append(f'"r{level + 1}":[{{"$ref":"$.r{level}"}},{{"$ref":"$.r{level}"}}]')
    return b"{%b}" % ",".join(parts).encode()


@pytest.mark.parametrize("nodes_max", [None, SHORT_NODES_MAX, NODES_MAX])
def test_references_that_double_at_each_level_are_refused(nodes_max: int | None) -> None:
    """20 levels, 1 KB, were a million values: 19 s in the writer."""
    with pytest.raises(FastjsonError, match="too many values"):
        loads(doubling(30, '"a":1'), nodes_max)
    assert len(dumps(loads(doubling(5, "a:1"), nodes_max))) < 2000


def test_references_to_a_long_text_are_refused() -> None:
    text = b'{"a":"%b","b":[%b]}' % (b"x" * 60_000, b",".join([b'{"$ref":"$.a"}'] * 100))
    with pytest.raises(FastjsonError, match="too much text"):
        loads(text)


def test_a_reference_with_a_long_path_is_read_fast() -> None:
    """A path of 1 MiB took 0.12 s on the loop."""
    text = '{"a":[{"$ref":"$.%s"}]}' % ("s" * (1 << 20))
    began_s = process_time()
    assert loads(text) == {"a": [None]}
    assert process_time() - began_s < 0.05


def test_references_nested_too_deep_are_refused() -> None:
    deep = f'"r0":{"[" * 150}1{"]" * 150}'
    with pytest.raises(FastjsonError, match="levels"):
        loads(f'{{{deep},"r1":{"[" * 60}{{"$ref":"$.r0"}}{"]" * 60}}}')


def test_standard_json_has_the_same_limits() -> None:
    """orjson reads 1,000 levels, which no writer of ours could write."""
    loads(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    with pytest.raises(FastjsonError, match="levels"):
        loads(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1))
    for text in (b"[%b0]" % (b"1," * SHORT_NODES_MAX), b"[%b0]" % (b"[]," * SHORT_NODES_MAX)):
        with pytest.raises(FastjsonError, match="too many values"):
            loads(text, SHORT_NODES_MAX)


def test_objects_as_keys_within_keys_are_refused() -> None:
    """Each level doubled the quotes of the level below: 164 bytes were 7 s and 746 MB."""
    for levels in range(3, 60):
        with pytest.raises(FastjsonError):
            loads("{" * levels + "a:1" + "}:1" * (levels - 1) + "}")


def test_a_numeric_key_out_of_the_long_range_is_text() -> None:
    """Python hashes whole numbers modulo 2^61 - 1: any number of long ones share one hash."""
    hashed_alike = (1 << 61) - 1
    assert loads(f"{{{hashed_alike}:1}}") == {hashed_alike: 1}
    assert loads(f"{{{hashed_alike << 9}:1}}") == {str(hashed_alike << 9): 1}


def test_an_object_leaves_nulls_out() -> None:
    assert dumps({"a": None, "b": 1}) == b'{"b":1}'


def test_the_standard_form_quotes_sorts_and_stays_in_ascii() -> None:
    value = {"b": {10: "x/é🚀", 9: "\x7f"}, "a": ['"\\']}
    expected = b'{"a":["\\"\\\\"],"b":{"9":"\\u007F","10":"x\\/\\u00E9\\uD83D\\uDE80"}}'
    assert dumps(value, browser_compatible=True, sort_keys=True) == expected
    assert dumps({1: 2}, browser_compatible=True) == b'{"1":2}'


def test_the_pretty_form_is_that_of_the_config_files() -> None:
    value = {"e": {}, "l": [1, "a"], "el": [], "i": {-3: 4, 1: 2}, "lm": [{"a": 1}, {}]}
    assert dumps(value, pretty=True).decode() == (
        '{\n\t"e":{},\n\t"l":[\n\t\t1,\n\t\t"a"\n\t],\n\t"el":[],\n\t"i":{-3:4,1:2\n\t},'
        '\n\t"lm":[\n\t\t{\n\t\t\t"a":1\n\t\t},\n\t\t{}\n\t]\n}'
    )
    assert dumps({}, pretty=True) == b"{}"
    assert dumps({"s": {"x"}}, pretty=True) == b'{\n\t"s":["x"]\n}'
    assert dumps({"array": (1, 2)}, pretty=True) == b'{\n\t"array":[1,2]\n}'


DOUBLES = [
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (1.0, "1.0"),
    (100.25, "100.25"),
    (9999999.5, "9999999.5"),
    (1e7, "1.0E7"),
    (12345678.9, "1.23456789E7"),
    (123456789012345680.0, "1.2345678901234568E17"),
    (1e10, "1.0E10"),
    (1e22, "1.0E22"),
    (1.5e300, "1.5E300"),
    (0.001, "0.001"),
    (1e-4, "1.0E-4"),
    (0.00012345, "1.2345E-4"),
    (-2.5e-9, "-2.5E-9"),
    (0.12500312507812694, "0.12500312507812694"),
    (float("nan"), "null"),
    (float("inf"), "null"),
]


@pytest.mark.parametrize(("value", "text"), DOUBLES)
def test_a_double_is_written_as_in_java(value: float, text: str) -> None:
    assert java_double(value) == text


def test_a_lone_surrogate_becomes_a_question_mark_and_other_types_are_refused() -> None:
    assert dumps("\ud800x") == b'"?x"'
    assert quote("a") == '"a"'
    with pytest.raises(TypeError):
        dumps(object())


def test_a_long_text_is_escaped_as_a_short_one_is() -> None:
    """Long text with few escapes is split, other text translated: each took 55 ms a MiB."""
    of_all = "".join(map(chr, (*range(0x100), 0x2028, 0x2029, 0xFFFD, 0x1F680)))
    escaped = "".join(quote(char)[1:-1] for char in of_all)
    for around in ("", "é", "\n", "é" * 30_000, "a" * 30_000, "é\n" * 10_000):
        expected = around.replace("\n", "\\n")
        assert quote(around + of_all + around) == f'"{expected}{escaped}{expected}"'


def test_bytes_that_are_no_utf_8_count_toward_the_length_limit() -> None:
    """A MiB of them was read and written in 98 ms."""
    few, many = (b'{"a":"%b"}' % (b"\xc9" * count) for count in (SHORT_NODES_MAX, 1 << 20))
    assert loads(few, SHORT_NODES_MAX) == {"a": "\ufffd" * SHORT_NODES_MAX}
    with pytest.raises(FastjsonError, match="too many values"):
        loads(many, SHORT_NODES_MAX)


def test_escapes_count_toward_the_length_limit() -> None:
    """A string of 100,000 escapes was read in 58 ms, and refused only then."""
    assert loads(b"'" + b"\\t" * (SHORT_NODES_MAX // 20) + b"'", SHORT_NODES_MAX)
    with pytest.raises(FastjsonError, match="too many values"):
        loads(b"'" + b"m`\\t" * (SHORT_NODES_MAX // 2) + b"'", SHORT_NODES_MAX)
