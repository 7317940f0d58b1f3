"""Tests of actors/tables/config_writer.py: the files of the tables."""

from errno import ENOSPC

from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.tables.config_writer import RETRY_MS, ConfigWriter
from actors.tables.messages import FileWritten, WriteFile
from tests.support.peers import Told, simulated
from troupemq.testing.fake_disk import FakeDisk

PATH = "/store/config/topics.json"
WRITER = ChildSpec("config_writer", lambda _: ConfigWriter())


def write(system: ActorSystem, text: str, owner: Told | None = None, serial: int = 1) -> None:
    reply_to = owner.address if owner is not None else None
    system.address("config_writer").tell(WriteFile(PATH, lambda: text, serial, reply_to))


def test_a_written_file_is_confirmed_to_its_owner() -> None:
    owner = Told("topics")
    with simulated() as system:
        system.start(WRITER)
        write(system, '{"a":1}', owner, serial=7)
        assert owner.take() == []
        system.drain()
        assert system.disk.read_bytes(PATH) == b'{"a":1}'
        assert owner.take() == [FileWritten(PATH, 7)]


def test_the_last_of_several_pending_texts_is_written() -> None:
    with simulated() as system:
        system.start(WRITER)
        for number in range(20):
            write(system, f'{{"a":{number}}}')
        system.drain()
        assert system.disk.read_bytes(PATH) == b'{"a":19}'


def test_a_refused_write_is_retried_at_the_stop() -> None:
    disk = FakeDisk()
    with simulated(disk) as system:
        system.start(WRITER)
        disk.fail_next("pwrite", OSError(ENOSPC, "No space left on device"))
        write(system, '{"a":1}')
        system.drain()
        assert not disk.exists(PATH)
    assert disk.read_bytes(PATH) == b'{"a":1}'


def test_a_refused_write_is_retried_without_delaying_requests() -> None:
    disk, owner = FakeDisk(), Told("topics")
    with simulated(disk) as system:
        system.start(WRITER)
        for _ in range(2):
            disk.fail_next("pwrite", OSError(ENOSPC, "No space left on device"))
        write(system, '{"a":1}', owner)
        system.drain()
        (told,) = owner.take()
        assert isinstance(told, FileWritten) and told.serial == 1
        assert "the disk is full" in told.refusal
        assert not disk.exists(PATH)
        system.advance(RETRY_MS)
        assert not disk.exists(PATH), "it failed once more"
        system.advance(RETRY_MS)
        assert disk.read_bytes(PATH) == b'{"a":1}'
        system.advance(10 * RETRY_MS)
        assert owner.take()[-1] == FileWritten(PATH, 1)


def test_without_a_writer_requests_are_answered_at_once() -> None:
    owner = Told("topics")
    WriteFile(PATH, "{}", 1, owner.address).on_undelivered("gone")
    WriteFile(PATH, "{}").on_undelivered("gone")
    assert owner.take() == [FileWritten(PATH, 1, "gone")]


def test_pending_writes_are_refused_if_the_writer_fails() -> None:
    """Whether its text had been written by then or only taken is chance; the numbers say so."""
    owner, refused = Told("topics"), set()
    with simulated() as system:
        system.start(WRITER)
        for serial in range(20):
            write(system, '{"a":1}', owner, serial)
            system.address("config_writer").tell(object())
            system.drain()
            (told,) = owner.take()
            assert isinstance(told, FileWritten) and told.serial == serial
            refused.add(bool(told.refusal))
            system.advance(60_000)
    assert True in refused
