"""A store that was closed and opened again, so that nothing in it counts as known to be right."""

from collections.abc import Collection
from dataclasses import replace

from storage.config import StoreConfig
from storage.dispatching.dispatch import delay_levels_ms, entry_of
from storage.log.commit_log import Placed
from storage.queues.consume_queue import UNIT, ConsumeQueue
from storage.queues.message_filter import MessageFilter
from storage.reading.get_message import GetLimits, GetResult, get_message
from storage.reading.page_probe import PageProbe
from tests.support.puts import append, put
from tests.support.store import CONFIG, SmallStore

LONG_QUEUES = replace(CONFIG, consume_queue_file_bytes=6000)
FILE_BYTES = CONFIG.commit_log_file_bytes
TAGS = ("A", "B", "")


class OldStore:
    """Queue 0 of `Topic`, with messages tagged A, B, none, A, B, none …

    If it is not alone, one message of another queue follows each.
    """

    def __init__(
        self,
        count: int = 12,
        *,
        topic: str = "Topic",
        body_bytes: int = 20,
        properties: str = "",
        is_alone: bool = True,
        config: StoreConfig = LONG_QUEUES,
    ) -> None:
        self.topic = topic
        first = SmallStore(config=config)
        self.placed: list[Placed] = []
        for number in range(count):
            text = f"UNIQ_KEY\x01{number}{properties}"
            if tag := TAGS[number % 3]:
                text += f"\x02TAGS\x01{tag}"
            record = put(
                bytes([number % 256]) * body_bytes,
                topic=topic,
                queue_offset=number,
                properties=text.encode(),
            )
            self.placed += append(first.log, [record], first.clock.now_ms())
            if not is_alone:
                other = put(topic=topic, queue_id=1, queue_offset=number)
                append(first.log, [other], first.clock.now_ms())
        self._dispatch(first, self.placed[0][0])
        self.made = first.restarted()
        self.log = self.made.log
        self.damage = self.made.store.damage
        self.limits = GetLimits.of(config, 1 << 40, correct_offsets=True)

    def _dispatch(self, made: SmallStore, start: int) -> None:
        levels = delay_levels_ms(made.config.message_delay_level)
        made.store.dispatcher.dispatch([entry_of(head, levels) for head in made.log.walk(start)])

    @property
    def queue(self) -> ConsumeQueue:
        """The queue that is read."""
        queue = self.made.store.consume_queues.get(self.topic, 0)
        assert queue is not None
        return queue

    def send(self, count: int) -> None:
        """More messages, which this process knows to be right."""
        start = self.log.end_offset
        first = self.queue.max_offset
        puts = [put(topic=self.topic, queue_offset=first + number) for number in range(count)]
        self.placed += self.log.append(puts, self.made.clock.now_ms())
        self._dispatch(self.made, start)

    def flip_record(self, number: int, position: int, bit: int = 0) -> None:
        """Changes one bit of a record."""
        offset = self.placed[number][0]
        path = f"{self.made.config.commit_log_dir}/{offset - offset % FILE_BYTES:020d}"
        self.made.disk.flip_bit(path, offset % FILE_BYTES + position, bit)

    def _unit_place(self, number: int) -> tuple[str, int]:
        part = self.queue.file_part(number, 1)
        assert part is not None
        return part[0], part[1]

    def flip_unit(self, number: int, bit: int) -> None:
        """Changes one of the 160 bits of a unit."""
        path, position = self._unit_place(number)
        self.made.disk.flip_bit(path, position + bit // 8, bit % 8)

    def set_unit(self, number: int, physical_offset: int, size: int, code: int = 0) -> None:
        """Puts another unit in a unit's place."""
        path, position = self._unit_place(number)
        file = self.made.disk.open(path)
        file.pwrite(UNIT.pack(physical_offset, size, code), position)
        file.close()

    def get(
        self,
        offset: int = 0,
        *,
        tags: Collection[int] | None = None,
        wanted: MessageFilter | None = None,
        count: int = 32,
        verified: bool = False,
        probe: PageProbe | None = None,
    ) -> GetResult:
        if tags is not None:
            wanted = MessageFilter(frozenset(tags))
        return get_message(
            self.queue,
            self.log,
            offset,
            count,
            wanted,
            self.limits,
            damage=self.damage,
            probe=probe,
            verified=verified,
        )

    def bytes_of(self, first: int, end: int) -> bytes:
        """The records of these messages, which must lie in one file."""
        start, (last, size) = self.placed[first][0], self.placed[end - 1]
        return bytes(self.log.view(start, last + size - start))
