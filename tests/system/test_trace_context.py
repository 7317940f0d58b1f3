"""The context of a distributed trace: what producers put into a message comes with every copy.

OpenTelemetry's instrumentation of the Java clients writes `traceparent`, `tracestate` and `baggage`
as properties of users; a broker knows nothing of them, and must lose none.
"""

from dataclasses import replace

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.client import ConsumerSendMsgBackHeader
from protocol.message import MessageRecord
from protocol.properties import parse
from tests.support.brokers import STORE, SimulatedBroker
from tests.support.transacting import COMMIT, end, half, producing

CONTEXT = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
    "baggage": "userId=alice,serverNode=DF%2028",
}
TEXT = "\x02".join(f"{name}\x01{value}" for name, value in CONTEXT.items())
SHORT = replace(STORE, message_delay_level="1s 2s 3s 4s 5s 6s")


def broker(seed: int) -> SimulatedBroker:
    made = SimulatedBroker(seed, store_config=SHORT)
    made.make_topic()
    made.make_group(retry_max_times=1)
    return made


def carried(record: MessageRecord) -> dict[str, str]:
    """Return the trace context of a message."""
    properties = parse(record.properties)
    return {name: properties[name] for name in CONTEXT if name in properties}


def give_back(made: SimulatedBroker, record: MessageRecord) -> None:
    """A consumer has failed at it; time enough for it to come again."""
    header = ConsumerSendMsgBackHeader(record.physical_offset, "consumers", 0)
    command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode(), version=407)
    assert made.ask(command).code == 0
    made.system.advance(7000)


def test_the_trace_context_is_kept_in_retries_and_dead_letters() -> None:
    made = broker(1)
    first = made.stored(made.send(properties=f"{TEXT}\x02UNIQ_KEY\x01u"))
    give_back(made, first)
    (again,) = made.messages("%RETRY%consumers")
    assert carried(again) == CONTEXT
    give_back(made, again)
    (dead,) = made.messages("%DLQ%consumers")
    assert carried(dead) == CONTEXT


def test_the_trace_context_is_kept_in_a_delayed_message() -> None:
    made = broker(2)
    made.send(properties=f"DELAY\x012\x02{TEXT}")
    made.system.advance(4000)
    (due,) = made.messages()
    assert carried(due) == CONTEXT


def test_the_trace_context_is_kept_in_a_checked_and_committed_transaction() -> None:
    made = broker(3)
    client = producing(made)
    waiting = half(made, "K", properties=dict(CONTEXT))
    made.system.advance(70_000)
    assert client.received, "the producer was asked"
    newest = made.records()[-1] if made.records()[-1].topic == waiting.topic else waiting
    assert end(made, waiting, COMMIT).code == 0
    assert carried(newest) == CONTEXT
    (committed,) = made.messages()
    assert carried(committed) == CONTEXT


def test_the_trace_context_survives_a_restart_before_delivery() -> None:
    made = broker(4)
    made.send(properties=f"DELAY\x016\x02{TEXT}")
    made.system.advance(1000)
    made.stop()
    made.start()
    made.system.advance(10_000)
    (due,) = made.messages()
    assert carried(due) == CONTEXT
