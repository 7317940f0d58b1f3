"""Helpers for tests of redrive and restore: a topic, its messages, and killed runs."""

from collections.abc import Callable
from typing import Any

import pytest

from troupemq.client.admin import Admin
from troupemq.client.consuming.pull_consumer import PullConsumer
from troupemq.client.errors import ClientError
from troupemq.client.message import MessageQueue, MessageView
from troupemq.client.producing.producer import Producer

TOPIC = "Orders"
BEFORE_A_SEND, BEFORE_A_COMMIT = "before a send", "before a commit"
_COMMIT = PullConsumer.commit


class Killed(BaseException):
    """In the place of a kill: nothing below may catch it."""


def copies(namesrv: str) -> list[MessageView]:
    """All that lies in TOPIC, in the order of its queues."""
    with Admin(namesrv) as admin:
        ends = {queue: admin.offsets(queue)[1] for queue in admin.queues(TOPIC)}
        with PullConsumer("readers", namesrv, auto_commit=False) as consumer:
            consumer.assign(ends)
            for queue in ends:
                consumer.seek_to_begin(queue)
            found: list[MessageView] = []
            while len(found) < sum(ends.values()):
                found += consumer.poll(5000)
    return sorted(found, key=lambda view: (view.queue.queue_id, view.queue_offset))


def killed_after(count: int) -> Callable[..., None]:
    """Return a function that raises after `count` calls."""
    left = count

    def kill(*given: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return kill


def kill_runs(run: Callable[[Callable[[float], object]], object], where: str) -> None:
    """Three runs, each killed after some sends or commits; `run` gets what waits between sends."""
    for count in (1, 4, 2):
        kill = killed_after(count)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            if where == BEFORE_A_SEND:
                run(kill)
                continue

            def slain(
                self: PullConsumer, offsets: dict[MessageQueue, int], dies: Any = kill
            ) -> None:
                dies()
                _COMMIT(self, offsets)

            patch.setattr(PullConsumer, "commit", slain)
            run(bool)


def lose_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the third send are carried out, and their answers lost."""
    send, failures = Producer.send, [True, False, True]

    def loses_answers(self: Producer, *given: object, **more: object) -> object:
        result = send(self, *given, **more)  # type: ignore[arg-type]
        if failures and failures.pop():
            raise ClientError("no answer")
        return result

    monkeypatch.setattr(Producer, "send", loses_answers)
