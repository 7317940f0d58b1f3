"""Items of a dump as lines of text."""

from collections.abc import Iterable, Iterator

from storage.dump.item import Item, plain

_INDENT = "    "
_PLAIN_WORDS = {"record", "unit", "entry", "extension", "transaction", "queue", "file"}
"""Kinds with many items in a row: one line each, except for records."""


def lines_of(items: Iterable[Item]) -> Iterator[str]:
    """Yield the lines without line ends."""
    for item in items:
        if item.kind == "record":
            yield from _record(item.fields)
        elif item.kind == "content":
            for line in str(item.fields["text"]).split("\n"):
                yield plain(line.expandtabs(4))
        elif item.counted or item.kind in _PLAIN_WORDS:
            yield f"{item.kind} {_pairs(item.fields)}"
        else:
            yield from _block(item)


def _pairs(fields: dict[str, object]) -> str:
    return "  ".join(f"{_word(name)} {_value(value)}" for name, value in fields.items())


def _block(item: Item) -> Iterator[str]:
    """Yield a header or a sum: one value a line, or all in one line if short."""
    text = _pairs(item.fields)
    if len(text) < 80:
        yield f"{item.kind}: {text}"
        return
    yield f"{item.kind}:"
    for name, value in item.fields.items():
        yield f"{_INDENT}{_word(name)}: {_value(value)}"


def _record(fields: dict[str, object]) -> Iterator[str]:
    yield (
        f"record {fields['offset']}  {fields['bytes']} bytes  topic {fields['topic']}  "
        f"queue {fields['queue_id']}  queue offset {fields['queue_offset']}"
    )
    if "says_offset" in fields:
        yield f"{_INDENT}damaged: its own offset is {fields['says_offset']}"
    yield f"{_INDENT}stored {fields['stored']} by {fields['store_host']}"
    yield f"{_INDENT}born {fields['born']} by {fields['born_host']}"
    rest = []
    if flags := fields["flags"]:
        rest.append(_value(flags))
    for name in ("flag", "reconsume_times", "prepared_offset"):
        if fields[name]:
            rest.append(f"{_word(name)} {fields[name]}")
    if rest:
        yield f"{_INDENT}{'  '.join(rest)}"
    properties = fields["properties"]
    if isinstance(properties, dict) and properties:
        yield f"{_INDENT}properties " + "  ".join(f"{k}={v}" for k, v in properties.items())
    yield f"{_INDENT}body {fields['body_bytes']} bytes, CRC {fields['crc']}: {fields['body']}"


def _word(name: str) -> str:
    return name.replace("_", " ")


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key}={each}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return plain(str(value))
