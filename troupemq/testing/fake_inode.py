"""The contents of one file of the fake disk, and which of them a power cut may leave."""

import gc
from dataclasses import dataclass, field
from random import Random

PAGE_BYTES = 4096
_VERSIONS_MAX = 4
"""Contents kept of an unsynced page; older ones in between are forgotten."""


def _pages(position: int, count: int) -> range:
    """Return the pages that hold any of these bytes."""
    return range(position // PAGE_BYTES, -(-(position + count) // PAGE_BYTES))


@dataclass(eq=False)
class Inode:
    """A file's contents, and what of them is on disk."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    sizes: list[int] = field(default_factory=list)
    pages: dict[int, list[bytes]] = field(default_factory=dict)
    allocated: int = 0
    written_pages: set[int] = field(default_factory=set)
    mapped_writable: bool = False
    modified_ms: int = 0
    access: str = ""
    """Owner, mode and attributes, as one name; on disk at once."""
    locked: bool = False
    cached_pages: set[int] | None = None
    """Pages in memory; None: all."""

    def touch(self, position: int, count: int) -> None:
        """Note that these pages are in memory."""
        if self.cached_pages is not None:
            self.cached_pages |= set(_pages(position, count))

    def is_cached(self, position: int, count: int) -> bool:
        """Return whether all these pages are in memory."""
        return self.cached_pages is None or self.cached_pages >= set(_pages(position, count))

    def note_pages(self, position: int, count: int) -> None:
        """Keep the present contents of the pages that were just written."""
        data, pages = self.data, self.pages
        for page in _pages(position, count):
            versions = pages.setdefault(page, [])
            if len(versions) == _VERSIONS_MAX:
                del versions[-2]
            versions.append(bytes(data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]))

    def resize(self, size: int) -> None:
        """Change the size. Raises BufferError while the file is mapped."""
        if size == len(self.data):
            return
        is_shorter = size < len(self.data)
        try:
            self._set_size(size)
        except BufferError:
            gc.collect()  # on PyPy a view ends only when it is collected
            self._set_size(size)
        if is_shorter:
            self.pages.clear()
            self.durable = self.durable[:size]
        self.sizes.append(size)

    def _set_size(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))
        else:
            del self.data[size:]

    def make_durable(self) -> None:
        self.durable = bytes(self.data)
        self.sizes.clear()
        self.pages.clear()

    def surviving(self, random: Random) -> "Inode":
        """Return the content of this file after a power cut."""
        if self.mapped_writable:
            self._note_stores_through_the_map()
        size = random.choice([len(self.durable), *self.sizes])
        data = bytearray(self.durable[:size])
        data.extend(bytes(size - len(data)))
        for page, versions in self.pages.items():
            start = page * PAGE_BYTES
            number = random.randint(0, len(versions))
            if number and start < size:
                content = versions[number - 1][: size - start]
                data[start : start + len(content)] = content
        result = Inode(data=data, durable=bytes(data), modified_ms=self.modified_ms)
        result.access = self.access
        result.allocated = min(self.allocated, size)
        result.written_pages = {page for page in self.written_pages if page * PAGE_BYTES < size}
        return result

    def _note_stores_through_the_map(self) -> None:
        for start in range(0, len(self.data), PAGE_BYTES):
            content = bytes(self.data[start : start + PAGE_BYTES])
            if content != self.durable[start : start + PAGE_BYTES]:
                self.pages.setdefault(start // PAGE_BYTES, []).append(content)

    def used_bytes(self) -> int:
        blocks = sum(1 for page in self.written_pages if page * PAGE_BYTES >= self.allocated)
        return self.allocated + blocks * PAGE_BYTES
