"""Admin: administration of a cluster.

answers.py    results, and answers of several servers with their failures
operations.py  methods for threads and event loops; callers.py: their requests, blocking
argument_types.py  check of their arguments
base.py       requests, the base of all methods; flows.py: all of them
topics.py     topics and their order; queues.py: queues and traffic
members.py    members of groups, producers; groups.py: settings and lag; offsets.py: resets
progress.py   results about what is consumed, in flight and stuck; stacks.py: threads of members
brokers.py    brokers and name servers; access.py: accounts
messages.py   messages; reading.py: reader of a queue, traces; trials.py: latency of sends
life.py       life of a message, from all of these
transfer.py   export and import of whole tables
"""

from collections.abc import Sequence
from typing import ClassVar, Self, TypeVar

from protocol.codes import RequestCode
from protocol.headers.fields import Header
from protocol.json_body import Body
from protocol.signature import Credentials
from protocol.tags import ALL_TAGS
from remoting.tls_options import Tls
from troupemq.client.admin.answers import Answers, Change, Result, Span, Time
from troupemq.client.admin.base import TIMEOUT_MS, BrokerPlace
from troupemq.client.admin.callers import PRODUCER_GROUP, BlockingCaller
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.operations import BlockingMethods
from troupemq.client.admin.reading import TOOLS_GROUP, QueueReader
from troupemq.client.connection.calls import finished
from troupemq.client.message import MessageQueue
from troupemq.client.producing.producer import Producer
from troupemq.client.settings import ProducerSettings

__all__ = ["Admin", "Answers", "BrokerPlace", "Change", "Result", "Span", "Time"]

Answered = TypeVar("Answered", bound=Body)


class Admin(BlockingMethods, AdminFlows):
    """Asks and changes brokers and name servers; every call blocks and raises ClientError.

        with Admin("127.0.0.1:9876") as admin:
            admin.create_topic("Orders", queue_count=8)
            progress = admin.group_progress("billing")
            print(sum(each.lag for each in progress), progress.failures)

    Methods that ask several servers return Answers: a sequence of results, and the failures of
    servers that did not answer. Changes are complete when the method returns.
    """

    flows_kind: ClassVar[type[AdminFlows]] = AdminFlows

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        silent_s: float = 0.0,
    ) -> None:
        """Raise ArgumentIllegal for invalid arguments, ConnectionFailed for an invalid address.

        * `namesrv`: "host:port;host:port". [default: NAMESRV_ADDR, else 127.0.0.1:9876]
        * `credentials`: [default: TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY]
        * `tls`: [default: TROUPEMQ_TLS and its related variables]
        * `silent_s`: seconds in which requests to a server that did not answer fail at once.
        """
        caller = BlockingCaller(namesrv, credentials, tls)
        self._client = caller.client
        self.namesrv = namesrv
        super().__init__(caller, self._client.addresses, silent_s)
        self._flows = self.flows_kind(caller, self.namesrvs, silent_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.remoting.close()

    def producer(
        self, group: str = PRODUCER_GROUP, settings: ProducerSettings | None = None
    ) -> Producer:
        """Return a producer with the same name servers, account and TLS options."""
        producer: Producer = self._caller.producer(group, settings)
        return producer

    def reader(
        self, queue: MessageQueue, expression: str = ALL_TAGS, group: str | None = None
    ) -> QueueReader:
        """Return a reader of a queue, which changes no offsets. Raises RouteNotFound."""
        address = finished(self._flows._address_of(queue))
        return QueueReader(self, address, queue, expression, group or TOOLS_GROUP)

    def read(
        self,
        kind: type[Answered],
        address: str,
        code: RequestCode,
        header: Header | None = None,
        timeout_ms: float = TIMEOUT_MS,
    ) -> Answered:
        """Return the decoded body of an answer. Raises BadAnswer for one that is not a `kind`."""
        found: Answered = finished(self._flows._read(kind, address, code, header, timeout_ms))
        return found
