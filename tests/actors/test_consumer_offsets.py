"""Tests of actors/consumer_offsets.py: how far each group has come."""

from collections.abc import Iterator
from contextlib import contextmanager

from actors.config_writer import ConfigWriter
from actors.consumer_offsets import CommitOffset, ConsumerOffsets, Offsets
from actors.published import Published
from actors.supervisor import ChildSpec
from actors.system import ActorSystem
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from storage.disk import Disk
from tests.support.fake_disk import FakeDisk
from tests.support.peers import RecordingPeer, ask, request, simulated, tell

PATH = "/store/config/consumerOffset.json"
INTERVAL_MS = 5000


@contextmanager
def offset_table(
    disk: Disk | None = None, *, young: bool = False
) -> Iterator[tuple[ActorSystem, Published[Offsets]]]:
    offsets: Published[Offsets] = Published({})
    with simulated(disk) as system:
        writer = system.address("config_writer")
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec(
                "consumer_offsets",
                lambda _: ConsumerOffsets(
                    PATH,
                    interval_ms=INTERVAL_MS,
                    starts_in_memory=lambda topic, queue_id: young,
                    offsets=offsets,
                    config_writer=writer,
                ),
            ),
        )
        yield system, offsets


def update(offset: int, queue_id: int = 0, *, oneway: bool = True) -> RemotingCommand:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    return request(RequestCode.UPDATE_CONSUMER_OFFSET, fields, oneway=oneway)


def query(queue_id: int = 0) -> RemotingCommand:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": str(queue_id)}
    return request(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def stored(system: ActorSystem, queue_id: int = 0) -> int | None:
    answer = ask(system, "consumer_offsets", query(queue_id))
    return int((answer.fields or {})["offset"]) if answer.code == 0 else None


def test_an_offset_is_taken_as_it_comes_backwards_too() -> None:
    with offset_table() as (system, _):
        answer = ask(system, "consumer_offsets", update(7, oneway=False))
        assert (answer.code, answer.fields) == (0, {})
        assert stored(system) == 7
        peer = RecordingPeer()
        tell(system, "consumer_offsets", update(3), peer)
        assert peer.received == []
        assert stored(system) == 3


def test_a_pull_brings_an_offset_too() -> None:
    with offset_table() as (system, _):
        system.address("consumer_offsets").tell(CommitOffset("G", "T", 2, 11, "192.0.2.1:1"))
        system.drain()
        assert stored(system, 2) == 11


def test_a_new_group_begins_a_young_queue_at_its_start() -> None:
    with offset_table(young=True) as (system, _):
        assert stored(system) == 0
        assert ask(system, "consumer_offsets", query()).fields == {"offset": "0"}


def test_a_new_group_of_an_old_queue_is_told_that_there_is_nothing() -> None:
    with offset_table() as (system, _):
        answer = ask(system, "consumer_offsets", query())
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def test_the_file_follows_when_something_has_changed() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, offsets):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        assert offsets.value == {} and not disk.exists(PATH)
        system.advance(INTERVAL_MS)
        assert offsets.value == {"T@G": {0: 7}}
        assert disk.read_bytes(PATH) == b'{\n\t"offsetTable":{\n\t\t"T@G":{0:7\n\t\t}\n\t}\n}'
        count = disk.sync_count
        system.advance(10 * INTERVAL_MS)
        assert disk.sync_count == count


def test_the_offsets_survive_a_stop_in_between() -> None:
    disk = FakeDisk()
    with offset_table(disk) as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        tell(system, "consumer_offsets", update(9, 3), RecordingPeer())
    with offset_table(disk) as (system, offsets):
        assert offsets.value == {"T@G": {0: 7, 3: 9}}
        assert (stored(system), stored(system, 3)) == (7, 9)


def test_a_slave_gets_the_whole_table() -> None:
    with offset_table() as (system, _):
        tell(system, "consumer_offsets", update(7), RecordingPeer())
        answer = ask(system, "consumer_offsets", request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        assert answer.body == b'{"offsetTable":{"T@G":{0:7}}}'


def test_a_missing_field_is_answered_with_an_error() -> None:
    with offset_table() as (system, _):
        command = request(RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "T"})
        assert ask(system, "consumer_offsets", command).code == ResponseCode.SYSTEM_ERROR
        assert stored(system) is None, "it goes on"


def test_offsets_that_are_lost_begin_anew_and_the_broken_file_is_kept_aside() -> None:
    disk = FakeDisk()
    disk.make_dirs("/store/config")
    disk.open(PATH, create=True).pwrite(b'{"offsetTable":{"T@G":{0:"x"}}}', 0)
    with offset_table(disk) as (_, offsets):
        assert offsets.value == {}
    assert disk.read_bytes(PATH) == b'{\n\t"offsetTable":{}\n}'
    assert disk.read_bytes(f"{PATH}.broken") == b'{"offsetTable":{"T@G":{0:"x"}}}'
