"""Copy of a store in use, and a store from a copy: `store backup` and `store restore`.

Both work on files alone and never contact a broker.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from time import monotonic

import click

from actors.config import load_broker_config
from protocol.standard_json import dumps
from storage.backup.backup import BackupReport, StoreBackup
from storage.backup.copying import clone, hard_link
from storage.backup.record import BackupFolder
from storage.backup.restore import StoreRestore
from storage.checking.store_check import StoreCheck
from storage.checking.store_layout import with_sizes_of_files
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import DiskFull, StoreError, os_sentence, reason_of
from storage.files.disk import RealDisk
from storage.retention.reserve import in_words
from troupemq.cli.options import Command, FilePath, FiniteRange, json_option, leave
from troupemq.daemon import keep_files_private
from troupemq.exit_codes import exit_code_of
from troupemq.store_mending import config_option, settings_of
from troupemq.text import escaped, escaped_json

_RATE_MIB = 50.0
_MIB = 1 << 20
_FOLDER = FilePath(file_okay=False, path_type=Path)


class Rate:
    """Rate limiter in bytes a second; 0 is unlimited."""

    def __init__(self, bytes_a_second: float) -> None:
        self._rate = bytes_a_second
        self._due_s = monotonic()
        self._never = Event()

    def __call__(self, count: int) -> None:
        if self._rate <= 0:
            return
        now_s = monotonic()
        self._due_s = max(self._due_s, now_s) + count / self._rate
        if self._due_s > now_s:
            self._never.wait(self._due_s - now_s)


def _rate_option(default: float) -> Callable[[Command], Command]:
    return click.option(
        "--rate",
        type=FiniteRange(0),
        default=default,
        show_default=True,
        metavar="MIB",
        help="Copy at most MIB a second; 0 is unlimited.",
    )


def _under_own_names(
    _: click.Context, __: click.Parameter, given: tuple[Path, ...]
) -> tuple[str, ...]:
    """Return absolute paths. The copy has them by their last names, so none may be there twice."""
    paths = [os.path.abspath(each) for each in given]
    names: dict[str, str] = {}
    for path in paths:
        name = os.path.basename(path)
        if names.setdefault(name, path) != path:
            raise click.BadParameter(
                escaped(f"{names[name]} and {path} have the same name: rename one, as the copy")
                + " keeps one file of a name."
            )
    return tuple(paths)


@click.command()
@click.argument("directory", type=FilePath(exists=True, file_okay=False, path_type=Path))
@click.argument("copy", type=_FOLDER)
@config_option
@_rate_option(_RATE_MIB)
@click.option(
    "--link",
    is_flag=True,
    help="Hard-link full commit log files: this needs no space, but COPY must be on the same disk.",
)
@click.option(
    "--also",
    type=FilePath(exists=True, path_type=Path),
    multiple=True,
    callback=_under_own_names,
    metavar="PATH",
    help="Also copy this file or folder, such as broker.conf; repeatable.",
)
@click.option("--verify", is_flag=True, help="Check the copy afterwards, as `store check` does.")
@json_option
def backup(
    directory: Path,
    copy: Path,
    config: Path | None,
    rate: float,
    link: bool,
    also: tuple[str, ...],
    verify: bool,
    as_json: bool,
) -> None:
    """Copy the store DIRECTORY to the folder COPY, even while a broker writes to it.

    The copy contains every message acknowledged before the start, and ends at a record's end.
    Repeat the command to add new data or to continue after an interruption; files that the broker
    has deleted are then deleted from the copy. Exit code 1 if --verify finds faults.
    """
    keep_files_private()
    store, _ = settings_of(directory, config)
    disk = RealDisk()
    root = str(copy.absolute())
    try:
        report = StoreBackup(
            store,
            disk,
            BackupFolder(disk, root),
            SystemClock(),
            pace=Rate(rate * _MIB),
            share=hard_link if link else clone,
            spare_bytes=_spare_bytes(store, copy),
            also=also,
        ).run()
    except StoreError as error:
        again = "; the copy is unfinished, run it again" if isinstance(error, DiskFull) else ""
        leave(f"{str(error).removesuffix('.')}{again}.", exit_code_of(error))
    except OSError as error:
        leave(os_sentence(error), exit_code_of(error))
    faults = _verified(copy) if verify else None
    if as_json:
        _print_json(report, faults)
    else:
        for each in (*report.notes, *(faults or ())):
            click.echo(escaped(each))
        shared = f", {in_words(report.shared_bytes)} shared" if report.shared_bytes else ""
        click.echo(
            f"{directory}: log {report.log_start} to {report.log_end} is in {copy};"
            f" {in_words(report.copied_bytes)} copied{shared}"
            f"{'; no faults found' if faults == [] else ''}"
        )
    if faults:
        raise SystemExit(1)


def _print_json(report: BackupReport, faults: list[str] | None) -> None:
    """Print the report; `faults` is None if the copy was not checked."""
    values = {
        "logStart": report.log_start,
        "logEnd": report.log_end,
        "copiedBytes": report.copied_bytes,
        "sharedBytes": report.shared_bytes,
        "files": report.file_count,
        "notes": report.notes,
        "wrong": faults,
    }
    click.echo(escaped_json(dumps(values).decode()))


@click.command()
@click.argument("copy", type=FilePath(exists=True, file_okay=False, path_type=Path))
@click.argument("directory", type=_FOLDER)
@click.option(
    "-c",
    "--config",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The store's broker.conf, from which storePathCommitLog is read. [default: commitlog in"
    " DIRECTORY]",
)
@_rate_option(0.0)
def restore(copy: Path, directory: Path, config: Path | None, rate: float) -> None:
    """Create the store DIRECTORY from a copy made by `store backup`.

    DIRECTORY must not contain a store. At its next start the broker, or RocketMQ's, recovers as
    after a crash. Files copied by --also remain in the copy's folder `also`.
    """
    keep_files_private()
    disk = RealDisk()
    store = _settings_to_be(directory, config)
    try:
        report = StoreRestore(disk, str(copy.absolute()), store, Rate(rate * _MIB)).run()
    except StoreError as error:
        leave(str(error), exit_code_of(error))
    except OSError as error:
        leave(f"Cannot restore {error.filename or copy}: {reason_of(error)}.", exit_code_of(error))
    taken = f"{datetime.fromtimestamp(report.taken_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    click.echo(
        f"{directory}: log {report.log_start} to {report.log_end}, as of {taken};"
        f" {in_words(report.copied_bytes)} copied"
    )
    if report.was_interrupted:
        click.echo("A later run of the backup was interrupted: its data is not restored.")


def _settings_to_be(directory: Path, config: Path | None) -> StoreConfig:
    """Return the settings of the store to create."""
    root = str(directory.absolute())
    if config is None:
        return StoreConfig(root=root)
    return load_broker_config(str(config), {"storePathRootDir": root})[1]


def _spare_bytes(store: StoreConfig, copy: Path) -> int:
    """Return the bytes to leave free for the broker; 0 if the copy is on another disk."""
    above = copy.absolute()
    while not above.exists():
        above = above.parent
    if os.stat(above).st_dev != os.stat(store.commit_log_dir).st_dev:
        return 0
    total, _ = RealDisk().capacity(str(above))
    return int(total * (1 - store.disk_clean_forcibly_ratio))


def _verified(copy: Path) -> list[str]:
    """Return the faults that `store check` finds in the copy."""
    disk = RealDisk()
    store = with_sizes_of_files(disk, StoreConfig(root=str(copy.absolute())))
    try:
        report = StoreCheck(disk, store).run()
    except StoreError as error:
        return [str(error)]
    return [f"{each.part}: {each.text}" for each in report.findings if each.is_wrong]
