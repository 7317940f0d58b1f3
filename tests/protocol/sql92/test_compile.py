"""SQL92 filters: what the original's library said of an expression, and what is our own."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.codes import ResponseCode
from protocol.sql92 import EXPRESSION_CHARS_MAX, EvaluationError, SqlError, compile_filter
from tests.support.golden import frames

OFFICIAL = json.loads((Path(__file__).parent / "official.json").read_text(encoding="utf-8"))
"""[expression, properties, outcome] as rocketmq-filter 4.9.7 decided: true, false, null (unknown),
"raises" at evaluation, or {"refused": its exception's message}."""


def outcome(expression: str, properties: dict[str, str]) -> Any:
    try:
        return compile_filter(expression)(properties)
    except SqlError as error:
        assert error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        return {"refused": error.remark}
    except EvaluationError:
        return "raises"


def test_every_filter_outcome_equals_the_originals() -> None:
    assert len(OFFICIAL) > 300
    for expression, properties, wanted in OFFICIAL:
        assert outcome(expression, properties) == wanted, (expression, properties)


def test_invalid_expressions_get_the_captured_answers() -> None:
    """CHECK_CLIENT_CONFIG: what was asked, and the remark of the answer."""
    asked: dict[int, str] = {}
    found = 0
    for name in ("java-4.9.7", "negative"):
        for frame in frames(name):
            if frame["direction"] == "request" and frame["code"] == 46:
                sent = json.loads(frame["body"])["subscriptionData"]
                if sent["expressionType"] == "SQL92":
                    asked[frame["pair"]] = sent["subString"]
            elif frame["pair"] in asked and frame["direction"] == "response":
                expression = asked.pop(frame["pair"])
                answer = frame["header"].get("remark")
                if frame["code"] == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
                    assert outcome(expression, {}) == {"refused": answer}
                else:
                    compile_filter(expression)
                found += 1
    assert found >= 3


@pytest.mark.parametrize(
    ("expression", "properties", "wanted"),
    [
        ("a BETWEEN 0 AND 3 AND color = 'red'", {"a": "2", "color": "red"}, True),
        ("a BETWEEN 0 AND 3 AND color = 'red'", {"a": "2", "color": "blue"}, False),
        ("a BETWEEN 0 AND 3 AND color = 'red'", {"color": "red"}, None),
        ("TAGS is not null and TAGS = '''''tag'''''", {"TAGS": "''tag''"}, True),
        ("a > 3.1E10", {"a": "3.1415E10"}, True),
        ("a = b", {"a": "1", "b": "1.0"}, False),
        ("a >= b", {"a": "1", "b": "1.0"}, True),
        ("a = 'x' OR b = 'x'", {"b": "x"}, True),
        ("'x' = a", {}, False),
        ("a = 'x'", {}, None),
        ("a > 1 whatever follows", {"a": "2"}, True),
    ],
)
def test_example_expressions_evaluate_as_expected(
    expression: str, properties: dict[str, str], wanted: bool | None
) -> None:
    assert compile_filter(expression)(properties) is wanted


def test_one_text_is_compiled_once() -> None:
    assert compile_filter("a > 17") is compile_filter("a > 17")
    with pytest.raises(SqlError) as first:
        compile_filter("a > > 17")
    with pytest.raises(SqlError) as second:
        compile_filter("a > > 17")
    assert first.value is second.value


def test_a_long_chain_is_not_too_deep() -> None:
    many = " OR ".join(f"a = '{number}'" for number in range(600))
    assert compile_filter(many)({"a": "599"}) is True
    assert compile_filter(many)({"a": "600"}) is False
    mixed = " AND ".join(f"a <> '{number}'" for number in range(500))
    assert compile_filter(mixed)({"a": "600"}) is True


@pytest.mark.parametrize(
    "expression", ["NOT " * 2000 + "a", "-" * 5000 + "1 = a", "a" + " = 1" * 2000]
)
def test_an_expression_that_is_too_deep_is_refused(expression: str) -> None:
    with pytest.raises(SqlError) as error:
        compile_filter(expression)
    assert error.value.remark == "java.lang.StackOverflowError"


def test_parentheses_do_not_count_as_depth() -> None:
    assert compile_filter("(" * 4000 + "a > 1" + ")" * 4000)({"a": "2"}) is True


def test_the_length_of_an_expression_is_limited() -> None:
    longest = "a = '" + "ü" * (EXPRESSION_CHARS_MAX - 6) + "'"
    assert compile_filter(longest)({"a": longest[5:-1]}) is True
    with pytest.raises(SqlError) as error:
        compile_filter(longest + " ")
    assert error.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert error.value.remark == "the expression has 8193 characters, 8192 are allowed"


@pytest.mark.parametrize("text", ["٣", "NaN", "0x1p3", " 1 ", "1d", "-Infinity"])
def test_strings_that_java_parses_as_a_double_are_numbers(text: str) -> None:
    if text == "٣":
        assert outcome("a > 0.5", {"a": text}) == "raises"
        assert compile_filter("a > 2")({"a": text}) is True
    else:
        assert outcome("a > 0.5", {"a": text}) in (True, False)
        assert outcome("a > 2", {"a": text}) == "raises"
