"""Permissions of one sender, found before its request is passed on.

Handlers use it for checks that only they can do: the topic of a stored message, the groups in a
body. A request has no grant on a server without access control.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from actors.access.refusals import Refusals
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.properties import RETRY_TOPIC, find_pairs
from protocol.signature import SecretKey
from protocol.topic_names import DLQ_TOPIC_PREFIX, REFUSED_TOPICS, RETRY_TOPIC_PREFIX
from storage.access.acl_file import DENY, PUB, SUB, Account

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
"""Prefix of each text, as clients know it."""

_RETRY_TOPIC = RETRY_TOPIC.encode()

NOBODY = Account("", ())
"""Account of a sender without a key, from an allowlisted address."""


class AccessRefused(RemoteError):
    """Refusal for missing permissions; answered with SYSTEM_ERROR, as in 4.9.7."""

    def __init__(self, text: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, PREFIX + text)
        self.text = text


@dataclass(slots=True)
class Grant:
    """Permissions of an account, an allowlisted address, or both."""

    account: Account
    is_white: bool
    """Whether its address needs no key: it may send, receive and query, but not administer."""
    is_admin: bool
    address: str
    refusals: Refusals
    reply_topic: str
    secret: SecretKey | None = None
    is_encrypted: bool = False
    seen: object = None
    """Accounts under which the grant was made."""
    renewed: Callable[["Grant"], "Grant"] | None = None
    """Function that returns this grant under the accounts in force."""

    def current(self) -> "Grant":
        return self if self.renewed is None else self.renewed(self)

    def of_waiting(self, code: int, group: str, topic: str) -> "Grant":
        """Return a waiting consumer's present grant. Raises AccessRefused without permission."""
        now = self.current()
        if now is not self:
            now.require_consumers(code, ((group, (topic,)),))
        return now

    @property
    def owner(self) -> str:
        return self.account.access_key or f"address {self.address}"

    @property
    def passes_all(self) -> bool:
        """Whether all topics and groups are allowed without a look at lists."""
        return self.is_white or (self.is_admin and not self.account.has_lists)

    def may_use_topic(self, topic: str, perm: int) -> bool:
        """Return whether it has these permissions for a topic, or a retry topic's group."""
        if self.passes_all:
            return True
        if topic.startswith(RETRY_TOPIC_PREFIX):
            return self.may_use_group(topic[len(RETRY_TOPIC_PREFIX) :], perm)
        listed = self.account.topic_perms.get(topic)
        if listed is None and not self.is_admin and self._holds_others(topic, perm):
            return False
        found = self.account.default_topic_perm if listed is None else listed
        return found & perm == perm

    def _holds_others(self, topic: str, perm: int) -> bool:
        """Return whether the topic holds messages of other topics, which may be denied."""
        return topic in REFUSED_TOPICS or (topic == self.reply_topic and perm != PUB)

    @property
    def may_read_all(self) -> bool:
        if self.passes_all or self.is_admin:
            return True
        account = self.account
        perms = (account.default_topic_perm, *account.topic_perms.values())
        return all(perm & SUB for perm in perms)

    def may_reply(self, topic: str) -> bool:
        """Return whether it may send replies to `topic`; the reply topic is open unless denied."""
        is_open = topic == self.reply_topic and self.account.topic_perms.get(topic) != DENY
        return is_open or self.may_send(topic)

    def may_send(self, topic: str) -> bool:
        """Return whether it may send to a topic; a retry topic needs the permission to consume."""
        return self.may_use_topic(topic, SUB if topic.startswith(RETRY_TOPIC_PREFIX) else PUB)

    def origin_denied(self, topic: str, properties: bytes) -> str | None:
        """Return the topic of origin that a message claims without permission; None if all is well.

        A consumer sends back messages that it could read, and they are consumed as messages of
        their topic of origin. Administrators send messages to dead-letter queues.
        """
        is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
        if self.passes_all or not (is_retry or topic.startswith(DLQ_TOPIC_PREFIX)):
            return None
        for name, value in find_pairs(properties):
            origin = value.decode("utf-8", "replace") if name == _RETRY_TOPIC else topic
            if origin != topic and not self.may_use_topic(origin, SUB if is_retry else PUB):
                return origin
        return None

    def may_use_group(self, group: str, perm: int) -> bool:
        if self.passes_all:
            return True
        found = self.account.group_perms.get(group, self.account.default_group_perm)
        return found & perm == perm

    def require_topic(self, code: int, topic: str, perm: int, group: str = "") -> None:
        """Raise AccessRefused without the permission; `group` is counted as the sender."""
        if not self.may_use_topic(topic, perm):
            self.refuse_topic(code, topic, group)

    def refuse_topic(self, code: int, topic: str, group: str = "") -> NoReturn:
        name = topic.removeprefix(RETRY_TOPIC_PREFIX)
        kind = "topic" if name == topic else "group"
        self.refuse(code, f"No default permission for {kind}:{name}", group)

    def require_group(self, code: int, group: str, perm: int = SUB) -> None:
        if not self.may_use_group(group, perm):
            self.refuse(code, f"No default permission for group:{group}", group)

    def require_consumers(self, code: int, groups: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Check groups and their subscribed topics. Raises AccessRefused."""
        for group, topics in groups:
            self.require_group(code, group)
            for topic in topics:
                self.require_topic(code, topic, SUB, group)

    def refuse(self, code: int, text: str, group: str = "") -> NoReturn:
        self.refusals.note(self.account.access_key, group, code, text, self.address)
        raise AccessRefused(text)

    def refuse_administration(self, code: int, group: str = "") -> NoReturn:
        who = self.account.access_key
        text = f"Need admin permission for request code={code}, but accessKey={who} is not"
        self.refuse(code, text, group)
