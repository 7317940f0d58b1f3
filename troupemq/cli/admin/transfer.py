"""Commands that export and import tables, partly as files in mqadmin's form."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import click

from storage.errors import StoreError, reason_of
from storage.files.disk import RealDisk
from storage.tables.settings_file import save_settings
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, option
from troupemq.cli.admin.output import Output, as_json
from troupemq.cli.options import FilePath
from troupemq.client.admin import Admin
from troupemq.client.admin.transfer import parse_export
from troupemq.client.errors import ClientError

SECTION = "Export and import"
_DIRECTORY = option(
    "f",
    "filePath",
    "Write the file to this directory.",
    type=FilePath(file_okay=False, path_type=Path),
    default=Path("export"),
)
_WHOLE_CLUSTER = option("c", "clusterName", "The cluster.", to="cluster", required=True)


def _write_file(out: Output, path: Path, found: Mapping[str, object]) -> None:
    """Write JSON to a file, replacing an existing one as a whole. Raises ClientError."""
    text = json.dumps(found, indent="\t", ensure_ascii=False) + "\n"
    data = text.encode(errors="backslashreplace")  # JSON's own escape of a surrogate
    try:
        if path.exists() and not path.is_file():  # such as /dev/stdout, which must stay
            path.write_bytes(data)
        else:
            save_settings(RealDisk(), str(path), data.decode())
    except OSError as error:
        raise ClientError(f"cannot write {path}: {reason_of(error)}") from None
    except StoreError as error:
        raise ClientError(str(error).removesuffix(".")) from None
    out.done(f"{path} was written.", file=str(path))


@command(
    "exportMetadata",
    SECTION,
    CLUSTER,
    BROKER,
    _DIRECTORY,
    flag("t", "topic", "Only topics.", to="only_topics"),
    flag("g", "subscriptionGroup", "Only consumer groups.", to="only_groups"),
    flag("s", "specialTopic", "Also retry and dead-letter topics.", to="special"),
    needs_target=True,
)
def export_metadata(
    admin: Admin,
    out: Output,
    *,
    file_path: Path,
    only_topics: bool,
    only_groups: bool,
    special: bool,
    **where: str | None,
) -> None:
    """Write topics and groups to topic.json, subscriptionGroup.json or metadata.json.

    With -c the queue counts of the cluster's brokers are added up.
    """
    found = admin.export_metadata(
        with_topics=not only_groups, with_groups=not only_topics, special=special, **where
    )
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    _write_file(out, file_path / f"{name}.json", found)


@command("exportConfigs", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_configs(admin: Admin, out: Output, *, cluster: str, file_path: Path) -> None:
    """Write the settings of a cluster's brokers to configs.json."""
    _write_file(out, file_path / "configs.json", admin.export_configs(cluster))


@command("exportMetrics", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_metrics(admin: Admin, out: Output, *, cluster: str, file_path: Path) -> None:
    """Write the statistics of a cluster's brokers to metrics.json."""
    _write_file(out, file_path / "metrics.json", admin.export_metrics(cluster))


@command(
    "export",
    SECTION,
    CLUSTER,
    BROKER,
    option("f", "file", "Write to this file. [default: stdout]", type=FilePath(path_type=Path)),
)
def export(admin: Admin, out: Output, *, file: Path | None, **where: str | None) -> None:
    """Write the topics and groups of each broker for `import`.

    Without -c and -b the brokers of all clusters are exported.
    """
    found = admin.export_tables(**where).to_json()
    if file is not None:
        _write_file(out, file, found)
    else:
        click.echo(as_json(found, indent=None if out.as_json else 2))


@command(
    "import",
    SECTION,
    CLUSTER,
    BROKER,
    option(
        "f",
        "file",
        "Read the output of `export` from this file; - is stdin.",
        type=click.File("rb"),
        required=True,
        to="source",
    ),
    flag("d", "dryRun", "Print the changes without making them."),
)
def import_(
    admin: Admin, out: Output, *, source: BinaryIO, dry_run: bool, **where: str | None
) -> None:
    """Create or change topics and groups as in the output of `export`, broker by broker.

    With -c or -b only these brokers are changed. A broker that is not in the file gets what all
    brokers in the file have in common. Topics and groups that are not in the file do not change.
    """
    try:
        data = source.read()
    except OSError as error:
        raise ClientError(f"cannot read the file: {reason_of(error)}") from None
    out.changes(admin.import_tables(parse_export(data), dry_run=dry_run, **where))
