"""Offsets of a broadcasting consumer, in the Java client's files.

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json    and the previous one, offsets.json.bak

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:17}}      fastjson, objects as keys

A consumer continues where a Java client with the same client id stopped. The id consists of the
machine's address and, for broadcasting, the instance name DEFAULT.

Source: client/consumer/store/LocalFileOffsetStore.java, common/MixAll.java (string2File).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import fsync, replace
from pathlib import Path
from threading import Lock

from protocol import bodies
from protocol.errors import RemoteError
from protocol.fastjson import dumps
from protocol.json_body import Body
from storage.files.below import OutsideFolder, below
from troupemq.client.connection.calls import Blocking, Flow
from troupemq.client.consuming.consumer_offsets import Offsets, QueueEnds
from troupemq.client.errors import ArgumentIllegal, ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue

log = client_logger(__name__)

FILE_NAME = "offsets.json"
INSTANCE_NAME = "DEFAULT"
"""Default instance name of a broadcasting Java client."""


def default_folder() -> Path:
    return Path.home() / ".rocketmq_offsets"


@dataclass(slots=True)
class _OffsetFile(Body):
    offset_table: dict[bodies.MessageQueue, int] = field(default_factory=dict)


class LocalOffsets(Offsets):
    """A group's offsets of this client; for any thread. Only first positions need a broker."""

    path: Path

    def __init__(self, folder: Path, group: str, ends: QueueEnds) -> None:
        super().__init__(ends)
        self._folder, self._group = folder, group
        self._lock = Lock()
        self._offsets: dict[MessageQueue, int] = {}
        """Replaced by each change, so that any thread may read it."""
        self._is_saved = True
        """Whether the last write of the file succeeded."""

    def locate(self, client_id: str) -> None:
        """Set the path of the file; call it first. Raises ArgumentIllegal."""
        self.path = Path(_below(self._folder, client_id, self._group))

    def load(self) -> None:
        """Read the file, or else its backup. Raises ClientError if both are damaged.

        To continue without offsets would skip or repeat all messages.
        """
        texts = [_read(self.path), _read(self._backup)]
        failure: RemoteError | None = None
        for text in texts:
            if not text or not text.strip():
                continue
            try:
                found = _OffsetFile.decode(text)
            except RemoteError as error:
                log.warning("damaged offset file skipped", path=str(self.path), error=error.remark)
                failure = error
                continue
            with self._lock:
                self._offsets = {
                    MessageQueue(each.topic, each.broker_name, each.queue_id): offset
                    for each, offset in found.offset_table.items()
                }
            return
        if failure is not None:
            raise ClientError(f"{self.path} and its .bak cannot be understood: {failure.remark}")

    @property
    def _backup(self) -> Path:
        return self.path.with_name(f"{FILE_NAME}.bak")

    def stored(self, queue: MessageQueue) -> Flow[int | None]:
        yield from ()  # a flow, though it waits for nothing
        return self._offsets.get(queue)

    def commit(self, queue: MessageQueue, offset: int) -> Flow[None]:
        yield Blocking(lambda: self._write({queue: offset}))

    def commit_all(self, offsets: Mapping[MessageQueue, int]) -> Flow[int]:
        try:
            yield Blocking(lambda: self._write(offsets))
        except ClientError as error:
            log.warning("offset file write failed", path=str(self.path), error=str(error))
            return 0
        return len(offsets)

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        try:
            self._merge(offsets)
        except OSError as error:
            raise ClientError(f"{self.path} cannot be written: {error}") from None

    def _merge(self, offsets: Mapping[MessageQueue, int]) -> None:
        with self._lock:
            merged = {**self._offsets, **offsets}
            if merged == self._offsets and self._is_saved and self.path.exists():
                return
            self._offsets, self._is_saved = merged, False
            table = {
                bodies.MessageQueue(queue.topic, queue.broker_name, queue.queue_id): offset
                for queue, offset in sorted(merged.items())
            }
            self.path.parent.mkdir(parents=True, exist_ok=True)
            previous = _read(self.path)
            if previous:
                _replace(self._backup, previous)
            _replace(self.path, dumps(_OffsetFile(table).to_json(), pretty=True))
            self._is_saved = True


def _below(folder: Path, client_id: str, group: str) -> str:
    try:
        return below(str(folder), client_id, group, FILE_NAME)
    except OutsideFolder as error:
        raise ArgumentIllegal(f"offsets cannot be kept: {error}") from None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ClientError(f"{path} cannot be read: {error.strerror}") from None


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a crash it has the old content or the new."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        fsync(file.fileno())
    replace(temporary, path)
