"""Accounts and permissions: the values of a file of access control, which acl_yaml.py reads.

Source: acl/plain/PlainAccessConfig.java, Permission.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.bodies_tables import DataVersion
from protocol.signature import SecretKey
from storage.access.addresses import NOWHERE, Addresses
from storage.errors import StoreError

DENY, PUB, SUB = 1, 4, 8
PERMS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}

WHITE_LIST, ACCOUNTS, VERSION = "globalWhiteRemoteAddresses", "accounts", "dataVersion"
FILE_KEYS = {WHITE_LIST, ACCOUNTS, VERSION}
FLAGS = ("admin", "broker", "monitor", "requireTls")
ACCOUNT_KEYS = {
    *("accessKey", "secretKey", "previousSecretKey", "whiteRemoteAddress", *FLAGS),
    *("allowedRemoteAddresses", "aclMaxAgeSeconds", "defaultTopicPerm", "defaultGroupPerm"),
    *("topicPerms", "groupPerms"),
}
SHOWN_KEYS = ACCOUNT_KEYS | FILE_KEYS
"""Keys that an error may quote; any other text may be a misplaced secret."""
SAMPLES = {("RocketMQ", "12345678"), ("rocketmq2", "12345678")}
"""Publicly known accounts of the file that RocketMQ ships."""


class AclFileError(StoreError):
    """An invalid file of access control; the text names the entry."""


@dataclass(frozen=True, slots=True)
class Account:
    access_key: str
    secrets: tuple[SecretKey, ...] = field(repr=False)
    """The current secret key, then the previous one if it is still valid."""
    admin: bool = False
    broker: bool = False
    monitor: bool = False
    white: Addresses = NOWHERE
    allowed: Addresses | None = None
    """Source addresses; None means all."""
    require_tls: bool = False
    max_age_s: int = 0
    default_topic_perm: int = DENY
    default_group_perm: int = DENY
    topic_perms: Mapping[str, int] = field(default_factory=dict)
    group_perms: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_privileged(self) -> bool:
        """Whether it exceeds the use of topics and groups; its signatures are always verified."""
        return self.admin or self.broker or self.monitor

    @property
    def has_lists(self) -> bool:
        """Whether permission lists exist; an administrator without them may do everything."""
        return bool(self.topic_perms or self.group_perms)


@dataclass(frozen=True, slots=True)
class AclFile:
    """A parsed file; `raw` is the content to write back, with unknown keys."""

    path: str
    accounts: tuple[Account, ...]
    white: Addresses
    version: DataVersion
    raw: dict[str, Any] = field(repr=False)
    unknown_keys: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    """Accounts in this file with a public secret."""


def is_sample(access_key: str, secret: str) -> bool:
    return (access_key, secret) in SAMPLES


def parse_perm(text: str) -> int:
    """Return the bits of a permission; an unknown one is DENY, as in 4.9.7."""
    return PERMS.get(text.strip(), DENY)


def split_perm(entry: str) -> tuple[str, int] | None:
    """Return resource and permission of `NAME=PERM`, or None for another form."""
    name, equals, perm = entry.partition("=")
    if not equals or "=" in perm or not name.strip() or not perm.strip():
        return None
    return name.strip(), parse_perm(perm)


def as_list(value: Any) -> list[Any]:
    """Return `value` as a list; a single text becomes a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
