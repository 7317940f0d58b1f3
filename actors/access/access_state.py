"""The guard: what all connections of a server with access control share.

It knows the accounts in force, which its owner replaces whole, and counts who was refused what.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import token_hex

from actors.access.grant import Grant
from actors.access.refusals import AuthFailureLimiter, Refusals
from actors.access.rights import RequiredPermission
from actors.engine.snapshot_ref import SnapshotRef
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

    since_ms: float = -1000.0
    """On the monotonic clock."""
    left_bytes: int = 0


@dataclass(frozen=True)
class AccessState:
    """What a server's gates need."""

    accounts: SnapshotRef[AclSnapshot]
    rights: Mapping[int, RequiredPermission]
    now_ms: Callable[[], int]
    refusals: Refusals
    tries: AuthFailureLimiter
    is_white_admin: bool = False
    """A white address is an administrator, as in 4.9.7."""
    reply_topic: str = ""
    trace_topic: str = ""
    nobody: SecretKey = field(default_factory=lambda: SecretKey(token_hex()))
    """The secret of accounts that do not exist: a wrong name takes as long as a wrong secret."""
    traced: dict[str, TraceRate] = field(default_factory=dict)
    broker_hosts: dict[str, tuple[float, str]] = field(default_factory=dict)
    """From where a broker's account has asked something, when, and which: its slaves are there."""

    def takes_trace(self, access_key: str, size_bytes: int) -> bool:
        """Whether the account may send so much more to the trace topic in this second."""
        rate = self.traced.setdefault(access_key, TraceRate())
        now_ms = self.refusals.rarely.now_ms()
        if seconds := int(now_ms - rate.since_ms) // 1000:
            given = rate.left_bytes + seconds * TRACE_BYTES_PER_SECOND
            rate.since_ms, rate.left_bytes = now_ms, min(given, TRACE_BYTES_PER_SECOND)
        if rate.left_bytes <= 0:
            return False
        rate.left_bytes -= size_bytes
        return True

    def note_broker(self, host: str, access_key: str) -> None:
        """A broker has shown itself."""
        if host not in self.broker_hosts and len(self.broker_hosts) >= BROKERS_MAX:
            del self.broker_hosts[min(self.broker_hosts, key=self.broker_hosts.__getitem__)]
        self.broker_hosts[host] = self.refusals.rarely.now_ms(), access_key

    def may_replicate(self, host: str, *, follows: bool = False) -> bool:
        """Whether a slave may be there: a white address, or one where a broker is whose account is
        still one. A slave that follows already has no need to show itself again."""
        address = address_of(host)
        if address is not None and address in self.accounts.value.white:
            return True
        seen_ms, access_key = self.broker_hosts.get(host, (-BROKER_KNOWN_MS, ""))
        account = self.accounts.value.accounts.get(access_key)
        if account is None or not account.broker or not may_come_from(account, address):
            return False
        return follows or self.refusals.rarely.now_ms() - seen_ms < BROKER_KNOWN_MS

    def granted(
        self,
        account: Account,
        seen: AclSnapshot,
        *,
        is_white: bool,
        secret: SecretKey | None,
        address: str,
        is_encrypted: bool,
    ) -> Grant:
        """What it may do, as `seen` says; only a signature makes an administrator."""
        is_admin = (secret is not None and account.admin) or (is_white and self.is_white_admin)
        return Grant(
            account,
            is_white,
            is_admin,
            address,
            self.refusals,
            self.reply_topic,
            secret,
            is_encrypted,
            seen,
            self.renewed,
        )

    def renewed(self, grant: Grant) -> Grant:
        """The same of the accounts in force. One that is deleted may do nothing, nor one whose
        secret is no longer that one, or that may not come from there or without TLS any more."""
        snapshot = self.accounts.value
        if snapshot is grant.seen:
            return grant
        name, address = grant.account.access_key, address_of(grant.address)
        secret, account = grant.secret, snapshot.accounts.get(name)
        if secret is not None and account is not None:
            is_its_own = any(secret.is_as(each) for each in account.secrets)
            secret = secret if is_its_own else None
        is_let_in = account is not None and (
            may_come_from(account, address) and (grant.is_encrypted or not account.require_tls)
        )
        if account is None or not is_let_in:
            account, secret = Account(name, ()), None
        is_white = address is not None and (address in snapshot.white or address in account.white)
        if secret is None and not is_white:
            account = Account(name, ())
        return self.granted(
            account,
            snapshot,
            is_white=is_white,
            secret=secret,
            address=grant.address,
            is_encrypted=grant.is_encrypted,
        )


def may_come_from(account: Account, address: IPv4Address | IPv6Address | None) -> bool:
    """Whether it is not bound to other addresses."""
    return account.allowed is None or (address is not None and address in account.allowed)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """None of a text that is no address."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def new_guard(
    accounts: SnapshotRef[AclSnapshot],
    rights: Mapping[int, RequiredPermission],
    now_ms: Callable[[], int],
    refusals: Refusals,
    *,
    is_white_admin: bool = False,
    reply_topic: str = "",
    trace_topic: str = "",
) -> AccessState:
    """A guard to whom nobody has come yet."""
    return AccessState(
        accounts,
        rights,
        now_ms,
        refusals,
        AuthFailureLimiter(refusals.rarely.now_ms, refusals.rarely),
        is_white_admin=is_white_admin,
        reply_topic=reply_topic,
        trace_topic=trace_topic,
    )
