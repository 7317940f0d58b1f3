"""A small store after a clean stop, byte by byte: log, queues, index, checkpoint, tables.

commitlog/<20 digits>                   records; int32 rest | int32 0xCBD43194 ends a file
consumequeue/<topic>/<id>/<20 digits>   int64 physical offset | int32 size | int64 tags code
index/<time>                            int64 begin and end time, int64 begin and end offset,
                                        int32 used slots | int32 next entry; slots of int32;
                                        int32 hash | int64 offset | int32 seconds | int32 before
checkpoint                              int64 each: time of log, of queues, of index; 4096 bytes
"""

from collections import defaultdict
from datetime import datetime
from pathlib import Path
from struct import pack
from typing import Any

from tests.support.by_hand.records import HALF, OP, Record, in_place, java_hash

LOG_FILE_BYTES = 65_536
QUEUE_FILE_BYTES = 6_000
SLOTS, ENTRIES = 64, 200
BLANK_MAGIC = 0xCBD43194
NOT_IN_THE_TOPIC_TABLE = (HALF, OP)
"""Before the first check of a transaction."""


def write_store(root: Path) -> None:
    """All files below `root`."""
    records = in_place(LOG_FILE_BYTES)
    _write_log(root / "commitlog", records)
    _write_queues(root / "consumequeue", records)
    for name, data in _index_files(records).items():
        _write(root / "index" / name, data, 40 + SLOTS * 4 + ENTRIES * 20)
    last_ms = records[-1].stored_ms
    full_ms = next(iter(_index(records)))["endTimestamp"]
    _write(root / "checkpoint", pack(">qqq", last_ms, last_ms, full_ms), 4096)
    _write(root / "lock", b"lock", 4)
    for name, text in _tables(records).items():
        (root / "config").mkdir(exist_ok=True)
        (root / "config" / name).write_text(text, encoding="utf-8")


def manifest() -> dict[str, Any]:
    """Return the manifest of a golden store, without a client's reads."""
    records = in_place(LOG_FILE_BYTES)
    queues: dict[str, list[list[int]]] = defaultdict(list)
    for record in records:
        tags_code = record.message.tags_code(record.stored_ms)
        queues[f"{record.message.topic}/{record.message.queue_id}"].append(
            [record.queue_offset, record.physical_offset, len(record.encoded()), tags_code]
        )
    return {
        "abortFile": False,
        "commitLogEnd": records[-1].physical_offset + len(records[-1].encoded()),
        "rawRecords": [record.told() for record in records],
        "consumeQueues": dict(queues),
        "indexFiles": [
            {name: value for name, value in file.items() if name != "entries"}
            for file in _index(records)
        ],
        "officialClient": {},
    }


