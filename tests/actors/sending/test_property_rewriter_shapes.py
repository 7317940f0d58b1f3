"""A property text that is cut says the same as one that is parsed."""

from random import Random
from re import Pattern

import pytest

from actors.sending import property_rewriter
from actors.sending.property_rewriter import PropertyShapes
from protocol.properties import find_pairs, pairs_of, parse

NAMES = [b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"a", b"color", b"BUYER_ID", "名".encode()]
VALUES = [b"true", b"false", b"TRUE", b"v", b"a b", b"", "值".encode(), b"WAIT", b"k1  k2", b"."]
TEXTS = 10_000


def random_text(random: Random) -> bytes:
    """Mostly what clients write: the same few names; now and then anything else."""
    count = random.choice((0, 1, 2, 3, 4, 4, 4))
    names = random.sample(NAMES, count) if random.random() < 0.3 else NAMES[4 - count : 4]
    if random.random() < 0.05 and names:
        names = [*names, names[0]]
    values = [b"true" if random.random() < 0.6 else random.choice(VALUES) for _ in names]
    text = b"\x02".join(n + b"\x01" + v for n, v in zip(names, values, strict=True))
    odd = random.random()
    if odd < 0.2:
        text += b"\x02"
    elif odd < 0.25:
        at = random.choice([at for at in range(len(text) + 1) if text[at : at + 1] < b"\x80"])
        text = text[:at] + random.choice((b"\x01", b"\x02", b"x", b"=")) + text[at:]
    return text


@pytest.mark.heavy
def test_cached_shapes_split_texts_as_the_parser_does() -> None:
    random, shapes, cut_count = Random(17), PropertyShapes(), 0
    for number in range(TEXTS):
        text = random_text(random)
        pairs = pairs_of(text)
        cut = shapes.cut(text)
        if cut is not None:
            cut_count += 1
            before, behind, unique, keys, tags = cut
            left = {name: value for name, value in pairs.items() if name != b"WAIT"}
            assert before + behind == b"\x02".join(n + b"\x01" + v for n, v in left.items()), text
            assert pairs.get(b"WAIT", b"true") == b"true"
            wanted = [pairs.get(name, b"") for name in (b"UNIQ_KEY", b"KEYS", b"TAGS")]
            assert [unique, keys, tags] == wanted, (number, text)
        shapes.learn(text, pairs)
    assert cut_count > TEXTS // 20


def test_pairs_are_found_as_by_the_original() -> None:
    random = Random(3)
    for _ in range(TEXTS):
        text = random_text(random)
        assert {name.decode(): value.decode() for name, value in find_pairs(text)} == parse(text)
        assert [*pairs_of(text).items()] == [*dict(find_pairs(text)).items()], text
    assert find_pairs(b"\x01a\x01b\x02c\x02\x02d\x01\x01e") == [(b"d", b"\x01e")]


def test_no_text_is_split_before_a_shape_is_learnt() -> None:
    shapes = PropertyShapes()
    for text in (b"", b"a\x01b", b"WAIT\x01true"):
        assert shapes.cut(text) is None


@pytest.mark.parametrize(
    ("learnt", "text", "before", "behind"),
    [
        (b"a\x01b", b"a\x01c", b"a\x01c", b""),
        (b"a\x01b", b"a\x01c\x02", b"a\x01c", b""),
        (b"WAIT\x01true\x02a\x01b", b"WAIT\x01true\x02a\x01d", b"", b"a\x01d"),
        (b"a\x01b\x02WAIT\x01true", b"a\x01d\x02WAIT\x01true", b"a\x01d", b""),
        (
            b"a\x01b\x02WAIT\x01true\x02TAGS\x01t",
            b"a\x01d\x02WAIT\x01true\x02TAGS\x01u\x02",
            b"a\x01d",
            b"\x02TAGS\x01u",
        ),
    ],
)
def test_wait_and_the_trailing_separator_are_removed(
    learnt: bytes, text: bytes, before: bytes, behind: bytes
) -> None:
    shapes = PropertyShapes()
    shapes.learn(learnt, pairs_of(learnt))
    cut = shapes.cut(text)
    assert cut is not None
    assert cut[:2] == (before, behind)


@pytest.mark.parametrize(
    "text",
    [
        b"a\x01c\x02WAIT\x01false",
        b"a\x01c\x02WAIT\x01true\x02b\x01d",
        b"WAIT\x01true\x02a\x01c",
        b"a\x01\x02WAIT\x01true",
        b"a\x01b\x01c\x02WAIT\x01true",
        b"\x02a\x01b\x02WAIT\x01true",
        b"a\x01b",
        b"",
    ],
)
def test_a_text_of_another_shape_is_not_split(text: bytes) -> None:
    shapes = PropertyShapes()
    learnt = b"a\x01b\x02WAIT\x01true"
    shapes.learn(learnt, pairs_of(learnt))
    assert shapes.cut(text) is None


@pytest.mark.parametrize(
    "text",
    [
        b"a\x01b\x02a\x01c",
        b"a\x01b\x02b\x01",
        b"WAIT\x01true",
        b"",
        b"a\x01b\x02WAIT\x01false",
        b"\x02".join(b"n%d\x01v" % number for number in range(65)),
    ],
    ids=["twice", "empty value", "only WAIT", "nothing", "WAIT=false", "65 names"],
)
def test_a_non_canonical_text_is_not_learnt(text: bytes) -> None:
    shapes = PropertyShapes()
    shapes.learn(text, pairs_of(text))
    assert shapes.cut(text) is None


def test_names_that_look_like_expressions_are_literal() -> None:
    shapes = PropertyShapes()
    learnt = b"a.*\x01b\x02(x)\x01y\x02[%d]\x01z"
    shapes.learn(learnt, pairs_of(learnt))
    assert shapes.cut(learnt) is not None
    assert shapes.cut(b"abc\x01b\x02(x)\x01y\x02[%d]\x01z") is None


def test_a_producer_with_many_shapes_is_parsed_correctly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(property_rewriter, "_TEXTS_PER_SHAPE", 1)
    shapes = PropertyShapes()
    for number in [*range(600), *range(600)]:
        text = b"n%d\x01v\x02WAIT\x01true\x02TAGS\x01t" % number
        shapes.learn(text, pairs_of(text))
        assert shapes.cut(text) == (b"n%d\x01v" % number, b"\x02TAGS\x01t", b"", b"", b"t")


def test_others_do_not_wait_until_ever_new_names_are_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """700 sends with names of their own, in one read, kept the loop from all others for 0.3 s."""
    compiled: list[tuple[bytes, ...]] = []
    compile_names = property_rewriter._compile

    def note(names: tuple[bytes, ...]) -> tuple[Pattern[bytes], tuple[int, ...]]:
        compiled.append(names)
        return compile_names(names)

    monkeypatch.setattr(property_rewriter, "_compile", note)
    shapes = PropertyShapes()

    def learn(text: bytes) -> bool:
        shapes.learn(text, pairs_of(text))
        return shapes.cut(text) is not None

    assert not learn(b"\x02".join(b"%d-%s\x01v" % (each, b"n" * 99) for each in range(60)))
    found = [learn(b"name-%d\x01v" % number) for number in range(700)]
    assert found[:8] == [True] * 8, "a few at once"
    assert sum(found) == len(compiled) == 13, "and one for each 128 texts"
    assert learn(b"name-7\x01v"), "known ones at any time"
    others = [learn(b"other\x01v") for _ in range(128)]
    assert any(others), "a producer that goes on is learnt"
