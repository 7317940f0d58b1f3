"""The loop: one thread with one epoll, for all actors that never block.

It serves sockets, timers and messages. A round has these steps:

    1. poll, without waiting if there are messages
    2. call the handlers of ready sockets
    3. pass over the messages present at the pass's start, then send BatchEnds; repeat
    4. send the messages of due timers

A `tell` between two actors of the loop, with its dispatch, costs a tuple, an append, a popleft, two
dict look-ups and a clock reading (tests/bench/actor_hop.py).
"""

from collections import Counter
from contextlib import suppress
from select import EPOLLIN, EPOLLOUT, epoll
from threading import Thread, get_ident
from time import perf_counter

from actors.engine.actor_address import ActorAddress, Receiver, enter_loop
from actors.engine.dispatchers import Arm, Stepper
from actors.engine.inbox import LoopMail
from actors.engine.interfaces import HasFileno, System
from actors.engine.messages import BATCH_END, BatchEnd
from actors.engine.server_log import get_logger
from actors.engine.timer import TimerHandle

log = get_logger(__name__)

PASSES_MAX = 16
"""Passes over the messages before the sockets are served again; a send needs two."""

PASS_MESSAGES_MAX = 10_000
"""Some 10 ms."""

POLL_S_MAX = 60.0


class Loop(Stepper):
    """Dispatcher on a thread of its own, from `start` to `end`."""

    def __init__(self, system: System) -> None:
        self.mail = LoopMail()
        super().__init__(system, self.mail, "loop")
        self._next_round: list[tuple[ActorAddress, object]] = []
        self._longest_s = 0.0
        """Handler calls longer than this are recorded; updated once a round."""
        self._epoll = epoll()
        self._wake_fd = self.mail.wake_socket.fileno()
        self._epoll.register(self._wake_fd, EPOLLIN)
        self._running = True
        self._thread = Thread(target=self._run, name="loop", daemon=True)
        self._ident = 0

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout_s: float) -> bool:
        """End the loop, not its actors; return False if a handler blocks it. Not on the loop."""
        self._running = False
        self.mail.wake()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def here(self) -> bool:
        return get_ident() == self._ident

    @property
    def native_thread_id(self) -> int:
        return self._thread.native_id or 0 if self._thread.is_alive() else 0

    def take_waiting(self, address: ActorAddress) -> list[object]:
        return self.mail.take(address)

    def put_first(self, address: ActorAddress, messages: list[object]) -> None:
        self.mail.put_first(address, messages)

    def depths(self) -> Counter[ActorAddress]:
        return self.mail.depths()

    def arm(self, timer: TimerHandle) -> None:
        if get_ident() == self._ident:
            self.timers.arm(timer)
        else:
            self.address.tell(Arm(timer))

    def tell_in_next_round(self, address: ActorAddress, message: object) -> None:
        assert self.here
        self._next_round.append((address, message))

    def _watch_fd(self, fd: int, events: int) -> None:
        assert self.here, "sockets are watched on the loop"
        try:
            self._epoll.register(fd, events)
        except FileExistsError:
            self._epoll.modify(fd, events)

    def modify(self, sock: HasFileno, events: int) -> None:
        self._epoll.modify(sock.fileno(), events)

    def _unwatch_fd(self, fd: int) -> None:
        del self._watches[fd]
        with suppress(OSError):  # closed already: epoll has removed it by itself
            self._epoll.unregister(fd)

    # --- the rounds

    def _run(self) -> None:
        self._ident = get_ident()
        enter_loop()
        try:
            while self._running:
                self._round()
        except BaseException as error:
            log.critical("loop failed", exc_info=error)
            self.system.give_up(f"the loop failed: {type(error).__name__}: {error}")
        finally:
            self._end_all()
            self.mail.close()
            self._epoll.close()

    def _round(self) -> None:
        self.round_count += 1
        mail = self.mail
        items = mail.items
        timeout_s = self._tell_due()
        if items or self._next_round:
            events = self._epoll.poll(0)
        else:
            mail.asleep = True
            events = self._epoll.poll(0 if items else timeout_s)  # checked again: see inbox.py
            mail.asleep = False
        self._longest_s = self._noted_s()
        if events:
            self._serve_sockets(events)
        if self._next_round:
            items.extend(self._next_round)
            self._next_round.clear()
        passes = 0
        while items and passes < PASSES_MAX:
            self._pass()
            passes += 1
        if self._stopping:
            self._stop_the_ready()

    def _tell_due(self) -> float:
        """Send due timer messages; return the seconds until the next one, 0 if any was due."""
        due_ms = self.timers.next_due_ms()
        if due_ms is None:
            return POLL_S_MAX
        wait_s = (due_ms - (now_ms := self.system.clock.monotonic_ms())) / 1000
        if wait_s <= 0:
            self.timers.tell_due(now_ms)
            return 0.0
        return wait_s if wait_s < POLL_S_MAX else POLL_S_MAX

    def _serve_sockets(self, events: list[tuple[int, int]]) -> None:
        watches = self._watches
        before = perf_counter()
        for fd, mask in events:
            watch = watches.get(fd)
            if watch is None:
                if fd == self._wake_fd:
                    self.mail.drain_wake_bytes()
                continue
            try:
                if mask & ~EPOLLOUT:  # readable, hung up, or in error
                    watch.handler.on_readable()
                if mask & EPOLLOUT and watches.get(fd) is watch:
                    watch.handler.on_writable()
            except BaseException as error:
                self._socket_failed(watch.owner, error)
            after = perf_counter()
            if after - before > self._longest_s:
                self._slow(watch.owner, "socket", (after - before) * 1000)
            before = after

    def _pass(self) -> None:
        """Handle the messages that are present now, then send BatchEnd to actors that want it."""
        items = self.mail.items
        popleft = items.popleft
        ended: dict[Receiver, None] = {}
        before = perf_counter()
        for _ in range(min(len(items), PASS_MESSAGES_MAX)):
            try:
                address, message = popleft()
            except IndexError:  # a handler took messages out: of an actor that began or ended
                break
            receiver = address.receiver
            try:
                receiver.handlers[type(message)](receiver, message)
            except BaseException as error:
                self._failed(receiver, error, message)
                before = perf_counter()
                break  # the next pass handles the rest
            address.handled += 1
            if receiver.wants_batch_end:
                ended[receiver] = None
            after = perf_counter()
            if after - before > self._longest_s:
                self._slow(receiver, type(message).__name__, (after - before) * 1000)
            before = after
        live = self.system.live
        for receiver in ended:
            if receiver not in live:
                continue
            try:
                receiver.handlers[BatchEnd](receiver, BATCH_END)
            except BaseException as error:
                self._failed(receiver, error, BATCH_END)
            after = perf_counter()
            if after - before > self._longest_s:
                self._slow(receiver, "BatchEnd", (after - before) * 1000)
            before = after

    def _slow(self, receiver: Receiver, message: str, ms: float) -> None:
        super()._slow(receiver, message, ms)
        self._longest_s = self._noted_s()

    def _noted_s(self) -> float:
        longest_ms, limit_ms = self.longest.ms, self.slow_handler_ms
        return (longest_ms if longest_ms < limit_ms else limit_ms) / 1000
