"""Rules for the input of users, checked before a request is signed with it.

All users share the console's account at the brokers. Therefore each parameter of a page and each
field of a change has a rule here, or names its own, and invalid values are not sent.
"""

from collections.abc import Callable
from re import compile as pattern

from protocol.topic_names import GROUP_CHARS_MAX, LEGAL_CHARACTERS, is_legal_name

Rule = Callable[[str], str]
"""Returns why a text is invalid; empty for a valid or an empty text."""

ID_CHARS_MAX = 255
_ADDRESS = pattern(r"[A-Za-z0-9_.:\[\]-]{1,260}")
_WORD = pattern(r"[A-Za-z0-9_.+-]{1,128}")
_PERMISSIONS = pattern(r"[A-Za-z0-9_%|=, -]{0,65536}")
_NUMBER = pattern(r"-?[0-9]{1,19}")
_IDS = pattern(r"[0-9A-Fa-f,]{1,65536}")
_TIME = pattern(r"[0-9TZ:.+ -]{1,40}|now")


def anything(text: str) -> str:
    """Accept any text: bodies, and values that no request contains unchanged."""
    return ""


def plain(text: str) -> str:
    """Accept one line without control characters."""
    return "" if text.isprintable() else "has unprintable characters"


def legal_name(text: str) -> str:
    """Accept the name of a topic or a group."""
    if not text or is_legal_name(text, GROUP_CHARS_MAX):
        return ""
    return f"contains illegal characters, allowing only {LEGAL_CHARACTERS}"


def one_word(text: str) -> str:
    """Accept an id, a key or an account: printable, without spaces."""
    if len(text) <= ID_CHARS_MAX and text.isprintable() and " " not in text:
        return ""
    return f"has spaces or more than {ID_CHARS_MAX} characters"


def several_ids(text: str) -> str:
    """Accept message ids, separated by commas."""
    return "" if not text or _IDS.fullmatch(text) else "is not a list of message ids"


def number(text: str) -> str:
    """Accept a whole number of at most 19 digits."""
    return "" if not text or _NUMBER.fullmatch(text) else "is not a valid integer"


def time(text: str) -> str:
    """Accept a time in ms, in ISO 8601, or `now`."""
    return "" if not text or _TIME.fullmatch(text) else "is not a time"


def address(text: str) -> str:
    """Accept the address of a server."""
    return "" if not text or _ADDRESS.fullmatch(text) else "is not a server address"


def word(text: str) -> str:
    """Accept the name of a job, a run or a setting."""
    return "" if not text or _WORD.fullmatch(text) else "is not a valid name"


def permissions(text: str) -> str:
    """Accept names with permissions: `Orders=PUB|SUB,Bills=SUB`."""
    return "" if _PERMISSIONS.fullmatch(text) else "is not a list of names and permissions"


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
    "go": word,
    "group": legal_name,
    "group_perms": permissions,
    "handle": plain,
    "having": plain,
    "id": one_word,
    "ids": several_ids,
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
    "tab": word,
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
"""Rules by the name of the parameter.

Choices are checked against their list, secrets by the code that uses them.
"""


def fault_of(name: str, text: str, rule: Rule | None = None) -> str:
    """Return why a text is invalid, without a final period; empty if it is valid."""
    why = (rule or RULES[name])(text)
    return f"{name} {why}" if why else ""
