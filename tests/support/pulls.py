"""Pulls from a simulated broker: what is in its queues, and what the answers must hold."""

from dataclasses import replace
from typing import Any

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand, decode_frame
from protocol.message import MessageRecord, decode_records
from protocol.properties import format as properties_text
from storage.config import StoreConfig
from tests.support import golden
from tests.support.brokers import BROKER, STORE, SimulatedBroker

SEED = 21
RECORDED_PORT = 35_018
"""The client's, in the one recorded remark that names it."""


def broker(
    count: int = 0, *, seed: int = SEED, store: StoreConfig = STORE, **settings: Any
) -> SimulatedBroker:
    """With the topic `Topic`, and `count` messages in its queue 0."""
    made = SimulatedBroker(seed, config=replace(BROKER, **settings), store_config=store)
    made.make_topic()
    fill(made, count)
    return made


def fill(made: SimulatedBroker, count: int, body: bytes = b"body", **options: Any) -> None:
    """Sends as fast as it goes, and waits until all can be pulled."""
    for _ in range(count):
        made.start_send(body, **options)
    made.system.drain()


def as_slave(made: SimulatedBroker) -> SimulatedBroker:
    """Return the same broker, restarted as a slave."""
    made.stop()
    made.config = replace(made.config, broker_role="SLAVE", broker_id=1)
    made.start()
    return made


def tagged(tag: str) -> str:
    """Properties with this tag; none for an empty one."""
    return properties_text({"TAGS": tag}).decode() if tag else ""


def refused(answer: RemotingCommand, code: int, remark: str) -> None:
    """Nothing is in the header of a refusal, but there it is."""
    assert (answer.code, answer.remark, answer.fields, answer.body) == (code, remark, {}, None)


def outcome(
    answer: RemotingCommand, code: int, status: str, following: int, low: int, high: int
) -> list[MessageRecord]:
    """Compares everything in the header; gives the records."""
    assert (answer.code, answer.remark) == (code, status)
    assert answer.fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(following),
        "minOffset": str(low),
        "maxOffset": str(high),
    }
    assert (answer.body is not None) == (code == ResponseCode.SUCCESS)
    return list(decode_records(bytes(answer.body or b"")))


def code_and_bodies(answer: RemotingCommand) -> tuple[int, list[bytes]]:
    """The code of an answer, and the bodies of what it brought."""
    return answer.code, [record.body for record in decode_records(bytes(answer.body or b""))]


def committed(made: SimulatedBroker, group: str = "consumers") -> int:
    """Return the consumer offset of a group in queue 0 of `Topic`."""
    made.system.drain()  # an answer may be there before the offset that came with its pull
    fields = {"consumerGroup": group, "topic": "Topic", "queueId": "0"}
    answer = made.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.fields is not None
    return int(answer.fields["offset"])


def recorded(name: str, pair: int) -> tuple[RemotingCommand, RemotingCommand]:
    """One request and its answer."""
    request, answer = (
        decode_frame(record["frame"][4:])
        for record in golden.frames(name)
        if record["pair"] == pair
    )
    return request, answer


def as_recorded(made: SimulatedBroker, name: str, pair: int, *, fast: bool = False) -> None:
    """Asks what was asked then; the answer must be the one that was given then."""
    request, wanted = recorded(name, pair)
    client = made.new_client(RECORDED_PORT, fast=fast)
    answer = client.request(request, timeout_s=120)
    assert (answer.code, answer.fields) == (wanted.code, wanted.fields)
    if wanted.remark is not None and wanted.remark.startswith("java.lang."):
        # no stack of Java's, and of a NullPointerException no more than its name
        name_of_it = wanted.remark.partition(",")[0].partition(": Cannot")[0]
        assert (answer.remark or "").startswith(name_of_it)
    else:
        assert answer.remark == wanted.remark
    assert (answer.body is None) == (wanted.body is None)
