"""The guard: what all connections of a server with access control share.

It knows the accounts in force, which its owner replaces whole, and counts who was refused what.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import token_hex

from actors.access.grant import Grant
from actors.access.refusals import Refusals, WrongTries
from actors.access.rights import Right
from actors.engine.published import Published
from protocol.signature import SecretKey
from storage.access.acl_file import Account
from storage.access.acl_files import AclSnapshot

TRACE_BYTES_PER_SECOND = 1 << 20
"""Of traces that an account may send to the trace topic without a permission for it: H20 of
docs/security.md. A client makes some 200 bytes a message."""


BROKERS_MAX = 1000
BROKER_KNOWN_MS = 600_000
"""A slave asks for tables every ten seconds."""


@dataclass(slots=True)
class TraceRate:
    """How much an account has left of its traces of this second."""

    since_ms: int = 0
    left_bytes: int = 0


@dataclass(frozen=True)
class Guard:
    """What a server's gates need."""

    accounts: Published[AclSnapshot]
    rights: Mapping[int, Right]
    now_ms: Callable[[], int]
    refusals: Refusals
    tries: WrongTries
    is_white_admin: bool = False
    """A white address is an administrator, as in 4.9.7."""
    reply_topic: str = ""
    trace_topic: str = ""
    nobody: SecretKey = field(default_factory=lambda: SecretKey(token_hex()))
    """The secret of accounts that do not exist: a wrong name takes as long as a wrong secret."""
    traced: dict[str, TraceRate] = field(default_factory=dict)
    broker_hosts: dict[str, int] = field(default_factory=dict)
    """From where a broker's account has asked something, and when: its slaves are there."""

    def takes_trace(self, access_key: str, size_bytes: int) -> bool:
        """Whether the account may send so much more to the trace topic in this second."""
        rate = self.traced.setdefault(access_key, TraceRate())
        now_ms = self.now_ms()
        if now_ms - rate.since_ms >= 1000 or now_ms < rate.since_ms:
            rate.since_ms, rate.left_bytes = now_ms, TRACE_BYTES_PER_SECOND
        if rate.left_bytes <= 0:
            return False
        rate.left_bytes -= size_bytes
        return True

    def note_broker(self, host: str) -> None:
        """A broker has shown itself."""
        if host not in self.broker_hosts and len(self.broker_hosts) >= BROKERS_MAX:
            del self.broker_hosts[min(self.broker_hosts, key=self.broker_hosts.__getitem__)]
        self.broker_hosts[host] = self.now_ms()

    def may_replicate(self, host: str) -> bool:
        """Whether a slave may be there: a white address, or one where a broker is."""
        if self.now_ms() - self.broker_hosts.get(host, -BROKER_KNOWN_MS) < BROKER_KNOWN_MS:
            return True
        address = address_of(host)
        return address is not None and address in self.accounts.value.white

    def granted(
        self,
        account: Account,
        seen: AclSnapshot,
        *,
        is_white: bool,
        is_proven: bool,
        address: str,
    ) -> Grant:
        """What it may do, as `seen` says; only a signature makes an administrator."""
        is_admin = (is_proven and account.admin) or (is_white and self.is_white_admin)
        return Grant(
            account,
            is_white,
            is_admin,
            address,
            self.refusals,
            self.reply_topic,
            is_proven,
            seen,
            self.renewed,
        )

    def renewed(self, grant: Grant) -> Grant:
        """The same of the accounts in force; one that is deleted may do nothing."""
        snapshot = self.accounts.value
        if snapshot is grant.seen:
            return grant
        name = grant.account.access_key
        account = snapshot.accounts.get(name) or Account(name, ())
        address = address_of(grant.address)
        is_white = address is not None and (address in snapshot.white or address in account.white)
        return self.granted(
            account, snapshot, is_white=is_white, is_proven=grant.is_proven, address=grant.address
        )


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """None of a text that is no address."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def new_guard(
    accounts: Published[AclSnapshot],
    rights: Mapping[int, Right],
    now_ms: Callable[[], int],
    refusals: Refusals,
    *,
    is_white_admin: bool = False,
    reply_topic: str = "",
    trace_topic: str = "",
) -> Guard:
    """A guard to whom nobody has come yet."""
    return Guard(
        accounts,
        rights,
        now_ms,
        refusals,
        WrongTries(now_ms, refusals.rarely),
        is_white_admin=is_white_admin,
        reply_topic=reply_topic,
        trace_topic=trace_topic,
    )
