"""Timers of a broker: `python -m tests.bench.timers [PART …]`; some lines of figures.

    due       sends timers that are due evenly within some seconds, and shows how late they come
    pending   makes a store with pending timers, starts a broker on it, and shows its memory and how
              long it looks for them; then the cost of the search alone
    moves     shows what a timer costs that outlasts its delay level, in processor time and bytes
    load      sends timers for minutes, so many due in each second and in one second of each minute;
              shows how late they come, and draws it
    official  has an official 4.9.7 broker open a store with pending timers, and shows what it
              delivers, how early and how late; neither of the two runs unless it is named

The counts are small unless options name others. The lateness of a delivered timer is the time at
which it was stored in its topic, less its due time.
"""

from argparse import ArgumentParser
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from time import perf_counter, time
from zlib import crc32

from actors.delays.level_timers import TimerIndex
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand, encode
from protocol.message import decode_records
from protocol.properties import parse
from protocol.stream import CommandStream
from protocol.timers import TIMERS_OF_LEVEL, LevelTimers, due_property
from protocol.topic_names import SCHEDULE_TOPIC
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from storage.log.commit_log import PutRecord, prepare_file
from storage.message_store import MessageStore
from storage.queues.dispatch_entry import DispatchEntry
from tests.bench.memory import drawing
from tests.bench.process_figures import cpu_seconds, memory
from tests.compat.servers import OfficialBroker, OfficialNameServer, OurBroker, OurNameServer
from tests.compat.toolchain import java
from tests.support.brokers import pull_command, send_command
from tests.support.wire import Wire

TOPIC, QUEUES = "Timed", 4
BODY = b"x" * 128
AT_A_TIME = 256
LONGEST = 18
LOAD_LEAD_S = 15
"""Seconds between the send of a timer of a load and its due time."""
BURST_AT_S, BUCKET_S = 30, 10
HOST = bytes(8)
WAITING = SCHEDULE_TOPIC.encode()
CRC = crc32(BODY) & 0x7FFFFFFF


@contextmanager
def running(folder: Path, store: Path | None = None, **settings: str) -> Iterator[OurBroker]:
    """A broker with its name server, on a store that is there or a new one."""
    with ExitStack() as stack:
        names = stack.enter_context(OurNameServer(folder / "names"))
        broker = OurBroker(folder / "broker", names, settings)
        if store is not None:
            broker.store = store
        stack.enter_context(broker)
        yield broker


