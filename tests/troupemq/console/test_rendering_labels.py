"""Headings of JSON keys, and the glossary of every page."""

import pytest

from tests.troupemq.console.conftest import MakeVisit
from troupemq.console.asking import PLACES
from troupemq.console.rendering import GLOSSARY, LABELS, heading


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("broker", "Broker"),
        ("queue_offset", "Queue offset"),
        ("stored_ms", "Stored"),
        ("in_tps", "In (msg/s)"),
        ("failed_tps", "Failed (msg/s)"),
        ("late_at_most_ms", "Max time lag"),
        ("still_kept", "Next message retained"),
    ],
)
def test_a_heading_is_a_label_or_the_words_of_its_key(key: str, words: str) -> None:
    assert heading(key) == words


def test_no_label_repeats_the_words_of_its_key() -> None:
    for key, label in LABELS.items():
        words = key.removesuffix("_ms").replace("_", " ").capitalize()
        assert label != words, key


def test_every_page_has_the_glossary(visit_to: MakeVisit) -> None:
    visit = visit_to()
    for path in ("/login", *sorted(PLACES)):
        page = visit.client.get(path).text
        assert page.count('<details class="glossary">') == 1, path
        assert all(f"<dt>{term}</dt>" in page for term, _ in GLOSSARY), path
