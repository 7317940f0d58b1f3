"""Tests of protocol/registration.py: a registration in slices is the same as the whole one."""

from collections.abc import Sequence
from zlib import compress

import pytest

from protocol.bodies_tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.errors import RemoteError
from protocol.fastjson import dumps
from protocol.registration import SLICE_TOPICS, WHOLE_BYTES_MAX, read_registration

COUNTS = (0, 1, SLICE_TOPICS, SLICE_TOPICS + 1, 3 * SLICE_TOPICS)


def table(names: Sequence[str]) -> TopicConfigTable:
    configs = {name: TopicConfig(name, 3, 4, 2, topic_sys_flag=1) for name in names}
    return TopicConfigTable(configs, DataVersion(7, 8))


def read(body: bytes, version: int = 407, *, compressed: bool = False) -> RegisterBrokerBody:
    found = read_registration(body, version, compressed=compressed)
    configs: dict[str, TopicConfig] = {}
    for part in found.slices:
        assert 0 <= len(part) <= SLICE_TOPICS
        configs.update(part)
    return RegisterBrokerBody(TopicConfigTable(configs, found.version), found.filter_servers or [])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("compressed", [False, True])
def test_registration_slices_equal_the_whole(count: int, compressed: bool) -> None:
    whole = RegisterBrokerBody(table([f"t{n}" for n in range(count)]), ["f:1"])
    body = whole.encode(compressed=compressed)
    expected = RegisterBrokerBody.decode(body, compressed=compressed)
    assert read(body, compressed=compressed) == expected


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a{b", "a}b", "topicConfigTable", '"topicConfigTable":{', "é"]
)
def test_no_name_misleads_the_splitter(name: str) -> None:
    whole = RegisterBrokerBody(table([name, "plain"]))
    assert read(whole.encode()) == whole


def test_an_unsplittable_registration_is_read_whole() -> None:
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{a:{topicName:"a",x:{y:1}}}}}'
    assert set(read(body).topic_config_table.topic_configs) == {"a"}
    spaced = RegisterBrokerBody(table(["a", "b"])).to_json()
    assert set(read(dumps(spaced, pretty=True)).topic_config_table.topic_configs) == {"a", "b"}


def test_an_old_brokers_table_has_nothing_around_it() -> None:
    whole = table(["a"])
    found = read_registration(whole.encode(), 36, compressed=False)
    assert found.filter_servers is None
    assert list(found.slices) == [whole.topic_configs]
    assert read(b"", 407) == RegisterBrokerBody()


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"a":{"perm":"x"}}}}'],
)
def test_an_invalid_registration_is_refused(body: bytes) -> None:
    with pytest.raises(RemoteError):
        read(body)


def test_a_long_name_is_read_in_proportion_to_its_length() -> None:
    """One of 4 MiB took 480 MiB: a group of the regular expression was kept for each character."""
    name = b"x" * (1 << 20)
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"%b":{}}}}' % name
    tracemalloc = pytest.importorskip("tracemalloc", reason="PyPy has no tracemalloc")
    tracemalloc.start()
    try:
        assert [len(each) for each in read_registration(body, 407, compressed=False).slices] == [1]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (407, b'{"filterServerList":[%b""]}' % (b'"",' * (WHOLE_BYTES_MAX // 3 + 1))),
        (407, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"\\":1}}}'.ljust(5 << 20)),
        (1, b"{}".ljust(WHOLE_BYTES_MAX + 1)),
    ],
)
def test_a_registration_that_is_not_sliced_is_short(version: int, body: bytes) -> None:
    with pytest.raises(RemoteError, match="cannot be read in slices"):
        read_registration(body, version, compressed=False)


def test_a_registration_that_decompresses_to_too_much_is_refused() -> None:
    """A hundred KB were four million lines, and 4.4 s of the thread that reads them."""
    line = b"\0\0\0\x09a 1 1 6 S"
    plain = b"\0\0\0\x02{}" + (150_000).to_bytes(4) + line * 150_000 + b"\0\0\0\x02[]"
    with pytest.raises(RemoteError, match="longer than 1048576 bytes"):
        read_registration(compress(plain), 407, compressed=True)
