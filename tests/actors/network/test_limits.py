"""Tests of actors/network/limits.py: which connections are closed, and the log lines."""

from resource import RLIM_INFINITY

import pytest
from structlog.testing import capture_logs

from actors.access.refusals import TRIES_MAX, AuthFailureLimiter
from actors.engine.server_log import RateLimitedLog
from actors.network import limits
from actors.network.limits import (
    CLOSINGS_TOLD_MAX,
    DESCRIPTORS_KEPT,
    GIVEN_BACK_BYTES,
    ByteQuota,
    CloseLog,
    ConnectionSlots,
    descriptors_for_peers,
    half_frame_ms,
)
from protocol.host import network_of


class Peer:
    """Holds bytes until it is closed."""

    def __init__(self, host: str, port: int, held: ByteQuota) -> None:
        self.remote_host, self.remote = host, f"{host}:{port}"
        self.reason = ""
        self._held = held

    def end(self, reason: str) -> None:
        self.reason = reason
        self._held.note(self, 0, is_moving=True)


def held(bytes_max: int = 100, of_address_max: int | None = 50) -> ByteQuota:
    return ByteQuota("things", bytes_max, of_address_max, RateLimitedLog(lambda: 0))


def test_over_the_total_limit_the_longest_holder_is_closed() -> None:
    made = held()
    peers = [Peer(f"10.0.0.{number}", 1, made) for number in range(4)]
    for peer in peers[:3]:
        made.note(peer, 30, is_moving=False)
    assert made.total_bytes == 90
    made.note(peers[3], 30, is_moving=False)
    assert [bool(peer.reason) for peer in peers] == [True, False, False, False]
    assert made.total_bytes == 90


def test_a_holder_that_makes_progress_is_no_longer_the_oldest() -> None:
    made = held()
    peers = [Peer(f"10.0.0.{number}", 1, made) for number in range(4)]
    for peer in peers[:3]:
        made.note(peer, 30, is_moving=False)
    made.note(peers[0], 29, is_moving=True)
    made.note(peers[3], 30, is_moving=False)
    assert [bool(peer.reason) for peer in peers] == [False, True, False, False]


def test_over_the_limit_of_an_address_only_its_connections_are_closed() -> None:
    made = held()
    other = Peer("10.0.0.1", 1, made)
    made.note(other, 10, is_moving=False)
    greedy = [Peer("10.0.0.2", port, made) for port in range(3)]
    for peer in greedy:
        made.note(peer, 20, is_moving=False)
    assert [bool(peer.reason) for peer in (other, *greedy)] == [False, True, False, False]
    assert made.total_bytes == 50


def test_a_single_connection_over_the_quota_is_closed() -> None:
    made = held()
    peer = Peer("10.0.0.1", 1, made)
    made.note(peer, 51, is_moving=False)
    assert peer.reason == "byte quota exceeded: things"
    assert made.total_bytes == 0


