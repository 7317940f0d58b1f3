"""The highest committed offset of each queue in the tables of a store.

A queue that has lost all its messages and units continues from there. Lower queue offsets are those
of consumed messages, so that groups would skip new messages with them.
"""

from collections.abc import Callable, Mapping
from functools import cache

from protocol.topic_names import SCHEDULE_TOPIC
from storage.config import StoreConfig
from storage.errors import StoreError
from storage.files.disk import Disk
from storage.tables.delay_offsets import parse_delay_offsets
from storage.tables.json_config import load
from storage.tables.offsets import parse_offsets, topic_of

Ends = dict[tuple[str, int], int]
"""Offsets by topic and queue id."""


def highest_offsets(offsets: Mapping[str, Mapping[int, int]]) -> Ends:
    """Return the highest offset of any group; `offsets` are by `topic@group`, then by queue."""
    ends: Ends = {}
    for key, queues in offsets.items():
        topic = topic_of(key)
        for queue_id, offset in queues.items():
            if offset > ends.get((topic, queue_id), 0):
                ends[topic, queue_id] = offset
    return ends


def committed_in_files(config: StoreConfig, disk: Disk) -> Callable[[str, int], int]:
    """Return a function for the highest offset of a queue; its first call reads the files."""

    @cache
    def ends() -> Ends:
        directory = config.config_dir
        try:
            offsets = load(disk, f"{directory}/consumerOffset.json", parse_offsets).value
            delays = load(disk, f"{directory}/delayOffset.json", parse_delay_offsets).value
        except StoreError:  # a start that needs them fails
            return {}
        found = {} if offsets is None else highest_offsets(offsets.offset_table)
        for level, offset in ({} if delays is None else delays.offset_table).items():
            found[SCHEDULE_TOPIC, level - 1] = offset
        return found

    return lambda topic, queue_id: ends().get((topic, queue_id), 0)
