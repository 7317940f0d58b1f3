"""Every regular expression of the product: listed here, and linear in the length of a text.

A new one fails until it has an entry: how it is applied, and the beginnings that lead a hostile
text into its repeats. The rest of a text is made of the characters that the expression names.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from re import _parser
from re._constants import LITERAL, NOT_LITERAL, RANGE  # type: ignore[import-not-found]
from re._parser import SubPattern  # type: ignore[import-not-found]
from time import process_time
from typing import Any

import pytest

from actors.sending.property_rewriter import _compile

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors", "protocol", "remoting", "spark", "storage", "troupemq")
FUNCTIONS = {
    "compile",
    "match",
    "fullmatch",
    "search",
    "sub",
    "subn",
    "split",
    "findall",
    "finditer",
}
SIZES = (*range(8, 33, 4), 64, 512, 8000)
LONG = 40_000
"""The first ones end an expression whose time grows with a power, before it takes for ever."""
BOUND_S = 0.04
"""A quadratic expression needs 0.2 s for the longest text, a linear one 1 ms."""
CHARS_MAX = 10


@dataclass(frozen=True)
class Entry:
    """Use of an expression, and the start of hostile texts for it."""

    how: str = "fullmatch"
    """Empty: it is compiled here, and applied nowhere, or to one character."""
    starts: Sequence[str] = ()
    made: Callable[[], re.Pattern[Any]] | None = None
    """One that is made in a function, as it may look."""


MATCH, SEARCH, SUB, NOT_APPLIED = Entry("match"), Entry("search"), Entry("sub"), Entry("")
JSON_SEND = '0","f":"0","g":"1","h":"0","i":"'
TABLE: dict[str, Entry] = {
    "actors/admin/settings.py:_NAMES_A_PATH": SEARCH,
    "actors/config.py:_HOST": Entry(),
    "actors/jobs/jobs_conf.py:_NAME": Entry(),
    "actors/jobs/jobs_conf.py:_DURATION": Entry(starts=["1"]),
    "actors/jobs/jobs_conf.py:_MEMORY": Entry(),
    "actors/metrics/exporter_page.py:_COUNT": Entry("findall", ["]:"]),
    "actors/naming/broker_ownership.py:_ADDRESS": Entry(starts=["[", "a:"]),
    "actors/naming/registration.py:_ADDRESS": Entry(starts=["a:"]),
    "actors/settings/linear_pattern.py:_PLAIN": Entry(),
    "actors/settings/linear_pattern.py:LinearPattern._check": NOT_APPLIED,
    "actors/settings/linear_pattern.py:_takes": NOT_APPLIED,
    "actors/settings/telemetry_settings.py:_USER": Entry("sub", ["://"]),
    "protocol/fastjson.py:_SPECIAL": Entry("split", ["a", "\n", "é\n"]),
    "protocol/fastjson.py:_SPECIAL_ASCII": SUB,
    "protocol/fastjson_reader.py:_BLANK": Entry("match", ["/*", "//"]),
    "protocol/fastjson_reader.py:_SEPARATORS": Entry("match", ["/*", "//"]),
    "protocol/fastjson_reader.py:_STRING": Entry("match", ['"', "'", '"a\\\\']),
    "protocol/fastjson_reader.py:_STRING+": Entry("match", ['"', "'", '"a\\\\']),
    "protocol/fastjson_reader.py:_NUMBER": Entry("match", ["1.", "1.0e"]),
    "protocol/fastjson_reader.py:_WORD": MATCH,
    "protocol/fastjson_reader.py:_ESCAPE": SUB,
    "protocol/fastjson_reader.py:_SURROGATES": SUB,
    "protocol/fastjson_reader.py:_LONE_SURROGATE": SUB,
    "protocol/fastjson_reader.py:_PATH_STEP": Entry("match", [".", "["]),
    "protocol/fastjson_reader.py:_UNESCAPE": SUB,
    "protocol/frame.py:_NUMBER": Entry(),
    "protocol/frame.py:_GO_ESCAPED": SUB,
    "protocol/java_numbers.py:_decimal": Entry("match", ["1.", "1.0e"]),
    "protocol/java_numbers.py:_hexadecimal": Entry("match", ["0x", "0x1.", "0x1p"]),
    "protocol/properties.py:find_pairs": Entry("findall", ["\2"]),
    "actors/sending/property_rewriter.py:PropertyShapes.__init__": Entry(),
    "actors/sending/property_rewriter.py:_compile": Entry(
        made=lambda: _compile((b"a", b"WAIT", b"KEYS"))[0]
    ),
    "protocol/registration.py:_TABLE": Entry("search", ['"topicConfigTable"']),
    "protocol/registration.py:_ENTRY": Entry("match", ['"', '"a"', '"a":{']),
    "protocol/send_wire.py:_BINARY_REST": Entry("match", ["\0\1e\0\0\0\1", "\0\1e\0\0\0\x09"]),
    "protocol/send_wire.py:_JSON_REST": Entry(starts=[JSON_SEND, f'{JSON_SEND}","j"']),
    "protocol/signature.py:_SEALED": MATCH,
    "protocol/sink.py:_QUERY": Entry(),
    "protocol/span_names.py:_TRACEPARENT": Entry(starts=[f"00-{'1' * 32}-{'1' * 16}-01-"]),
    "protocol/sql92/lexer.py:_TOKENS": Entry("match", ["/*", "'", "1.", "1e", " --"]),
    "protocol/sql92/lexer.py:_TOKENS_OF_THE_LAST_LINE": Entry("match", ["/*", "'", "1.", "1e"]),
    "protocol/standard_json.py:_SURROGATE": SEARCH,
    "protocol/standard_json.py:_ESCAPED_HALF": SEARCH,
    "protocol/standard_json.py:_LONG_NUMBER": Entry("search", ["1", "1e"]),
    "protocol/topic_names.py:_LEGAL": Entry(),
    "remoting/certificate.py:_PEM": Entry("findall", ["-----BEGIN CERTIFICATE-----"]),
    "remoting/tls.py:_OLD_CIPHERS": SEARCH,
    "remoting/tls.py:_OLD_HEADER": SEARCH,
    "remoting/tls.py:_PEM_BODY": Entry("search", ["-----BEGIN ENCRYPTED PRIVATE KEY-----"]),
    "spark/masters.py:_LOCAL": Entry(starts=["local[", "local[1,"]),
    "spark/masters.py:_LOCAL_CLUSTER": Entry(starts=["local-cluster[", "local-cluster[1,"]),
    "spark/masters.py:_STANDALONE": Entry(starts=["spark://", "spark://a:1", "spark://a:1,"]),
    "spark/masters.py:_K8S": Entry(starts=["k8s://", "k8s://https://", "k8s://a:1/"]),
    "spark/masters.py:_LOOPBACK": Entry(starts=["127.", "127.1."]),
    "spark/masters.py:_PRIVATE": SEARCH,
    "spark/runner.py:_SENTENCE": Entry("search", ["StoreError: "]),
    "spark/source/options.py:_pattern": NOT_APPLIED,  # in the process that starts the read
    "spark/source/row_filter.py:Expression.parse": SEARCH,
    "protocol/delay_levels.py:_LEVEL": Entry(),
    "storage/spelling.py:_WORD": Entry("findall"),
    "troupemq/cli/admin/command.py:option": SUB,
    "troupemq/cli/console.py:_PREFIX": Entry(starts=["/"]),
    "troupemq/client/admin/answers.py:_snake": SUB,
    "troupemq/client/consuming/consumer_offsets.py:_TIME": Entry(),
    "troupemq/client/consuming/subscription.py:_COMPARES": SEARCH,
    "troupemq/client/consuming/subscription.py:_JOINS": Entry("split", ["|", "or"]),
    "troupemq/client/message.py:_BLANK": SEARCH,
    "troupemq/console/given.py:_ADDRESS": Entry(),
    "troupemq/console/given.py:_WORD": Entry(),
    "troupemq/console/given.py:_PERMISSIONS": Entry(),
    "troupemq/console/given.py:_IDS": Entry(),
    "troupemq/console/given.py:_NUMBER": Entry(),
    "troupemq/console/given.py:_TIME": Entry(),
    "troupemq/java.py:_VERSION": Entry("search", ['version "', 'version "1.']),
    "troupemq/numbers.py:_WHOLE": Entry(),
    "troupemq/setting_meanings.py:_END": Entry(),
    "troupemq/setting_meanings.py:_NUMBER": Entry(),
    "troupemq/setting_meanings.py:meanings": MATCH,
}


def test_every_expression_is_listed() -> None:
    assert sorted(calls()) == sorted(TABLE)


@pytest.mark.parametrize("key", [key for key, entry in TABLE.items() if entry.how])
def test_the_time_of_every_expression_is_linear_in_the_text(key: str) -> None:
    entry = TABLE[key]
    for pattern in patterns(key, entry):
        check_linear(pattern, entry.how, entry.starts)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "how", "starts"),
    [
        (r"(.*)@(.*):(\d+)", "fullmatch", []),
        (r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?=[fFdD]?$)", "match", []),
        (".*" * 8 + "x", "fullmatch", []),
        (r"(a+)+b", "fullmatch", []),
        (r"-BEGIN KEY-.*?-END-", "findall", ["-BEGIN KEY-"]),
    ],
)
def test_a_quadratic_expression_is_detected(text: str, how: str, starts: list[str]) -> None:
    with pytest.raises(AssertionError, match="steps"):
        check_linear(re.compile(text), how, starts)


def patterns(key: str, entry: Entry) -> list[re.Pattern[Any]]:
    if entry.made is not None:
        return [entry.made()]
    path, _, name = key.rstrip("+").partition(":")
    found: Any = getattr(import_module(path.removesuffix(".py").replace("/", ".")), name, None)
    found = getattr(found, "__self__", found)  # a method of one
    if isinstance(found, dict):
        return list(found.values())
    if isinstance(found, re.Pattern):
        return [found]
    return [re.compile(ast.literal_eval(calls()[key].args[0]))]


def check_linear(pattern: re.Pattern[Any], how: str, starts: Sequence[str]) -> None:
    is_bytes = isinstance(pattern.pattern, bytes)
    chars = characters(pattern)
    pumps = [*chars, *map("".join, product(chars[:5], repeat=2)), *starts]
    for start, pump in product(("", *starts), pumps):
        for size in (*SIZES, LONG if len(pump) > 2 else SIZES[-1]):
            text = start + pump * (size // len(pump)) + "\x7f"
            subject: Any = text.encode("latin-1", "replace") if is_bytes else text
            took_s = seconds(pattern, how, subject)
            if BOUND_S < took_s < 3 * BOUND_S:  # the machine may have been busy
                took_s = min(took_s, seconds(pattern, how, subject), seconds(pattern, how, subject))
            assert took_s <= BOUND_S, f"too many steps: {size} of {pump!r} behind {start!r}"


def seconds(pattern: re.Pattern[Any], how: str, subject: Any) -> float:
    begin = process_time()
    if how == "sub":
        pattern.sub(lambda _: subject[:0], subject)
    else:
        getattr(pattern, how)(subject)
    return process_time() - begin


def characters(pattern: re.Pattern[Any]) -> list[str]:
    """The characters that an expression names, the first of each range, and some others."""
    text = pattern.pattern
    tree = _parser.parse(text.decode("latin-1") if isinstance(text, bytes) else text)
    found = dict.fromkeys([*named_in(tree), "a", "1", " "])
    return list(found)[:CHARS_MAX]


def named_in(tree: Any) -> Iterator[str]:
    for each in tree:
        if isinstance(each, tuple) and len(each) == 2 and each[0] in (LITERAL, NOT_LITERAL):
            yield chr(each[1])
        elif isinstance(each, tuple) and len(each) == 2 and each[0] is RANGE:
            yield chr(each[1][0])
        elif isinstance(each, tuple | list | SubPattern):
            yield from named_in(each)


@cache
def calls() -> dict[str, ast.Call]:
    """Each place where an expression is compiled or applied, by file and name."""
    found: dict[str, ast.Call] = {}
    for path in sorted(each for name in PACKAGES for each in (ROOT / name).rglob("*.py")):
        text = path.read_text()
        if "from re import" not in text and "import re\n" not in text:
            continue
        tree = ast.parse(text)
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "re"
            for alias in node.names
            if alias.name in FUNCTIONS
        }
        for name, call in _named_calls(tree.body, ""):
            if _is_of_re(call.func, imported):
                key = f"{path.relative_to(ROOT)}:{name}"
                while key in found:
                    key += "+"
                found[key] = call
    return found


def _named_calls(body: Sequence[ast.stmt], outer: str) -> Iterator[tuple[str, ast.Call]]:
    for statement in body:
        name = outer
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            name = statement.name if not outer else f"{outer}.{statement.name}"
            yield from _named_calls(statement.body, name)
            continue
        if not outer and isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
        if not outer and isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield name, node


def _is_of_re(function: ast.expr, imported: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in imported
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return False
    return function.value.id == "re" and function.attr in FUNCTIONS
