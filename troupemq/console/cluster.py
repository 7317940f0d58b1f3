"""Questions to a cluster within one deadline, and changes of it, by the methods of Admin.

The commands of `troupemq admin` call the same methods, so that the line beside a change does the
same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shlex import join
from threading import local
from time import monotonic
from typing import Generic, TypeVar

from protocol.bodies import ClusterInfo
from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.compression import CompressionError
from protocol.errors import ProtocolError
from protocol.headers.fields import Header
from troupemq.client.admin import Admin, Answers, Change, Result
from troupemq.client.admin.answers import Row
from troupemq.client.admin.base import SILENT_S
from troupemq.client.connection.connection import Answer
from troupemq.client.errors import ArgumentIllegal, ClientError, RequestTimeout, RouteNotFound
from troupemq.text import one_line

DEADLINE_S = 4.0
"""For all that a page asks; what has not come then is marked as missing."""

LEAST_MS = 50.0
ROWS_MAX = 20_000
"""Of one question: a page is no place for more."""

Found = TypeVar("Found")


class DeadlineSession(Admin):
    """A session of the whole process: each thread asks within a deadline of its own."""

    def __init__(self, namesrv: str | None) -> None:
        super().__init__(namesrv, silent_s=SILENT_S)
        self._of_thread = local()
        self._listed: frozenset[str] = frozenset()
        self._client.remoting.check_address = self._check_listed

    def _check_listed(self, address: str) -> None:
        """Raise RouteNotFound for a server that the name servers do not list.

        All users share the console's account. A stranger's server must not get a request that is
        signed with it, whatever address a page, a change or a message id names.
        """
        if address in self.namesrvs or address in self._listed:
            return
        self.cluster_info()
        if address not in self._listed:
            raise RouteNotFound(f"{address} is not asked: no name server lists it")

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers of all clusters; from now on only these are asked."""
        found = super().cluster_info()
        brokers = found.broker_addr_table.values()
        self._listed = frozenset(each for one in brokers for each in one.broker_addrs.values())
        return found

    @contextmanager
    def within(self, seconds: float = DEADLINE_S) -> Iterator[None]:
        """Give all questions of this thread one deadline."""
        self._of_thread.until_s = monotonic() + seconds
        try:
            yield
        finally:
            del self._of_thread.until_s

    def _left_ms(self, address: str, timeout_ms: float) -> float:
        until_s = getattr(self._of_thread, "until_s", None)
        if until_s is None:
            return timeout_ms
        left_ms: float = (until_s - monotonic()) * 1000
        if left_ms < LEAST_MS:
            raise RequestTimeout(f"{address} was not asked: the time for this page is over")
        return min(timeout_ms, left_ms)

    def _ask(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        return super()._ask(address, command, self._left_ms(address, timeout_ms))

    def call(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Return what `address` answers, whatever its code."""
        return super().call(address, command, self._left_ms(address, timeout_ms))

    def call_later(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> "PendingAnswer":
        """Ask now; the answer is fetched afterwards, so that many servers are asked at once."""
        answer = self._client.remoting.call_async(address, command, timeout_ms)
        return PendingAnswer(command.code, answer)

    def ask_all(
        self,
        addresses: Sequence[str],
        code: RequestCode,
        header: Header | None = None,
        seconds: float = DEADLINE_S,
    ) -> "dict[str, RemotingCommand | ClientError]":
        """Return what each answers, all asked at once: whatever its code, or an error."""
        fields = {} if header is None else header.encode()
        asked: dict[str, PendingAnswer | ClientError] = {}
        for address in addresses:
            try:
                asked[address] = self.call_later(
                    address,
                    RemotingCommand(code, dict(fields)),
                    self._left_ms(address, seconds * 1000),
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
    """An answer to come; at the latest when its time is over, for the client sees to that."""

    def __init__(self, code: int, answer: Answer) -> None:
        self.code = code
        """Of the request."""
        self._answer = answer

    def answer(self) -> RemotingCommand:
        """Whatever its code. Raises ClientError."""
        return self._answer.result()


class CommandResult(Generic[Found]):
    """Results of a question or a change: what was found, sentences, and what failed."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.rows: list[Row] = []
        self.sentences: list[str] = []
        self.failures: list[str] = []

    def take(self, each: Found) -> None:
        """Add one result. Raises ArgumentIllegal beyond ROWS_MAX."""
        if len(self.found) >= ROWS_MAX:
            raise ArgumentIllegal(f"more than {ROWS_MAX} rows: ask by the command line")
        self.found.append(each)
        if isinstance(each, Result):
            self.rows.append(each.row())
        if isinstance(each, Change):
            self.sentences.append(one_line(each.sentence))

    def done(self, sentence: str, **fields: object) -> None:
        """Say what was carried out, and its facts."""
        self.sentences.append(one_line(sentence))
        self.rows.append(fields)

    def fail(self, sentence: str) -> None:
        """Note a failure, each once."""
        if one_line(sentence) not in self.failures:
            self.failures.append(one_line(sentence))


class WatchedCluster:
    """One cluster, or those that the same name servers know."""

    def __init__(self, namesrv: str | None) -> None:
        self.session = DeadlineSession(namesrv)
        self.namesrv = ";".join(self.session.namesrvs)

    def close(self) -> None:
        self.session.close()

    def line(self, words: Sequence[str]) -> str:
        """Return the command line of `words`, with the name servers unless they name a broker."""
        is_of_broker = words[0] == "job" and "-b" in words
        return join(["troupemq", *words, *(() if is_of_broker else ("-n", self.namesrv))])

    def ask(
        self, question: Callable[[DeadlineSession], Iterable[Found]], seconds: float = DEADLINE_S
    ) -> CommandResult[Found]:
        """Return what a method of Admin finds; what fails is in `failures`, nothing is raised."""
        out = CommandResult[Found]()
        try:
            with self.session.within(seconds):
                found = question(self.session)
                for each in found.tell(out.fail) if isinstance(found, Answers) else found:
                    out.take(each)
        except ClientError as error:
            out.fail(str(error))
        except (ProtocolError, CompressionError) as error:
            out.fail(f"an answer that cannot be understood: {error}")
        return out
