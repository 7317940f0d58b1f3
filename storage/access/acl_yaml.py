"""One file of access control, as YAML text and as values.

    globalWhiteRemoteAddresses: [text]      from where no key is needed (addresses.py)
    accounts:
    - accessKey: text                       both longer than 6 characters; numbers become text
      secretKey: text
      whiteRemoteAddress: text              from where this account needs no signature
      admin: false
      defaultTopicPerm, defaultGroupPerm: PERM      absent: DENY
      topicPerms, groupPerms: [NAME=PERM]
      previousSecretKey: text               extension, like all below: still valid
      broker: false                         may register brokers and feed slaves
      monitor: false                        may read everything except secrets
      allowedRemoteAddresses: [text]        the only source addresses
      requireTls: false
      aclMaxAgeSeconds: 0                   max age of a signature; 0: any age, 4.9.7's rule
    dataVersion: [{counter, timestamp}]     the first one counts

PERM is DENY, PUB, SUB, PUB|SUB or SUB|PUB; anything else means DENY. Unknown keys are skipped. The
text is read as events, so that no tag creates an object. Anchors, tags, duplicate keys and texts of
more than FILE_BYTES_MAX are refused (4.9.7: CVE-2022-1471).

Source: acl/plain/PlainPermissionManager.java, PlainAccessConfig.java, Permission.java.
"""

from collections.abc import Iterator, Mapping
from sys import implementation
from typing import Any

import yaml

from protocol.bodies_tables import DataVersion
from protocol.signature import SecretKey
from protocol.topic_names import RETRY_TOPIC_PREFIX
from storage.access.acl_file import (
    ACCOUNT_KEYS,
    ACCOUNTS,
    FILE_KEYS,
    FLAGS,
    SHOWN_KEYS,
    VERSION,
    WHITE_LIST,
    Account,
    AclFile,
    AclFileError,
    as_list,
    is_sample,
    parse_perm,
    split_perm,
)
from storage.access.addresses import AddressError, Addresses, parse_addresses

FILE_BYTES_MAX = 1 << 20
_DEPTH_MAX = 8
_DEPTH_WORDS = "maximum nesting depth"
"""Part of libyaml's error at a depth of 1000 or more."""
_DIGITS_MAX = 18
"""A longer number stays text: JSON has no room for it."""

_KEY_CHARS_MIN = 7

_SINGLE_KEYS = ACCOUNT_KEYS - {"allowedRemoteAddresses", "topicPerms", "groupPerms"}
_EXACT_TEXTS = {"accessKey", "secretKey", "previousSecretKey"}
"""Keys with a value that must mean the same to every YAML parser."""

_LOADER: Any = (
    yaml.SafeLoader
    if implementation.name == "pypy"
    else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
"""On PyPy the extension for libyaml has ended a process with a segmentation fault."""
_RESOLVER = yaml.SafeLoader("")
_INT, _BOOL, _NULL, _STR = (f"tag:yaml.org,2002:{name}" for name in ("int", "bool", "null", "str"))
_TRUE = {"true", "yes", "on"}


def parse_acl_file(path: str, data: bytes) -> AclFile:
    """Return the file with this content. Raise AclFileError."""
    raw = _Reader(path, data).whole()
    accounts, samples, unknown = [], [], sorted(raw.keys() - FILE_KEYS)
    seen: set[str] = set()
    if isinstance(raw.get(ACCOUNTS), dict):
        raise _error(path, ACCOUNTS, "not a list: begin each account with a dash")
    for number, entry in enumerate(as_list(raw.get(ACCOUNTS)), 1):
        if not isinstance(entry, dict):
            raise _error(path, f"account {number}", "not a list of keys and values")
        account = _account(path, number, entry)
        if account.access_key in seen:
            raise _error(path, f"account {account.access_key}", "duplicate entry")
        seen.add(account.access_key)
        accounts.append(account)
        unknown += sorted(entry.keys() - ACCOUNT_KEYS)
        secrets = (_text(entry.get(name)) for name in ("secretKey", "previousSecretKey"))
        if any(is_sample(account.access_key, secret) for secret in secrets):
            samples.append(account.access_key)
    white = _addresses(path, WHITE_LIST, _texts(path, WHITE_LIST, raw, WHITE_LIST))
    return AclFile(path, tuple(accounts), white, _version(raw), raw, tuple(unknown), tuple(samples))


def read_keys(path: str, data: bytes) -> dict[str, str]:
    """Return the texts of a flat file such as mqadmin's tools.yml. Raise AclFileError."""
    return {key: _text(value) for key, value in _Reader(path, data).whole().items()}


def encode_acl_file(raw: Mapping[str, Any]) -> bytes:
    """Return the text of a file; comments are lost, as in 4.9.7."""
    return yaml.safe_dump(
        dict(raw), sort_keys=False, allow_unicode=True, default_flow_style=False
    ).encode()


def _account(path: str, number: int, entry: dict[str, Any]) -> Account:
    name = _text(entry.get("accessKey"))
    where = f"account {name or number}"
    for key in sorted(entry.keys() & _SINGLE_KEYS):
        if isinstance(entry[key], list | dict):
            raise _error(path, where, f"{key} has several values: give one")
    secrets = [_text(entry.get("secretKey"))]
    if _text(entry.get("previousSecretKey")):
        secrets.append(_text(entry["previousSecretKey"]))
    if min(map(len, (name, *secrets))) < _KEY_CHARS_MIN:
        raise _error(path, where, "accessKey and secretKey must be longer than 6 characters")
    flags = {flag: _flag(path, where, entry, flag) for flag in FLAGS}
    max_age_s = entry.get("aclMaxAgeSeconds") or 0
    if not isinstance(max_age_s, int) or max_age_s < 0:
        raise _error(path, where, "invalid aclMaxAgeSeconds: give a number of seconds")
    white = _addresses(path, where, [_text(entry.get("whiteRemoteAddress"))])
    allowed = _texts(path, where, entry, "allowedRemoteAddresses")
    topics = _perms(path, where, entry, "topicPerms")
    groups = _perms(path, where, entry, "groupPerms")
    # 4.9.7 has one table for both, in which a group is its retry topic, and topics come last.
    groups |= {topic: topics.pop(topic) for topic in [*topics] if _is_retry(topic)}
    return Account(
        name,
        tuple(SecretKey(secret) for secret in secrets),
        admin=flags["admin"],
        broker=flags["broker"],
        monitor=flags["monitor"],
        white=white,
        allowed=_addresses(path, where, allowed) if allowed else None,
        require_tls=flags["requireTls"],
        max_age_s=max_age_s,
        default_topic_perm=parse_perm(_text(entry.get("defaultTopicPerm"))),
        default_group_perm=parse_perm(_text(entry.get("defaultGroupPerm"))),
        topic_perms=topics,
        group_perms={group.removeprefix(RETRY_TOPIC_PREFIX): groups[group] for group in groups},
    )


def _flag(path: str, where: str, entry: dict[str, Any], key: str) -> bool:
    text = _text(entry.get(key, False)).lower()
    if text not in ("true", "false", ""):
        raise _error(path, where, f"invalid {key}: write true or false")
    return text == "true"


def _perms(path: str, where: str, entry: dict[str, Any], key: str) -> dict[str, int]:
    found = {}
    for number, text in enumerate(_texts(path, where, entry, key), 1):
        split = split_perm(text)
        if split is None:
            raise _error(path, where, f"invalid entry {number} of {key}: write NAME=PERM")
        found[split[0]] = split[1]
    return found


def _addresses(path: str, where: str, texts: list[str]) -> Addresses:
    try:
        return parse_addresses(*texts)
    except AddressError as error:
        raise _error(path, where, str(error)) from None


def _version(raw: Mapping[str, Any]) -> DataVersion:
    listed = as_list(raw.get(VERSION))
    first = listed[0] if listed and isinstance(listed[0], dict) else {}
    counter, timestamp = first.get("counter"), first.get("timestamp")
    if isinstance(counter, int) and isinstance(timestamp, int):
        return DataVersion(timestamp, counter)
    return DataVersion(0, 0)


def _texts(path: str, where: str, entry: Mapping[str, Any], key: str) -> list[str]:
    values = as_list(entry.get(key))
    if any(isinstance(each, list | dict) for each in values):
        raise _error(path, where, f"{key} is not a list of texts")
    return [_text(each) for each in values]


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_TOPIC_PREFIX)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _error(path: str, where: str, why: str) -> AclFileError:
    return AclFileError(f"{path}, {where}: {why}.")


