"""Limits on what all connections of a server hold, and turns of those with much to do.

These are plain classes. Connections owns them and shares them with its connections, all on the
loop. A connection over a limit is closed; the operator gets one log line per kind and minute.

A read may bring a thousand requests, and a hundred connections may do so at once. A small request
of another connection then waits for one turn, not for all of them. Frames of more than 256 KiB are
read in pieces, one in a round, which takes 0.1 ms. Requests that may take milliseconds share a
round, over all connections; so do reads of many short ones.
"""

import ctypes
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from typing import Protocol

from actors.engine.server_log import MINUTE_MS, RateLimitedLog, get_logger
from protocol.codes import RequestCode
from protocol.host import network_of

log = get_logger(__name__)

HALF_BYTES_MAX = 256 << 20
"""Maximum bytes of incomplete frames, of all peers: sixteen of the longest."""

HALF_BYTES_OF_ADDRESS_MAX = 32 << 20
"""Maximum of one address: two of the longest frames, and as much again while they complete."""

HELD_BYTES_MAX = 256 << 20
HELD_BYTES_OF_ADDRESS_MAX = 128 << 20
"""Maximum bytes of whole requests that wait for a turn, of all peers, and of one address.

Ten thousand clients behind one address may send heartbeats of 12 KiB at once.
"""

UNSENT_BYTES_OF_ALL_MAX = 512 << 20
"""Maximum bytes of answers that peers do not take, of all peers; connection.py limits each."""

GIVEN_BACK_BYTES = 32 << 20
"""After so many released bytes the allocator is told to return free memory.

That takes a millisecond. Pieces of live buffers lie between the free ones, so the allocator would
keep as much again.
"""

HALF_FRAME_MS = 30_000
HALF_FRAME_BYTES_PER_MS = (64 << 10) / 1000
"""Deadline of a frame: HALF_FRAME_MS plus its transfer time at this speed."""

DESCRIPTORS_KEPT = 64
"""File descriptors of the process that are reserved for files, however many clients come."""

CLOSINGS_TOLD_MAX = 100
"""Closings logged per address and minute."""
_ADDRESSES_MAX = 10_000

REQUESTS_OF_READ = 16
"""Requests of a read served at once: some 0.5 ms of pulls. With 4, consuming cost 20 % more."""
REQUESTS_PER_TURN = 4
"""Further requests of that read served in each round of the loop."""

ROUND_BYTES = 128 << 10
"""Requests of a round that may take milliseconds: some 10 ms of JSON."""
HEAVY_REQUEST_BYTES = 24 << 10
"""Added to each of them."""
MEMBER_REQUEST_BYTES = 1 << 10
"""Added to those of MEMBER_REQUESTS instead."""
MEMBER_REQUESTS = frozenset((RequestCode.HEART_BEAT.value, RequestCode.UNREGISTER_CLIENT.value))
"""Requests that thousands of clients may send at once.

What they take grows with their bytes, and each round with any of them takes up to 15 ms more, to
publish a group of 6,000 members.
"""
LIGHT_REQUEST_BYTES = 512
"""Counted for each other one of a read that has more than REQUESTS_PER_TURN."""

_malloc_trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""None without glibc."""


class QuotaHolder(Protocol):
    remote: str
    remote_host: str

    def end(self, reason: str) -> None: ...


class ByteQuota:
    """Quota for buffered bytes; over it, closes the longest holders."""

    def __init__(
        self, what: str, bytes_max: int, of_address_max: int | None, rarely: RateLimitedLog
    ) -> None:
        self.total_bytes = 0
        self._what, self._rarely = what, rarely
        self._bytes_max, self._of_address_max = bytes_max, of_address_max
        self._held: dict[QuotaHolder, int] = {}
        self._by_host: Counter[str] = Counter()
        self._shed_bytes = 0

    def note(self, holder: QuotaHolder, held_bytes: int, *, is_moving: bool) -> None:
        """Record the bytes that `holder` holds; `is_moving`: it has made progress."""
        before = self._held.get(holder, 0)
        if is_moving or not held_bytes:
            self._held.pop(holder, None)
        if held_bytes:
            self._held[holder] = held_bytes
        more = held_bytes - before
        self.total_bytes += more
        host = network_of(holder.remote_host)
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]
        if more > 0:
            self._shed(host)

    def _shed(self, host: str) -> None:
        while self.total_bytes > self._bytes_max:
            self._close(next(iter(self._held)), self._bytes_max)
        most = self._of_address_max
        while most is not None and self._by_host[host] > most:
            oldest = next(each for each in self._held if network_of(each.remote_host) == host)
            self._close(oldest, most)

    def _close(self, holder: QuotaHolder, bytes_max: int) -> None:
        reason = f"byte quota exceeded: {self._what}"
        self._rarely.warn(reason, peer=holder.remote, most_bytes=bytes_max)
        self._shed_bytes += self._held[holder]
        holder.end(reason)
        if holder in self._held:  # it has not reported this itself
            self.note(holder, 0, is_moving=True)
        if self._shed_bytes >= GIVEN_BACK_BYTES and _malloc_trim is not None:
            self._shed_bytes = 0
            _malloc_trim(0)


class ConnectionSlots:
    """Counts of connections in total and per address; loopback is not counted."""

    def __init__(self, most: int = 0, most_of_address: int = 0) -> None:
        """Make slots; 0 means no limit."""
        self._most, self._most_of_address = most, most_of_address
        self._by_host: Counter[str] = Counter()
        self._count = 0
        self.refused: Counter[str] = Counter()

    def take(self, host: str) -> str | None:
        """Take a slot; return the setting of the reached limit, or None."""
        if is_loopback(host):
            return None
        setting, host = None, network_of(host)
        if self._most and self._count >= self._most:
            setting = "maxConnections"
        elif self._most_of_address and self._by_host[host] >= self._most_of_address:
            setting = "maxConnectionsPerAddress"
        if setting is not None:
            self.refused[setting] += 1
            return setting
        self._count += 1
        self._by_host[host] += 1
        return None

    def leave(self, host: str) -> None:
        if is_loopback(host):
            return
        self._count -= 1
        host = network_of(host)
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


@dataclass(slots=True)
class _Closings:
    since_ms: float
    count: int = 0


class CloseLog:
    """Log of closed connections, limited so that a flood of them is not a flood of lines."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._found: dict[str, _Closings] = {}

    def tell(self, host: str, peer: str, reason: str) -> None:
        now_ms = self._now_ms()
        found = self._found.get(host)
        if found is None or now_ms - found.since_ms >= MINUTE_MS:
            self._untold(host)
            if len(self._found) >= _ADDRESSES_MAX:
                self._untold(next(iter(self._found)))
            found = self._found[host] = _Closings(now_ms)
        found.count += 1
        if found.count <= CLOSINGS_TOLD_MAX:
            log.info("connection closed", peer=peer, reason=reason)

    def _untold(self, host: str) -> None:
        found = self._found.pop(host, None)
        if found is not None and found.count > CLOSINGS_TOLD_MAX:
            more = found.count - CLOSINGS_TOLD_MAX
            log.warning("many connections closed", address=host, more=more)

    def tell_old(self) -> None:
        """Log the counts of addresses after the end of their minute."""
        end_ms = self._now_ms() - MINUTE_MS
        for host in [each for each, found in self._found.items() if found.since_ms <= end_ms]:
            self._untold(host)


