"""A request goes out, its reply comes back over the connection that a heartbeat made known."""

from concurrent.futures import Future

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.compression import compress
from protocol.frame import RemotingCommand
from protocol.headers.send import ReplyMessageHeader, SendMessageHeader
from protocol.host import pack_host
from protocol.message import MessageRecord
from protocol.properties import format, parse
from tests.troupemq.client.cluster import SEND, Cluster, refuse
from tests.troupemq.fake_server import WAIT_S, FakeServer, serve_routes
from troupemq.client.errors import BrokerError, ClientClosed, MessageIllegal, RequestTimeout
from troupemq.client.message import Message, MessageQueue, MessageView, view_of
from troupemq.client.producing.producer import Producer
from troupemq.client.producing.request_reply import create_reply_message

REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
LONG_MS = 1000 * WAIT_S
QUEUE = MessageQueue("T", "a", 0)


def asked(server: FakeServer) -> dict[str, str]:
    """The properties of the request that came."""
    header = SendMessageHeader.of_command(server.next(SEND))
    return parse((header.properties or "").encode())


def reply_to(properties: dict[str, str], body: bytes, sys_flag: int = 0) -> RemotingCommand:
    """Return the request with which a broker pushes a reply to the producer."""
    names = ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
    text = format({"MSG_TYPE": "reply", "UNIQ_KEY": "ID", **{n: properties[n] for n in names}})
    header = ReplyMessageHeader(
        producer_group="replier",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp=1,
        flag=7,
        born_host="127.0.0.1:99",
        store_host="127.0.0.1:10911",
        store_timestamp=2,
        properties=text.decode(),
    )
    return RemotingCommand(PUSH, header.encode(), body, opaque=4711)


def ask(producer: Producer) -> Future[MessageView]:
    return producer.request_async(Message("T", b"question"), LONG_MS, queue=QUEUE)


def test_the_reply_reaches_its_request(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        first, second = ask(producer), ask(producer)
        properties = [asked(cluster.a), asked(cluster.a)]
        assert {each["REPLY_TO_CLIENT"] for each in properties} == {producer.client_id}
        assert {each["TTL"] for each in properties} == {"10000"}
        for each, body in zip(reversed(properties), (b"second", b"first"), strict=True):
            cluster.a.push(reply_to(each, body))
        assert (first.result(WAIT_S).body, second.result(WAIT_S).body) == (b"first", b"second")
        reply = first.result()
        assert (reply.topic, reply.flag, reply.message_id) == ("c_REPLY_TOPIC", 7, "ID")
        assert reply.properties["CORRELATION_ID"] == properties[0]["CORRELATION_ID"]
        assert reply.queue.broker_name == "a"
        answer = cluster.a.next(ResponseCode.SUCCESS)
        assert answer.is_response and answer.opaque == 4711


def test_a_compressed_reply_is_decompressed(cluster: Cluster) -> None:
    body, sys_flag = compress(b"x" * 9000)
    with cluster.producer() as producer:
        reply = ask(producer)
        cluster.a.push(reply_to(asked(cluster.a), body, sys_flag))
        assert reply.result(WAIT_S).body == b"x" * 9000


def test_a_requester_registers_at_every_broker_of_the_cluster_first(cluster: Cluster) -> None:
    """Also one that does not have the topic: the reply may come by it."""
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"T": 1})
    of_topic = cluster.namesrv.handlers[code]
    serve_routes(cluster.namesrv, {"a": cluster.a, "b": cluster.b}, {"c_REPLY_TOPIC": 1})
    of_replies = cluster.namesrv.handlers[code]

    def answer(command: RemotingCommand) -> RemotingCommand | bytes | None:
        return (of_topic if command.fields == {"topic": "T"} else of_replies)(command)

    cluster.namesrv.on(code, answer)
    with cluster.producer() as producer:
        ask(producer)
        beats = [server.next() for server in (cluster.a, cluster.b)]
        assert {beat.code for beat in beats} == {RequestCode.HEART_BEAT}
        assert cluster.a.next(SEND)


def test_a_request_without_a_reply_times_out(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        with pytest.raises(RequestTimeout, match="the request is stored"):
            producer.request(Message("T", b"question"), 50, queue=QUEUE)
        cluster.a.push(reply_to(asked(cluster.a), b"too late"))
        assert cluster.a.next(ResponseCode.SUCCESS).opaque == 4711


def test_a_request_that_is_not_stored_fails_at_once(cluster: Cluster) -> None:
    cluster.a.on(SEND, refuse(ResponseCode.SYSTEM_BUSY))
    with cluster.producer() as producer, pytest.raises(BrokerError):
        producer.request(Message("T", b"question"), LONG_MS, queue=QUEUE)


def test_a_request_that_cannot_be_sent_fails_at_once(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        with pytest.raises(MessageIllegal):
            producer.request(Message("SELF_TEST_TOPIC", b"x"), LONG_MS)
        with pytest.raises(MessageIllegal):
            producer.request(Message("T", b"x"), LONG_MS, queue=MessageQueue("U", "a", 0))


def test_a_stop_ends_pending_requests(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        reply = ask(producer)
        cluster.a.next(SEND)
    with pytest.raises(ClientClosed):
        reply.result(WAIT_S)


def test_an_unexpected_reply_is_ignored(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        reply = ask(producer)
        properties = asked(cluster.a)
        cluster.a.push(RemotingCommand(PUSH, {"topic": "T"}, opaque=9))
        assert cluster.a.next(ResponseCode.SYSTEM_ERROR).opaque == 9
        cluster.a.push(reply_to(properties, b"reply"))
        assert reply.result(WAIT_S).body == b"reply"


def received(properties: dict[str, str]) -> MessageView:
    host = pack_host("127.0.0.1", 10911)
    record = MessageRecord("T", b"", format(properties), born_host=host, store_host=host)
    return view_of(record, QUEUE)


def test_a_reply_is_sent_to_the_reply_topic_of_the_requests_cluster(cluster: Cluster) -> None:
    serve_routes(cluster.namesrv, {"a": cluster.a}, {"c_REPLY_TOPIC": 1})
    cluster.a.on(
        REPLY,
        lambda command: command.answer(
            fields={"msgId": "OFFSETID", "queueId": "0", "queueOffset": "42"}
        ),
    )
    wanted = {"CLUSTER": "c", "CORRELATION_ID": "i", "REPLY_TO_CLIENT": "me", "TTL": "9"}
    with cluster.producer() as producer:
        producer.send(create_reply_message(received({**wanted, "KEYS": "k"}), b"reply"))
        command = cluster.a.next(REPLY)
    header = SendMessageHeader.of_command(command)
    assert (header.topic, command.body) == ("c_REPLY_TOPIC", b"reply")
    properties = parse((header.properties or "").encode())
    del properties["UNIQ_KEY"], properties["WAIT"], wanted["CLUSTER"]
    assert properties == {"MSG_TYPE": "reply", **wanted}


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
def test_a_message_that_is_not_a_request_cannot_be_replied_to(missing: str) -> None:
    wanted = {"CLUSTER": "c", "CORRELATION_ID": "i", "REPLY_TO_CLIENT": "me", "TTL": "9"}
    del wanted[missing]
    with pytest.raises(MessageIllegal, match=missing):
        create_reply_message(received(wanted), b"reply")
