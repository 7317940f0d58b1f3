"""Rewriting of properties: CLUSTER is added, WAIT dropped, and some records redirected."""

import tracemalloc
from random import Random

import pytest

from actors.sending.property_rewriter import PropertyRewriter, Redirect
from protocol.codes import (
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    ResponseCode,
)
from protocol.errors import RemoteError
from protocol.properties import find_pairs, parse
from protocol.tags import java_hash_code
from storage.dispatching.dispatch import index_keys, tags_code
from tests.actors.sending.test_property_rewriter_shapes import random_text

DELAYS_MS = (1000, 5000, 10_000)
CLUSTER = b"CLUSTER\x01DefaultCluster"


def preparer() -> PropertyRewriter:
    return PropertyRewriter("DefaultCluster", DELAYS_MS)


def stored(properties: bytes) -> bytes:
    return preparer().prepare("Topic", 3, 0, properties)[0]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"", CLUSTER),
        (b"a\x01b", b"a\x01b\x02" + CLUSTER),
        (b"a\x01b\x02", b"a\x01b\x02" + CLUSTER),
        (b"WAIT\x01true", CLUSTER),
        (b"WAIT\x01false", CLUSTER),
        (b"a\x01b\x02WAIT\x01true", b"a\x01b\x02" + CLUSTER),
        (b"a\x01b\x02WAIT\x01FALSE\x02c\x01d", b"a\x01b\x02c\x01d\x02" + CLUSTER),
        (b"WAIT\x01false\x02c\x01d\x02", b"c\x01d\x02" + CLUSTER),
        (b"a\x01b\x02a\x01c", b"a\x01c\x02" + CLUSTER),
        (b"a\x01\x02b\x01c\x02\x02d", b"b\x01c\x02" + CLUSTER),
        (b"a\x01b\x02CLUSTER\x01Mine\x02WAIT\x01true", b"a\x01b\x02" + CLUSTER),
        (b"a\x01b=WAIT\x01c", b"a\x01b=WAIT\x01c\x02" + CLUSTER),
    ],
)
def test_cluster_is_added_and_wait_is_removed(sent: bytes, kept: bytes) -> None:
    assert stored(sent) == kept


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        (b"", True),
        (b"WAIT\x01true", True),
        (b"WAIT\x01True\x02a\x01b", True),
        (b"WAIT\x01false", False),
        (b"a\x01b\x02WAIT\x01no", False),
        (b"DELAY\x011\x02WAIT\x01false", False),
        (b"TRAN_MSG\x01true\x02WAIT\x01false", False),
    ],
)
def test_the_wait_property_decides_whether_the_answer_waits_for_the_disk(
    properties: bytes, waits: bool
) -> None:
    assert preparer().prepare("Topic", 0, 0, properties)[3] is waits


def test_tags_code_is_java_s_hash_of_the_tags() -> None:
    made = preparer()
    for tag in ("TagA", "标签", "a b", "x" * 500):
        properties = f"a\x01b\x02TAGS\x01{tag}".encode()
        for _ in range(2):
            assert made.prepare("Topic", 0, 0, properties)[1] == java_hash_code(tag)
    assert made.prepare("Topic", 0, 0, b"a\x01b")[1] == 0


def test_index_keys_are_the_unique_key_and_each_word_of_keys() -> None:
    made = preparer()
    for properties in (
        b"KEYS\x01k1 k2  k3\x02UNIQ_KEY\x01u",
        b"KEYS\x01one\x02UNIQ_KEY\x01u",
        b"UNIQ_KEY\x01u",
        b"KEYS\x01one",
        b"KEYS\x01  ",
        b"",
    ):
        for _ in range(2):
            assert made.prepare("Topic", 0, 0, properties)[2] == index_keys(properties)


@pytest.mark.heavy
def test_cached_property_texts_are_prepared_like_new_ones() -> None:
    random, warm = Random(23), preparer()
    for _ in range(10_000):
        text = random_text(random)
        assert warm.prepare("Topic", 1, 0, text) == preparer().prepare("Topic", 1, 0, text), text


