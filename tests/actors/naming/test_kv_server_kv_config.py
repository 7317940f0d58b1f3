"""Tests of actors/naming/kv_server.py: limits of a name server's key-value settings."""

import pytest

from actors.naming import kv_server
from actors.naming.kv_server import ORDER_TOPIC_CONFIG, KvConfig
from actors.naming.table_limits import KV_ORDERED_CHARS_MAX
from protocol.errors import RemoteError
from protocol.frame import FRAME_BYTES_MAX


def test_the_number_of_kv_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_server, "KV_ENTRIES_MAX", 3)
    kv = KvConfig({"n": {"a": "1"}})
    kv.put("n", "b", "2")
    kv.put("m", "c", "3")
    with pytest.raises(RemoteError, match="limit of 3 entries"):
        kv.put("m", "d", "4")
    kv.put("m", "c", "5")
    kv.delete("n", "a")
    kv.put("m", "d", "4")
    assert kv.copy() == {"n": {"b": "2"}, "m": {"c": "5", "d": "4"}}


@pytest.mark.parametrize("long", ["namespace", "key", "value"])
def test_the_total_size_limit_includes_namespaces_and_keys(
    monkeypatch: pytest.MonkeyPatch, long: str
) -> None:
    """100,000 long keys without values were a file of 390 MiB."""
    monkeypatch.setattr(kv_server, "KV_CHARS_MAX", 1000)

    def put(name: str) -> None:
        texts = {"namespace": "n", "key": "k" + name, "value": ""}
        texts[long] = name * 300
        kv.put(**texts)

    kv = KvConfig({"n": {}})
    for name in "abc":
        put(name)
    with pytest.raises(RemoteError, match="or 1000 characters reached"):
        put("d")
    kv.delete(*next((n, key) for n, found in kv.copy().items() for key in found))
    put("d")
    with pytest.raises(RemoteError):
        put("e")


def test_a_file_that_is_too_long_can_become_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_server, "KV_CHARS_MAX", 100)
    kv = KvConfig({"n": {"k": "v" * 500}})
    with pytest.raises(RemoteError):
        kv.put("n", "k", "v" * 501)
    kv.put("n", "k", "v" * 499)
    kv.put("n", "k", "v" * 90)
    kv.put("n", "k", "v" * 98)


def test_empty_namespaces_are_removed_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_server, "KV_NAMESPACES_MAX", 3)
    kv = KvConfig()
    for namespace in (ORDER_TOPIC_CONFIG, "a", "b"):
        kv.put(namespace, "k", "v")
        kv.delete(namespace, "k")
    assert kv.namespace("a") == {}, "as in 4.9.7"
    kv.put("c", "k", "v")
    kv.put("d", "k", "v")
    assert kv.copy() == {ORDER_TOPIC_CONFIG: {}, "c": {"k": "v"}, "d": {"k": "v"}}
    with pytest.raises(RemoteError, match="namespace limit of 3 reached"):
        kv.put("e", "k", "v")


@pytest.mark.heavy
@pytest.mark.parametrize("char", ["v", "\x7f", "€"])
def test_the_ordered_topics_sent_to_a_broker_fit_into_a_frame(char: str) -> None:
    """With 17 values of 1 MiB no broker could register any more."""
    kv = KvConfig()
    for key in "ab":
        kv.put(ORDER_TOPIC_CONFIG, key, char * (KV_ORDERED_CHARS_MAX // 2 - 100))
    with pytest.raises(RemoteError, match="ORDER_TOPIC_CONFIG has at most"):
        kv.put(ORDER_TOPIC_CONFIG, "c", char * 200)
    kv.put("n", "c", char * 200)
    assert len(kv.ordered() or b"") < FRAME_BYTES_MAX // 2, "with 100,000 short keys, too"
    kv.delete(ORDER_TOPIC_CONFIG, "b")
    kv.put(ORDER_TOPIC_CONFIG, "c", "200")
    assert b'"c":"200"' in (kv.ordered() or b"")


def test_ordered_topics_beyond_the_frame_size_are_omitted() -> None:
    """A file from before the limit has too many; removal helps."""
    kv = KvConfig({ORDER_TOPIC_CONFIG: {"T": "v" * KV_ORDERED_CHARS_MAX, "U": "b:4"}})
    assert kv.has_too_much_order and kv.ordered() is None
    kv.delete(ORDER_TOPIC_CONFIG, "T")
    assert not kv.has_too_much_order and kv.ordered() == b'{"table":{"U":"b:4"}}'
