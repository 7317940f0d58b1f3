"""Every record and every config file of the recorded stores, read and written again."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from protocol.codes import COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB
from protocol.compression import decompress
from protocol.fastjson import dumps, loads
from protocol.host import unpack_host
from protocol.message import decode_record, encode_record, scan_head
from protocol.message_id import offset_message_id, parse_message_id
from protocol.properties import TAGS, UNIQ_KEY, format, parse
from protocol.tags import tags_code
from tests.support.by_hand import BY_HAND
from tests.support.golden import manifest, store

NAMES = ("clean", "slave", "ext", "v6", "crashed", "crashed-recovered", "torn-recovered", BY_HAND)
LOG_FILE_BYTES = 65536
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def host_text(packed: bytes) -> str:
    ip, port = unpack_host(packed)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def log_files(root: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_every_record_is_decoded_as_by_the_original(name: str, tmp_path: Path) -> None:
    files = log_files(store(name, tmp_path))
    listed: list[dict[str, Any]] = manifest(name)["rawRecords"]
    assert listed
    for expected in listed:
        offset = expected["commitLogOffset"]
        file_offset = offset - offset % LOG_FILE_BYTES
        data, position = files[file_offset], offset - file_offset
        record = decode_record(data, position)
        assert encode_record(record) == data[position : position + record.record_bytes]
        assert record.record_bytes == expected["storeSize"]
        assert record.body_crc == expected["bodyCRC"]
        assert (record.queue_id, record.queue_offset) == (
            expected["queueId"],
            expected["queueOffset"],
        )
        assert (record.flag, record.sys_flag) == (expected["flag"], expected["sysFlag"])
        assert record.physical_offset == offset
        assert record.born_timestamp == expected["bornTimestamp"]
        assert record.store_timestamp == expected["storeTimestamp"]
        assert host_text(record.born_host) == expected["bornHost"]
        assert host_text(record.store_host) == expected["storeHost"]
        assert record.reconsume_times == expected["reconsumeTimes"]
        assert record.prepared_transaction_offset == expected["preparedTransactionOffset"]
        assert record.topic == expected["topic"]
        assert sha256(record.body).hexdigest() == expected["rawBodySha256"]
        assert record.properties.decode() == expected["propertiesRaw"]
        head = scan_head(data, position)
        assert (head.topic, head.properties) == (record.topic.encode(), record.properties)
        message_id = offset_message_id(record.store_host, offset)
        assert parse_message_id(message_id) == (record.store_host, offset)


@pytest.mark.parametrize("name", ["clean", "v6"])
def test_the_official_client_decoded_the_records_alike(name: str, tmp_path: Path) -> None:
    files = log_files(store(name, tmp_path))
    messages: list[dict[str, Any]] = manifest(name)["officialClient"]["messages"]
    assert messages
    inflated = 0
    for expected in messages:
        offset = expected["commitLogOffset"]
        file_offset = offset - offset % LOG_FILE_BYTES
        record = decode_record(files[file_offset], offset - file_offset)
        assert offset_message_id(record.store_host, offset) == expected["msgId"]
        properties = parse(record.properties)
        assert properties == expected["properties"]
        assert properties.get(UNIQ_KEY) == expected.get("uniqKey")
        if record.topic != SCHEDULE_TOPIC:
            assert tags_code(properties.get(TAGS)) == expected["tagsCode"]
        if record.sys_flag & COMPRESSION_TYPE_MASK in (0, COMPRESSION_ZLIB):
            plain = decompress(record.body, record.sys_flag)
            assert sha256(plain).hexdigest() == expected["bodySha256"]
            inflated += plain != record.body
    assert inflated or name == "v6"


def with_arrays(value: object) -> object:
    """`value` with the one Java array of the config files, bitPos, as a tuple."""
    if not isinstance(value, dict):
        return value
    return {
        key: tuple(item) if key == "bitPos" else with_arrays(item) for key, item in value.items()
    }


@pytest.mark.parametrize("name", [*NAMES, "torn"])
def test_every_config_file_equals_the_writers_output(name: str, tmp_path: Path) -> None:
    root = store(name, tmp_path)
    paths = sorted((root / "config").glob("*.json*"))
    assert paths
    for path in paths:
        text = path.read_bytes()
        value = with_arrays(loads(text))
        # A slave keeps its master's answer to 45 as it came: not in the pretty form.
        assert dumps(value, pretty=b"\n" in text) == text, path.name


def test_stored_property_text_is_rebuilt_from_its_pairs(tmp_path: Path) -> None:
    """The text is rebuilt where no name occurs twice and no separator trails."""
    same = total = 0
    for expected in manifest("clean")["rawRecords"]:
        text = expected["propertiesRaw"].encode()
        total += 1
        same += format(parse(text)) == text
    assert same > total * 0.9
