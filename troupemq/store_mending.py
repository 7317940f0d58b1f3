"""Check of a store directory, and rebuild of its derived files: `store check`, `store rebuild`.

Neither needs a broker. `check` changes nothing and takes no lock; `rebuild` locks the store.
"""

from collections import Counter
from pathlib import Path

import click

from actors.config import ConfigError, load_broker_config
from actors.dispatching.part_pool import open_parts
from actors.tables.topics import Topics
from protocol.standard_json import dumps
from storage.checking.store_check import CheckReport, StoreCheck, TableSettings
from storage.checking.store_layout import with_sizes_of_files
from storage.clock import SystemClock
from storage.config import StoreConfig
from storage.errors import StoreError, reason_of
from storage.files.disk import RealDisk
from storage.files.lock_file import lock_owner
from storage.message_store import MessageStore
from storage.recovery.checkpoint import require_log
from storage.recovery.store_format import require_known_format
from storage.recovery.store_rebuild import order_rebuild
from troupemq.cli.options import FilePath, json_option, leave
from troupemq.exit_codes import exit_code_of
from troupemq.text import escaped, escaped_json

_LINES_MAX = 20
"""Maximum faults printed per part of a store; --json prints more."""
_DIRECTORY = FilePath(exists=True, file_okay=False, path_type=Path)
config_option = click.option(
    "-c",
    "--config",
    type=FilePath(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The store's broker.conf, with file sizes, storePathCommitLog, messageDelayLevel."
    " [default: sizes of the existing files]",
)


@click.command()
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@config_option
@json_option
def check(directory: Path, config: Path | None, as_json: bool) -> None:
    """Check a store: commit log, consume queues, index, checkpoint, config files.

    DIR is the storePathRootDir of this broker or of RocketMQ 4.9.7. Nothing is changed. Exit code
    0 if the store has no faults, else 1.
    """
    store_config, tables = settings_of(directory, config)
    try:
        owner = lock_owner(store_config.lock_path)
        report = StoreCheck(RealDisk(), store_config, in_use=bool(owner), tables=tables).run()
    except StoreError as error:
        leave(str(error), exit_code_of(error))
    except OSError as error:
        leave(f"Cannot check {error.filename or directory}: {reason_of(error)}.")
    if owner:
        report.note("store", f"in use by process {owner}: its latest writes may look unfinished")
    if as_json:
        _print_json(report)
    else:
        _print_text(directory, report)
    if not report.is_clean:
        raise SystemExit(1)


@click.command()
@click.argument("directory", type=_DIRECTORY, metavar="DIR")
@config_option
def rebuild(directory: Path, config: Path | None) -> None:
    """Rebuild a store's consume queues, index and transaction table from its commit log.

    The commit log and the config files do not change. Stop the broker first. Messages of deleted
    topics that are still in the commit log become readable again. After an interruption the next
    start of the broker completes the rebuild.
    """
    store_config, _ = settings_of(directory, config)
    store = MessageStore(store_config, RealDisk(), SystemClock(), open_parts)
    try:
        require_known_format(store_config, store.disk)
        require_log(store_config, store.disk)
        order_rebuild(store_config, store.disk)
        recovery = store.open()
        try:
            store.catch_up()
        finally:
            store.close()
    except StoreError as error:
        leave(str(error), exit_code_of(error))
    except OSError as error:
        leave(f"cannot rebuild {error.filename or directory}: {reason_of(error)}.")
    units = sum(queue.max_offset - queue.min_offset for queue in store.consume_queues)
    click.echo(f"{directory}: the log ends at {recovery.end_offset}")
    click.echo(f"consume queues: {len(store.consume_queues)}, messages: {units}")
    for start, end, reason in store.damage.ranges:
        click.echo(escaped(f"commit log: damaged from {start} to {end}: {reason}"))


def settings_of(directory: Path, config: Path | None) -> tuple[StoreConfig, TableSettings]:
    """Return the settings of a store; end the command if the directory is not a store."""
    tables = TableSettings()
    disk, overrides = RealDisk(), {"storePathRootDir": str(directory)}
    try:
        if config is None:
            settings = with_sizes_of_files(disk, StoreConfig(root=str(directory)))
        else:
            broker, settings, _ = load_broker_config(str(config), overrides)
            tables = TableSettings(broker.bloom, Topics(broker).configs, are_known=True)
    except (ConfigError, StoreError) as error:
        leave(str(error))
    except OSError as error:
        leave(f"Cannot read {error.filename or directory}: {reason_of(error)}.")
    if not disk.is_dir(settings.commit_log_dir):
        leave(f"{directory} is not a store: {settings.commit_log_dir} is missing.")
    return settings, tables


def _print_json(report: CheckReport) -> None:
    for each in report.findings:
        values = {"part": each.part, "text": each.text, "wrong": each.is_wrong}
        click.echo(escaped_json(dumps(values).decode()))
    summary = {
        "clean": report.is_clean,
        "wrong": dict(report.wrong_counts),
        "logStart": report.log_start,
        "logEnd": report.log_end,
        "records": report.counts.record_count,
        "queues": report.queue_count,
        "units": report.counts.unit_count,
        "indexFiles": report.index_file_count,
    }
    click.echo(escaped_json(dumps(summary).decode()))


def _print_text(directory: Path, report: CheckReport) -> None:
    printed: Counter[str] = Counter()
    for each in report.findings:
        printed[each.part] += each.is_wrong
        if not each.is_wrong:
            click.echo(escaped(f"{each.part}: (note) {each.text}"))
        elif printed[each.part] <= _LINES_MAX:
            click.echo(escaped(f"{each.part}: {each.text}"))
    for part, count in report.wrong_counts.items():
        if count > _LINES_MAX:
            click.echo(f"{part}: {count - _LINES_MAX} more")
    counts = report.counts
    click.echo(
        f"{directory}: log {report.log_start} to {report.log_end}, {counts.record_count} records; "
        f"{report.queue_count} queues, {counts.unit_count} units; "
        f"{report.index_file_count} index files: "
        f"{'no faults found' if report.is_clean else f'{report.wrong_counts.total()} faults'}"
    )
