"""Counts of refusals by account, group and code; failed signatures by address.

Two threads that count at the same moment may count one too few.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from actors.engine.server_log import RateLimitedLog
from protocol.bodies_own import AclRefusal
from protocol.codes import RequestCode
from protocol.host import network_of

REFUSALS_MAX = 10_000
"""Maximum entries; clients choose groups and codes. Beyond it the oldest entry is dropped."""

REFUSALS_OF_ACCOUNT_MAX = 1000
"""Maximum entries of one account; further groups share one entry, so that no account evicts others.
"""

TEXT_CHARS_MAX = 512
"""Maximum length of a group and of a remark, which may be as long as a header."""

TRIES_MAX = 20
"""Maximum failed signatures per account, address and minute; then connections are closed."""

MINUTE_MS = 60_000
_ADDRESSES_MAX = 10_000
_CODES = frozenset(RequestCode)


@dataclass(slots=True)
class Refusal:
    account: str
    group: str
    """Group of consumers or producers; empty if the request names no group."""
    code: int
    count: int = 0
    last_ms: int = 0
    remark: str = ""
    address: str = ""

    def shown(self) -> AclRefusal:
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
    def __init__(self, now_ms: Callable[[], int], rarely: RateLimitedLog) -> None:
        self._now_ms, self.rarely = now_ms, rarely
        self._found: dict[tuple[str, str, int], Refusal] = {}
        self._count_of: Counter[str] = Counter()
        self.by_code: Counter[int] = Counter()
        """All refusals since the start by request code; those of unknown codes are -1."""

    def note(self, account: str, group: str, code: int, remark: str, address: str) -> None:
        """Count a refusal, and log it once a minute for each account and code.

        Groups are not part of the kind, because senders choose them. Unknown codes and unknown
        accounts share one kind each, for the same reason.
        """
        self.by_code[code if code in _CODES else -1] += 1
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
        return iter([*self._found.values()])

    def of_group(self, group: str) -> list[Refusal]:
        return [each for each in self.all() if each.group == group]


@dataclass(slots=True)
class _Tries:
    since_ms: float
    count: int = 0
    shut_until_ms: float = 0


class AuthFailureLimiter:
    """Limiter of failed signatures, by address and account.

    Many clients may share one address. A client with a valid signature of another account is not
    blocked. All unknown accounts count as one.
    """

    def __init__(self, now_ms: Callable[[], float], rarely: RateLimitedLog) -> None:
        """`now_ms` is a monotonic clock."""
        self._now_ms, self._rarely = now_ms, rarely
        self._found: dict[tuple[str, str], _Tries] = {}

    def note(self, host: str, account: str) -> bool:
        """Count a failure; return True if it exceeds the limit, to close the connection."""
        now_ms, key = self._now_ms(), (network_of(host), account)
        tries = self._found.get(key)
        if tries is None:
            if len(self._found) >= _ADDRESSES_MAX:
                self._found.pop(next(iter(self._found)))
            tries = self._found[key] = _Tries(now_ms)
        if now_ms - tries.since_ms >= MINUTE_MS:
            if tries.count > TRIES_MAX:
                self._rarely.warn(
                    "signatures failed", address=host, account=account, tries=tries.count
                )
            tries.since_ms, tries.count = now_ms, 0
        tries.count += 1
        if tries.count <= TRIES_MAX:
            return False
        if tries.count == TRIES_MAX + 1:
            self._rarely.warn(
                "too many failed signatures", address=host, account=account, names=[host]
            )
        tries.shut_until_ms = now_ms + MINUTE_MS
        return True

    def is_shut_out(self, host: str, account: str) -> bool:
        tries = self._found.get((network_of(host), account))
        return tries is not None and self._now_ms() < tries.shut_until_ms
