"""State of access control, shared by all connections of a server.

It holds the accounts in force, which their owner replaces as a whole, and counts refusals.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from secrets import token_hex

from actors.access.grant import Grant
from actors.access.refusals import AuthFailureLimiter, Refusals
from actors.access.rights import RequiredPermission
from actors.engine.interfaces import SnapshotRef
from protocol.signature import SecretKey
from storage.access.acl_file import Account
from storage.access.acl_files import AclSnapshot

TRACE_BYTES_PER_SECOND = 1 << 20
"""Traces that an account may send without a permission: H20 of docs/security.md."""


BROKERS_MAX = 1000
BROKER_KNOWN_MS = 600_000
"""A slave asks for tables every ten seconds, so a broker is known for longer than that."""


@dataclass(slots=True)
class TraceRate:
    """Bytes of traces that an account may still send in this second."""

    since_ms: float = -1000.0
    left_bytes: int = 0


@dataclass(frozen=True)
class AccessState:
    accounts: SnapshotRef[AclSnapshot]
    rights: Mapping[int, RequiredPermission]
    now_ms: Callable[[], int]
    refusals: Refusals
    tries: AuthFailureLimiter
    is_white_admin: bool = False
    """Whether an allowlisted address counts as an administrator, as in 4.9.7."""
    reply_topic: str = ""
    trace_topic: str = ""
    decoy: SecretKey = field(default_factory=lambda: SecretKey(token_hex()))
    """Secret used for unknown accounts: a wrong name takes as long as a wrong secret."""
    traced: dict[str, TraceRate] = field(default_factory=dict)
    broker_hosts: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Addresses of brokers, from which their slaves may connect: last request, account."""

    def takes_trace(self, access_key: str, size_bytes: int) -> bool:
        """Return whether the account may send that much more to the trace topic this second."""
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
        if host not in self.broker_hosts and len(self.broker_hosts) >= BROKERS_MAX:
            del self.broker_hosts[min(self.broker_hosts, key=self.broker_hosts.__getitem__)]
        self.broker_hosts[host] = self.refusals.rarely.now_ms(), access_key

    def may_replicate(self, host: str, *, follows: bool = False) -> bool:
        """Return whether a slave may connect from `host`.

        It may from an allowlisted address, or from the host of a broker with a valid account. A
        slave that `follows` already need not have authenticated recently.
        """
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
        """Return a grant under the accounts in `seen`; only a signature makes an administrator."""
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
        """Return the grant under the accounts in force.

        An account has no permissions if it is deleted, if its secret has changed, or if its address
        or its plain connection is no longer allowed.
        """
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
    return account.allowed is None or (address is not None and address in account.allowed)


def address_of(host: str) -> IPv4Address | IPv6Address | None:
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
