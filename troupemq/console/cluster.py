"""Requests to a cluster under one deadline, and its changes, by the methods of Admin.

The commands of `troupemq admin` call the same methods, so that the command line shown beside a
change has the same effect.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shlex import join
from threading import local
from time import monotonic
from typing import Generic, TypeVar

from protocol.bodies import ClusterInfo
from protocol.codes import RequestCode
from protocol.compression import CompressionError
from protocol.errors import ProtocolError
from protocol.frame import RemotingCommand
from protocol.headers.fields import Header
from troupemq.client.admin import Admin, Answers, Change, Result
from troupemq.client.admin.answers import Row
from troupemq.client.admin.base import SILENT_S
from troupemq.client.admin.callers import Caller
from troupemq.client.admin.flows import AdminFlows
from troupemq.client.admin.operations import operation
from troupemq.client.connection.pending import Answer
from troupemq.client.errors import ArgumentIllegal, ClientError, RequestTimeout, RouteNotFound
from troupemq.text import one_line

DEADLINE_S = 4.0
"""For all requests of a page; answers that arrive later are shown as missing."""

LEAST_MS = 50.0
ROWS_MAX = 20_000
"""Limit of rows of one request, because a page cannot show more."""

Found = TypeVar("Found")


class DeadlineFlows(AdminFlows):
    """The operations of a session, with a deadline for each thread."""

    def __init__(self, caller: Caller, namesrvs: Sequence[str], silent_s: float) -> None:
        super().__init__(caller, namesrvs, silent_s)
        self.of_thread = local()
        self.listed_addresses: frozenset[str] = frozenset()

    @operation
    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers of all clusters; later requests go to these only."""
        found = await super().cluster_info()
        brokers = found.broker_addr_table.values()
        self.listed_addresses = frozenset(
            each for one in brokers for each in one.broker_addrs.values()
        )
        return found

    def _left_ms(self, address: str, timeout_ms: float) -> float:
        until_s = getattr(self.of_thread, "until_s", None)
        if until_s is None:
            return timeout_ms
        left_ms: float = (until_s - monotonic()) * 1000
        if left_ms < LEAST_MS:
            raise RequestTimeout(f"{address} was not asked: the deadline of this page has passed")
        return min(timeout_ms, left_ms)


class DeadlineSession(Admin):
    """Admin session of the whole process, with a deadline for each thread."""

    _flows: DeadlineFlows
    flows_kind = DeadlineFlows

    def __init__(self, namesrv: str | None) -> None:
        super().__init__(namesrv, silent_s=SILENT_S)
        self._silent = self._flows._silent
        self._client.remoting.check_address = self._check_listed

    def _check_listed(self, address: str) -> None:
        """Raise RouteNotFound for a server that the name servers do not list.

        All users share the console's account. A foreign server must not get a request that is
        signed with it, whatever address a page, a change or a message id names.
        """
        if address in self.namesrvs or address in self._flows.listed_addresses:
            return
        self.cluster_info()
        if address not in self._flows.listed_addresses:
            raise RouteNotFound(f"{address} is unknown: no name server lists it")

    @contextmanager
    def within(self, seconds: float = DEADLINE_S) -> Iterator[None]:
        """Apply one deadline to all requests of this thread."""
        of_thread = self._flows.of_thread
        of_thread.until_s = monotonic() + seconds
        try:
            yield
        finally:
            del of_thread.until_s

    def call_later(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> "PendingAnswer":
        """Send a request and return at once, so that many servers are asked concurrently."""
        answer = self._client.remoting.call_async(address, command, timeout_ms)
        return PendingAnswer(command.code, answer)

    def is_silent(self, address: str) -> bool:
        """Return whether a server did not answer lately, so that requests to it fail at once."""
        since_s, error = self._silent.get(address, (0.0, None))
        return error is not None and monotonic() - since_s < SILENT_S

    def note_silence(self, address: str, error: ClientError | None) -> None:
        """Note that a server did not answer, or that it did if there is no error.

        A silence counts from its begin: then the server has its whole time again.
        """
        if error is None:
            self._silent.pop(address, None)
        elif not self.is_silent(address):
            self._silent[address] = monotonic(), error

    def ask_all(
        self,
        addresses: Sequence[str],
        code: RequestCode,
        header: Header | None = None,
        seconds: float = DEADLINE_S,
    ) -> "dict[str, RemotingCommand | ClientError]":
        """Ask all addresses concurrently; return the answer or the error of each."""
        fields = {} if header is None else header.encode()
        asked: dict[str, PendingAnswer | ClientError] = {}
        for address in addresses:
            if self.is_silent(address):
                asked[address] = self._silent[address][1]
                continue
            try:
                asked[address] = self.call_later(
                    address,
                    RemotingCommand(code, dict(fields)),
                    self._flows._left_ms(address, seconds * 1000),
                )
            except ClientError as error:
                asked[address] = error
        found: dict[str, RemotingCommand | ClientError] = {}
        for address, later in asked.items():
            try:
                found[address] = later.answer() if isinstance(later, PendingAnswer) else later
            except ClientError as error:
                found[address] = error
        return found


class PendingAnswer:
    """Answer to come; the client fails it at its timeout."""

    def __init__(self, code: int, answer: Answer) -> None:
        self.code = code
        """Code of the request."""
        self._answer = answer

    def answer(self) -> RemotingCommand:
        """Wait for the answer and return it, whatever its code. Raises ClientError."""
        return self._answer.result()


class CommandResult(Generic[Found]):
    """Results of a request or a change, sentences about them, and failures."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.rows: list[Row] = []
        self.sentences: list[str] = []
        self.failures: list[str] = []

    def take(self, each: Found) -> None:
        """Add one result. Raises ArgumentIllegal beyond ROWS_MAX."""
        if len(self.found) >= ROWS_MAX:
            raise ArgumentIllegal(f"more than {ROWS_MAX} rows: use the command line")
        self.found.append(each)
        if isinstance(each, Result):
            self.rows.append(each.row())
        if isinstance(each, Change):
            self.sentences.append(one_line(each.sentence))

    def done(self, sentence: str, **fields: object) -> None:
        """Add a sentence about a completed change, and its facts."""
        self.sentences.append(one_line(sentence))
        self.rows.append(fields)

    def fail(self, sentence: str) -> None:
        if one_line(sentence) not in self.failures:
            self.failures.append(one_line(sentence))


class WatchedCluster:
    """Clusters that one set of name servers knows."""

    def __init__(self, namesrv: str | None) -> None:
        self.session = DeadlineSession(namesrv)
        self.namesrv = ";".join(self.session.namesrvs)

    def close(self) -> None:
        self.session.close()

    def line(self, words: Sequence[str]) -> str:
        """Return the command line of `words`; it has the name servers unless it names a broker."""
        is_of_broker = words[0] == "job" and "-b" in words
        return join(["troupemq", *words, *(() if is_of_broker else ("-n", self.namesrv))])

    def ask(
        self, question: Callable[[DeadlineSession], Iterable[Found]], seconds: float = DEADLINE_S
    ) -> CommandResult[Found]:
        """Call a method of Admin; return its results, with errors as `failures`."""
        out = CommandResult[Found]()
        try:
            with self.session.within(seconds):
                found = question(self.session)
                for each in found.tell(out.fail) if isinstance(found, Answers) else found:
                    out.take(each)
        except ClientError as error:
            out.fail(str(error))
        except (ProtocolError, CompressionError) as error:
            out.fail(f"invalid answer: {error}")
        return out
