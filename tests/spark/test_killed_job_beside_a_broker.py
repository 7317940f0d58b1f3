"""The archive job of a loaded broker is killed while it writes, without effect on clients."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from random import Random
from signal import SIGKILL
from threading import Event, Thread

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from actors.jobs.messages import JobState, RunJob
from spark.archive.files import Archive
from tests.compat.patience import wait_until
from tests.spark.probe import QUICK
from tests.spark.test_killed_job import (
    BODY_BYTES,
    JOB_TIMEOUT_S,
    MESSAGES,
    RANGE_BYTES,
    SHARE_MAX,
    are_gone,
    child_of,
    processes_of,
    wait_until_writing,
)
from tests.support.actors import WAIT_S, Arrivals
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.message import Message, MessageView, SendResult, SendStatus
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ProducerSettings
from troupemq.jobs_beside import SPARK_JOBS, JobsPlace
from troupemq.servers import Servers

pytestmark = pytest.mark.slow(seconds=40)

HOST = "127.0.0.1"
PAUSE_S = 0.002
STOP_S = 20.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Name server, broker and Spark jobs as in `troupemq broker`, with endless retries."""
    gave_up: list[str] = []
    servers = Servers(gave_up.append)
    names = {"listenPort": "0", "bindAddress": HOST, "kvConfigPath": str(tmp_path / "kv.json")}
    servers.start_namesrv(parse_namesrv_config("", names)[0])
    settings = {
        "listenPort": "0",
        "bindAddress": HOST,
        "brokerIP1": HOST,
        "namesrvAddr": f"{HOST}:{servers.ports['namesrv']}",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": str(4 << 20),
        "mappedFileSizeConsumeQueue": "60000",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
    }
    with servers.stopped_on_failure():
        broker, store, _ = parse_broker_config("", settings)
    servers.start_broker(broker, store, JobsPlace(tmp_path / "jobs"))
    yield servers
    assert servers.stop(STOP_S), "not stopped in order"
    assert gave_up == []


class Load:
    """A producer that tries each send once, and a consumer group, both running all the time."""

    def __init__(self, namesrv: str) -> None:
        self.sent: list[bytes] = []
        self.failed: list[BaseException] = []
        self.consumed: list[bytes] = []
        self._arrived: SimpleQueue[bytes] = SimpleQueue()
        self._over = Event()
        self._producer = Producer("load", namesrv, settings=ProducerSettings(retries=0))
        self._consumer = PushConsumer("load", self._take, namesrv, begin=ConsumeFrom.FIRST_OFFSET)
        self._consumer.subscribe("Load")
        self._thread = Thread(target=self._send)

    def __enter__(self) -> "Load":
        self._producer.start()
        self._producer.send(Message("Load", b"first"))
        self.sent.append(b"first")
        self._consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(STOP_S)
        self._producer.stop()
        self.wait_for(len(self.sent))
        self._consumer.stop()

    def _take(self, views: Sequence[MessageView]) -> None:
        for view in views:
            self._arrived.put(view.body)

    def _send(self) -> None:
        while not self._over.wait(PAUSE_S):
            body = b"%d" % len(self.sent)
            self.sent.append(body)
            self._producer.send_async(Message("Load", body)).add_done_callback(self._answered)

    def _answered(self, done: Future[SendResult]) -> None:
        if (error := done.exception()) is not None:
            self.failed.append(error)

    def wait_for(self, count: int) -> None:
        """Wait until that many messages are consumed."""
        while len(self.consumed) < count:
            self.consumed.append(self._arrived.get(timeout=WAIT_S))


def fill(namesrv: str) -> None:
    """Fill the store with enough incompressible bodies to keep the job busy for a while."""
    with Producer("before", namesrv) as producer:
        body = Random(0).randbytes(BODY_BYTES)
        sends = [producer.send_async(Message("Before", body)) for _ in range(MESSAGES)]
        assert all(each.result(WAIT_S).status is SendStatus.OK for each in sends)


@pytest.mark.trial(short=0, long=30, every=3, turn=0)
def test_killed_job_leaves_clients_undisturbed_and_no_process(
    servers: Servers, tmp_path: Path, seed: int
) -> None:
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    fill(namesrv)
    progress, ended = Arrivals(), Arrivals()
    arguments = {"output": str(tmp_path / "archive"), "range_bytes": RANGE_BYTES}
    archive = Archive(str(tmp_path / "archive"))
    with Load(namesrv) as load:
        jobs = servers.system.address(SPARK_JOBS)
        jobs.tell(RunJob("archive", arguments, ended, progress, QUICK))
        wait_until_writing(archive, Random(seed).random() * SHARE_MAX)
        running: JobState = progress.get_nowait()
        processes = processes_of(running.run)
        os.kill(child_of(running.run), SIGKILL)
        failed: JobState = ended.get(timeout=JOB_TIMEOUT_S)
        load.wait_for(len(load.sent) + 50)
    assert (failed.state, failed.sentence) == (
        "failed",
        "its process ended early, with signal SIGKILL",
    )
    assert load.failed == []
    assert sorted(load.consumed) == sorted(load.sent), "each once"
    wait_until(lambda: are_gone(failed.run, processes), "the job's processes are gone")
    assert archive.runs() == []
    assert all(path.name.startswith("_") for path in archive.output.iterdir())
    assert not (tmp_path / "jobs" / failed.run).exists()