class Schedulable(Protocol):
    def take_turn(self) -> bool: ...


class FairScheduler:
    """Round-robin scheduler of connections with pending requests, of one server.

    Work is measured in bytes, ROUND_BYTES at most in a round of the loop, or one longer piece.
    """

    def __init__(self, in_next_round: Callable[[], None]) -> None:
        """`in_next_round` schedules a call of `next` for the next round of the loop."""
        self._in_next_round = in_next_round
        self._waiting: deque[tuple[Schedulable, int]] = deque()
        self._round = -1
        self._left_bytes = ROUND_BYTES

    def may_pass(self, round_number: int, work_bytes: int) -> bool:
        """Return whether this work may be done at once; it then counts for the round.

        No connection may wait, and the round must have room for it.
        """
        if round_number != self._round:
            self._round, self._left_bytes = round_number, ROUND_BYTES
        return not self._waiting and self._takes(work_bytes)

    def _takes(self, work_bytes: int) -> bool:
        if work_bytes > self._left_bytes < ROUND_BYTES:
            return False
        self._left_bytes -= work_bytes
        return True

    def wait(self, taker: Schedulable, work_bytes: int = ROUND_BYTES) -> None:
        """Have `take_turn` called in a later round; work of unknown size has a round of its own."""
        self._waiting.append((taker, work_bytes))
        if len(self._waiting) == 1:
            self._in_next_round()

    def next(self) -> None:
        """Give a turn to as many as the round has room for."""
        self._left_bytes, waiting = ROUND_BYTES, self._waiting
        while waiting and self._takes(waiting[0][1]):
            taker, _ = waiting[0]  # removed later, so that none who waits meanwhile is the first
            if taker.take_turn():
                waiting.append((taker, ROUND_BYTES))
            waiting.popleft()
        if waiting:
            self._in_next_round()


@dataclass(slots=True)
class Limits:
    rarely: RateLimitedLog
    half: ByteQuota
    held: ByteQuota
    unsent: ByteQuota
    closings: CloseLog
    turns: FairScheduler
    places: ConnectionSlots = field(default_factory=ConnectionSlots)


def new_limits(
    now_ms: Callable[[], float],
    in_next_round: Callable[[], None],
    places: ConnectionSlots | None = None,
    frame_bytes_max: int = 0,
) -> Limits:
    """Return the limits of a new server; `now_ms` is a monotonic clock."""
    rarely = RateLimitedLog(now_ms)
    of_all = max(HALF_BYTES_MAX, frame_bytes_max)
    of_address = max(HALF_BYTES_OF_ADDRESS_MAX, frame_bytes_max)
    return Limits(
        rarely,
        ByteQuota("incomplete frames", of_all, of_address, rarely),
        ByteQuota("requests that wait", HELD_BYTES_MAX, HELD_BYTES_OF_ADDRESS_MAX, rarely),
        ByteQuota("unsent answers", UNSENT_BYTES_OF_ALL_MAX, None, rarely),
        CloseLog(now_ms),
        FairScheduler(in_next_round),
        places or ConnectionSlots(),
    )


def half_frame_ms(frame_bytes: int) -> float:
    return HALF_FRAME_MS + frame_bytes / HALF_FRAME_BYTES_PER_MS


def descriptors_for_peers() -> int | None:
    """Return the first descriptor number reserved for files; None without a limit."""
    most, _ = getrlimit(RLIMIT_NOFILE)
    return None if most == RLIM_INFINITY else max(most - DESCRIPTORS_KEPT, most // 2)


def is_loopback(host: str) -> bool:
    """Return whether an address, as text, is the machine's own loopback."""
    return host.startswith("127.") or host == "::1"
