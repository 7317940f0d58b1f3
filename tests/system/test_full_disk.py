"""A disk that is really full: a broker process on a tmpfs of a few MiB in a namespace of its own.

Ballast takes what is left: while messages come in, while queues go on to their next files, while a
topic is written to its table. Sends are refused, reads go on, nothing dies; without the ballast
writing resumes, and after a restart everything acknowledged is there.
"""

import os
import subprocess
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.admin import CreateTopicHeader
from tests.compat.patience import wait_until
from tests.compat.servers import OurBroker, OurNameServer
from tests.support.brokers import send_command
from tests.support.wire import Wire

MIB = 1 << 20
TMPFS_BYTES = 24 * MIB
TOPIC = "Topic"
QUEUES = 4
BODY = b"x" * 2000
RESUME_S = 15.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(2 * MIB),
    "mappedFileSizeConsumeQueue": "4000",
    "maxMessageSize": "65536",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    # a tmpfs that is filled up on purpose: what the ratios do is shown elsewhere
    "rocketmq.broker.diskSpaceWarningLevelRatio": "1.0",
    "rocketmq.broker.diskSpaceCleanForciblyRatio": "1.0",
    "diskMaxUsedSpaceRatio": "95",
}


class SmallDisk:
    """A tmpfs in a mount namespace that lasts as long as this does."""

    def __init__(self, mount_point: Path) -> None:
        self.mount_point = mount_point
        mount_point.mkdir()
        script = f"mount -t tmpfs -o size={TMPFS_BYTES} tmpfs '{mount_point}' && echo && exec cat"
        options = ["-m"] if os.geteuid() == 0 else ["-Urm"]
        self._holder = subprocess.Popen(
            ["unshare", *options, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        self.is_there = self._holder.stdout.readline() == b"\n"
        self.reason = "" if self.is_there else self._holder.stderr.read().decode().strip()
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        self.enter = ("nsenter", "-t", str(self._holder.pid), *user, "-m", "--")
        self._root = Path(f"/proc/{self._holder.pid}/root{mount_point}")

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Ballast over all that is free, but for `leave_bytes`."""
        with (self._root / "ballast").open("wb") as file:
            while (size := self._free_bytes() - leave_bytes) > 0:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:  # the broker has taken some of it meanwhile
                    if error.errno != ENOSPC:
                        raise
                else:
                    return

    def _free_bytes(self) -> int:
        figures = os.statvfs(self._root)
        return figures.f_bavail * figures.f_frsize

    def make_room(self) -> None:
        """Takes the ballast away."""
        (self._root / "ballast").unlink()

    def read(self, path: str) -> str:
        """A file on it; empty if it is not there."""
        file = self._root / path
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        """The tmpfs goes with its last process."""
        self._holder.communicate(timeout=10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a small disk; skip where mounting is impossible, or fail under TROUPEMQ_CI."""
    disk = SmallDisk(tmp_path / "disk")
    try:
        if not disk.is_there:
            reason = f"no mount namespace with a tmpfs here: {disk.reason}"
            if os.environ.get("TROUPEMQ_CI") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
        yield disk
    finally:
        disk.close()


class Producer:
    """Sends numbered messages; keeps what was acknowledged."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.count = 0
        self.acknowledged: list[set[bytes]] = [set() for _ in range(QUEUES)]

    def send(self) -> RemotingCommand:
        """One message, to the queues in turn."""
        number, self.count = self.count, self.count + 1
        body = b"%d:" % number + BODY
        command = send_command(
            body, topic=TOPIC, queue_id=number % QUEUES, properties=f"UNIQ_KEY\x01key{number}"
        )
        answer = self.wire.ask(command)
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged[number % QUEUES].add(body)
        return answer

    def send_until_refused(self) -> RemotingCommand:
        """Send until a send is refused; return the refusal."""
        for _ in range(TMPFS_BYTES // len(BODY)):
            answer = self.send()
            if answer.code != ResponseCode.SUCCESS:
                return answer
        raise AssertionError("the disk was never full")

    def resumes(self) -> None:
        """Waits until messages are taken again; some more then."""
        wait_until(lambda: self.send().code == ResponseCode.SUCCESS, "writing resumes", RESUME_S)
        assert {self.send().code for _ in range(4 * QUEUES)} == {ResponseCode.SUCCESS}

    def reads_go_on(self, *, all_of_it: bool = False) -> None:
        """Check that acknowledged messages can be pulled, and those that reached only the log
        later.
        """
        for queue in range(QUEUES):
            found = {record.body for record in self.wire.messages(TOPIC, queue)}
            assert found
            assert not all_of_it or self.acknowledged[queue] <= found


class FullDiskBroker(OurBroker):
    """A broker whose store lies on a small disk."""

    def __init__(self, scratch: Path, name_server: OurNameServer, disk: SmallDisk) -> None:
        super().__init__(scratch, name_server, SETTINGS, disk.mount_point / "store")
        self.wrapped_in = disk.enter


def full_while_producing(disk: SmallDisk, producer: Producer) -> None:
    """The next log file finds no room."""
    disk.fill(leave_bytes=3 * MIB)
    refusal = producer.send_until_refused()
    assert refusal.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
    producer.reads_go_on()
    disk.make_room()
    producer.resumes()


def full_while_queues_roll(disk: SmallDisk, producer: Producer) -> None:
    """The log has room, a queue's next file or page does not."""
    disk.fill()
    refusal = producer.send_until_refused()
    assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE, refusal.remark
    assert "the broker's disk is full [CL:  1.00 CQ:  1.00 INDEX:  1.00]" in (refusal.remark or "")
    producer.reads_go_on()
    disk.make_room()
    producer.resumes()


def full_while_a_topic_is_written(disk: SmallDisk, producer: Producer) -> None:
    """An error says so; the file stays what it was until there is room, and is written then."""
    before = disk.read("store/config/topics.json")
    disk.fill()
    header = CreateTopicHeader("Late", "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
    command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())
    refusal = producer.wire.ask(command)
    assert refusal.code == ResponseCode.SYSTEM_ERROR
    assert "not on disk yet" in (refusal.remark or "")
    producer.reads_go_on()
    kept = (
        disk.read("store/config/topics.json"),
        disk.read("store/config/topics.json.bak"),
    )
    assert before in kept
    disk.make_room()
    wait_until(
        lambda: "Late" in disk.read("store/config/topics.json"), "the table is written", RESUME_S
    )
    producer.resumes()


@pytest.mark.slow(seconds=10)
def test_a_full_disk_refuses_sends_and_loses_nothing(small_disk: SmallDisk, tmp_path: Path) -> None:
    with OurNameServer(tmp_path / "namesrv") as name_server:
        with FullDiskBroker(tmp_path / "broker", name_server, small_disk) as broker:
            with Wire(broker.address) as wire:
                producer = Producer(wire)
                producer.resumes()
                full_while_producing(small_disk, producer)
                full_while_queues_roll(small_disk, producer)
                full_while_a_topic_is_written(small_disk, producer)
            assert broker.stop() == 0
        with (
            FullDiskBroker(tmp_path / "again", name_server, small_disk) as broker,
            Wire(broker.address) as wire,
        ):
            producer.wire = wire
            producer.reads_go_on(all_of_it=True)
            producer.resumes()
