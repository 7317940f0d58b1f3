"""`store`: what a store directory holds, without a broker and without its lock.

dump     prints any file of a store, or sums up a whole one
"""

from json import dumps
from pathlib import Path

import click

from storage.dump.any_file import dump as dump_items
from storage.dump.item import DumpError
from storage.dump.text import lines_of
from storage.errors import reason_of
from storage.files.disk import RealDisk
from troupemq.cli.groups import CommandGroup
from troupemq.cli.options import json_option, leave
from troupemq.text import escaped_json


@click.group(cls=CommandGroup)
def store() -> None:
    """Looks into a store directory, and mends it. Needs no broker."""


@store.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help="Print at most N records, units or entries.",
)
@click.option(
    "--from",
    "from_number",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Of the commit log, in bytes; of a queue, a table or an index, the number of a unit.",
)
@json_option
def dump(path: Path, limit: int | None, from_number: int | None, as_json: bool) -> None:
    """Prints any file of a store for a human; of a directory, what lies in it.

    Only reads, also while a broker runs. A file is known by its place in a store; one that was
    copied elsewhere, by what is in it. Times are UTC.
    """
    try:
        path.stat()
        items = dump_items(RealDisk(), str(path.absolute()), from_number=from_number, limit=limit)
        if as_json:
            for item in items:
                text = dumps({"kind": item.kind, **item.fields}, ensure_ascii=False)
                _print(escaped_json(text))
        else:
            for line in lines_of(items):
                _print(line)
    except FileNotFoundError:
        leave(f"There is no {path}.")
    except BrokenPipeError:
        raise  # `| head`: click ends without a word
    except OSError as error:
        leave(f"Cannot read {error.filename or path}: {reason_of(error)}.")
    except DumpError as error:
        leave(str(error))


def _print(line: str) -> None:
    """As UTF-8, whatever the terminal's; a pipe that is closed ends the command."""
    click.echo(line.encode("utf-8", "backslashreplace"))
