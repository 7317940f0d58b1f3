"""Contents of a store directory, read without a broker or its lock: `store dump`."""

from errno import ENOSPC
from json import dumps
from pathlib import Path

import click

from storage.dump.any_file import dump as dump_items
from storage.dump.item import DumpError, lines_of
from storage.errors import reason_of
from storage.files.disk import RealDisk
from troupemq.cli.options import CommandGroup, FilePath, json_option, leave
from troupemq.text import escaped_json


@click.group(cls=CommandGroup)
def store() -> None:
    """Inspect, repair, back up and restore a store directory. Needs no broker."""


@store.command()
@click.argument("path", metavar="FILE", type=FilePath(path_type=Path))
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help="Print at most N records, units or entries. [default: all]",
)
@click.option(
    "--from",
    "from_number",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Start there: at a physical offset of the commit log, or at a unit or entry's number.",
)
@json_option
def dump(path: Path, limit: int | None, from_number: int | None, as_json: bool) -> None:
    """Print the contents of any file of a store, or a summary of a directory.

    Only reads, and works while a broker runs. The kind of a file follows from its path in the
    store, or outside a store from its contents. Times are in UTC.
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
        leave(f"{path} not found.")
    except BrokenPipeError:
        raise  # `| head`: click ends the command silently
    except OSError as error:
        if error.errno == ENOSPC:
            raise  # the output has no room
        leave(f"Cannot read {error.filename or path}: {reason_of(error)}.")
    except DumpError as error:
        leave(str(error))


def _print(line: str) -> None:
    """Print in UTF-8 whatever the terminal's encoding; a closed pipe ends the command."""
    click.echo(line.encode("utf-8", "backslashreplace"))
