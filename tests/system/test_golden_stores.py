"""Stores that the original wrote, opened by our broker: every message is found in every way.

By queue offset, by its unique key, by each of its keys, and by its id; with the bytes that lie in
the original's commit log.  Pulls and queries go through the broker's actors, as a client's would.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import UNIQUE_KEY_QUERY, QueryMessageHeader, ViewMessageHeader
from protocol.message import scan_head
from protocol.properties import KEYS, UNIQ_KEY, parse
from protocol.topic_names import HALF_TOPIC, OP_HALF_TOPIC
from storage.config import StoreConfig
from storage.files.disk import RealDisk
from tests.support.brokers import SimulatedBroker
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store

AFTER_ITS_RECOVERY = {"crashed": "crashed-recovered", "torn": "torn-recovered"}
NAMES = ["clean", "slave", "ext", "v6", "crashed", "crashed-recovered", "torn", "torn-recovered"]
NAMES += [BY_HAND]
LOG_FILE_BYTES = 65_536
QUERY_MAX = 64
NOT_SERVED = (HALF_TOPIC, OP_HALF_TOPIC)
"""In no topic table before the first transaction check."""
FOREVER_MS = 1 << 62


def broker_on(root: Path, *, ext: bool = False) -> SimulatedBroker:
    config = StoreConfig(
        root=str(root),
        commit_log_file_bytes=LOG_FILE_BYTES,
        consume_queue_file_bytes=6000,
        max_hash_slots=64,
        max_index_entries=200,
        enable_consume_queue_ext=ext,
        consume_queue_ext_file_bytes=8192,
    )
    return SimulatedBroker(1, RealDisk(), store_config=config)


def served_by_the_original(name: str) -> list[dict[str, Any]]:
    told = manifest(AFTER_ITS_RECOVERY.get(name, name))
    messages: list[dict[str, Any]] = told["officialClient"].get("messages") or [
        as_message(raw) for raw in told["rawRecords"] if raw["topic"] not in NOT_SERVED
    ]
    assert messages
    return messages


def as_message(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a client sees of a record; the slave's manifest has no others."""
    properties = parse(raw["propertiesRaw"].encode())
    return {
        "topic": raw["topic"],
        "queueId": raw["queueId"],
        "queueOffset": raw["queueOffset"],
        "commitLogOffset": raw["commitLogOffset"],
        "storeSize": raw["storeSize"],
        "msgId": f"{raw['commitLogOffset']:032X}",
        "uniqKey": properties.get(UNIQ_KEY),
        "keys": properties.get(KEYS),
    }


def bytes_in_log(root: Path, message: dict[str, Any]) -> bytes:
    offset, size = message["commitLogOffset"], message["storeSize"]
    file_first = offset - offset % LOG_FILE_BYTES
    data = (root / "commitlog" / f"{file_first:020d}").read_bytes()
    return data[offset - file_first : offset - file_first + size]


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_found_by_queue_offset_key_and_id(name: str, tmp_path: Path) -> None:
    root = store(name, tmp_path)
    messages = served_by_the_original(name)
    broker = broker_on(root, ext=name == "ext")
    broker.system.advance(20_000)  # what is rebuilt behind is there then
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in messages:
        queues[message["topic"], message["queueId"]].append(message)
    for (topic, queue_id), listed in queues.items():
        records = {r.queue_offset: r for r in broker.messages(topic, queue_id)}
        for message in listed:
            assert records[message["queueOffset"]].physical_offset == message["commitLogOffset"]
    for message in messages:
        expected = bytes_in_log(root, message)
        assert by_queue_offset(broker, message) == expected
        assert by_id(broker, message) == expected
        if message.get("uniqKey"):
            assert expected in by_key(broker, message, message["uniqKey"], unique=True)
        for key in filter(None, (message.get("keys") or "").split(" ")):
            if sum(key in (each.get("keys") or "").split(" ") for each in messages) < QUERY_MAX:
                assert expected in by_key(broker, message, key, unique=False)


def by_queue_offset(broker: SimulatedBroker, message: dict[str, Any]) -> bytes:
    answer = broker.pull(
        message["queueOffset"], topic=message["topic"], queue_id=message["queueId"], count=1
    )
    assert answer.code == ResponseCode.SUCCESS, answer
    return bytes(answer.body or b"")


def by_id(broker: SimulatedBroker, message: dict[str, Any]) -> bytes:
    header = ViewMessageHeader(offset=int(message["msgId"][-16:], 16))
    answer = broker.ask(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, header.encode()))
    assert answer.code == ResponseCode.SUCCESS, answer
    return bytes(answer.body or b"")


def by_key(
    broker: SimulatedBroker, message: dict[str, Any], key: str, *, unique: bool
) -> list[bytes]:
    header = QueryMessageHeader(message["topic"], key, QUERY_MAX, 0, FOREVER_MS)
    fields = {**header.encode(), UNIQUE_KEY_QUERY: "true" if unique else "false"}
    answer = broker.ask(RemotingCommand(RequestCode.QUERY_MESSAGE, fields))
    assert answer.code == ResponseCode.SUCCESS, (message, answer)
    body, found, position = bytes(answer.body or b""), [], 0
    while position < len(body):
        size = scan_head(body, position).record_bytes
        found.append(body[position : position + size])
        position += size
    return found
