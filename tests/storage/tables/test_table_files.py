"""Every table of a broker and of a name server: a bad entry costs that entry only, and is kept."""

from collections.abc import Mapping
from typing import Any

import pytest

from protocol.bloom import BloomFilter
from protocol.fastjson import loads
from storage.tables.consumer_filters import format_filters
from storage.tables.delay_offsets import format_delay_offsets
from storage.tables.groups import format_groups
from storage.tables.json_config import Loaded, left_out_path, load, save
from storage.tables.kv_config import format_kv
from storage.tables.offsets import format_offsets
from storage.tables.request_modes import format_request_modes
from storage.tables.table_files import BROKER_TABLES, KV_TABLE, table_parsers
from storage.tables.topics import format_topics
from troupemq.testing.fake_disk import FakeDisk

BLOOM = BloomFilter.of(20, 32)
PARSERS = table_parsers(BLOOM)
FORMATS: dict[str, Any] = {
    "topics.json": format_topics,
    "subscriptionGroup.json": format_groups,
    "consumerOffset.json": format_offsets,
    "delayOffset.json": format_delay_offsets,
    "consumerFilter.json": format_filters,
    "messageRequestMode.json": format_request_modes,
    KV_TABLE: format_kv,
}


def topic(**changed: object) -> str:
    fields = {"perm": 6, "readQueueNums": 4, "topicFilterType": "SINGLE_TAG", "topicName": "X"}
    return text_of({**fields, **changed})


def of_filter(**changed: object) -> str:
    bits = {"bitNum": BLOOM.bit_count, "bitPos": list(BLOOM.positions("G", "T"))}
    fields = {"bloomFilterData": bits, "bornTime": 5, "clientVersion": 1, "expression": "a > 1"}
    return text_of({**fields, "expressionType": "SQL92", **changed})


def text_of(fields: Mapping[str, object]) -> str:
    entries = ",".join(f'"{key}":{_value(each)}' for key, each in fields.items())
    return f"{{{entries}}}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return text_of(value)
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


OTHER_BITS = {"bitNum": BLOOM.bit_count + 8, "bitPos": list(BLOOM.positions("G", "T"))}
LONG_END = 1 << 63
TOPICS = f'{{"topicConfigTable":{{"A":{topic()},%s,"Z":{topic()}}}}}'
GROUPS = '{"subscriptionGroupTable":{"A":{},%s,"Z":{"retryQueueNums":-1}}}'
OFFSETS = '{"offsetTable":{"A@G":{0:1},%s,"Z@G":{0:-1,3:9223372036854775807}}}'
DELAYS = '{"offsetTable":{1:7,%s,18:9}}'
OF_G = f'{{"groupFilterData":{{"G":{of_filter()}}}}}'
FILTERS = f'{{"filterDataByTopic":{{"A":{OF_G},%s,"Z":{OF_G}}}}}'
MODES = '{"messageRequestModeMap":{"A":{"G":{}},%s,"Z":{"G":{"mode":"POP"}}}}'
KV = '{"configTable":{"A":{"k":"v"},%s,"Z":{}}}'
IN_FILTERS = '"T":{"groupFilterData":{"G":%s}}'

