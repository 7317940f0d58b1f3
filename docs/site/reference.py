"""Generator of the reference pages: settings, commands and the Python client.

    python -m docs.site.reference FOLDER     writes settings.md, commands.md and client.md there

A setting's meaning is the comment above it in conf/; a test checks that each has one. Its default,
its kind and whether it changes without a restart come from the configuration classes.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import troupemq
from actors.config import BrokerConfig, NamesrvConfig
from storage.config import StoreConfig
from troupemq.cli import cli
from troupemq.setting_meanings import default_text, fields_with_keys, meanings, sample

SETTINGS = (
    ("broker.conf", "Broker", (BrokerConfig, StoreConfig)),
    ("namesrv.conf", "Name server", (NamesrvConfig,)),
)
WIDTH = 92


def main(arguments: list[str]) -> int:
    """Write the pages; return the exit code."""
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"settings": settings(), "commands": commands(), "client": client()}
    for name, lines in pages.items():
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


# --- settings


def settings() -> Iterator[str]:
    """Yield the lines of the settings page: a table for each kind of server."""
    yield "# Settings\n"
    yield "Generated from the code. How to set them: [Settings](../operations.md#settings). A"
    yield "*live* setting changes at once, by `updateBrokerConfig` or `updateNamesrvConfig`.\n"
    for name, whose, classes in SETTINGS:
        meaning = meanings(sample(name))
        yield f"## {whose}\n"
        yield "| setting | kind | default | live | meaning |\n|---|---|---|---|---|"
        for each in sorted(
            fields_with_keys(*classes), key=lambda field: str(field.metadata["key"]).lower()
        ):
            key = each.metadata["key"]
            live = "yes" if each.metadata["live"] else ""
            words = _cell(meaning[key])
            yield f"| `{key}` | {_kind(each.type)} | {_default(each)} | {live} | {words} |"
        yield ""


def _kind(kind: object) -> str:
    names = {int: "number", float: "number", bool: "true, false", str: "text"}
    return names[kind] if isinstance(kind, type) else str(kind)


def _default(field: Any) -> str:
    text = default_text(field)
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


# --- commands


def commands() -> Iterator[str]:
    """Yield the lines of the commands page: the help of each command."""
    yield "# Commands\n"
    yield "Generated from the code: the `--help` of each command.\n"
    yield from _command(cli, None, "troupemq", 2)


def _command(
    command: click.Command, parent: click.Context | None, name: str, level: int
) -> Iterator[str]:
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        max_content_width=WIDTH,
        terminal_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    yield f"{'#' * level} `{context.command_path}`\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found is not None and not found.hidden:
                yield from _command(found, context, each, min(level + 1, 4))


# --- the client


def client() -> Iterator[str]:
    """Yield the lines of the client page: docstrings of each exported name and its methods."""
    yield "# The Python client\n"
    yield "Generated from the docstrings: the names of `from troupemq import …`. Guides:"
    yield "[sending](../sending.md), [consuming](../consuming.md),"
    yield "[administering](../administering.md).\n"
    for name in troupemq.__all__:
        thing = getattr(troupemq, name)
        yield f"## `{name}`\n"
        if inspect.isclass(thing):
            yield from _class(name, thing)
        elif callable(thing):
            yield _signature(name, thing)
            yield _doc(thing)
        else:
            yield f"`{thing!r}`\n"


def _class(name: str, thing: type[Any]) -> Iterator[str]:
    if not issubclass(thing, BaseException) and "__init__" in vars(thing):
        yield _signature(name, thing)
    yield _doc(thing)
    if "__init__" in vars(thing) and (text := inspect.getdoc(thing.__init__)):
        yield f"{text}\n" if text != inspect.getdoc(object.__init__) else ""
    for method, value in inspect.getmembers(thing):
        own = next((each for each in thing.__mro__ if method in vars(each)), None)
        if method.startswith("_") or own is None or not own.__module__.startswith("troupemq"):
            continue
        raw = vars(own)[method]
        if isinstance(raw, property):
            yield f"### `{name}.{method}`\n"
            yield _doc(raw)
        elif callable(value):
            yield f"### `{name}.{method}()`\n"
            yield _signature(method, value)
            yield _doc(value)


def _signature(name: str, thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except ValueError:
        return ""
    text = re.sub(r"<[^>]*>", "…", text).replace("(self, ", "(").replace("(self)", "()")
    if len(name) + len(text) > WIDTH:
        inner = text[1 : text.rindex(")")]
        parts = re.split(r", (?![^\[(]*[\])])", inner)
        text = "(\n    " + ",\n    ".join(parts) + ",\n" + text[text.rindex(")") :]
    return f"```text\n{name}{text}\n```\n"


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    own = thing.fget if isinstance(thing, property) else thing
    if inspect.isclass(own) and text.startswith(f"{own.__name__}("):
        return ""  # a dataclass without a docstring
    return text.replace("<", "&lt;") + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
