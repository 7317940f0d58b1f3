"""Errors of SQL92 expressions, at compilation in RocketMQ's words and at evaluation."""

from typing import Final

from protocol.codes import ResponseCode
from protocol.errors import RemoteError

PARSE: Final = "org.apache.rocketmq.filter.parser.ParseException"
LEXICAL: Final = "org.apache.rocketmq.filter.parser.TokenMgrError"
RUNTIME: Final = "java.lang.RuntimeException"
NUMBER: Final = "java.lang.NumberFormatException"
CAST: Final = (
    "java.lang.ClassCastException: class java.lang.Boolean cannot be cast to class "
    "java.lang.String (java.lang.Boolean and java.lang.String are in module java.base of loader "
    "'bootstrap')"
)
TOO_DEEP: Final = "java.lang.StackOverflowError"


class SqlError(RemoteError):
    """An expression that does not compile; `remark` is what CHECK_CLIENT_CONFIG answers."""

    def __init__(self, java_class: str, text: str = "") -> None:
        remark = f"{java_class}: {text}" if text else java_class
        super().__init__(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)


class EvaluationError(ValueError):
    """The properties of this message do not fit the expression: no match. In Java's words."""


def no_number(text: str) -> EvaluationError:
    """Return the error for a comparison of a number with another text."""
    shown = f'For input string: "{text}"' if text else "empty String"
    return EvaluationError(f"{RUNTIME}: {NUMBER}: {shown}")
