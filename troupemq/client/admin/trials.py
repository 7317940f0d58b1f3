"""Trial sends, which measure the latency of brokers."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from troupemq.client.admin.answers import Failures, Result
from troupemq.client.admin.base import AdminBase
from troupemq.client.admin.callers import SendingProducer
from troupemq.client.admin.operations import operation, reads
from troupemq.client.connection.route import route_of
from troupemq.client.errors import ClientError
from troupemq.client.message import Message

TRIAL_GROUP = "troupemq-admin-trial"


@dataclass(frozen=True, slots=True)
class SendTrial(Result):
    """One trial send; its status is OK or another SendStatus, or an error text."""

    broker: str
    queue_id: int
    status: str
    took_ms: float


@dataclass(frozen=True, slots=True)
class TrialSummary(Result):
    """Summary of trials; times are None if no message was stored."""

    sent: int
    failed: int
    average_ms: float | None
    longest_ms: float | None

    @classmethod
    def of(cls, trials: Sequence[SendTrial]) -> "TrialSummary":
        """Return the summary; the average omits the longest trial, which opens the connection."""
        times = sorted(each.took_ms for each in trials if each.status == "OK")
        later = times[:-1] if len(times) > 1 else times
        average_ms = sum(later) / len(later) if later else None
        longest_ms = times[-1] if times else None
        return cls(len(times), len(trials) - len(times), average_ms, longest_ms)


@dataclass(frozen=True, slots=True)
class ClusterTrial(Result):
    cluster: str
    broker: str
    room: str
    summary: TrialSummary


class TrialAdmin(AdminBase):
    @operation
    async def trial_sends(
        self, topic: str, count: int, size: int, *, broker_name: str | None = None
    ) -> list[SendTrial]:
        """Send messages to the queues of a topic in turn; return the latency of each."""
        async with self._sender(TRIAL_GROUP) as producer:
            return await self._trials(producer, topic, count, size, broker_name)

    @reads
    async def cluster_trials(
        self,
        failures: Failures,
        producer: Any,
        count: int,
        size: int,
        *,
        cluster: str | None = None,
        room: str = "",
    ) -> AsyncIterator[ClusterTrial]:
        """Send messages to each broker of a cluster or of all, to the topic with its name.

        `producer`: a running Producer of the kind that `producer` returns.
        """
        sender = self._caller.sender(producer)
        for place in await self.masters(cluster):
            with failures.attempt():
                trials = await self._trials(sender, place.name, count, size, place.name)
                yield ClusterTrial(place.cluster, place.name, room, TrialSummary.of(trials))

    async def _trials(
        self, producer: SendingProducer, topic: str, count: int, size: int, broker_name: str | None
    ) -> list[SendTrial]:
        queues = [
            queue
            for queue in route_of(topic, await self.route(topic)).publish_queues
            if broker_name in (None, queue.broker_name)
        ]
        if not queues:
            raise ClientError(f"no broker takes messages for {topic}")
        found = []
        for number in range(count):
            queue = queues[number % len(queues)]
            began_s = monotonic()
            try:
                result = await producer.send(Message(queue.topic, b"a" * size), queue=queue)
                status = result.status.value
            except ClientError as error:
                status = str(error)
            took_ms = (monotonic() - began_s) * 1000
            found.append(SendTrial(queue.broker_name, queue.queue_id, status, took_ms))
        return found
