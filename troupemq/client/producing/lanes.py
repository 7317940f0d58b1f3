"""Sends that cannot start on their caller's thread, because they would block it.

    route of the topic missing   one thread asks the name servers, once for all waiting sends
    long body to compress        another thread compresses it, so that no name server delays it

The waiting sends of a topic form a lane. They start in order, and later sends of the topic queue
up behind them.
"""

from collections import deque
from collections.abc import Callable
from copy import copy
from threading import Lock
from time import monotonic

from troupemq.client.connection.client import Client
from troupemq.client.connection.task_thread import Task, TaskThread
from troupemq.client.errors import ClientClosed, ClientError, RequestTimeout
from troupemq.client.producing.sending import Sending


class Lanes:
    """The lanes of one producer; for any thread. No method blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lanes: dict[str, deque[Sending]] = {}
        self._waiting: set[Sending] = set()
        """Sends in any lane before their deadline."""

        self._lock = Lock()
        self._asking = TaskThread("troupemq-routes")
        self._working = TaskThread("troupemq-compress")
        self._started: set[TaskThread] = set()
        self._closed = False

    def submit(self, sending: Sending) -> None:
        """Start a send now, or as soon as its route is known and its body compressed."""
        topic = sending.parcel.topic
        has_route = bool(sending.carrier.queues_of(topic))
        if has_route and not sending.compresses and topic not in self._lanes:
            sending.next_try()
            return
        with self._lock:
            is_closed = self._closed
            if not is_closed:
                self._waiting.add(sending)
                lane = self._lanes.get(topic)
                if lane is None:
                    self._lanes[topic] = deque((sending,))
                    thread = self._working if has_route else self._asking
                    task = self._drains(topic) if has_route else self._looks_up(topic)
                    self._run(thread, task)
                else:
                    lane.append(sending)
        if is_closed:
            sending.result.set_exception(ClientClosed("the client is stopped"))
        elif not has_route:
            left_ms = (sending.deadline_s - monotonic()) * 1000
            self._client.remoting.later(left_ms, lambda: self._expire(sending))

    def run(self, task: Task) -> None:
        """Run a task that asks name servers or brokers on the look-up thread."""
        with self._lock:
            self._run(self._asking, task)

    def close(self) -> None:
        """Fail the sends that have not started, and stop the threads without waiting for them."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, set()
            self._lanes.clear()
        for sending in waiting:
            sending.result.set_exception(ClientClosed("the client is stopped"))
        for thread in self._started:
            thread.stop(0)

    def _run(self, thread: TaskThread, task: Task) -> None:
        """Post a task, starting the thread at its first one. The caller holds the lock."""
        if thread not in self._started:
            self._started.add(thread)
            thread.start()
        thread.post(task)

    def _looks_up(self, topic: str) -> Callable[[], None]:
        return lambda: self._look_up(topic)

    def _drains(self, topic: str) -> Callable[[], None]:
        return lambda: self._drain(topic)

    def _look_up(self, topic: str) -> None:
        with self._lock:
            if not any(each in self._waiting for each in self._lanes.get(topic, ())):
                self._lanes.pop(topic, None)  # All timed out: do not ask a slow name server.
                return
        try:
            self._client.routes.publish_route(topic)
        except ClientError as error:
            with self._lock:
                lane = self._lanes.pop(topic, deque())
                failed = [each for each in lane if each in self._waiting]
                self._waiting.difference_update(failed)
            for sending in failed:
                sending.result.set_exception(copy(error))  # a copy each: notes are added to errors
            return
        with self._lock:
            if not self._closed:
                self._run(self._working, self._drains(topic))

    def _drain(self, topic: str) -> None:
        """Start the sends of a lane in order; remove the lane when it is empty."""
        while True:
            with self._lock:
                lane = self._lanes.get(topic)
                if not lane:
                    self._lanes.pop(topic, None)
                    return
                sending = lane.popleft()
                is_due = sending in self._waiting
                self._waiting.discard(sending)
            if is_due:
                if sending.compresses:
                    sending.parcel = sending.parcel.compressed()
                sending.next_try()

    def _expire(self, sending: Sending) -> None:
        """Fail a send that still waits for its route at its deadline."""
        with self._lock:
            if sending not in self._waiting:
                return
            self._waiting.discard(sending)
        topic = sending.parcel.topic
        unanswered = self._client.routes.no_answer("no answer within the send's timeout")
        error = RequestTimeout(f"no route of the topic {topic}: {unanswered}")
        sending.note_short_timeout(error)
        sending.result.set_exception(error)
