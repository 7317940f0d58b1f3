"""Groups that the master deletes, with or without their offsets, are deleted on the slave."""

import pytest

from actors.naming.messages import MasterClientAddress
from protocol.bodies_tables import SubscriptionGroupTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import DeleteSubscriptionGroupHeader
from storage.tables.groups import format_groups
from storage.tables.json_config import save
from storage.tables.offsets import parse_offsets
from tests.support.brokers import SimulatedBroker
from tests.support.slave_tables import MASTER, commit, following, synced, text_of


def delete_group(made: SimulatedBroker, group: str, *, offsets: bool) -> None:
    fields = DeleteSubscriptionGroupHeader(group, offsets).encode()
    assert made.ask(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)).code == 0


def groups_with_offsets(made: SimulatedBroker) -> set[str]:
    """On the disk."""
    made.system.advance(6000)
    table = parse_offsets(text_of(made, "consumerOffset").decode()).offset_table
    return {key.partition("@")[2] for key in table}


@pytest.mark.parametrize("offsets", [True, False])
def test_a_groups_offsets_are_deleted_if_the_master_deletes_them(offsets: bool) -> None:
    with synced() as (master, slave, _):
        for group in ("kept", "deleted"):
            master.make_group(group)
            commit(master, group, 7)
        commit(slave, "slave-readers", 4)
        slave.system.advance(4000)
        assert groups_with_offsets(slave) == {"kept", "deleted", "slave-readers"}
        delete_group(master, "deleted", offsets=offsets)
        slave.system.advance(21_000)
        assert "deleted" not in slave.broker.tables.groups.value
        expected = {"kept", "slave-readers"} if offsets else {"kept", "deleted", "slave-readers"}
        assert groups_with_offsets(slave) == expected


def test_a_recreated_group_gets_its_new_offsets() -> None:
    with synced() as (master, slave, _):
        master.make_group("group")
        commit(master, "group", 7)
        slave.system.advance(4000)
        delete_group(master, "group", offsets=True)
        slave.system.advance(10_000)
        master.make_group("group")
        commit(master, "group", 2)
        slave.system.advance(31_000)
        assert slave.broker.tables.offsets.value["Topic@group"] == {0: 2}


def test_offsets_committed_at_the_slave_survive_a_groups_recreation() -> None:
    with synced() as (master, slave, _):
        master.make_group("group")
        commit(master, "group", 7)
        slave.system.advance(4000)
        delete_group(master, "group", offsets=False)
        slave.system.advance(10_000)
        master.make_group("group")
        slave.system.advance(10_000)
        delete_group(master, "group", offsets=True)
        master.make_group("group")
        commit(slave, "group", 5)
        slave.system.advance(21_000)
        assert slave.broker.tables.offsets.value["Topic@group"] == {0: 5}


def test_a_slave_that_was_away_applies_the_deletion_later() -> None:
    with following() as (pair, _):
        for group in ("kept", "deleted"):
            pair.master.make_group(group)
            commit(pair.master, group, 7)
        pair.advance(14_000)
        assert groups_with_offsets(pair.slave) == {"kept", "deleted"}
        pair.stop(pair.slave)
        delete_group(pair.master, "deleted", offsets=True)
        pair.restart(pair.slave)
        pair.slave.system.address("slave_sync").tell(MasterClientAddress(MASTER))
        pair.advance(40_000)
        assert groups_with_offsets(pair.slave) == {"kept"}


def test_a_master_that_lost_its_files_causes_no_deletion() -> None:
    with following() as (pair, _):
        pair.master.make_group("group")
        pair.master.make_group("other")
        commit(pair.master, "group", 7)
        pair.advance(14_000)
        pair.die(pair.master, pair.master.disk)  # type: ignore[arg-type]
        disk = pair.master.disk
        save(disk, "/store/config/subscriptionGroup.json", format_groups(SubscriptionGroupTable()))
        save(disk, "/store/config/consumerOffset.json", '{"offsetTable":{}}')
        pair.restart(pair.master)
        pair.advance(40_000)
        assert "group" not in pair.slave.broker.tables.groups.value
        assert groups_with_offsets(pair.slave) == {"group"}


def test_groups_unknown_to_another_master_are_not_deleted() -> None:
    """A slave that was made a master lacks the last seconds of the one before."""
    with synced() as (master, slave, client):
        master.make_group("group")
        commit(master, "group", 7)
        slave.system.advance(4000)
        other = SimulatedBroker(5)
        for number in range(9):
            other.make_group(f"of the other{number}".replace(" ", "-"))
        slave.system.address("slave_sync").tell(MasterClientAddress("192.0.2.9:10911"))
        slave.system.drain()
        client.master, client.address = other, "192.0.2.9:10911"
        slave.system.advance(31_000)
        assert "group" not in slave.broker.tables.groups.value
        assert "group" in groups_with_offsets(slave)
        other.make_group("deleted")
        commit(other, "deleted", 1)
        slave.system.advance(10_000)
        delete_group(other, "deleted", offsets=True)
        slave.system.advance(21_000)
        assert "deleted" not in groups_with_offsets(slave), "but what that deletes later"
        other.stop()
