"""Work through many queues for one answer, in steps on the loop.

Work is a sequence of jobs, one per queue. After JOBS_PER_TURN jobs other actors get their turn.
Entries without a job count as well, because a table may have half a million of them. A job that
needs data outside the page cache is repeated when ColdRead has read it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from actors.engine.actor import handles
from actors.engine.actor_address import ActorAddress
from actors.network.messages import Request, RequestMessage
from actors.network.request import Responder, check_waiting
from actors.pulling.messages import ReadCold
from protocol.codes import ResponseCode
from protocol.errors import LimitReached, RemoteError
from protocol.frame import RemotingCommand
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes

JOBS_PER_TURN = 100
"""A few milliseconds of work in one round of the loop."""
PASSED_PER_JOB = 10
"""Entries passed over without a job that count as one: 1 to 2 µs each."""
COLD_STEPS_MAX = 100
"""Cold reads of one job; after them it reads the disk on the loop."""

QUEUES_MAX = 150_000
"""Queues of one answer: some 75 MiB in memory, and more than a frame holds."""

Job: TypeAlias = Callable[[QueueTimes], object]
"""Looks at one queue; may be called again after raising ColdPages."""


@dataclass(slots=True, eq=False)
class QueueWork(RequestMessage):
    """Remaining jobs of a request, and the function that answers it after them."""

    request: Request
    jobs: Iterator[Job | None]
    """Jobs; None where an entry is passed over, so that a long search is done in turns, too."""
    finish: Callable[[], RemotingCommand | None]
    """May raise RemoteError; None: another actor answers."""
    job: Job | None = None
    cold_steps: int = 0
    done: int = 0
    """Number of finished jobs."""
    is_large: bool = False
    """Whether it took more than one turn."""


@dataclass(frozen=True, slots=True)
class _Released:
    """The large answer has been written: start the next one."""


_WORK_BYTES = 100 * JOBS_PER_TURN
"""Memory of an answer that has begun."""


class QueueWorker(Responder):
    """Base class of actors that answer by working through queues. Runs on the loop.

    Only one answer about more than JOBS_PER_TURN queues is worked on until it is written. Each
    takes memory, and a client may send thousands of requests at once.
    """

    def __init__(self, store: MessageStore, probe: PageProbe, cold_read: ActorAddress) -> None:
        super().__init__()
        self._cold_read = cold_read
        self._times = QueueTimes(store.commit_log, store.damage, probe)
        self._patient_times = QueueTimes(store.commit_log, store.damage)
        self._large: QueueWork | None = None
        self._waiting: deque[QueueWork] = deque()

    @handles(QueueWork, reads_only=True)
    def work_on(self, work: QueueWork) -> None:
        """Do some of the jobs; the last one answers."""
        if work.is_large and self._large is not work:
            if self._large is not None:
                self._let_wait(work)
                return
            self._large = work
        is_over = True
        try:
            is_over = self._work_on(work)
        except ColdPages as cold:
            is_over = False
            work.cold_steps += 1
            self._cold_read.tell(ReadCold(cold.parts, work, self.address))
        except RemoteError as error:
            work.request.answer(error.code, remark=error.remark)
        finally:
            if is_over and self._large is work:
                self._release()

    def _let_wait(self, work: QueueWork) -> None:
        try:
            check_waiting(len(self._waiting), work.request.command, _WORK_BYTES)
        except LimitReached as error:
            self.tell_of(error, work.request)
            work.request.answer(error.code, remark=error.remark)
        else:
            self._waiting.append(work)

    def _work_on(self, work: QueueWork) -> bool:
        """Do some jobs; return whether the work is over and the answer was made here."""
        left = JOBS_PER_TURN * PASSED_PER_JOB
        while left > 0:
            if work.job is None:
                work.cold_steps = 0
                try:
                    work.job = next(work.jobs)
                except StopIteration:
                    response = work.finish()
                    if response is not None:
                        work.request.respond(response)
                    return response is not None
            if work.job is None:
                left -= 1
                continue
            if work.done >= QUEUES_MAX:
                remark = f"an answer is about at most {QUEUES_MAX} queues: ask for one topic"
                raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)
            patient = work.cold_steps >= COLD_STEPS_MAX
            work.job(self._patient_times if patient else self._times)
            work.job = None
            work.done += 1
            left -= PASSED_PER_JOB
        work.is_large = True
        self.system.loop.tell_in_next_round(self.address, work)
        return False

    def answered(self, request: Request) -> Callable[[], None] | None:
        """Return what to call when another actor has answered; None: nothing waits for it."""
        if self._large is None or self._large.request is not request:
            return None
        return partial(self.address.tell, _Released())

    @handles(_Released)
    def on_released(self, _: _Released) -> None:
        self._release()

    def _release(self) -> None:
        self._large = None
        if self._waiting:
            self.address.tell(self._waiting.popleft())