class _Reader:
    """Converts the YAML events of one document to plain Python values."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        if len(data) > FILE_BYTES_MAX:
            raise AclFileError(f"{path}: the file has more than {FILE_BYTES_MAX} bytes.")
        self._events = self._parsed(data)

    def _parsed(self, data: bytes) -> Iterator[Any]:
        """Yield events lazily: parsing deep nesting takes quadratic time."""
        try:
            yield from yaml.parse(data, Loader=_LOADER)
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            mark = getattr(error, "problem_mark", None)
            line = f" in line {mark.line + 1}" if mark is not None else ""
            if _DEPTH_WORDS in str(error):  # libyaml 0.2.6 looks so far ahead
                raise AclFileError(f"{self._path}: nested too deeply{line}.") from None
            raise AclFileError(f"{self._path}: invalid YAML{line}.") from None

    def whole(self) -> dict[str, Any]:
        """Return the document; an empty one has no keys."""
        documents: list[dict[str, Any]] = []
        for event in self._events:
            where = f"line {event.start_mark.line + 1}"
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            if documents:
                raise _error(self._path, where, "a second document begins: write one document")
            value = self._value(next(self._events), "", 0)
            if value is not None and not isinstance(value, dict):
                raise AclFileError(f"{self._path}: the file must begin with keys.")
            documents.append(value or {})
        return documents[0] if documents else {}

    def _value(self, event: Any, key: str, depth: int) -> Any:
        where = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _error(self._path, where, "anchors are not supported")
        if event.tag is not None:
            raise _error(self._path, where, "tags are not supported")
        if depth > _DEPTH_MAX:
            raise _error(self._path, where, "nested too deeply")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, key, where)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(each, key, depth + 1) for each in self._inside()]
        found: dict[str, Any] = {}
        for each in self._inside():
            name = self._value(each, "", depth + 1)
            if not isinstance(name, str):
                raise _error(self._path, where, "a key is not text")
            if name in found:
                shown = name if name in SHOWN_KEYS else "name withheld"
                raise _error(self._path, where, f"duplicate key: {shown}")
            found[name] = self._value(next(self._events), name, depth + 1)
        return found

    def _inside(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                return
            yield event

    def _scalar(self, event: Any, key: str, where: str) -> Any:
        text = event.value
        if not event.implicit[0]:  # in quotes
            return text
        tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        if tag == _NULL:
            return None
        digits = text.removeprefix("-")
        if tag == _INT and digits.isdecimal() and (digits[0] != "0" or text == "0"):
            return int(text) if len(digits) <= _DIGITS_MAX else text
        if key in _EXACT_TEXTS and tag != _STR:
            raise _error(self._path, where, f"YAML parsers disagree on {key}: put it in quotes")
        return text.lower() in _TRUE if tag == _BOOL else text
