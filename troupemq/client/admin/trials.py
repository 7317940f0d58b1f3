"""Trial sends, which measure the latency of brokers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from troupemq.client.admin.answers import Failures, Result, reads
from troupemq.client.admin.base import AdminBase
from troupemq.client.connection.route import route_of
from troupemq.client.errors import ClientError
from troupemq.client.message import Message
from troupemq.client.producing.producer import Producer

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
    def trial_sends(
        self, topic: str, count: int, size: int, *, broker_name: str | None = None
    ) -> list[SendTrial]:
        """Send messages to the queues of a topic in turn; return the latency of each."""
        with self.producer(TRIAL_GROUP) as producer:
            return self._trials(producer, topic, count, size, broker_name)

    @reads
    def cluster_trials(
        self,
        failures: Failures,
        producer: Producer,
        count: int,
        size: int,
        *,
        cluster: str | None = None,
        room: str = "",
    ) -> Iterator[ClusterTrial]:
        """Send messages to each broker of a cluster or of all, to the topic with its name."""
        for place in self.masters(cluster):
            with failures.attempt():
                trials = self._trials(producer, place.name, count, size, place.name)
                yield ClusterTrial(place.cluster, place.name, room, TrialSummary.of(trials))

    def _trials(
        self, producer: Producer, topic: str, count: int, size: int, broker_name: str | None
    ) -> list[SendTrial]:
        queues = [
            queue
            for queue in route_of(topic, self.route(topic)).publish_queues
            if broker_name in (None, queue.broker_name)
        ]
        if not queues:
            raise ClientError(f"no broker takes messages for {topic}")
        found = []
        for number in range(count):
            queue = queues[number % len(queues)]
            began_s = monotonic()
            try:
                result = producer.send(Message(queue.topic, b"a" * size), queue=queue)
                status = result.status.value
            except ClientError as error:
                status = str(error)
            took_ms = (monotonic() - began_s) * 1000
            found.append(SendTrial(queue.broker_name, queue.queue_id, status, took_ms))
        return found
