"""Types of exchanges; that of topics compares word by word, for keys come from other processes."""

from collections.abc import Iterable
from typing import Any

from kombu.transport.virtual import exchange

KEY_CHARS_MAX = 255
"""Length of a routing key in AMQP."""


def is_match(pattern: str, key: str) -> bool:
    """Return whether a routing key matches: `*` is any word, and `#` any number of words."""
    reached = {0}
    """Places in the pattern up to which it matches; the time is at most words times words."""
    words = pattern.split(".")
    _pass_hashes(words, reached)
    for word in key.split("."):
        following = set()
        for place in reached:
            if place == len(words):
                continue
            if words[place] == "#":
                following.add(place)
            elif words[place] in ("*", word):
                following.add(place + 1)
        reached = following
        _pass_hashes(words, reached)
    return len(words) in reached


def _pass_hashes(words: list[str], reached: set[int]) -> None:
    """Add the places behind each `#`, which also stands for no word."""
    for place, word in enumerate(words):
        if word == "#" and place in reached:
            reached.add(place + 1)


class LinearTopicExchange(exchange.TopicExchange):
    """Topic exchange without the regular expressions of kombu, whose time has no bound."""

    def lookup(
        self, table: Iterable[tuple[str, Any, str]], exchange: str, routing_key: str, default: Any
    ) -> set[str]:
        if len(routing_key) > KEY_CHARS_MAX:
            return set()
        return {queue for pattern, _, queue in table if is_match(pattern, routing_key)}

    def prepare_bind(
        self, queue: str, exchange: str, routing_key: str, arguments: Any
    ) -> tuple[str, None, str]:
        return routing_key, None, queue


EXCHANGE_TYPES = {
    "direct": exchange.DirectExchange,
    "topic": LinearTopicExchange,
    "fanout": exchange.FanoutExchange,
}
