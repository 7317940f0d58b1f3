"""Replies to requests of producers (SEND_REPLY_MESSAGE and its V2): pushed, then stored.

Owns: the replies that wait for their topic or for the producer's answer.
Receives: Request from connections; TopicReady from the topic table; NoProducer from Clients;
CallDone from ClientCalls; ReplyStored from PutMessage.
Sends: AskProducer to Clients; CreateTopicOnSend to the topic table; InternalAppend to PutMessage.

A request is an ordinary message with CORRELATION_ID and REPLY_TO_CLIENT. Its consumer sends the
reply here. The answer says whether the producer has accepted the reply. As in 4.9.7, code 1 can
mean that the reply is stored nevertheless.

Source: broker/processor/ReplyMessageProcessor.java.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from actors.config import BrokerConfig
from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.engine.interfaces import SnapshotRef
from actors.engine.messages import Message
from actors.engine.server_log import get_logger
from actors.network.hooks import Hooks, SendContext
from actors.network.messages import AskProducer, CallDone, CallEnd, NoProducer, Request
from actors.network.request import Responder, serves
from actors.sending.appender import InternalRecord
from actors.sending.internal_append import TopicWaitList
from actors.sending.messages import AppendResult, InternalAppend
from actors.sending.property_rewriter import Redirect, delay_level, delayed
from actors.sending.send_rules import PROPERTIES_BYTES_MAX, RefusedError, SendRules, new_state
from actors.tables.messages import CreateTopicOnSend, TopicReady
from protocol.bodies_tables import TopicConfig
from protocol.codes import COMPRESSED, COMPRESSION_TYPE_MASK, RequestCode, ResponseCode
from protocol.errors import RemoteError
from protocol.frame import RemotingCommand
from protocol.headers.send import ReplyMessageHeader, SendMessageHeader
from protocol.host import host_port, unpack_host
from protocol.message_id import offset_message_id
from protocol.properties import DELAY, PUSH_REPLY_TIME, REPLY_TO_CLIENT, TAGS, WAIT, parse
from protocol.properties import format as properties_text
from storage.dispatching.dispatch import index_keys, tags_code
from storage.message_store import MessageStore

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Reply(Message):
    request: Request
    header: SendMessageHeader
    fields: dict[str, str]
    """Fields of the answer."""
    context: SendContext | None
    properties: dict[str, str] = field(default_factory=dict)
    queue_id: int = 0
    delay_level: int = 0
    client_id: str = ""
    is_pushed: bool = False
    """Whether the result of the push is known."""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    def on_undelivered(self, remark: str) -> None:
        """Answer with an error: the actor that processed the reply has stopped."""
        self.request.answer(ResponseCode.SYSTEM_ERROR, self.fields, remark=remark)


@dataclass(slots=True, eq=False)
class ReplyStored(AppendResult):
    """Result of the append of a reply."""

    reply: _Reply

    def on_undelivered(self, remark: str) -> None:
        self.reply.on_undelivered(remark)


class ReplyMessage(Responder):
    """Actor on the event loop that processes replies."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        *,
        topics: SnapshotRef[Mapping[str, TopicConfig]],
        delays_ms: Sequence[int],
        hooks: Hooks,
        random: Random,
        addresses: Mapping[str, ActorAddress],
    ) -> None:
        super().__init__()
        self._config = config
        self._topics = topics
        self._delays_ms = delays_ms
        self._hooks = hooks
        self._rules = SendRules(config, random)
        self._to = addresses
        self._store_host = store.commit_log.store_host
        self._store_config = store.config
        self._constant_fields = {
            "MSG_REGION": config.region_id,
            "TRACE_ON": "true" if config.trace_on else "false",
        }
        self._parking: TopicWaitList[_Reply] = TopicWaitList(addresses["topics"])
        self._pushing: dict[_Reply, None] = {}
        self._under_way = 0

    # --- requests

    @serves(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def on_reply(self, request: Request) -> RemotingCommand | None:
        """Check the reply as a send, then push and store it; the answer follows."""
        header = SendMessageHeader.of_command(request.command)
        context = self._context(request, header)
        reply = _Reply(request, header, dict(self._constant_fields), context)
        self.begin_change()
        self._under_way += 1
        try:
            self._rules.check_accepting(self.system.clock.now_ms())
            config = self._rules.check_topic(header.topic, self._topics.value)
            self._rules.check_producers(header.producer_group)
            if config is None or header.topic in self._parking:
                self._park(reply)
            else:
                self._take(reply, config)
        except RefusedError as error:
            self._refuse(reply, error)
        return None

    def _context(self, request: Request, header: SendMessageHeader) -> SendContext | None:
        if not self._hooks.see_sends:
            return None
        context = SendContext(
            producer_group=header.producer_group,
            topic=header.topic,
            body_bytes=len(request.command.body or b""),
            properties=(header.properties or "").encode(),
            born_timestamp_ms=header.born_timestamp,
            client=request.peer.remote,
            queue_id=header.queue_id,
        )
        self._hooks.before(context)
        return context

    def _park(self, reply: _Reply) -> None:
        header = reply.header
        self._parking.park(
            reply,
            CreateTopicOnSend(
                topic=header.topic,
                default_topic=header.default_topic,
                queue_nums=header.default_topic_queue_nums,
                unit_mode=header.unit_mode,
                producer=reply.request.peer.remote,
                reply_to=self.address,
            ),
        )

    @handles(TopicReady)
    def on_topic_ready(self, message: TopicReady) -> None:
        """Continue with the replies that waited for this topic, or refuse them."""
        for reply in self._parking.release(message.topic):
            try:
                if message.config is None:
                    raise self._rules.unknown_topic(message.topic)
                self._take(reply, message.config)
            except RefusedError as error:
                self._refuse(reply, error)

    def _take(self, reply: _Reply, config: TopicConfig) -> None:
        state = new_state(config.topic_name, config)
        queue_id = reply.header.queue_id
        if queue_id >= state.queue_id_limit:
            raise self._rules.bad_queue(state, queue_id, reply.request.peer.remote)
        reply.queue_id = queue_id if queue_id >= 0 else self._rules.random_queue(state)
        reply.properties = parse((reply.header.properties or "").encode())
        if self._config.store_reply_message_enable and DELAY in reply.properties:
            try:
                reply.delay_level = delay_level(reply.properties[DELAY].encode())
            except RemoteError as error:
                raise RefusedError(error.code, error.remark) from None
        reply.client_id = reply.properties.get(REPLY_TO_CLIENT, "")
        if not reply.client_id:
            self._pushed(reply, f"reply message properties[{REPLY_TO_CLIENT}] is null")
        else:
            self._push(reply)

    def _refuse(self, reply: _Reply, error: RefusedError) -> None:
        reply.code, reply.remark = error.code, error.remark
        self._answer(reply)

    # --- to the producer

    def _push(self, reply: _Reply) -> None:
        header, now_ms = reply.header, self.system.clock.now_ms()
        properties = {**reply.properties, PUSH_REPLY_TIME: str(now_ms)}
        host, port = unpack_host(self._store_host)
        pushed = ReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=reply.request.peer.remote,
            store_host=host_port(host, port),
            store_timestamp=now_ms,
            properties=properties_text(properties).decode(),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed.encode(), reply.request.command.body
        )
        self._pushing[reply] = None
        self._to["clients"].tell(AskProducer(reply.client_id, command, self.address, reply))

    @handles(NoProducer)
    def on_no_producer(self, message: NoProducer) -> None:
        """Note that the push failed: no producer has that client id."""
        reply = message.context
        assert isinstance(reply, _Reply)
        self._pushed(reply, f"push reply message fail, channel of <{reply.client_id}> not found.")

    @handles(CallDone)
    def on_call_done(self, message: CallDone) -> None:
        reply: _Reply = message.context
        taken = message.end is CallEnd.ANSWERED and message.answer is not None
        if taken and message.answer is not None and message.answer.code == ResponseCode.SUCCESS:
            self._pushed(reply, None)
            return
        if not reply.is_pushed:
            why = message.why if message.answer is None else message.answer.remark
            self.system.rarely.warn("reply push failed", client=reply.client_id, reason=why)
        self._pushed(reply, f"push reply message to {reply.client_id}fail.")

    # --- to the log

    def _pushed(self, reply: _Reply, failure: str | None) -> None:
        """Put the result of the push into the answer, then store the reply."""
        if reply.is_pushed:
            return
        reply.is_pushed = True
        self._pushing.pop(reply, None)
        if failure is not None:
            reply.code, reply.remark = ResponseCode.SYSTEM_ERROR, failure
        else:
            self._place(reply, "0", 0)
        if not self._config.store_reply_message_enable:
            self._answer(reply)
            return
        record = self._record(reply)
        too_long = len(record.body) > self._store_config.max_message_bytes
        if too_long or len(record.properties) > PROPERTIES_BYTES_MAX:
            reason = "MESSAGE_ILLEGAL"
            self.system.rarely.warn("reply not stored", reason=reason, topic=record.topic)
            self._answer(reply)
            return
        waits = reply.properties.get(WAIT, "true").lower() == "true"
        stored = ReplyStored(reply)
        self._to["put_message"].tell(InternalAppend([record], self.address, stored, waits=waits))

    def _record(self, reply: _Reply) -> InternalRecord:
        """Return the record of a reply.

        Only a delayed one gets other properties than it came with.
        """
        header = reply.header
        text = (header.properties or "").encode()
        target = Redirect(header.topic, reply.queue_id, 0)
        pairs = {name.encode(): value.encode() for name, value in reply.properties.items()}
        if reply.delay_level > 0:
            level = reply.delay_level
            target = delayed(pairs, header.topic, reply.queue_id, level, self._delays_ms)
            text = b"\x02".join(name + b"\x01" + value for name, value in pairs.items())
        return InternalRecord(
            target.topic,
            target.queue_id,
            bytes(reply.request.command.body or b""),
            text,
            tags_code(pairs.get(TAGS.encode(), b"")),
            index_keys(text),
            header.flag,
            # 4.9.7 stores 0, which makes a compressed reply unreadable.
            header.sys_flag & (COMPRESSED | COMPRESSION_TYPE_MASK),
            header.born_timestamp,
            reply.request.peer.host,
            header.reconsume_times or 0,
            delay_ms=target.delay_ms,
        )

    @handles(ReplyStored)
    def on_reply_stored(self, message: ReplyStored) -> None:
        """Answer the reply with the result of the push, whether it is stored or not."""
        reply = message.reply
        (result,) = message.results
        if result.is_stored:
            message_id = offset_message_id(self._store_host, result.physical_offset)
            if result.topic_name == reply.header.topic:
                reply.queue_id = result.queue_id
            self._place(reply, message_id, result.queue_offset)
            if reply.context is not None:
                reply.context.message_id, reply.context.queue_id = message_id, reply.queue_id
                reply.context.queue_offset = result.queue_offset
                reply.context.record_bytes = result.record_bytes
        else:
            topic = reply.header.topic
            self.system.rarely.warn("reply not stored", reason=message.remark, topic=topic)
        self._answer(reply)

    def _place(self, reply: _Reply, message_id: str, queue_offset: int) -> None:
        reply.fields["msgId"] = message_id
        reply.fields["queueId"] = str(reply.queue_id)
        reply.fields["queueOffset"] = str(queue_offset)

    def _answer(self, reply: _Reply) -> None:
        self._under_way -= 1
        reply.request.answer(reply.code, reply.fields, remark=reply.remark)
        if reply.context is not None:
            reply.context.code, reply.context.remark = reply.code, reply.remark
            reply.context.success = reply.code == ResponseCode.SUCCESS
            self._hooks.after(reply.context)

    # --- stop

    def on_drain(self) -> None:
        """End all pushes as failed: nothing more is read from the producers."""
        for reply in [*self._pushing]:
            self._pushed(reply, f"push reply message to {reply.client_id}fail.")

    def can_stop(self) -> bool:
        return self._under_way <= 0

    def on_failure(self, *_: object) -> None:
        """Refuse the replies that wait for their topic.

        The others are answered by their messages.
        """
        for reply in self._parking.release_all():
            reply.on_undelivered("reply message restarted")
