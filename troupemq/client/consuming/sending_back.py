"""Return of failed messages to their broker, for a later retry or as dead letters.

If the broker rejects CONSUMER_SEND_MSG_BACK, the message is sent as a new message to the group's
retry topic. Orderly consumers always send their dead letters this way.

Source: DefaultMQPushConsumerImpl.java and ConsumeMessageOrderlyService.java (sendMessageBack),
DefaultMQProducerImpl.java (sendKernelImpl).
"""

from bisect import bisect_left
from random import choice

from protocol import properties as names
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.headers.send import SendMessageHeader
from protocol.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from troupemq.client.connection.calls import Call, Flow, LookUpRoute
from troupemq.client.connection.client import ClientCore, now_ms
from troupemq.client.connection.route import DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUE_COUNT
from troupemq.client.consuming.consumer_settings import UNLIMITED
from troupemq.client.consuming.listener import RISING_DELAY
from troupemq.client.errors import BrokerError, ClientError
from troupemq.client.log import client_logger
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.producing.queue_choice import away_from
from troupemq.client.producing.sending import STATUS_OF_CODE

log = client_logger(__name__)

SEND_BACK_TIMEOUT_MS = 5000
TRIES = 3
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
FIRST_RETRY_LEVEL = 3
RETRIES_MAX = 16
DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h".split()  # noqa: SIM905
"""Default delay levels of brokers (messageDelayLevel)."""
_MINUTES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)
DELAYS_S = (1, 5, 10, 30, *(60 * minutes for minutes in _MINUTES))
assert len(DELAYS_S) == len(DELAYS)

ROOM_OF_BROKERS = 1024
"""Bytes of properties reserved for those that brokers add."""

ORDERLY_RETRIES_MAX = (1 << 31) - 1


def level_of(seconds: float) -> int:
    """Return the delay level that lasts for `seconds`: the next longer one, or the longest."""
    return min(bisect_left(DELAYS_S, seconds) + 1, len(DELAYS_S))


class SendingBack:
    """Returns messages of one group; for any thread. `give_back` and `send_again` are flows."""

    def __init__(
        self, client: ClientCore, group: str, max_reconsume_times: int, orderly: bool
    ) -> None:
        self._client = client
        self._group = group
        self._retry_topic = RETRY_TOPIC_PREFIX + group
        unset = ORDERLY_RETRIES_MAX if orderly else RETRIES_MAX
        self.retries_max = unset if max_reconsume_times == UNLIMITED else max_reconsume_times

    def give_back(
        self,
        view: MessageView,
        delay_level: int = RISING_DELAY,
        reason: str = "",
        seconds: float | None = None,
    ) -> Flow[bool]:
        """Return a message to its broker, with a `reason`; return False if no broker took it.

        Brokers without timers take a delay level for `seconds`.
        """
        header = ConsumerSendMsgBackHeader(
            offset=view.physical_offset,
            group=self._group,
            delay_level=delay_level if seconds is None else level_of(seconds),
            origin_msg_id=view.message_id,
            origin_topic=view.topic,
            max_reconsume_times=self.retries_max,
            broker_name=view.queue.broker_name,
            failure=reason or None,
            delay_ms=None if seconds is None else round(seconds * 1000),
        )
        command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
        try:
            address = self._client.routes.master(view.queue.broker_name)
            yield Call(address, command, SEND_BACK_TIMEOUT_MS)
        except ClientError as error:
            log.warning("message return failed", id=view.message_id, error=str(error))
            return (yield from self.send_again(view, view.reconsume_times + 1, reason))
        return True

    def next_try(self, view: MessageView, delay_level: int, seconds: float | None = None) -> str:
        """Return a description of a returned message's next try, for the log."""
        if delay_level < 0 or view.reconsume_times >= self.retries_max:
            return f"none, dead letter in {DLQ_TOPIC_PREFIX}{self._group}"
        if seconds is not None:
            return f"in {seconds:g} s, or in {DELAYS[level_of(seconds) - 1]} without timers"
        level = delay_level or FIRST_RETRY_LEVEL + view.reconsume_times
        level = min(level, len(DELAYS))
        return f"in {DELAYS[level - 1]} (delay level {level})"

    def send_again(self, view: MessageView, reconsume_times: int, reason: str = "") -> Flow[bool]:
        """Send a message to the retry topic; return False if no broker took it.

        At the retry limit the broker makes it a dead letter.
        """
        tried: set[str] = set()
        try:
            route = yield LookUpRoute(self._retry_topic, publish=True)
        except ClientError as error:
            log.warning("message retry postponed", id=view.message_id, error=str(error))
            return False
        for _ in range(TRIES):
            queue = choice(away_from(tried, route.publish_queues))
            tried.add(queue.broker_name)
            header = self._header(view, reconsume_times, queue, reason)
            command = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, header.encode_v2(), view.stored_body
            )
            try:
                address = self._client.routes.master(queue.broker_name)
                yield Call(address, command, SEND_BACK_TIMEOUT_MS)
            except ClientError as error:
                if isinstance(error, BrokerError) and error.code in STATUS_OF_CODE:
                    return True  # stored, with a reservation
                log.warning("retry send failed", id=view.message_id, error=str(error))
            else:
                return True
        return False

    def _header(
        self, view: MessageView, reconsume_times: int, queue: MessageQueue, reason: str
    ) -> SendMessageHeader:
        properties = dict(view.properties)
        properties.pop(names.TRAN_MSG, None)
        properties.pop(names.TROUPE_FAILURE, None)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, view.message_id)
        properties[names.RETRY_TOPIC] = view.topic
        properties[names.RECONSUME_TIME] = str(reconsume_times)
        properties[names.MAX_RECONSUME_TIMES] = str(self.retries_max)
        properties[names.DELAY] = str(FIRST_RETRY_LEVEL + view.reconsume_times)
        room = names.PROPERTIES_BYTES_MAX - len(names.format(properties)) - ROOM_OF_BROKERS
        if failure := names.failure_bytes(reason, room).decode():
            properties[names.TROUPE_FAILURE] = failure
        return SendMessageHeader(
            producer_group=INNER_PRODUCER_GROUP,
            topic=self._retry_topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=DEFAULT_TOPIC_QUEUE_COUNT,
            queue_id=queue.queue_id,
            sys_flag=view.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
            born_timestamp=now_ms(),
            flag=view.flag,
            properties=names.format(properties).decode(),
            reconsume_times=reconsume_times,
            batch=False,
            max_reconsume_times=self.retries_max,
            broker_name=queue.broker_name,
        )
