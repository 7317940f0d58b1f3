"""Refusals counted by account, group and code, for operators; tries with a wrong key by address.

A count that two threads raise at the same moment may be one too low.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.engine.rate_limited_log import RateLimitedLog
from protocol.bodies_own import AclRefusal
from protocol.codes import RequestCode
from protocol.host import network_of

REFUSALS_MAX = 10_000
"""Groups and codes are what clients make of them; past it the oldest is forgotten."""

REFUSALS_OF_ACCOUNT_MAX = 1000
"""Past them its other groups count as none, so that it drives no other account out."""

TEXT_CHARS_MAX = 512
"""Of a group, and of what is said: both may be as long as a header. 512 has room for any group."""

TRIES_MAX = 20
"""Wrong signatures of an account from one address in a minute; past it connections are closed."""

MINUTE_MS = 60_000
_ADDRESSES_MAX = 10_000
_CODES = frozenset(RequestCode)


@dataclass(slots=True)
class Refusal:
    """How often one account was refused one thing."""

    account: str
    """Empty: nobody that is known here."""
    group: str
    """Of consumers or producers; empty where none is named."""
    code: int
    count: int = 0
    last_ms: int = 0
    remark: str = ""
    address: str = ""
    """Of the last one."""

    def shown(self) -> AclRefusal:
        """As it is told to administrators."""
        return AclRefusal(
            self.account,
            self.group,
            self.code,
            self.count,
            self.last_ms,
            self.remark,
            self.address,
        )


class Refusals:
    """Those of one server."""

    def __init__(self, now_ms: Callable[[], int], rarely: RateLimitedLog) -> None:
        self._now_ms, self.rarely = now_ms, rarely
        self._found: dict[tuple[str, str, int], Refusal] = {}
        self._count_of: Counter[str] = Counter()
        """Entries of each account."""

    def note(self, account: str, group: str, code: int, remark: str, address: str) -> None:
        """Counts one, and says so once a minute for an account and code; groups are what the sender
        makes of them, and so are other codes and the names of accounts that nobody knows."""
        group, remark = group[:TEXT_CHARS_MAX], remark[:TEXT_CHARS_MAX]
        found = self._found.get((account, group, code))
        if found is None and self._count_of[account] >= REFUSALS_OF_ACCOUNT_MAX:
            group = ""
            found = self._found.get((account, group, code))
        if found is None:
            if len(self._found) >= REFUSALS_MAX:
                oldest = self._found.pop(next(iter(self._found)), None)
                if oldest is not None:
                    self._count_of[oldest.account] -= 1
            found = self._found[account, group, code] = Refusal(account, group, code)
            self._count_of[account] += 1
        found.count += 1
        found.last_ms, found.remark, found.address = self._now_ms(), remark, address
        kind = (account, code if code in _CODES else -1) if account else None
        self.rarely.warn(
            "request refused",
            of=kind,
            account=account,
            group=group,
            code=code,
            peer=address,
            why=remark,
        )

    def all(self) -> Iterator[Refusal]:
        """Every one, the oldest first."""
        return iter([*self._found.values()])

    def of_group(self, group: str) -> list[Refusal]:
        """Those of one group."""
        return [each for each in self.all() if each.group == group]


@dataclass(slots=True)
class _Tries:
    since_ms: float
    count: int = 0
    shut_until_ms: float = 0


class AuthFailureLimiter:
    """Wrong keys and signatures, counted by address and account.

    Behind one address there may be many clients: who is right about another account is not shut
    out with one who is wrong. All accounts that nobody knows count as one.
    """

    def __init__(self, now_ms: Callable[[], float], rarely: RateLimitedLog) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms, self._rarely = now_ms, rarely
        self._found: dict[tuple[str, str], _Tries] = {}

    def note(self, host: str, account: str) -> bool:
        """Counts one; whether it was one too many, so that the connection is to be closed."""
        now_ms, key = self._now_ms(), (network_of(host), account)
        tries = self._found.get(key)
        if tries is None:
            if len(self._found) >= _ADDRESSES_MAX:
                self._found.pop(next(iter(self._found)))
            tries = self._found[key] = _Tries(now_ms)
        if now_ms - tries.since_ms >= MINUTE_MS:
            if tries.count > TRIES_MAX:
                self._rarely.warn(
                    "wrong keys or signatures", address=host, account=account, tries=tries.count
                )
            tries.since_ms, tries.count = now_ms, 0
        tries.count += 1
        if tries.count <= TRIES_MAX:
            return False
        if tries.count == TRIES_MAX + 1:
            self._rarely.warn(
                "too many wrong keys or signatures", address=host, account=account, names=[host]
            )
        tries.shut_until_ms = now_ms + MINUTE_MS
        return True

    def is_shut_out(self, host: str, account: str) -> bool:
        """Whether nobody new may come in from there with this account."""
        tries = self._found.get((network_of(host), account))
        return tries is not None and self._now_ms() < tries.shut_until_ms