BAD: list[tuple[str, str, str, str, str]] = [
    *(
        ("topics.json", TOPICS, f'"T":{bad}', "T", reason)
        for bad, reason in [
            (topic(readQueueNums=-4), "readQueueNums is -4"),
            (topic(writeQueueNums=-1), "writeQueueNums is -1"),
            (topic(readQueueNums=9_999_999_999), "readQueueNums is 9999999999"),
            (topic(writeQueueNums=LONG_END), "no long"),
            (topic(perm=-3), "perm is -3"),
            (topic(perm="x"), "perm"),
            (topic(perm=[]), "a number is missing"),
            (topic(topicSysFlag=1 << 31), "topicSysFlag is 2147483648"),
            (topic(topicFilterType="S"), "topicFilterType is 'S'"),
            (topic(order="maybe"), "true or false"),
        ]
    ),
    ("topics.json", TOPICS, '"T":{"perm":{"$ref":"$"}}', "T", "a number is missing"),
    ("topics.json", TOPICS, f'"@type":{topic()}', "@type", "no entry can be called @type"),
    ("topics.json", TOPICS, f'"$ref":{topic()}', "$ref", "no entry can be called $ref"),
    ("topics.json", TOPICS, '"T":3', "T", "an object is missing"),
    ("topics.json", TOPICS, '"T":null', "T", "an object is missing"),
    *(
        ("subscriptionGroup.json", GROUPS, f'"G":{bad}', "G", reason)
        for bad, reason in [
            ('"x"', "an object is missing"),
            ("null", "an object is missing"),
            ('{"retryMaxTimes":"x"}', "retryMaxTimes"),
            ('{"retryMaxTimes":-2147483649}', "retryMaxTimes is -2147483649"),
            ('{"retryQueueNums":1e12}', "retryQueueNums is 1000000000000"),
            ('{"brokerId":1e30}', "no long"),
            ('{"whichBrokerWhenConsumeSlowly":{}}', "a number is missing"),
            ('{"consumeEnable":[]}', "true or false"),
        ]
    ),
    *(
        ("consumerOffset.json", OFFSETS, bad, entry, reason)
        for bad, entry, reason in [
            ('"T@G":5', "T@G", "no table of queues"),
            ('"T@G":null', "T@G", "no table of queues"),
            ('"T@G":{"x":5}', "T@G, x", "'x' is no number"),
            ('"T@G":{-1:5}', "T@G, -1", "queueId is -1"),
            ('"T@G":{2147483648:5}', "T@G, 2147483648", "queueId is 2147483648"),
            ('"T@G":{0:99999999999999999999}', "T@G, 0", "no long"),
            ('"T@G":{0:null}', "T@G, 0", "a number is missing"),
        ]
    ),
    ("delayOffset.json", DELAYS, "2:-4", "2", "the offset is -4"),
    ("delayOffset.json", DELAYS, "-2:4", "-2", "the delay level is -2"),
    ("delayOffset.json", DELAYS, "x:4", "x", "'x' is no number"),
    ("delayOffset.json", DELAYS, '2:"four"', "2", "'four' is no number"),
    *(
        ("consumerFilter.json", FILTERS, IN_FILTERS % bad, "T, groupFilterData, G", reason)
        for bad, reason in [
            ("7", "it is not an object"),
            ("null", "it is not an object"),
            (of_filter(bornTime=-1), "bornTime is -1"),
            (of_filter(deadTime="x"), "deadTime is 'x'"),
            (of_filter(clientVersion=LONG_END), f"clientVersion is {LONG_END}"),
            (of_filter(expression="a >"), "does not compile"),
            (of_filter(expression=""), "does not compile"),
            (of_filter(expressionType="TAG"), "does not compile"),
            (of_filter(bloomFilterData={"bitNum": -5, "bitPos": [1]}), "bitNum is -5"),
            (of_filter(bloomFilterData={"bitNum": 8, "bitPos": [8]}), "it has bits [8] of 8"),
            (of_filter(bloomFilterData={"bitNum": 8, "bitPos": ["x"]}), "it has bits"),
            (of_filter(bloomFilterData=OTHER_BITS), "other bit maps"),
            (of_filter(bloomFilterData=5), "other bit maps"),
        ]
    ),
    ("consumerFilter.json", FILTERS, '"T":5', "T", "no groupFilterData"),
    ("consumerFilter.json", FILTERS, '"T":{"groupFilterData":[]}', "T", "no groupFilterData"),
    *(
        ("messageRequestMode.json", MODES, bad, entry, reason)
        for bad, entry, reason in [
            ('"T":5', "T", "no groups"),
            ('"T":{"G":5}', "T, G", "an object is missing"),
            ('"T":{"G":{"mode":"PUSH"}}', "T, G", "mode is 'PUSH'"),
            ('"T":{"G":{"popShareQueueNum":3000000000}}', "T, G", "popShareQueueNum is 3000"),
        ]
    ),
    (KV_TABLE, KV, '"N":{"$ref":"$"}', "N, $ref", "no entry can be called $ref"),
    (KV_TABLE, KV, '"N":{"@type":"x"}', "N, @type", "no entry can be called @type"),
    (KV_TABLE, KV, '"N":3', "N", "no table of keys"),
    (KV_TABLE, KV, '"N":{"k":null}', "N, k", "no value"),
    (KV_TABLE, KV, r'"N\n":{"":null}', r"'N\n', ''", "no value"),
]


