"""Tests of recalls: a delayed delivery is cancelled at the broker that its handle names."""

import asyncio
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.send import RecallMessageHeader
from tests.troupemq.client.cluster import SEND, Cluster, stored
from troupemq.aio import Producer as AioProducer
from troupemq.client.admin import Admin
from troupemq.client.errors import (
    ArgumentIllegal,
    BrokerError,
    ClientClosed,
    NotSupported,
    RouteNotFound,
)
from troupemq.client.message import Message

RECALL = RequestCode.RECALL_MESSAGE


def handle(words: str = "v1 T b 1795188797085 ID") -> str:
    return urlsafe_b64encode(words.encode()).decode()


def timed(command: RemotingCommand) -> RemotingCommand:
    answer = stored(command)
    assert answer.fields is not None
    answer.fields["recallHandle"] = handle()
    return answer


def test_the_handle_of_a_delayed_message_recalls_it(cluster: Cluster) -> None:
    for each in (cluster.a, cluster.b):
        each.on(SEND, timed)
    cluster.b.succeed(RECALL, msgId="ID")
    with cluster.producer() as producer:
        result = producer.send(Message("T", b"later", delay=60))
        assert producer.recall("T", result.recall_handle) == "ID"
    header = RecallMessageHeader.decode(cluster.b.next(RECALL).fields)
    assert (header.topic, header.recall_handle, header.producer_group) == ("T", handle(), "pg")


def test_a_coroutine_recalls_as_well(cluster: Cluster) -> None:
    for each in (cluster.a, cluster.b):
        each.on(SEND, timed)
    cluster.b.succeed(RECALL, msgId="ID")

    async def main() -> str:
        async with AioProducer("pg", cluster.namesrv.address) as producer:
            result = await producer.send(Message("T", b"later", delay=60))
            return await producer.recall("T", result.recall_handle)

    assert asyncio.run(main()) == "ID"


def test_a_message_without_a_timer_has_no_handle(cluster: Cluster) -> None:
    with cluster.producer() as producer:
        result = producer.send(Message("T", b"now"))
        assert result.recall_handle is None
        with pytest.raises(ArgumentIllegal, match="there is no recall handle"):
            producer.recall("T", result.recall_handle)


@pytest.mark.parametrize(
    "wrong",
    ["", "%%%", "é", handle("v2 T b 1 ID"), handle("v1 T b 1"), 7, b"v1", "A" * 5000, "/w=="],
)
def test_an_invalid_handle_is_refused_before_a_request(cluster: Cluster, wrong: Any) -> None:
    with cluster.producer() as producer, pytest.raises(ArgumentIllegal, match="recall handle"):
        producer.recall("T", wrong)


def test_a_refusal_an_old_broker_and_an_unknown_one_are_told_apart(cluster: Cluster) -> None:
    remark = "recall failed, execute error"
    cluster.a.on(RECALL, lambda command: command.answer(ResponseCode.SYSTEM_ERROR, remark=remark))
    old = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    cluster.b.on(RECALL, lambda command: command.answer(old))
    with cluster.producer() as producer:
        with pytest.raises(BrokerError, match=remark):
            producer.recall("T", handle("v1 T a 1795188797085 ID"))
        with pytest.raises(NotSupported, match="broker b cannot recall"):
            producer.recall("T", handle())
        with pytest.raises(RouteNotFound, match="other"):
            producer.recall("T", handle("v1 T other 1795188797085 ID"))
    with pytest.raises(ClientClosed):
        producer.recall("T", handle())


def test_an_administrator_recalls_as_well(cluster: Cluster) -> None:
    cluster.b.succeed(RECALL, msgId="ID")
    with Admin(cluster.namesrv.address) as admin:
        recalled = admin.recall_message("T", handle())
    assert recalled.sentence == "ID is recalled: it is not delivered to T."
