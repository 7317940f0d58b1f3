"""Rules for what users of the console give: checked before any request is signed with it.

All users share the console's account at the brokers. A name that none can have therefore goes
nowhere: each parameter of a page and each field of a change has a rule here, or says its own.
"""

from collections.abc import Callable
from re import compile as pattern

from protocol.topic_names import GROUP_CHARS_MAX, LEGAL_CHARACTERS, is_legal_name

Rule = Callable[[str], str]
"""Returns why a text is refused; empty for one that is fine, and for no text at all."""

ID_CHARS_MAX = 255
_ADDRESS = pattern(r"[A-Za-z0-9_.:\[\]-]{1,260}")
_WORD = pattern(r"[A-Za-z0-9_.+-]{1,128}")
_PERMISSIONS = pattern(r"[A-Za-z0-9_%|=, -]{0,65536}")
_NUMBER = pattern(r"-?[0-9]{1,19}")
_TIME = pattern(r"[0-9TZ:.+ -]{1,40}|now")


def anything(text: str) -> str:
    """No rule: a body, or what no request has as it is given (numbers, times, filters)."""
    return ""


def plain(text: str) -> str:
    """One line without control characters."""
    return "" if text.isprintable() else "has characters that cannot be printed"


def legal_name(text: str) -> str:
    """The name of a topic or of a group."""
    if not text or is_legal_name(text, GROUP_CHARS_MAX):
        return ""
    return f"contains illegal characters, allowing only {LEGAL_CHARACTERS}"


def one_word(text: str) -> str:
    """An id, a key or an account: printable, without blanks."""
    if len(text) <= ID_CHARS_MAX and text.isprintable() and " " not in text:
        return ""
    return f"has blanks or more than {ID_CHARS_MAX} characters"


def number(text: str) -> str:
    """A whole number of 64 bits."""
    return "" if not text or _NUMBER.fullmatch(text) else "is not a valid integer"


def time(text: str) -> str:
    """A time in ms or as people write it."""
    return "" if not text or _TIME.fullmatch(text) else "is no time"


def address(text: str) -> str:
    """The address of a server."""
    return "" if not text or _ADDRESS.fullmatch(text) else "is no address of a server"


def word(text: str) -> str:
    """The name of a job, a run or a setting."""
    return "" if not text or _WORD.fullmatch(text) else "is no name"


def permissions(text: str) -> str:
    """Names with permissions: `Orders=PUB|SUB,Bills=SUB`."""
    return "" if _PERMISSIONS.fullmatch(text) else "is no list of names and permissions"


RULES: dict[str, Rule] = {
    "account": one_word,
    "address": address,
    "addresses": plain,
    "arguments": anything,
    "begin": anything,
    "body": anything,
    "broker": plain,
    "client": plain,
    "cluster": plain,
    "count": anything,
    "end": anything,
    "filter": anything,
    "first": anything,
    "from_group": legal_name,
    "group": legal_name,
    "group_perms": permissions,
    "id": one_word,
    "job": word,
    "key": plain,
    "kind": anything,
    "lines": anything,
    "name": plain,
    "offset": anything,
    "order": anything,
    "queue": anything,
    "read_queues": number,
    "retries": number,
    "retry_queues": number,
    "rows": anything,
    "run": word,
    "tag": plain,
    "text": anything,
    "time": time,
    "topic": legal_name,
    "topic_perms": permissions,
    "trace_topic": legal_name,
    "value": plain,
    "which": anything,
    "white": plain,
    "write_queues": number,
}
"""By the name of the parameter. Choices are checked against what there is to choose from, secrets
by who takes them."""


def fault_of(name: str, text: str, rule: Rule | None = None) -> str:
    """Return the sentence that refuses a text, without its end; empty where it is fine."""
    why = (rule or RULES[name])(text)
    return f"{name} {why}" if why else ""
