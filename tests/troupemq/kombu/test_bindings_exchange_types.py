"""Routing keys of topic exchanges, compared word by word."""

from time import process_time

import pytest

pytest.importorskip("kombu", reason="kombu is not installed")

from troupemq.kombu.bindings import KEY_CHARS_MAX, LinearTopicExchange, is_match


@pytest.mark.parametrize(
    ("pattern", "key", "wanted"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("*", "a", True),
        ("#", "a.b.c", True),
        ("#", "", True),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.#", "b", False),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a.b.d", False),
        ("#.b.#", "a.b.c.d", True),
        ("#.#", "a", True),
        ("a.+", "a.+", True),
        ("a.(", "a.(", True),
        ("a.b", "axb", False),
    ],
)
def test_words_match_as_in_amqp(pattern: str, key: str, wanted: bool) -> None:
    assert is_match(pattern, key) is wanted


def test_no_pattern_takes_long() -> None:
    hashes = ".".join("#" * 127) + ".x"
    begun_s = process_time()
    assert not is_match(hashes, ".".join("a" * 128))
    assert not is_match(".".join("#*" * 42), "." * 30)
    assert process_time() - begun_s < 0.1


def test_long_keys_match_nothing() -> None:
    kind = LinearTopicExchange(None)
    table = [kind.prepare_bind("queue", "exchange", "#", None)]
    assert kind.lookup(table, "exchange", "x" * KEY_CHARS_MAX, None) == {"queue"}
    assert kind.lookup(table, "exchange", "x" * (KEY_CHARS_MAX + 1), None) == set()
