"""Work through many queues for one answer, on the loop and without holding it up.

A piece of work is a run of jobs, each about one queue.  After JOBS_PER_TURN of them others have
their turn; a job that meets what is not in memory is done again when ColdRead has read it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from actors.engine.actor import handles
from actors.engine.address import Address
from actors.network.request import Request, Responder
from actors.pulling.cold_read import ReadCold
from protocol.command import RemotingCommand
from protocol.errors import RemoteError
from storage.message_store import MessageStore
from storage.reading.page_probe import PageProbe
from storage.reading.queue_times import ColdPages, QueueTimes

JOBS_PER_TURN = 100
"""A few milliseconds' worth, in one round of the loop."""
COLD_STEPS_MAX = 100
"""A job that meets the disk so often waits for it."""

Job: TypeAlias = Callable[[QueueTimes], object]
"""Looks at one queue; may be called again when it has raised ColdPages."""


@dataclass(slots=True, eq=False)
class QueueWork:
    """Jobs left to do for a request, and what answers it when all are done."""

    request: Request
    jobs: Iterator[Job]
    finish: Callable[[], RemotingCommand | None]
    """May raise RemoteError; None: somebody else answers."""
    job: Job | None = None
    cold_steps: int = 0

    def refuse(self, remark: str) -> None:
        """Answers with an error."""
        self.request.refuse(remark)


class QueueWorker(Responder):
    """Base of those who answer by working through queues. Lives on the loop."""

    def __init__(self, store: MessageStore, probe: PageProbe, cold_read: Address) -> None:
        super().__init__()
        self._cold_read = cold_read
        self._times = QueueTimes(store.commit_log, store.damage, probe)
        self._patient_times = QueueTimes(store.commit_log, store.damage)

    @handles(QueueWork, reads_only=True)
    def work_on(self, work: QueueWork) -> None:
        """Does some of the jobs; the last of them answers."""
        try:
            for _ in range(JOBS_PER_TURN):
                if work.job is None:
                    work.job, work.cold_steps = next(work.jobs, None), 0
                if work.job is None:
                    response = work.finish()
                    if response is not None:
                        work.request.respond(response)
                    return
                patient = work.cold_steps >= COLD_STEPS_MAX
                work.job(self._patient_times if patient else self._times)
                work.job = None
        except ColdPages as cold:
            work.cold_steps += 1
            self._cold_read.tell(ReadCold(cold.parts, work, self.address))
        except RemoteError as error:
            work.request.answer(error.code, remark=error.remark)
        else:
            self.system.loop.tell_in_next_round(self.address, work)
