"""A grant: what one asker may do, as it was found out before its request was passed on.

A handler asks it where only the handler knows what is asked for: the topic of a stored message, the
groups in a body. A request without a grant came to a server without access control.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from actors.access.refusals import Refusals
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.properties import RETRY_TOPIC
from protocol.property_shapes import find_pairs
from protocol.signature import SecretKey
from protocol.topic_names import DLQ_TOPIC_PREFIX, REFUSED_TOPICS, RETRY_TOPIC_PREFIX
from storage.access.acl_file import DENY, PUB, SUB, Account

PREFIX = "org.apache.rocketmq.acl.common.AclException: "
"""Before each text, as clients know it."""

_RETRY_TOPIC = RETRY_TOPIC.encode()

NOBODY = Account("", ())
"""Whoever comes from a white address without a key."""


class AccessRefused(RemoteError):
    """The asker may not; answered as 4.9.7 does, with SYSTEM_ERROR."""

    def __init__(self, text: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, PREFIX + text)
        self.text = text


@dataclass(slots=True)
class Grant:
    """Of one account, one white address, or both."""

    account: Account
    is_white: bool
    """It comes from where no key is needed: it may send, receive and look, not administer."""
    is_admin: bool
    address: str
    refusals: Refusals
    reply_topic: str
    secret: SecretKey | None = None
    """Which has proven it, by a signature."""
    is_encrypted: bool = False
    """It came over TLS."""
    seen: object = None
    """The accounts that it was found out under."""
    renewed: Callable[["Grant"], "Grant"] | None = None
    """The same under those that are in force."""

    def current(self) -> "Grant":
        """What the asker may do now; itself where no account has changed since."""
        return self if self.renewed is None else self.renewed(self)

    def of_waiting(self, code: int, group: str, topic: str) -> "Grant":
        """Of who waits to consume, as it is now. Raises AccessRefused where it may no more."""
        now = self.current()
        if now is not self:
            now.require_consumers(code, ((group, (topic,)),))
        return now

    @property
    def owner(self) -> str:
        """The owner of the handles that it takes, such as leases: its account, or its address."""
        return self.account.access_key or f"address {self.address}"

    @property
    def passes_all(self) -> bool:
        """Whether no list is looked at."""
        return self.is_white or (self.is_admin and not self.account.has_lists)

    def may_use_topic(self, topic: str, perm: int) -> bool:
        """Whether it has all of these permissions for a topic; a retry topic stands for a group."""
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
        """Whether others' messages lie there, also of topics that it is denied."""
        return topic in REFUSED_TOPICS or (topic == self.reply_topic and perm != PUB)

    @property
    def may_read_all(self) -> bool:
        """Whether it may read the messages of every topic, in whatever they are shown."""
        if self.passes_all or self.is_admin:
            return True
        account = self.account
        perms = (account.default_topic_perm, *account.topic_perms.values())
        return all(perm & SUB for perm in perms)

    def may_reply(self, topic: str) -> bool:
        """Whether it may answer requests there; everybody may where the broker keeps replies."""
        is_open = topic == self.reply_topic and self.account.topic_perms.get(topic) != DENY
        return is_open or self.may_send(topic)

    def may_send(self, topic: str) -> bool:
        """Whether it may send to a topic; to a retry topic sends who consumes with its group."""
        return self.may_use_topic(topic, SUB if topic.startswith(RETRY_TOPIC_PREFIX) else PUB)

    def origin_denied(self, topic: str, properties: bytes) -> str | None:
        """The topic that a message to `topic` says it came from, though its sender may not.

        Who consumes with a group puts a message back that it could read: it is consumed as one of
        that topic. A dead letter is sent there by administrators. None: nothing is wrong.
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
        """Whether it has all of these permissions for a group."""
        if self.passes_all:
            return True
        found = self.account.group_perms.get(group, self.account.default_group_perm)
        return found & perm == perm

    def require_topic(self, code: int, topic: str, perm: int, group: str = "") -> None:
        """Raises AccessRefused; `group` is who wants to use it, for the count."""
        if not self.may_use_topic(topic, perm):
            self.refuse_topic(code, topic, group)

    def refuse_topic(self, code: int, topic: str, group: str = "") -> NoReturn:
        """Raises AccessRefused."""
        name = topic.removeprefix(RETRY_TOPIC_PREFIX)
        kind = "topic" if name == topic else "group"
        self.refuse(code, f"No default permission for {kind}:{name}", group)

    def require_group(self, code: int, group: str, perm: int = SUB) -> None:
        """Raises AccessRefused."""
        if not self.may_use_group(group, perm):
            self.refuse(code, f"No default permission for group:{group}", group)

    def require_consumers(self, code: int, groups: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Groups and the topics that each of them subscribes. Raises AccessRefused."""
        for group, topics in groups:
            self.require_group(code, group)
            for topic in topics:
                self.require_topic(code, topic, SUB, group)

    def refuse(self, code: int, text: str, group: str = "") -> NoReturn:
        """Raises AccessRefused, and counts it."""
        self.refusals.note(self.account.access_key, group, code, text, self.address)
        raise AccessRefused(text)

    def refuse_administration(self, code: int, group: str = "") -> NoReturn:
        """The same with the words for codes that only administrators may use."""
        who = self.account.access_key
        text = f"Need admin permission for request code={code}, but accessKey={who} is not"
        self.refuse(code, text, group)