def test_only_cluster_and_wait_differ_between_sent_and_stored_properties() -> None:
    random, made = Random(29), preparer()
    for _ in range(3000):
        text = random_text(random)
        wanted = {name: value for name, value in parse(text).items() if name != "WAIT"}
        assert parse(made.prepare("Topic", 0, 0, text)[0]) == {
            **wanted,
            "CLUSTER": "DefaultCluster",
        }


# --- delayed


def test_a_delayed_message_goes_to_its_levels_queue_and_keeps_its_real_topic() -> None:
    text, code, keys, waits, sys_flag, redirect = preparer().prepare(
        "Topic", 3, 1, b"KEYS\x01k\x02WAIT\x01true\x02DELAY\x012\x02TAGS\x01t"
    )
    assert redirect == Redirect("SCHEDULE_TOPIC_XXXX", 1, 5000)
    assert parse(text) == {
        "KEYS": "k",
        "WAIT": "true",  # the text is formatted again, and WAIT is back
        "DELAY": "2",
        "TAGS": "t",
        "CLUSTER": "DefaultCluster",
        "REAL_TOPIC": "Topic",
        "REAL_QID": "3",
    }
    assert (code, keys, waits, sys_flag) == (java_hash_code("t"), (b"k",), True, 1)


def test_a_level_above_the_highest_is_stored_as_the_highest() -> None:
    text, *_, redirect = preparer().prepare("Topic", 0, 0, b"DELAY\x0130")
    assert redirect == Redirect("SCHEDULE_TOPIC_XXXX", 2, 10_000)
    assert parse(text)["DELAY"] == "3"


@pytest.mark.parametrize("level", [b"0", b"-1", b"+0"])
def test_an_invalid_level_delays_nothing(level: bytes) -> None:
    text, *_, redirect = preparer().prepare("Topic", 0, 0, b"WAIT\x01true\x02DELAY\x01" + level)
    assert redirect is None
    assert parse(text) == {"DELAY": level.decode(), "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize(
    ("kind", "delayed"),
    [(TRANSACTION_COMMIT, True), (TRANSACTION_PREPARED, False), (TRANSACTION_ROLLBACK, False)],
)
def test_only_committed_or_plain_messages_are_delayed(kind: int, delayed: bool) -> None:
    *_, sys_flag, redirect = preparer().prepare("Topic", 0, kind, b"DELAY\x011")
    assert (redirect is not None, sys_flag) == (delayed, kind)