def levels(wire: Wire) -> dict[int, LevelTimers]:
    """Return the figures of the broker's levels with timers."""
    answer = wire.ask(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
    return {
        int(name.removeprefix(TIMERS_OF_LEVEL)): LevelTimers.decode(text)
        for name, text in KVTable.decode(answer.body).table.items()
        if name.startswith(TIMERS_OF_LEVEL)
    }


def send_timers(wire: Wire, due_ms: list[int], number_from: int = 0) -> None:
    """Send one timer for each time, AT_A_TIME without waiting."""
    if not number_from:
        assert wire.ask(send_command(b"first", topic=TOPIC)).code == 0
    socket, answers = wire._socket, CommandStream()
    for first in range(0, len(due_ms), AT_A_TIME):
        part = due_ms[first : first + AT_A_TIME]
        frames = []
        for number, each in enumerate(part, number_from + first):
            text = f"TIMER_DELIVER_MS\x01{each}\x02UNIQ_KEY\x01{number:032X}"
            command = send_command(BODY, topic=TOPIC, queue_id=number % QUEUES, properties=text)
            command.opaque = number
            frames.append(encode(command))
        socket.sendall(b"".join(frames))
        left = len(part)
        while left:
            for answer in answers.receive(socket.recv(1 << 18)):
                assert answer.code == 0, answer.remark
                left -= 1


class Delivered:
    """Reads what has been delivered since the last call."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._offsets = wire, [0] * QUEUES

    def more(self) -> Iterator[tuple[int, int, int]]:
        """Yield number, due time and store time of each timer."""
        for queue_id in range(QUEUES):
            while True:
                pull = pull_command(self._offsets[queue_id], topic=TOPIC, queue_id=queue_id)
                answer = self._wire.ask(pull)
                if answer.code != 0:
                    break
                assert answer.body is not None and answer.fields is not None
                self._offsets[queue_id] = int(answer.fields["nextBeginOffset"])
                for record in decode_records(bytes(answer.body)):
                    found = parse(record.properties)
                    if (due_ms := found.get("TIMER_OUT_MS")) is not None:
                        yield int(found["UNIQ_KEY"], 16), int(due_ms), record.store_timestamp


def delivered(wire: Wire) -> list[tuple[int, int]]:
    """Return due time and store time of every delivered timer."""
    return [(due_ms, came_ms) for _, due_ms, came_ms in Delivered(wire).more()]


def due(count: int, within_s: float, lead_s: float) -> None:
    """Print the lateness of `count` timers that are due within some seconds."""
    with TemporaryDirectory() as name, running(Path(name)) as broker, Wire(broker.address) as wire:
        began_s = perf_counter()
        first_ms = int((time() + lead_s) * 1000)
        times = [first_ms + int(each * within_s * 1000 / count) for each in range(count)]
        order = [times[(each * 7919) % count] for each in range(count)]
        send_timers(wire, order)
        took_s = perf_counter() - began_s
        Event().wait(max(0.0, first_ms / 1000 - time()))
        before_s = cpu_seconds(broker.pid)
        while sum(each.pending for each in levels(wire).values()):
            Event().wait(0.2)
        cost_us = (cpu_seconds(broker.pid) - before_s) / count * 1e6
        Event().wait(0.5)
        found = delivered(wire)
        late = sorted(came_ms - due_ms for due_ms, came_ms in found)
        assert len(late) == count and late[0] >= 0, (len(late), late[0])
        print(
            f"due: {count:,} within {within_s:g} s; sent in {took_s:.1f} s; late by"
            f" {late[count // 2]} ms (p50), {late[count * 99 // 100]} ms (p99), {late[-1]} ms"
            f" (max); {cost_us:.0f} us of processor each"
        )


def make_store(
    root: Path,
    count: int,
    level: int = LONGEST,
    stay_ms: int = 7_200_000,
    due: tuple[int, int] = (1_200_000, 4_800_000),
) -> "array[int]":
    """Make a store with `count` timers that wait in a level; return when they were stored.

    They are due evenly within `due[1]` ms after `due[0]`, in an order of its own.
    """
    config = StoreConfig(root=str(root), message_index_enable=False)
    store = MessageStore(config, RealDisk(), SystemClock())
    store.open()
    try:
        log, stored_ms = store.commit_log, array("q")
        for first in range(0, count, 4096):
            now_ms = int(time() * 1000)
            records = []
            for number in range(first, min(first + 4096, count)):
                due_ms = now_ms + due[0] + number * 7919 % count * due[1] // count
                stored_ms.append(now_ms)
                text = b"UNIQ_KEY\x01%032X\x02CLUSTER\x01DefaultCluster" % number
                text += b"\x02DELAY\x01%d" % level
                text += b"\x02REAL_TOPIC\x01Timed\x02REAL_QID\x010" + due_property(due_ms)
                records.append(
                    PutRecord(
                        WAITING, level - 1, number, 0, 0, now_ms, HOST, 0, 0, BODY, text, CRC
                    )
                )  # fmt: skip
            done, entries = 0, []
            while done < len(records):
                placed = log.append(records[done:], now_ms)
                for record, (offset, size) in zip(records[done:], placed, strict=False):
                    queue_id, number = record.queue_id, record.queue_offset
                    code = now_ms + stay_ms
                    entries.append(
                        DispatchEntry(WAITING, queue_id, number, offset, size, code, now_ms, 0, ())
                    )
                done += len(placed)
                if done < len(records):
                    needed = log.next_file_offset_to_prepare()
                    assert needed is not None
                    log.adopt(prepare_file(needed, config, store.disk))
            store.dispatcher.dispatch(entries)
    finally:
        store.close()
    return stored_ms


def pending(count: int) -> None:
    """Print memory and search time of a broker with `count` pending timers."""
    with TemporaryDirectory() as name:
        root = Path(name) / "store"
        began_s = perf_counter()
        make_store(root, count)
        made_s = perf_counter() - began_s
        print(f"pending: store of {count:,} timers made in {made_s:.0f} s", flush=True)
        with running(Path(name) / "empty", messageIndexEnable="false") as broker:
            Event().wait(2)
            empty = memory(broker.pid).anonymous_kib / 1024
        with (
            running(Path(name), root, messageIndexEnable="false") as broker,
            Wire(broker.address) as wire,
        ):
            began_s, found = perf_counter(), LevelTimers()
            while found.pending < count and perf_counter() - began_s < 600:
                Event().wait(0.5)
                found = levels(wire).get(LONGEST, found)
            took_s = perf_counter() - began_s
            used = memory(broker.pid).anonymous_kib / 1024
            print(
                f"pending: {found.pending:,} found in {took_s:.1f} s after the start; {used:.0f}"
                f" MiB, {used - empty:.0f} more than an empty broker's; next due in"
                f" {found.next_due_ms / 1000 - time():.0f} s"
            )


def index(count: int) -> None:
    """Print the cost of the index alone."""
    began_ms, table = int(time() * 1000), TimerIndex(7_200_000)
    began_s = perf_counter()
    for number in range(count):
        table.add(began_ms + number * 7919 % 7_200_000, number)
    add_us = (perf_counter() - began_s) / count * 1e6
    began_s, taken, longest_s = perf_counter(), 0, 0.0
    while True:
        started_s = perf_counter()
        found = table.take(began_ms + 7_200_000, 128)
        longest_s = max(longest_s, perf_counter() - started_s)
        if not found:
            break
        taken += len(found)
    take_us = (perf_counter() - began_s) / count * 1e6
    print(
        f"index: {add_us:.2f} us to add a timer, {take_us:.2f} us to take one, longest batch"
        f" {longest_s * 1e3:.1f} ms"
    )


def moves(count: int) -> None:
    """Print what it costs to move timers from level to level."""
    with (
        TemporaryDirectory() as name,
        running(Path(name), messageDelayLevel="1s 5s") as broker,
        Wire(broker.address) as wire,
    ):
        send_timers(wire, [int((time() + 3600) * 1000)] * count)
        before = levels(wire)[2].moved_count
        before_s, began_s = cpu_seconds(broker.pid), perf_counter()
        Event().wait(20)
        moved = levels(wire)[2].moved_count - before
        cost_us = (cpu_seconds(broker.pid) - before_s) / max(1, moved) * 1e6
        answer = wire.ask(pull_command(0, topic=SCHEDULE_TOPIC, queue_id=1, count=1))
        size = len(answer.body or b"")
        took_s = perf_counter() - began_s
        print(f"moves: {moved:,} in {took_s:.0f} s, {cost_us:.0f} us and {size} bytes each")


def spread(values: list[int]) -> str:
    """Return median, 99th percentile and maximum."""
    values = sorted(values)
    p50, p99 = (values[len(values) * each // 100] for each in (50, 99))
    return f"{p50:,} ms (p50), {p99:,} ms (p99), {values[-1]:,} ms (max)"


def load(minutes: float, rate: int, burst: int, svg: Path | None) -> None:
    """Print and draw the lateness of timers under load, also after Ctrl-C."""
    late: dict[int, list[int]] = {}
    in_bursts: list[int] = []
    sent, seconds = 0, int(minutes * 60)
    with TemporaryDirectory() as name, running(Path(name)) as broker, Wire(broker.address) as wire:
        reader, first_ms = Delivered(wire), (int(time()) + LOAD_LEAD_S) * 1000
        before_s = cpu_seconds(broker.pid)
        with suppress(KeyboardInterrupt):
            for second in range(seconds + LOAD_LEAD_S + 5):
                Event().wait(max(0.0, first_ms / 1000 - LOAD_LEAD_S + second - time()))
                start_ms, times = first_ms + second * 1000, list[int]()
                if second < seconds:
                    times += (start_ms + each * 1000 // rate for each in range(rate))
                    if second % 60 == BURST_AT_S:
                        times += (start_ms + each * 1000 // burst for each in range(burst))
                    send_timers(wire, times[::2] + times[1::2], sent)
                    sent += len(times)
                for _, due_ms, came_ms in reader.more():
                    at_s = (due_ms - first_ms) // 1000
                    late.setdefault(at_s // BUCKET_S, []).append(came_ms - due_ms)
                    if at_s % 60 == BURST_AT_S:
                        in_bursts.append(came_ms - due_ms)
        cost_us = (cpu_seconds(broker.pid) - before_s) / max(1, sent) * 1e6
    came = [each for several in late.values() for each in several]
    print(
        f"load: {sent:,} timers sent, {len(came):,} came, the earliest {min(came)} ms after its"
        f" time; late by {spread(came)}; {cost_us:.0f} us of processor each"
    )
    print(f"load: in the seconds of the bursts late by {spread(in_bursts)}")
    if svg is not None:
        ranked = {each * BUCKET_S: sorted(late[each]) for each in sorted(late)}
        lines: dict[str, list[tuple[float, float]]] = {
            "half of them": [(at, each[len(each) // 2]) for at, each in ranked.items()],
            "99 %": [(at, each[len(each) * 99 // 100]) for at, each in ranked.items()],
            "the latest": [(at, each[-1]) for at, each in ranked.items()],
        }
        svg.write_text(drawing(lines, "ms"), encoding="utf-8")


def official(count: int) -> None:
    """Print what an official broker delivers of the timers in a store of ours."""
    settings = {"messageDelayLevel": "1s 30s 1m 2m 4m"}
    with TemporaryDirectory() as name:
        folder, tools = Path(name), java()
        began_ms = int(time() * 1000)
        made_ms = make_store(folder / "store", count, 5, 240_000, (150_000, 300_000))
        print(f"official: store made in {(time() * 1000 - began_ms) / 1000:.0f} s", flush=True)
        with (
            OfficialNameServer(tools, folder / "names") as names,
            OfficialBroker(tools, folder / "official", names, settings, folder / "store") as broker,
            Wire(broker.address) as wire,
        ):
            assert wire.ask(send_command(b"first", topic=TOPIC)).code == 0
            reader, times, early, late, step = Delivered(wire), Counter[int](), [0], [0], [0]
            end_s = time() + 240 + 180
            while len(times) < count and time() < end_s:
                Event().wait(2)
                for number, due_at_ms, came_ms in reader.more():
                    times[number] += 1
                    (late if came_ms >= due_at_ms else early).append(abs(came_ms - due_at_ms))
                    step.append(came_ms - made_ms[number] - 240_000)
        print(f"official: {len(times):,} of {count:,} came, {times.total() - len(times):,} again")
        print(f"official: {len(late) - 1:,} late by {spread(late)}")
        print(f"official: {len(early) - 1:,} early by {spread(early)}")
        print(f"official: behind the end of the level by {spread(step)}; earliest {min(step)} ms")


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.bench.timers", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["due", "pending", "index", "moves"])
    parser.add_argument("--count", type=int, default=5_000, help="timers due [default: 5000]")
    parser.add_argument("--within", type=float, default=1.0, help="seconds [default: 1]")
    parser.add_argument("--lead", type=float, default=6.0, help="seconds before [default: 6]")
    parser.add_argument(
        "--pending", type=int, default=100_000, help="timers that wait [default: 100000]"
    )
    parser.add_argument("--minutes", type=float, default=30, help="of load [default: 30]")
    parser.add_argument("--rate", type=int, default=500, help="due in a second [default: 500]")
    parser.add_argument(
        "--burst", type=int, default=5_000, help="and once a minute [default: 5000]"
    )
    parser.add_argument("--svg", type=Path, help="where to draw the lateness under load")
    options = parser.parse_args()
    if "due" in options.parts:
        due(options.count, options.within, options.lead)
    if "pending" in options.parts:
        pending(options.pending)
    if "index" in options.parts:
        index(options.pending)
    if "moves" in options.parts:
        moves(min(options.pending, 20_000))
    if "load" in options.parts:
        load(options.minutes, options.rate, options.burst, options.svg)
    if "official" in options.parts:
        official(options.pending)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