def test_memory_of_closed_connections_is_returned_in_portions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept_bytes: list[int] = []
    monkeypatch.setattr(limits, "_malloc_trim", kept_bytes.append)
    made = held(bytes_max=GIVEN_BACK_BYTES, of_address_max=GIVEN_BACK_BYTES // 4)
    given_back = []
    for port in range(9):  # the second closes the first, and so on
        made.note(Peer("10.0.0.1", port, made), GIVEN_BACK_BYTES // 4, is_moving=False)
        given_back.append(len(kept_bytes))
    assert given_back == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert kept_bytes == [0, 0]


def test_closings_are_one_line_a_minute() -> None:
    now_ms = 0.0
    rarely = RateLimitedLog(lambda: now_ms)
    made = ByteQuota("things", 10, None, rarely)
    with capture_logs() as logs:
        for number in range(20):
            made.note(Peer("10.0.0.1", number, made), 11, is_moving=False)
        now_ms = 60_000.0
        made.note(Peer("10.0.0.1", 99, made), 11, is_moving=False)
    assert [(each["event"], each["times"]) for each in logs] == [
        ("byte quota exceeded: things", 1),
        ("byte quota exceeded: things", 20),
    ]


def test_a_flood_of_connections_logs_few_lines() -> None:
    now_ms = 0.0
    closings = CloseLog(lambda: now_ms)
    with capture_logs() as logs:
        for number in range(CLOSINGS_TOLD_MAX + 50):
            closings.tell("10.0.0.1", f"10.0.0.1:{number}", "closed by peer")
        closings.tell("10.0.0.2", "10.0.0.2:1", "closed by peer")
        closings.tell_old()
        assert len(logs) == CLOSINGS_TOLD_MAX + 1
        now_ms = 60_000.0
        closings.tell_old()
    (last,) = logs[CLOSINGS_TOLD_MAX + 1 :]
    assert (last["event"], last["address"], last["more"]) == (
        "many connections closed",
        "10.0.0.1",
        50,
    )


def test_slots_are_counted_by_address_and_in_total_except_loopback() -> None:
    places = ConnectionSlots(3, 2)
    assert places.take("10.0.0.1") is None
    assert places.take("10.0.0.1") is None
    assert places.take("10.0.0.1") == "maxConnectionsPerAddress"
    assert places.take("10.0.0.2") is None
    assert places.take("10.0.0.3") == "maxConnections"
    assert places.refused == {"maxConnectionsPerAddress": 1, "maxConnections": 1}
    assert [places.take(host) for host in ("127.0.0.1", "127.8.8.8", "::1")] == [None] * 3
    places.leave("127.0.0.1")
    places.leave("10.0.0.1")
    assert places.take("10.0.0.3") is None


def test_without_a_setting_slots_are_unlimited() -> None:
    places = ConnectionSlots()
    assert {places.take("10.0.0.1") for _ in range(5000)} == {None}


def test_a_frames_deadline_is_half_a_minute_plus_a_second_per_64_kib() -> None:
    assert half_frame_ms(100) < 30_002
    assert half_frame_ms(16 << 20) == 30_000 + 256_000


def test_some_descriptors_are_reserved_for_files() -> None:
    first = descriptors_for_peers()
    assert first is None or first >= DESCRIPTORS_KEPT


def test_an_ipv6_network_counts_as_one_address() -> None:
    """A peer with a /64 has 2 to the 64th addresses, which would evade every limit."""
    one, another = "2001:db8:0:1::1", "2001:db8:0:1:ffff::2"
    elsewhere = "2001:db8:0:2::1"
    places = ConnectionSlots(0, 1)
    assert places.take(one) is None and places.take(elsewhere) is None
    assert places.take(another) == "maxConnectionsPerAddress"
    places.leave(one)
    assert places.take(another) is None
    made = held()
    peers = [Peer(host, 1, made) for host in (one, elsewhere, another)]
    for peer in peers:
        made.note(peer, 30, is_moving=False)
    assert [bool(peer.reason) for peer in peers] == [True, False, False]
    tries = AuthFailureLimiter(lambda: 0, RateLimitedLog(lambda: 0))
    shut = [tries.note(f"2001:db8:0:1::{number}", "account") for number in range(TRIES_MAX + 1)]
    assert shut == [False] * TRIES_MAX + [True]
    assert tries.is_shut_out(another, "account") and not tries.is_shut_out(elsewhere, "account")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_the_address_key_groups_ipv6_networks_and_mapped_ipv4(host: str, network: str) -> None:
    assert network_of(host) == network


@pytest.mark.parametrize(
    ("most", "first"), [(300, 236), (1024, 960), (100, 50), (RLIM_INFINITY, None)]
)
def test_up_to_64_descriptors_are_reserved_for_files(
    most: int, first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "getrlimit", lambda _: (most, most))
    assert descriptors_for_peers() == first
