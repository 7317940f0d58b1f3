"""How far every consumer group has come in every queue.

Owns: the table of offsets and consumerOffset.json.
Told by: connections (`Request`), PullMessage (`CommitOffset`), its own tick.
Tells: config_writer.

An offset is taken as it comes, backwards too.  The file follows every few seconds and at the stop;
what a crash loses is consumed again.

Source: broker/offset/ConsumerOffsetManager.java, ConsumerManageProcessor.java.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from structlog import get_logger

from actors.actor import handles
from actors.address import Address
from actors.persisted import TickedTable
from actors.published import Published
from actors.request import Request, serves
from protocol.bodies import ConsumerOffsetTable
from protocol.codes import RequestCode, ResponseCode
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from protocol.headers.offset import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from storage.offsets import format_offsets, offset_key, parse_offsets

log = get_logger(__name__)

Offsets = Mapping[str, Mapping[int, int]]
"""By `topic@group`, then by queue."""


@dataclass(slots=True)
class CommitOffset:
    """The group has consumed everything of this queue below `offset`."""

    group: str
    topic: str
    queue_id: int
    offset: int
    client: str = ""


class ConsumerOffsets(TickedTable):
    """Lives on the loop."""

    def __init__(
        self,
        path: str,
        *,
        interval_ms: int,
        starts_in_memory: Callable[[str, int], bool],
        offsets: Published[Offsets],
        config_writer: Address,
    ) -> None:
        """`starts_in_memory(topic, queue_id)`: whether the queue is young, that is, its minimum is
        0 and its first message is recent enough to lie in memory still.

        `offsets` is published at every save, so it may be as old as that.
        """
        super().__init__(path, config_writer)
        self._interval_ms = interval_ms
        self._starts_in_memory = starts_in_memory
        self._published = offsets
        self._offsets: dict[str, dict[int, int]] = {}
        self._changed = False

    def on_start(self) -> None:
        loaded = self.load(parse_offsets)
        self._offsets = loaded.value.offset_table if loaded.value is not None else {}
        self._changed = bool(loaded.broken)
        self._publish()
        self.save_every(self._interval_ms)

    @handles(CommitOffset)
    def on_commit(self, message: CommitOffset) -> None:
        """A pull says how far its group has come."""
        self._commit(message.group, message.topic, message.queue_id, message.offset)

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request) -> RemotingCommand:
        """A consumer says how far its group has come; mostly one-way."""
        header = UpdateConsumerOffsetHeader.decode(request.command.fields)
        self._commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return request.command.answer(fields={})

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> RemotingCommand:
        """How far a group has come; a new group begins a young queue at its first message."""
        header = QueryConsumerOffsetHeader.decode(request.command.fields)
        key = offset_key(header.topic, header.consumer_group)
        offset = self._offsets.get(key, {}).get(header.queue_id, -1)
        if offset < 0:
            if not self._starts_in_memory(header.topic, header.queue_id):
                raise RemoteError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return request.command.answer(fields=OffsetResponseHeader(offset).encode())

    @serves(RequestCode.GET_ALL_CONSUMER_OFFSET)
    def all_offsets(self, request: Request) -> RemotingCommand:
        """The whole table, for a slave."""
        return request.command.answer(body=ConsumerOffsetTable(self._offsets).encode())

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._offsets.setdefault(offset_key(topic, group), {})[queue_id] = offset
        self._changed = True

    def _publish(self) -> Offsets:
        offsets = {key: dict(queues) for key, queues in self._offsets.items()}
        self._published.value = offsets
        return offsets

    def save_changes(self) -> None:
        """A snapshot, published with it."""
        if not self._changed:
            return
        self._changed = False
        table = ConsumerOffsetTable({key: dict(own) for key, own in self._publish().items()})
        self.save(lambda: format_offsets(table))
