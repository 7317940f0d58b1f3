"""Requests of a snapshot: sent at once, answered under one deadline, with what is missing."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from protocol.bodies_admin import ClientConnection, ConsumerConnection
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.fields import Header
from protocol.json_body import Body
from troupemq.client.admin.members import ClientInfo
from troupemq.client.admin.progress import AskedMember
from troupemq.client.errors import BrokerError, ClientError, understood
from troupemq.console.cluster import DeadlineSession, PendingAnswer
from troupemq.text import one_line

UNSUPPORTED_S = 600.0
"""Pause before an unsupported request is sent again; official brokers log each one."""

SILENT_MS = 1000.0
"""Timeout for a broker that did not answer the last snapshot."""

MISSING_MAX = 50
"""Limit of sentences about missing answers."""

ACCESS = "AclException"
"""Part of each refusal of access control, in 4.9.7 and in TroupeMQ."""

Found = TypeVar("Found", bound=Body)


class UnsupportedRequests:
    """Requests that a broker does not support, for UNSUPPORTED_S."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: dict[tuple[str, int], float] = {}

    def holds(self, address: str, code: int) -> bool:
        since_s = self._since_s.get((address, code))
        return since_s is not None and self._clock() - since_s < UNSUPPORTED_S

    def note(self, address: str, code: int) -> None:
        self._since_s[address, code] = self._clock()


@dataclass
class SnapshotQuestions:
    """Requests of one round of a snapshot."""

    session: DeadlineSession
    missing: list[str]
    """Sentences about missing answers."""
    seconds: float
    """Timeout of each request."""
    unsupported: UnsupportedRequests
    in_vain_s: float = 0.0
    """Time of waiting for answers that did not come."""

    def ask(
        self, address: str, code: RequestCode, header: Header | None = None
    ) -> PendingAnswer | None:
        """Send a request; return None if the broker does not support it."""
        if self.unsupported.holds(address, code):
            return None
        command = RemotingCommand(code, {} if header is None else header.encode())
        timeout_ms = self.seconds * 1000
        if self.session.is_silent(address):
            timeout_ms = min(timeout_ms, SILENT_MS)
        return self.session.call_later(address, command, timeout_ms)

    def answer(
        self, address: str, later: PendingAnswer | None, perhaps: bool = False
    ) -> RemotingCommand | None:
        """Return a successful answer, or None and a sentence in `missing`.

        `perhaps`: not all brokers support the request; a refusal adds no sentence.
        """
        if later is None:
            return None
        began_s = monotonic()
        try:
            answer = later.answer()
        except ClientError as error:
            self.in_vain_s += monotonic() - began_s
            if later.code == RequestCode.GET_BROKER_RUNTIME_INFO:
                self.session.note_silence(address, error)
            self._miss(str(error) if address in str(error) else f"{address}: {error}")
            return None
        if later.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self.session.note_silence(address, None)
        if answer.code == ResponseCode.SUCCESS:
            return answer
        is_unknown = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        is_refused = later.code == RequestCode.GET_ACL_REFUSALS and ACCESS in (answer.remark or "")
        if perhaps and (is_unknown or is_refused):  # each further request would be a refusal
            self.unsupported.note(address, later.code)
        if not perhaps:
            self._miss(f"{address} refuses: {BrokerError(answer.code, answer.remark, address)}")
        return None

    def body(
        self, kind: type[Found], address: str, later: PendingAnswer | None, perhaps: bool = False
    ) -> Found | None:
        """Return the body of a successful answer, or None, as `answer` does."""
        return self.decoded(kind, address, self.answer(address, later, perhaps))

    def decoded(
        self, kind: type[Found], address: str, answer: RemotingCommand | None
    ) -> Found | None:
        """Return the body of an answer; None and a sentence in `missing` if it is invalid."""
        if answer is None:
            return None
        try:
            return understood(kind.decode, answer.body)
        except ClientError as error:
            self._miss(str(error) if address in str(error) else f"{address}: {error}")
        return None

    def running_info(
        self, address: str, member: ClientConnection, later: PendingAnswer | None
    ) -> AskedMember:
        """Return a member with its answer; without one, with the reason."""
        answer = self.answer(address, later, True)
        if answer is None:
            return AskedMember(member, None, "it does not answer")
        try:
            return AskedMember(member, ClientInfo.decode(answer.body))
        except ClientError as error:
            return AskedMember(member, None, one_line(str(error)))

    def members(self, address: str, later: PendingAnswer | None) -> ConsumerConnection | None:
        """Return the members; None without an answer."""
        if later is None:
            return None
        try:
            answer = later.answer()
            if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return ConsumerConnection()
            if answer.code != ResponseCode.SUCCESS:
                return None
            return understood(ConsumerConnection.decode, answer.body)
        except ClientError as error:
            self._miss(str(error) if address in str(error) else f"{address}: {error}")
            return None

    def _miss(self, sentence: str) -> None:
        sentence = one_line(sentence)
        if sentence not in self.missing and len(self.missing) < MISSING_MAX:
            self.missing.append(sentence)