def _write_log(directory: Path, records: list[Record]) -> None:
    files: dict[int, bytes] = defaultdict(bytes)
    for record in records:
        files[record.physical_offset // LOG_FILE_BYTES] += record.encoded()
    for number, data in files.items():
        rest = LOG_FILE_BYTES - len(data)
        blank = pack(">iI", rest, BLANK_MAGIC) if number + 1 in files else b""
        _write(directory / f"{number * LOG_FILE_BYTES:020}", data + blank, LOG_FILE_BYTES)


def _write_queues(directory: Path, records: list[Record]) -> None:
    queues: dict[str, bytes] = defaultdict(bytes)
    for record in records:
        queues[f"{record.message.topic}/{record.message.queue_id}"] += pack(
            ">qiq",
            record.physical_offset,
            len(record.encoded()),
            record.message.tags_code(record.stored_ms),
        )
    for queue, units in queues.items():
        for at in range(0, len(units), QUEUE_FILE_BYTES):
            path = directory / queue / f"{at:020}"
            _write(path, units[at : at + QUEUE_FILE_BYTES], QUEUE_FILE_BYTES)


def _index(records: list[Record]) -> list[dict[str, Any]]:
    """Every index file in numbers; an entry is (hash, offset, seconds).

    Until it has an entry, a file begins when the one before it ended.
    """
    files: list[dict[str, Any]] = []
    for record in records:
        for key in record.message.keys:
            before_ms = files[-1]["endTimestamp"] if files else record.stored_ms
            if not files or len(files[-1]["entries"]) == ENTRIES - 1:
                files.append({"beginTimestamp": record.stored_ms, "entries": []})
                files[-1]["beginPhyOffset"] = record.physical_offset
            file = files[-1]
            hashed = abs(java_hash(f"{record.message.topic}#{key}"))
            since_ms = file["beginTimestamp"] if file["entries"] else before_ms
            seconds = (record.stored_ms - since_ms) // 1000
            file["entries"].append((hashed, record.physical_offset, seconds))
            file["endTimestamp"], file["endPhyOffset"] = record.stored_ms, record.physical_offset
    for file in files:
        file["hashSlotCount"] = file["usedSlots"] = len({e[0] % SLOTS for e in file["entries"]})
        file["indexCount"] = len(file["entries"]) + 1
        made = datetime.fromtimestamp(file["beginTimestamp"] / 1000)
        file["file"] = f"{made:%Y%m%d%H%M%S}{file['beginTimestamp'] % 1000:03}"
    return files


def _index_files(records: list[Record]) -> dict[str, bytes]:
    found = {}
    for file in _index(records):
        slots, entries = [0] * SLOTS, bytes(20)  # entry 0 is never used
        for number, (hashed, offset, seconds) in enumerate(file["entries"], 1):
            entries += pack(">iqii", hashed, offset, seconds, slots[hashed % SLOTS])
            slots[hashed % SLOTS] = number
        times = file["beginTimestamp"], file["endTimestamp"]
        offsets = file["beginPhyOffset"], file["endPhyOffset"]
        counts = file["hashSlotCount"], file["indexCount"]
        head = pack(">qqqqii", *times, *offsets, *counts)
        found[file["file"]] = head + pack(f">{SLOTS}i", *slots) + entries
    return found


TOPIC = """\
\t\t"{topic}":{{
\t\t\t"order":false,
\t\t\t"perm":{perm},
\t\t\t"readQueueNums":{queues},
\t\t\t"topicFilterType":"SINGLE_TAG",
\t\t\t"topicName":"{topic}",
\t\t\t"topicSysFlag":0,
\t\t\t"writeQueueNums":{queues}
\t\t}}"""
GROUP = """\
\t\t"{group}":{{
\t\t\t"brokerId":0,
\t\t\t"consumeBroadcastEnable":true,
\t\t\t"consumeEnable":true,
\t\t\t"consumeFromMinEnable":true,
\t\t\t"groupName":"{group}",
\t\t\t"notifyConsumerIdsChangedEnable":true,
\t\t\t"retryMaxTimes":16,
\t\t\t"retryQueueNums":1,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}}"""
TABLE = """\
{{
\t"dataVersion":{{
\t\t"counter":{counter},
\t\t"timestamp":1795189509189
\t}},
\t"{name}":{{
{entries}
\t}}
}}"""
CONSUMER_OFFSETS = """\
{
\t"offsetTable":{
\t\t"Plain@readers":{0:300
\t\t},
\t\t"Big@readers":{0:3,1:0
\t\t}
\t}
}"""
DELAY_OFFSETS = '{\n\t"offsetTable":{3:1\n\t}\n}'
FILTERS = """\
{
\t"filterDataByTopic":{
\t\t"Kinds":{
\t\t\t"groupFilterData":{
\t\t\t\t"choosers":{
\t\t\t\t\t"bloomFilterData":{
\t\t\t\t\t\t"bitNum":112,
\t\t\t\t\t\t"bitPos":[105,2,78]
\t\t\t\t\t},
\t\t\t\t\t"bornTime":1795189785654,
\t\t\t\t\t"clientVersion":1795189785673,
\t\t\t\t\t"consumerGroup":"choosers",
\t\t\t\t\t"dead":false,
\t\t\t\t\t"deadTime":0,
\t\t\t\t\t"expression":"color IS NOT NULL",
\t\t\t\t\t"expressionType":"SQL92",
\t\t\t\t\t"topic":"Kinds"
\t\t\t\t}
\t\t\t},
\t\t\t"topic":"Kinds"
\t\t}
\t}
}"""


def _tables(records: list[Record]) -> dict[str, str]:
    queues: dict[str, int] = {}
    for record in records:
        topic, queue_id = record.message.topic, record.message.queue_id
        if topic not in NOT_IN_THE_TOPIC_TABLE:
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
    queues["SCHEDULE_TOPIC_XXXX"] = 18
    topics = [TOPIC.format(topic=name, perm=6, queues=n) for name, n in queues.items()]
    groups = [GROUP.format(group=name) for name in ("readers", "choosers")]
    named = {
        "topics.json": TABLE.format(
            counter=len(topics), name="topicConfigTable", entries=",\n".join(topics)
        ),
        "subscriptionGroup.json": TABLE.format(
            counter=len(groups), name="subscriptionGroupTable", entries=",\n".join(groups)
        ),
        "consumerOffset.json": CONSUMER_OFFSETS,
        "delayOffset.json": DELAY_OFFSETS,
        "consumerFilter.json": FILTERS,
    }
    return named | {f"{name}.bak": text for name, text in named.items()}


def _write(path: Path, data: bytes, size: int) -> None:
    """Holes after the data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)
