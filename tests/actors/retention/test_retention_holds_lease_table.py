"""Leases over the network: each ends by itself, and there is a limit to all of it."""

import pytest

from actors.retention.retention_holds import LEASE_TTL_MS_MAX, LEASE_TTL_MS_MIN, LeaseTable
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from storage.retention.leases import LEASES_MAX, Lease


def test_a_lease_ends_unless_it_is_renewed() -> None:
    table = LeaseTable()
    assert table.grant("a", "job", 5, 2000, 1000, 0) == 2000
    assert table.leases(1999) == [Lease("a", "job", 5, 3000)] and table.leases(2000) == []
    assert table.renew("a", 4000, 1500, 1999) == Lease("a", "job", 5, 5500)
    assert table.end_those_due(5998) == []
    assert [lease.id for lease in table.end_those_due(5999)] == ["a"]
    with pytest.raises(RemoteError) as refused:
        table.renew("a", 4000, 0, 6000)
    assert refused.value.code == ResponseCode.QUERY_NOT_FOUND


def test_a_renewed_lease_moves_and_a_released_one_is_removed() -> None:
    table = LeaseTable()
    for offset in (5, 9, 7):
        table.grant("a", "job", offset, 2000, 0, 0)
    assert [lease.offset for lease in table.leases(0)] == [7]
    table.release("a")
    table.release("a")
    assert table.leases(0) == []


@pytest.mark.parametrize(
    ("asked", "given"), [(0, LEASE_TTL_MS_MIN), (-1, LEASE_TTL_MS_MIN), (1 << 50, LEASE_TTL_MS_MAX)]
)
def test_the_time_to_live_has_limits(asked: int, given: int) -> None:
    assert LeaseTable().grant("a", "job", 0, asked, 0, 0) == given


@pytest.mark.parametrize("lease_id", ["", "x" * 65, "a\nb"])
def test_invalid_lease_id_is_refused(lease_id: str) -> None:
    with pytest.raises(RemoteError, match="1 to 64 printable characters"):
        LeaseTable().grant(lease_id, "job", 0, 2000, 0, 0)


def test_expired_leases_do_not_count_toward_the_limit() -> None:
    table = LeaseTable()
    for number in range(LEASES_MAX):
        table.grant(str(number), "job", 0, 2000 if number else 1000, 0, 0)
    with pytest.raises(RemoteError, match="lease limit of 1000 reached") as refused:
        table.grant("more", "job", 0, 2000, 0, 999)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    table.grant("5", "job", 3, 2000, 0, 999)  # one that is there moves all the same
    table.grant("more", "job", 0, 2000, 0, 1000)
    assert len(table.leases(1000)) == LEASES_MAX
