"""The log tail: one request for the next file, and write bans that their sources lift."""

from structlog.testing import capture_logs

from actors.dispatching.messages import Appended, WritesForbidden
from actors.retention.messages import DropFiles, FilesDropped
from actors.sending.messages import FilePrepared, PrepareFile
from actors.sending.put_message import LogTail
from storage.log.commit_log import CommitLog, prepare_file
from storage.queues.dispatch_entry import DispatchEntry
from tests.support.brokers import STORE
from tests.support.peers import Told
from tests.support.puts import put
from troupemq.testing.fake_disk import FakeDisk

FILE_BYTES = STORE.commit_log_file_bytes


class Made:
    """The end of a log of one file, and those it talks to."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.log = CommitLog(STORE, self.disk)
        self.log.load()
        self.log.start_at(0, 0)
        self.allocate_file, self.reput = Told("allocate_file"), Told("reput")
        self.owner = Told("put_message")
        self.end = LogTail(
            self.log,
            STORE,
            self.disk,
            addresses={
                "allocate_file": self.allocate_file.address,
                "reput": self.reput.address,
            },
            owner=self.owner.address,
        )

    def prepared(self, offset: int) -> FilePrepared:
        """A file that begins there."""
        return FilePrepared(offset, prepare_file(offset, STORE, self.disk))


def test_a_file_is_requested_once_until_its_creation_fails() -> None:
    made = Made()
    made.end.want_file()
    made.end.want_file()
    assert made.allocate_file.take() == [PrepareFile(FILE_BYTES, made.owner.address)]
    made.end.waits_for_file = True
    assert made.end.give_up_file()
    assert not made.end.waits_for_file
    assert not made.end.give_up_file()
    made.end.want_file()
    assert made.allocate_file.take() == [PrepareFile(FILE_BYTES, made.owner.address)]


def test_only_the_file_after_the_last_one_counts_as_space() -> None:
    made = Made()
    made.end.waits_for_file = True
    assert not made.end.adopt(made.prepared(2 * FILE_BYTES))
    assert made.end.waits_for_file
    assert made.end.adopt(made.prepared(FILE_BYTES))
    assert not made.end.waits_for_file
    assert made.log.queue.capacity_end == 2 * FILE_BYTES
    assert made.log.append([put(bytes(FILE_BYTES // 2))] * 2, 0)
    dropped = Told("clean_files")
    made.end.drop_files(DropFiles(FILE_BYTES, dropped.address))
    (told,) = dropped.take()
    assert isinstance(told, FilesDropped)
    assert [file.first_offset for file in told.files] == [0]


def test_writes_are_enabled_when_every_reason_is_lifted() -> None:
    made = Made()
    with capture_logs() as lines:
        for message in (WritesForbidden("full", "disk"), WritesForbidden("no room", "reput")):
            made.end.forbid(message)
        made.end.forbid(WritesForbidden(None, "somebody"))
        assert made.end.is_forbidden
        made.end.forbid(WritesForbidden(None, "reput"))
        assert made.end.is_forbidden and not made.end.is_forbidden_but_by("disk")
        made.end.forbid(WritesForbidden(None, "disk"))
    assert not made.end.is_forbidden
    assert [line["event"] for line in lines] == [
        "writes disabled",
        "writes disabled",
        "writes enabled",
    ]


def test_a_final_write_ban_stays() -> None:
    made = Made()
    made.end.forbid(WritesForbidden("a failed sync", "group commit", final=True))
    made.end.forbid(WritesForbidden(None, "group commit"))
    assert made.end.is_forbidden and made.end.is_forbidden_but_by("disk")


def test_written_records_are_dispatched_up_to_the_end() -> None:
    made = Made()
    ((offset, size),) = made.log.append([put()], 5)
    entry = DispatchEntry(b"Topic", 0, 0, offset, size, 0, 5, 0, ())
    made.end.dispatch([entry])
    assert made.reput.take() == [Appended(size, [entry])]
