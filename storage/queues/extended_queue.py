"""Consume queue with an extension: its units hold addresses of extension units.

The last address in the queue tells where the extension ends. If the extension lacks a unit that the
queue points at, the queue is rebuilt from the log, the only other source of its tags codes.

Source: store/ConsumeQueue.java (putMessagePositionInfoWrapper), ConsumeQueueExt.java.
"""

from typing import Final

from storage.files.disk import Disk
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.consume_queue_ext import ConsumeQueueExt, ExtUnit, is_address
from storage.queues.queue_files import QueueFiles
from storage.queues.queue_run import QueueRun, read_run
from storage.queues.queue_units import UNIT, Unit, UnitRun
from storage.queues.stored_units import StoredUnits

_SCAN_UNITS: Final = 3276


class ExtendedQueue(ConsumeQueue):
    """Units of one queue with their extension. One owner."""

    __slots__ = ("_ext", "_ext_files")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        files: QueueFiles,
        unwritten: list[StoredUnits] | None,
        ext_directory: str,
        ext_files: QueueFiles,
    ) -> None:
        super().__init__(topic, queue_id, directory, files, unwritten)
        self._ext_files = ext_files
        self._ext = ConsumeQueueExt(ext_directory, ext_files)

    def ext(self, address: int) -> ExtUnit | None:
        return self._ext.get(address)

    @property
    def directories(self) -> tuple[str, ...]:
        return self.directory, self._ext.directory

    # -- adding -------------------------------------------------------------------------------

    def is_continued_by(self, run: UnitRun) -> bool:
        """Return False, because each message also needs an extension unit."""
        return False

    def extend(
        self,
        queue_offset: int,
        physical_offset: int,
        record_bytes: int,
        known: ExtUnit,
    ) -> bool:
        """Append a message, or repair its extension; return False if the queue already has it."""
        unit = None
        if self.min_offset <= queue_offset < self.max_offset:
            unit = self.unit(queue_offset)
        if unit is not None and unit[:2] == (physical_offset, record_bytes):
            if not self._means(unit[2], known):
                self._overwrite(queue_offset, UNIT.pack(*unit[:2], self._ext.put(*known)))
            return False
        is_refused = physical_offset + record_bytes <= self.max_physical_offset
        if unit is not None and (is_refused or queue_offset):
            return self.append(queue_offset, physical_offset, record_bytes, unit[2])
        if is_refused:
            return False
        return self.append(queue_offset, physical_offset, record_bytes, self._ext.put(*known))

    def _means(self, code: int, known: ExtUnit) -> bool:
        """Return whether a tags code, or its extension unit, matches `known`."""
        if not is_address(code):
            return code == known.tags_code
        found = self._ext.get(code)
        return found is not None and found[:2] == known[:2]

    def repair(
        self, queue_offset: int, physical_offset: int, record_bytes: int, tags_code: int
    ) -> None:
        unit = self.unit(queue_offset)
        if unit is not None and is_address(unit[2]):
            found = self._ext.get(unit[2])
            if found is not None and found.tags_code == tags_code:
                tags_code = unit[2]
        super().repair(queue_offset, physical_offset, record_bytes, tags_code)

    def write_out(self) -> None:
        """Write the extension first, so that no written unit points at an unwritten one."""
        self._ext.write_out()
        super().write_out()

    def unsynced_paths(self) -> list[str]:
        return self._ext.unsynced_paths() + super().unsynced_paths()

    def mark_synced(self, written_offset: int) -> None:
        super().mark_synced(written_offset)
        self._ext.mark_synced()

    # -- start-up -----------------------------------------------------------------------------

    def load(self, min_physical: int = -1, run: QueueRun | None = None) -> None:
        super().load(min_physical, run)
        first = self.unit(self._first_behind(min_physical))
        fault = self._load_ext(first, min_physical)
        self.misfit = self.misfit or fault

    def load_known(
        self,
        min_offset: int,
        max_offset: int,
        max_physical_offset: int,
        run: QueueRun | None = None,
    ) -> bool:
        return super().load_known(min_offset, max_offset, max_physical_offset, run) and (
            not self._load_ext(self.unit(min_offset), 0)
        )

    def _load_ext(self, first: Unit | None, min_physical: int) -> str:
        """Load the extension and return its fault; `first` is the first valid unit."""
        ext, files = self._ext, self._ext_files
        first_address = first[2] if first is not None and is_address(first[2]) else None
        needed = None if first_address is None else ext.behind_file_of(first_address)
        run = read_run(
            files.disk,
            ext.directory,
            files.file_bytes,
            lambda file_first: needed is not None and file_first + files.file_bytes < needed,
        )
        fault = ext.load(run)
        last = self._last_addressed()
        lost = [
            unit
            for unit in (first, last)
            if unit is not None
            and is_address(unit[2])
            and unit[0] >= min_physical
            and ext.get(unit[2]) is None
        ]
        if lost and not fault:
            fault = f"{ext.directory} lacks units that the queue points at"
        ext.resume_at(self._ext_end(last))
        return fault

    def _last_addressed(self) -> Unit | None:
        """Return the last unit with an address, or None.

        The search goes far back only if the extension has content.
        """
        end = self.max_offset
        while end > self.first_offset:
            start = max(end - _SCAN_UNITS, self.first_offset, end - 1 - (end - 1) % self.file_units)
            for unit in reversed(list(UNIT.iter_unpack(self.units(start, end - start)))):
                if is_address(unit[2]):
                    found: Unit = unit
                    return found
            if self._ext.is_empty:
                return None
            end = start
        return None

    def _ext_end(self, last: Unit | None) -> int:
        """Return the offset of the next extension unit, given the last unit with an address."""
        if last is None:
            return 0
        end = self._ext.end_of(last[2])
        return self._ext.behind_file_of(last[2]) if end is None else end

    def mend(self) -> None:
        super().mend()
        self._ext.mend()

    def _set_end(self, end: int) -> None:
        super()._set_end(end)
        self._ext.set_end(self._ext_end(self._last_addressed()))

    # -- cleaning -----------------------------------------------------------------------------

    def trim_before(self, min_physical: int) -> list[str]:
        paths = super().trim_before(min_physical)
        first = self.unit(self.min_offset)
        if first is not None and is_address(first[2]):
            paths += self._ext.trim_before(first[2])
        return paths

    def remove(self, disk: Disk) -> None:
        super().remove(disk)
        self._ext.remove()

    def forget_files(self) -> None:
        super().forget_files()
        self._ext.forget_files()
