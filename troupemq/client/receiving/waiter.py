"""Driver of the flows: carries out what they yield, on the caller's thread, and blocks."""

from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, wait
from math import inf
from threading import Event, Lock
from time import monotonic
from typing import assert_never

from protocol.command import RemotingCommand
from troupemq.client.connection.calls import LookUpRoute, Value, drive
from troupemq.client.connection.client import Client
from troupemq.client.connection.pending import Answer
from troupemq.client.connection.route import Route
from troupemq.client.errors import (
    ClientClosed,
    ClientError,
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
)
from troupemq.client.receiving.flows import Ask, Flow, Pause, Several, Wanted

SLACK_MS = 3000
"""Time for an answer beyond that for which the broker may hold the request."""
KEPT_S = 3600.0
"""Time for which an answer of a POP is waited for; it usually ends with its connection."""


class Waiter:
    """Runs flows for any number of threads.

    An answer to POP may arrive after its receive has given up, and its messages are in flight then.
    The next receive of that topic at that broker waits for it instead of sending another POP.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopping = Event()
        self._late: dict[tuple[str, str], list[tuple[Answer, float]]] = {}
        """Requests that were not answered in time, each with the end of the wait for it."""

        self._lock = Lock()

    def stop(self) -> None:
        """End all pauses with ClientClosed; open requests end when the client stops."""
        self._stopping.set()

    def run(self, flow: Flow[Value]) -> Value:
        """Return the result of `flow`. Blocks; raises ClientError, always on the I/O thread."""
        self._client.remoting.check_may_wait()
        return drive(flow, self._carry_out)

    def _carry_out(
        self, wanted: Wanted
    ) -> RemotingCommand | list[RemotingCommand | ClientError | None] | Route | None:
        match wanted:
            case Ask():
                return self._ask(wanted)
            case Several():
                return self._several(wanted)
            case LookUpRoute():
                return self._client.routes.get(wanted.topic)
            case Pause():
                if self._stopping.wait(wanted.ms / 1000):
                    raise ClientClosed("the consumer is stopped")
                return None
        assert_never(wanted)

    def _ask(self, ask: Ask) -> RemotingCommand:
        try:
            if ask.is_pop:
                return self._pop(ask)
            return self._call(ask, ask.timeout_ms).result()
        except (ConnectionFailed, RequestTimeout, RouteNotFound):
            self._client.refresh_soon(ask.topic)
            raise

    def _call(self, ask: Ask, timeout_ms: float) -> Answer:
        """Send the request. Raises RouteNotFound."""
        address = self._client.routes.master(ask.broker_name)
        return self._client.remoting.call_async(address, ask.command, timeout_ms)

    def _pop(self, ask: Ask) -> RemotingCommand:
        key = ask.topic, ask.broker_name
        late = self._take_late(key) or (self._call(ask, inf), monotonic() + KEPT_S)
        answer, _ = late
        try:
            return answer.result((ask.timeout_ms + SLACK_MS) / 1000)
        except ClientError:  # first: a RequestTimeout is a TimeoutError, too
            raise
        except TimeoutError:
            raise RequestTimeout(f"{ask.broker_name} did not answer in time") from None
        finally:
            if not answer.done():  # after a timeout, or Ctrl-C
                with self._lock:
                    self._late.setdefault(key, []).append(late)

    def _take_late(self, key: tuple[str, str]) -> tuple[Answer, float] | None:
        with self._lock:
            while late := self._late.get(key):
                answer, until_s = late.pop()
                if answer.exception() is None if answer.done() else monotonic() < until_s:
                    return answer, until_s
        return None

    def _several(self, several: Several) -> list[RemotingCommand | ClientError | None]:
        calls: list[Answer | ClientError] = []
        for ask in several.asks:
            try:
                calls.append(self._call(ask, several.timeout_ms + SLACK_MS))
            except ClientError as error:
                calls.append(error)
        answers = [each for each in calls if not isinstance(each, ClientError)]
        if len(answers) == len(calls) or several.wait_all:
            enough = ALL_COMPLETED if several.wait_all else FIRST_COMPLETED
            wait(answers, several.timeout_ms / 1000, enough)
        found: list[RemotingCommand | ClientError | None] = []
        for ask, call in zip(several.asks, calls, strict=True):
            result = call if isinstance(call, ClientError) else _result(call)
            if isinstance(result, ConnectionFailed | RouteNotFound):
                self._client.refresh_soon(ask.topic)
            found.append(result)
        return found


def _result(answer: Answer) -> RemotingCommand | ClientError | None:
    if not answer.done():
        return None
    try:
        return answer.result()
    except ClientError as error:
        return error
