"""Tasks of a sink at a simulated broker: batches of messages, sent in attempts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.own import SinkBatchHeader, SinkLaneHeader, SinkProgressHeader
from protocol.message import MessageRecord
from protocol.properties import find_pairs
from protocol.sink import CHAIN_START, SinkMessage, chain_behind, encode_sink_body
from tests.support.brokers import SimulatedBroker
from troupemq.testing.virtual_broker import LocalClient

QUERY = "query-1"


def chained(bodies: Sequence[bytes], properties: bytes = b"") -> list[SinkMessage]:
    """The messages of a batch, one queue after the other."""
    chain, messages = CHAIN_START, list[SinkMessage]()
    for number, body in enumerate(bodies):
        chain = chain_behind(chain, 0, body, properties)
        messages.append(SinkMessage(number % 4, 0, 1_700_000_000_000, chain, body, properties))
    return messages


def batch_command(
    messages: Sequence[SinkMessage],
    first: int = 0,
    end: int | None = None,
    *,
    batch: int = 0,
    partition: int = 0,
    query: str = QUERY,
    topic: str = "Topic",
) -> RemotingCommand:
    """Some messages of a batch, on their way."""
    chain = messages[first - 1].chain if first else CHAIN_START
    header = SinkBatchHeader(query, partition, topic, batch, first, chain.hex())
    body = encode_sink_body(messages[first:end])
    return RemotingCommand(RequestCode.SEND_SINK_BATCH, header.encode(), body=body)


def progress_command(
    *, partition: int = 0, query: str = QUERY, topic: str = "Topic"
) -> RemotingCommand:
    """Return the request for the progress of this lane."""
    header = SinkLaneHeader(query, partition, topic)
    return RemotingCommand(RequestCode.GET_SINK_PROGRESS, header.encode())


def progress_in(answer: RemotingCommand) -> tuple[int, int]:
    """Batch and next sequence of an answer that is a success."""
    assert answer.code == ResponseCode.SUCCESS, answer
    found = SinkProgressHeader.decode(answer.fields)
    return found.batch, found.sequence


def marks(made: SimulatedBroker, topic: str = "Topic") -> Counter[bytes]:
    """Count how often each message of a sink can be pulled, by TROUPE_SINK without the chain."""
    return Counter(
        dict(find_pairs(record.properties))[b"TROUPE_SINK"].rpartition(b":")[0]
        for record in pulled(made, topic)
    )


def pulled(made: SimulatedBroker, topic: str = "Topic") -> list[MessageRecord]:
    """All messages of a topic of four queues."""
    return [record for queue_id in range(4) for record in made.messages(topic, queue_id)]


@dataclass(eq=False)
class Attempt:
    """One attempt of a task to send a batch; another one may be under way."""

    client: LocalClient
    messages: Sequence[SinkMessage]
    batch: int
    partition: int
    frame: int
    """Messages in a request."""
    sequence: int = 0
    """The next message, as was answered last."""
    is_done: bool = False
    is_dead: bool = False
    refusals: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Asks how far it is, and goes on by itself."""
        self.client.start(progress_command(partition=self.partition), self._on_progress)

    def _on_progress(self, answer: RemotingCommand) -> None:
        if self.is_dead:
            return
        if answer.code != ResponseCode.SUCCESS:
            self.refusals.append(answer.code)
            return
        batch, sequence = progress_in(answer)
        assert batch <= self.batch
        self.sequence = sequence if batch == self.batch else 0
        self._send(self.sequence)

    def _send(self, first: int) -> None:
        if first >= len(self.messages):
            self.is_done = True
            return
        end = min(first + self.frame, len(self.messages))
        command = batch_command(
            self.messages, first, end, batch=self.batch, partition=self.partition
        )
        self.client.start(command, self._on_progress)
