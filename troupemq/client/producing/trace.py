"""Message traces: records about sent messages, collected into messages of the trace topic.

A record ends with 0x02, its fields are separated by 0x01. As in Java, an absent text is "null".

    Pub             time ms, region, group, topic, message id, tags, keys, broker, body bytes,
                    cost ms, kind, offset message id, true if SEND_OK
    EndTransaction  time ms, region, group, topic, message id, tags, keys, broker, kind,
                    transaction id, state, true after a check-back

Source: client/trace/TraceDataEncoder.java, AsyncTraceDispatcher.java, common/message/MessageType.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from time import monotonic
from typing import Any, Protocol

from protocol.codes import RequestCode
from protocol.properties import KEY_SEPARATOR
from protocol.topic_names import TRACE_TOPIC
from troupemq.client.connection.client import now_ms
from troupemq.client.connection.route import RouteCache
from troupemq.client.connection.task_thread import Tasks
from troupemq.client.errors import ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import DEFAULT_REGION, Message, MessageView, SendResult, SendStatus
from troupemq.client.producing.sending import Sending

log = client_logger(__name__)

SEND_INTERVAL_MS = 500
BODY_CHARACTERS_MAX = 118_000
KEYS_BYTES_FULL = 16_000
"""Size at which a message of traces is sent; a shorter one is sent every 500 ms."""

KEYS_BYTES_MAX = 32_000
"""Limit of the keys of a message of traces, as all properties take 32,767 bytes at most."""

NORMAL_MESSAGE, HALF_MESSAGE, COMMIT_MESSAGE, DELAYED_MESSAGE = range(4)
_FIELD_END, _RECORD_END = "\x01", "\x02"


class TraceSent(Protocol):
    """Future of a message of traces."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> object: ...


class TracedClient(Protocol):
    """The parts of a client that traces need."""

    @property
    def routes(self) -> RouteCache: ...

    @property
    def housekeeping(self) -> Tasks: ...


class Tracing:
    """Collects and sends the traces of one producer; a loss is only logged. For any thread."""

    def __init__(
        self, client: "TracedClient", producer_group: str, send: Callable[[Message], "TraceSent"]
    ) -> None:
        self._client = client
        self._group = producer_group
        self._send = send
        self._lock = Lock()
        self._empty()

    def _empty(self) -> None:
        self._records: list[str] = []
        self._keys: dict[str, None] = {}  # a set that keeps its order
        self._body_characters = 0
        self._keys_bytes = 0

    def start(self) -> None:
        self._client.housekeeping.every(SEND_INTERVAL_MS, self.send_rest)

    def watch(self, sending: Sending) -> None:
        """Add a record when this send is done."""
        if not sending.parcel.topic.startswith(TRACE_TOPIC):
            begun_ms = now_ms()
            sending.result.add_done_callback(lambda done: self._sent(sending, begun_ms, done))

    def _sent(self, sending: Sending, begun_ms: int, done: Future[SendResult]) -> None:
        if done.cancelled() or done.exception() is not None or not done.result().trace_on:
            return
        result, message = done.result(), sending.message
        is_batch = sending.parcel.code == RequestCode.SEND_BATCH_MESSAGE
        keys = () if is_batch else tuple(message.keys)
        kind = DELAYED_MESSAGE if message.is_delayed else NORMAL_MESSAGE
        self._add(
            (result.message_id, *keys),
            "Pub",
            begun_ms,
            result.region_id,
            self._group,
            message.topic,
            result.message_id,
            None if is_batch else message.tags,
            KEY_SEPARATOR.join(keys) or None,
            self._address(result.queue.broker_name),
            len(sending.parcel.body),
            int((monotonic() - sending.begun_s) * 1000),
            HALF_MESSAGE if sending.is_half else kind,
            result.offset_message_id,
            result.status is SendStatus.OK,
        )

    def transaction_ended(
        self, message: Message | MessageView, message_id: str, address: str, state: str, asked: bool
    ) -> None:
        """Add a record about the end of a transaction; `address` may also be a broker name."""
        keys = tuple(message.keys)
        self._add(
            (message_id, *keys),
            "EndTransaction",
            now_ms(),
            DEFAULT_REGION,
            self._group,
            message.topic,
            message_id,
            message.tags,
            KEY_SEPARATOR.join(keys) or None,
            self._address(address),
            COMMIT_MESSAGE,
            message_id,
            state,
            asked,
        )

    def _address(self, broker_name: str) -> str:
        try:
            return self._client.routes.master(broker_name)
        except ClientError:
            return broker_name

    def _add(self, keys: tuple[str, ...], *fields: object) -> None:
        record = _FIELD_END.join(map(_text, fields)) + _RECORD_END
        sizes = {key: len(key.encode()) + 1 for key in keys}
        with self._lock:
            has_room = self._keys_bytes + sum(sizes.values()) <= KEYS_BYTES_MAX
            before = None if has_room else self._take()
            self._records.append(record)
            self._body_characters += len(record)
            for key, size in sizes.items():
                if self._keys_bytes + size <= KEYS_BYTES_MAX:  # else, as the ids of a long batch
                    self._keys[key] = None
                    self._keys_bytes += size
            is_full = (
                self._body_characters >= BODY_CHARACTERS_MAX or self._keys_bytes >= KEYS_BYTES_FULL
            )
        if before is not None:
            self._send_all(*before)
        if is_full:
            self.send_rest()

    def send_rest(self) -> None:
        with self._lock:
            rest = self._take()
        self._send_all(*rest)

    def _take(self) -> tuple[list[str], dict[str, None]]:
        """Return the records and their keys, and keep none. The caller holds the lock."""
        taken = self._records, self._keys
        self._empty()
        return taken

    def _send_all(self, records: list[str], keys: dict[str, None]) -> None:
        if records:
            try:
                message = Message(TRACE_TOPIC, "".join(records).encode(), keys=tuple(keys))
                self._send(message).add_done_callback(_told)
            except ClientError as error:
                log.warning("traces lost", records=len(records), error=str(error))


def _told(done: Future[SendResult]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.warning("traces lost", error=str(error))


def _text(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