def test_cached_half_and_delayed_messages_are_prepared_like_new_ones() -> None:
    random, warm = Random(31), preparer()
    names = ("TRAN_MSG", "DELAY", "WAIT", "TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "REAL_QID", "own")
    values = ("true", "1", "3", "4", "x", "k l", "TRUE")
    kinds = (0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
    for _ in range(1500):
        shown = random.sample(names[:6] if random.random() < 0.8 else names, random.randint(1, 4))
        text = "\x02".join(f"{name}\x01{random.choice(values)}" for name in shown).encode()
        text += random.choice((b"", b"", b"\x02"))
        kind = random.choice(kinds)
        found = outcome(preparer(), kind, text)
        assert outcome(warm, kind, text) == found, text
        assert outcome(warm, kind, text) == found, text


def outcome(made: PropertyRewriter, kind: int, text: bytes) -> object:
    try:
        return made.prepare("Topic", 2, kind, text)
    except RemoteError as error:
        return error.remark


# --- half messages


def test_a_half_message_goes_to_its_topic_without_its_transaction_flag() -> None:
    sent = b"TRAN_MSG\x01true\x02PGROUP\x01p\x02WAIT\x01true\x02TAGS\x01t"
    made = preparer()
    text, code, _, _, sys_flag, redirect = made.prepare("Topic", 2, TRANSACTION_PREPARED | 1, sent)
    assert redirect == Redirect("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    assert sys_flag == 1
    assert code == java_hash_code("t")
    wanted = parse(sent) | {"CLUSTER": "DefaultCluster", "REAL_TOPIC": "Topic", "REAL_QID": "2"}
    assert parse(text) == wanted
    assert made.is_half(sent)


def test_only_the_value_true_makes_a_half_message() -> None:
    made = preparer()
    assert made.is_half(b"a\x01b\x02TRAN_MSG\x01TRUE")
    for properties in (b"TRAN_MSG\x01false", b"a\x01TRAN_MSG", b"", b"TRAN_MSG\x01"):
        assert not made.is_half(properties)
        assert made.prepare("Topic", 0, 0, properties)[5] is None


# --- batches


def test_batch_records_get_the_batchs_properties_after_their_own() -> None:
    made = preparer()
    suffix = made.batch_suffix(b"WAIT\x01true")
    assert (suffix.text, suffix.waits) == (b"WAIT\x01true\x02" + CLUSTER, True)
    assert made.batch_part(b"", suffix) == (suffix.text, 0, ())
    behind, code, keys = made.batch_part(b"TAGS\x01t\x02UNIQ_KEY\x01u\x02KEYS\x01a b", suffix)
    assert behind == b"\x02" + suffix.text
    assert (code, keys) == (java_hash_code("t"), (b"u", b"a", b"b"))
    assert made.batch_part(b"a\x01b\x02", suffix)[0] == suffix.text


@pytest.mark.parametrize(
    "other, keys",
    [
        (b"TAGS\x01t\x02UNIQ_KEY\x01v2\x02KEYS\x01a b", (b"v2", b"a", b"b")),
        (b"TAGS\x01t\x02UNIQ_KEY\x01v\x02\x02KEYS\x01a b", (b"v", b"a", b"b")),
        (b"TAGS\x01t\x02UNIQ_KEY\x01\x01v\x02KEYS\x01a b", (b"\x01v", b"a", b"b")),
        (b"TAGS\x01t\x02UNIQ_KEY\x01u-\x02KEYS\x01a b", (b"u-", b"a", b"b")),
        (b"TAGS\x01t\x02UNIQ_KEY\x01u11\x02KEYS\x01a b", (b"u11", b"a", b"b")),
        (b"TAGS\x01t\x02UNIQ_KEY\x01u1\x02KEYS\x01c b", (b"u1", b"c", b"b")),
        (b"TAGS\x01s\x02UNIQ_KEY\x01u1\x02KEYS\x01a b", (b"u1", b"a", b"b")),
    ],
)
def test_a_record_may_differ_from_the_previous_only_in_its_unique_key(
    other: bytes, keys: tuple[bytes, ...]
) -> None:
    made = preparer()
    suffix = made.batch_suffix(b"WAIT\x01true")
    first = b"TAGS\x01t\x02UNIQ_KEY\x01u1\x02KEYS\x01a b"
    for _ in range(2):  # the second time its names are known
        made.batch_part(first, suffix)
    code = java_hash_code("s" if b"TAGS\x01s" in other else "t")
    assert made.batch_part(other, suffix) == (b"\x02" + suffix.text, code, keys)
    assert made.batch_part(first, suffix)[2] == (b"u1", b"a", b"b")


def test_the_batchs_value_overrides_a_records_own() -> None:
    made = preparer()
    suffix = made.batch_suffix(b"UNIQ_KEY\x01all\x02WAIT\x01false")
    assert not suffix.waits
    assert made.batch_part(b"UNIQ_KEY\x01one", suffix)[2] == (b"all",)


@pytest.mark.parametrize("seed", range(3))
def test_batch_records_are_rewritten_independently_of_the_previous_batch(seed: int) -> None:
    """Names in the order of the record before are recognised, others parsed."""
    random, made = Random(seed), preparer()
    for _ in range(300):
        suffix = made.batch_suffix(random.choice((b"WAIT\x01true", random_text(random))))
        own = random_text(random)
        for _ in range(2):
            behind, code, keys = made.batch_part(own, suffix)
            text = own + behind
            assert behind == suffix.text or behind == b"\x02" + suffix.text
            pairs = dict(find_pairs(text))
            tags = pairs.get(b"TAGS", b"").decode("utf-8", "replace")
            assert code == (java_hash_code(tags) if tags else 0)
            words = [word for word in pairs.get(b"KEYS", b"").split(b" ") if word]
            unique = pairs.get(b"UNIQ_KEY")
            assert keys == (*(() if unique is None else (unique,)), *words)


def test_only_a_real_level_makes_a_batch_delayed() -> None:
    made = preparer()
    assert made.is_delayed(b"DELAY\x011")
    for properties in (b"DELAY\x010", b"a\x01DELAY", b"DELAY\x01", b""):
        assert not made.is_delayed(properties)


# --- delay levels that Java cannot parse

NOT_JAVA = [b" 2", b"2 ", b"1_0", b"x", b"\xc2\xb2", b"2147483648", b"1" * 5000, b"\xff"]


@pytest.mark.parametrize("level", NOT_JAVA)
@pytest.mark.parametrize("kind", ["plain", "half", "known form", "odd text"])
def test_a_delay_level_that_java_cannot_parse_is_refused(kind: str, level: bytes) -> None:
    made = preparer()
    rest = {"half": b"\x02TRAN_MSG\x01true", "odd text": b"\x02\x02a\x01b"}.get(kind, b"\x02a\x01b")
    if kind != "odd text":  # the form of its text is learnt
        for _ in range(2):
            made.prepare("Topic", 0, 0, b"DELAY\x011" + rest)
    with pytest.raises(RemoteError, match=r"^java\.lang\.NumberFormatException") as refused:
        made.prepare("Topic", 0, 0, b"DELAY\x01" + level + rest)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert made.prepare("Topic", 0, 0, b"DELAY\x012" + rest)[5] is not None


@pytest.mark.parametrize("level", NOT_JAVA)
def test_a_delay_level_of_a_batch_or_of_its_message_is_refused(level: bytes) -> None:
    made = preparer()
    with pytest.raises(RemoteError, match=r"^java\.lang\.NumberFormatException"):
        made.is_delayed(b"WAIT\x01true\x02DELAY\x01" + level)
    suffix = made.batch_suffix(b"WAIT\x01true")
    for own in (b"DELAY\x011\x02UNIQ_KEY\x01u1", b"UNIQ_KEY\x01u1\x02DELAY\x010"):
        for _ in range(2):
            made.batch_part(own, suffix)
        before, _, behind = own.partition(b"DELAY\x01")
        with pytest.raises(RemoteError, match=r"^java\.lang\.NumberFormatException"):
            made.batch_part(before + b"DELAY\x01" + level + behind[1:], suffix)


@pytest.mark.parametrize(("level", "number"), [("+2", 2), ("\u0662", 2), ("002", 2)])
def test_a_delay_level_that_java_parses_applies(level: str, number: int) -> None:
    text, *_, redirect = preparer().prepare("Topic", 0, 0, f"DELAY\x01{level}".encode())
    assert redirect == Redirect("SCHEDULE_TOPIC_XXXX", number - 1, DELAYS_MS[number - 1])
    assert parse(text)["DELAY"] == level


def test_the_long_tags_of_a_producer_leave_the_memory_to_others() -> None:
    """10,000 tags of 32 KiB were kept for their hash codes: 320 MiB, and 270 more elsewhere."""
    made = preparer()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(30):
            tag = b"%d" % number + b"t" * 10_000
            code = made.prepare("Topic", 3, 0, b"TAGS\x01" + tag)[1]
            assert code == tags_code(tag) == java_hash_code(tag.decode())
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 256 << 10
