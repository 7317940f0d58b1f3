"""Lanes of a sink: a task's messages for one topic, numbered from 0, with a running checksum.

Stored messages are skipped after a comparison of that checksum (the chain).
"""

from time import time_ns

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import SinkBatchHeader, SinkLaneHeader
from protocol.sink import CHAIN_START, SinkMessage, encode_sink_body
from remoting.sync_connection import Refused
from spark.sink.brokers import Brokers, Found, NotNowError, Target, chosen, found_in
from spark.sink.options import SinkOptions
from spark.sink.plain_send import REQUEST_BYTES, PlainLane, first_queue, queue_of
from spark.sink.rows import Outgoing
from storage.errors import StoreError


class LaneSender:
    """One topic of one task, at a broker that knows our requests."""

    def __init__(
        self,
        brokers: Brokers,
        target: Target,
        header: SinkLaneHeader,
        batch: int,
        found: Found,
        options: SinkOptions,
    ) -> None:
        self._brokers, self._target, self._header = brokers, target, header
        self._batch, self._found = batch, found
        self._messages_max = options.messages_per_request
        self._first_queue = first_queue(header)
        self._sequence = self._sent_from = 0
        self._chain = self._sent_chain = CHAIN_START
        self._waiting: list[SinkMessage] = []
        self._waiting_bytes = 0
        self.sent = self.found = 0

    @property
    def _is_past(self) -> bool:
        """A later batch is there: this one is, too."""
        return self._found.batch > self._batch

    def add(self, message: Outgoing) -> None:
        """Add the next row. Raises StoreError."""
        if self._is_past:
            self.found += 1
            return
        self._chain = message.chained(self._chain)
        queue = queue_of(message, self._first_queue + self._sequence, self._target.queues)
        self._sequence += 1
        there = self._found.sequence if self._found.batch == self._batch else 0
        if self._sequence <= there:
            if self._sequence == there and self._chain != self._found.chain:
                raise self._differs()
            self.found += 1
            self._sent_from, self._sent_chain = self._sequence, self._chain
            return
        now_ms = time_ns() // 1_000_000
        self._waiting.append(
            SinkMessage(queue, message.flag, now_ms, self._chain, message.body, message.properties)
        )
        self._waiting_bytes += len(message.body)
        if len(self._waiting) >= self._messages_max or self._waiting_bytes >= REQUEST_BYTES:
            self._flush()

    def end(self) -> None:
        """Wait until every message is stored, and nothing else is. Raises StoreError."""
        if self._waiting:
            self._flush()
        if self._found.batch == self._batch and self._sequence < self._found.sequence:
            raise self._differs()

    def _flush(self) -> None:
        lane = self._header
        header = SinkBatchHeader(
            lane.query,
            lane.partition,
            lane.topic,
            self._batch,
            self._sent_from,
            self._sent_chain.hex(),
        )
        body = encode_sink_body(self._waiting)
        self._found = self._brokers.patiently(lambda: self._send(header, body))
        if not self._is_past and self._found.sequence < self._sequence:
            raise StoreError(f"{self._target.name} took fewer messages than it was sent")
        self.sent += len(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._sent_from, self._sent_chain = self._sequence, self._chain

    def _send(self, header: SinkBatchHeader, body: bytes) -> Found:
        command = RemotingCommand(RequestCode.SEND_SINK_BATCH, header.encode(), body=body)
        try:
            return found_in(self._brokers.ask(self._target.line, command))
        except Refused as error:
            if error.code == ResponseCode.SINK_BATCH_HAS_GAP:
                raise StoreError(
                    f"{self._target.name} has lost messages of this batch that it had taken: the"
                    " task has to run again"
                ) from None
            if error.code == ResponseCode.SYSTEM_ERROR:
                raise NotNowError(str(error)) from None
            raise StoreError(str(error)) from None

    def _differs(self) -> StoreError:
        return StoreError(
            f"batch {self._batch} was planned differently before: {self._target.name} has"
            f" {self._found.sequence} messages of partition {self._header.partition} for topic"
            f" {self._header.topic}, and they are not the ones that come now. A batch that is"
            " repeated needs the same rows in the same order; with a shuffle before the sink set"
            " its option sortRows"
        )


def open_lane(
    brokers: Brokers, options: SinkOptions, header: SinkLaneHeader, batch: int
) -> "LaneSender | PlainLane":
    """Ask all brokers of the topic for the progress of the lane. Raises StoreError."""

    def ask() -> LaneSender | PlainLane:
        targets = brokers.targets(header.topic)
        found = {each.name: brokers.progress(each, header) for each in targets}
        target = chosen(targets, header)
        for each in targets:
            known, best = found[each.name], found[target.name]
            if (
                known is not None
                and known.batch >= batch
                and (best is None or (known.batch, known.sequence) > (best.batch, best.sequence))
            ):
                target = each
        known = found[target.name]
        if known is None:
            return PlainLane(brokers, target, header, batch, options)
        return LaneSender(brokers, target, header, batch, known, options)

    return brokers.patiently(ask)
