"""Browser sessions, and delays after wrong passwords; both in memory only."""

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_urlsafe
from threading import Lock
from time import monotonic

from protocol.host import network_of

IDLE_S = 30 * 60.0
LIFE_S = 12 * 3600.0
SESSIONS_MAX = 1000
"""Beyond it, the oldest session ends."""
SESSIONS_OF_USER_MAX = 50
"""Beyond it, the oldest session of that user ends, so that no user ends those of others."""

FREE_TRIES = 3
WAIT_S_MAX = 300.0
FORGET_S = 900.0
"""Without a failure for this long, the count of a name or an address restarts at 0."""

FAILURES_MAX = 10_000
"""Limit of counted names and addresses; beyond it, the oldest count is dropped."""


@dataclass
class BrowserSession:
    """Login of one browser; `csrf` is the token of its forms."""

    name: str
    csrf: str
    began_s: float
    seen_s: float

    def accepts(self, token: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), token.encode(errors="replace"))


class Sessions:
    """Sessions by their secret ids, for any thread."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._sessions: dict[str, BrowserSession] = {}

    def begin(self, name: str) -> str:
        """Start a session; return its id."""
        now_s = self._clock()
        session_id = token_urlsafe(32)
        with self._lock:
            own = [each for each, session in self._sessions.items() if session.name == name]
            for each in own[: max(0, len(own) - SESSIONS_OF_USER_MAX + 1)]:
                del self._sessions[each]
            while len(self._sessions) >= SESSIONS_MAX:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session_id] = BrowserSession(name, token_urlsafe(32), now_s, now_s)
        return session_id

    def find(self, session_id: str) -> BrowserSession | None:
        """Return the session and renew its idle time; None if it has ended."""
        now_s = self._clock()
        with self._lock:
            found = self._sessions.get(session_id)
            if found is None:
                return None
            if now_s - found.seen_s > IDLE_S or now_s - found.began_s > LIFE_S:
                del self._sessions[session_id]
                return None
            found.seen_s = now_s
            return found

    def end(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def end_of(self, name: str) -> None:
        """End all sessions of a user after a change of its password."""
        with self._lock:
            self._sessions = {
                each: session for each, session in self._sessions.items() if session.name != name
            }


@dataclass
class _Failures:
    count: int
    last_s: float


class Throttle:
    """Delay after wrong passwords, per name and per address, for any thread.

    A user with a session has a name only.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._failures: dict[str, _Failures] = {}

    def wait_s(self, name: str, address: str = "") -> float:
        """Return for how many seconds tries are refused unchecked; 0 if the next is allowed."""
        now_s = self._clock()
        with self._lock:
            return max(self._left_s(key, now_s) for key in _keys(name, address))

    def _left_s(self, key: str, now_s: float) -> float:
        found = self._failures.get(key)
        if found is None or found.count < FREE_TRIES:
            return 0.0
        wait_s = min(2.0 ** (found.count - FREE_TRIES), WAIT_S_MAX)
        return max(0.0, found.last_s + wait_s - now_s)

    def failed(self, name: str, address: str = "") -> None:
        """Count a wrong password.

        Call it before the check, so that concurrent tries cannot pass the limit.
        """
        now_s = self._clock()
        with self._lock:
            for key in _keys(name, address):
                found = self._failures.pop(key, None)
                if found is None or now_s - found.last_s > FORGET_S:
                    found = _Failures(0, now_s)
                found.count, found.last_s = found.count + 1, now_s
                self._failures[key] = found
            while len(self._failures) > FAILURES_MAX:
                del self._failures[next(iter(self._failures))]

    def succeeded(self, name: str, address: str = "") -> None:
        with self._lock:
            for key in _keys(name, address):
                self._failures.pop(key, None)


def _keys(name: str, address: str) -> Sequence[str]:
    by_address = [f"address {network_of(address)}"] if address else []
    return [f"name {name}", *by_address]
