"""A client in simulation that receives and settles messages one by one, in many ways.

What it has received and settled is written down in a `Settling`. A receiver is `calm` in the end:
it then settles whatever it gets.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UnregisterClientHeader
from tests.support.receiving import (
    Received,
    ack_command,
    batch_ack_command,
    change_command,
    changed,
    receive_command,
    received,
)
from tests.support.seats import Client

if TYPE_CHECKING:
    from tests.support.world import World

WAIT_MS = 3_000
AGAIN_MS = 500.0
TIMEOUT_MS = 8_000.0
INVISIBLE_MS = 4_000
LEVELS = (0, 1, 2, -1)


@dataclass(slots=True)
class Settling:
    """Record of what the receivers of one group have done."""

    group: str
    topic: str
    in_order: bool = False
    settled: set[bytes] = field(default_factory=set)
    """Bodies with an acknowledgement under way, or answered."""
    confirmed: set[bytes] = field(default_factory=set)
    """Bodies whose settlement in their topic is confirmed: none is handed out from there again."""
    dead: set[bytes] = field(default_factory=set)
    """Bodies whose dead letter was asked for."""
    seen: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Queue, offset and body of each message received, in the order of time."""
    faults: list[str] = field(default_factory=list)
    is_calm: bool = False


class Receiver(Client):
    """One member of a group."""

    def __init__(self, world: "World", client_id: str, place: int, *, settling: Settling) -> None:
        self.settling = settling
        self.random = world.random
        self._rounds = 0
        super().__init__(world, client_id, place)

    def on_connect(self) -> None:
        self._rounds += 1
        self.receive(self._rounds)

    def receive(self, round_number: int) -> None:
        """Receive, and go on for as long as this connection lasts."""
        if round_number != self._rounds or not self.is_alive:
            return
        settling, random = self.settling, self.random
        queue_id = random.choice((-1, -1, 0, 1))
        command = receive_command(
            group=settling.group,
            topic=settling.topic,
            queue_id=queue_id,
            count=random.choice((1, 2, 5, 32)),
            invisible_ms=INVISIBLE_MS,
            wait_ms=random.choice((0, WAIT_MS)),
            hold=random.random() < 0.3,
            order=settling.in_order,
            attempt_id=random.choice((None, self.client_id)),
        )
        self.ask(command, partial(self._came, round_number), TIMEOUT_MS)

    def _came(self, round_number: int, answer: RemotingCommand | None) -> None:
        again_ms = AGAIN_MS
        if answer is not None and answer.code == 0:
            messages = received(answer, self.settling.topic)
            for each in messages:
                self._note(each)
            if self.settling.in_order:
                self._work_in_order(messages)
            else:
                self._work(messages)
            again_ms = self.random.choice((1.0, AGAIN_MS))
        self.after_linked(again_ms, lambda: self.receive(round_number))

    def _note(self, message: Received) -> None:
        handle = message.parsed
        self.settling.seen.append((handle.queue_id, handle.offset, message.body))
        self.world.received(self.settling, message)

    def _work(self, messages: list[Received]) -> None:
        random, settling = self.random, self.settling
        if random.random() < 0.3 or settling.is_calm:
            self.after(random.randrange(2_000), lambda: self._settle_all(messages))
            return
        for message in messages:
            how, ms = random.random(), random.randrange(3_000)
            if how < 0.6:
                self.after(ms, partial(self._settle, message))
            elif how < 0.7:
                self.after(ms, partial(self._extend, message))
            elif how < 0.8:
                self.after(ms, partial(self._retry, message, random.choice(LEVELS)))

    def _work_in_order(self, messages: list[Received]) -> None:
        if messages and (self.random.random() < 0.8 or self.settling.is_calm):
            first, rest = messages[0], messages[1:]

            def go_on() -> None:
                self._settle(first)
                self._work_in_order(rest)

            self.after(self.random.randrange(300), go_on)

    def _settle(self, message: Received) -> None:
        if self._link is not None:
            self.settling.settled.add(message.body)
            self.ask(ack_command(message, self.settling.group), partial(self._confirmed, message))

    def _settle_all(self, messages: list[Received]) -> None:
        if self._link is not None:
            self.settling.settled.update(each.body for each in messages)
            self.ask(batch_ack_command(messages, self.settling.group), self._answered)

    def _extend(self, message: Received) -> None:
        def go_on(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == 0:
                self.after(
                    self.random.randrange(6_000), lambda: self._settle(changed(message, answer))
                )

        moves = self.random.random() < 0.5
        self.ask(change_command(message, 5_000, self.settling.group, hold=moves), go_on)

    def _retry(self, message: Received, level: int) -> None:
        if self._link is None:
            return
        if level < 0:
            self.settling.dead.add(message.body)
        command = change_command(message, 0, self.settling.group, level)
        self.ask(command, partial(self._confirmed, message))

    def _confirmed(self, message: Received, answer: RemotingCommand | None) -> None:
        self._answered(answer)
        is_original = message.record.topic == self.settling.topic
        if answer is not None and answer.code == 0 and is_original:
            self.settling.confirmed.add(message.body)

    def _answered(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code not in (0, 1, 2, 17, ResponseCode.NO_MESSAGE):
            self.settling.faults.append(f"{answer.code} {answer.remark}")

    def sign_off(self) -> None:
        """End in good order."""
        header = UnregisterClientHeader(self.client_id, None, self.settling.group)
        self.tell(RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.encode()))
        self.die()