def loaded(disk: FakeDisk, file: str) -> Loaded[object]:
    return load(disk, f"/store/config/{file}", PARSERS[file])


def entries(file: str, table: Any) -> dict[str, object]:
    """Return the table's nonempty entries in file form, by outer key."""
    whole: Any = loads(FORMATS[file](table))
    (found,) = (each for key, each in whole.items() if key != "dataVersion")
    return {key: each for key, each in found.items() if each}


def test_every_table_of_a_store_has_a_loader() -> None:
    assert PARSERS.keys() == {*BROKER_TABLES, KV_TABLE} == FORMATS.keys()


@pytest.mark.parametrize(("file", "around", "bad", "entry", "reason"), BAD)
def test_an_invalid_entry_costs_only_itself(
    file: str, around: str, bad: str, entry: str, reason: str
) -> None:
    disk, path = FakeDisk(), f"/store/config/{file}"
    save(disk, path, around.replace("%s,", ""))  # there is no better one of before
    without = entries(file, loaded(disk, file).value)
    assert len(without) == 2 or file == KV_TABLE

    save(disk, path, around % bad)
    found = loaded(disk, file)

    assert entries(file, found.value) == without
    assert (found.is_newest, found.broken, found.findings) == (True, (), "")
    (left_out,) = found.left_out
    assert left_out.entry == entry
    assert reason in left_out.reason
    assert left_out.reason.isprintable()
    assert found.is_to_be_saved
    with pytest.raises(ValueError, match=r"\w"):
        PARSERS[file](around % bad, None)

    save(disk, path, FORMATS[file](found.value), found.broken, found.left_out)
    again = loaded(disk.killed(), file)
    assert (entries(file, again.value), again.is_to_be_saved) == (without, False)
    (line,) = disk.read_bytes(left_out_path(path)).splitlines()
    kept: Any = loads(line)
    assert kept["entry"] == entry


@pytest.mark.parametrize("version", ["7", '{"counter":"x"}', '{"timestamp":1e30}'])
@pytest.mark.parametrize("file", ["topics.json", "subscriptionGroup.json"])
def test_an_invalid_data_version_costs_no_entry(file: str, version: str) -> None:
    disk = FakeDisk()
    whole = (TOPICS if file == "topics.json" else GROUPS).replace("%s,", "")
    save(disk, f"/store/config/{file}", f'{{"dataVersion":{version},{whole[1:]}')
    found = loaded(disk, file)
    assert len(entries(file, found.value)) == 2
    assert [each.entry for each in found.left_out] == ["dataVersion"]


GOOD = {
    "topics.json": (TOPICS, f'"T":{topic()}', f'"T":{topic(perm=-3)}'),
    "subscriptionGroup.json": (GROUPS, '"G":{"retryMaxTimes":5}', '"G":{"retryMaxTimes":1e12}'),
    "consumerOffset.json": (OFFSETS, '"T@G":{0:5,2:7}', '"T@G":{0:99999999999999999999,2:7}'),
    "delayOffset.json": (DELAYS, "2:4", "2:-4"),
    "consumerFilter.json": (FILTERS, IN_FILTERS % of_filter(), IN_FILTERS % of_filter(bornTime=-1)),
    "messageRequestMode.json": (MODES, '"T":{"G":{"mode":"POP"}}', '"T":{"G":{"mode":"PUSH"}}'),
    KV_TABLE: (KV, '"N":{"k":"v"}', '"N":{"k":null}'),
}


@pytest.mark.parametrize("file", GOOD)
def test_an_invalid_entry_is_taken_from_the_previous_version_if_valid_there(file: str) -> None:
    around, good, bad = GOOD[file]
    disk, path = FakeDisk(), f"/store/config/{file}"
    save(disk, path, around % good)
    before = entries(file, loaded(disk, file).value)
    save(disk, path, around % bad)
    found = loaded(disk, file)
    assert entries(file, found.value) == before
    (left_out,) = found.left_out
    assert left_out.reason.endswith("; the previous version is used")
    save(disk, path, FORMATS[file](found.value), found.broken, found.left_out)
    again = loaded(disk, file)
    assert (entries(file, again.value), again.is_to_be_saved) == (before, False)
