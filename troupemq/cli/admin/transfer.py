"""Commands that export and import tables, and write files in mqadmin's form."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import click

from storage.errors import reason_of
from troupemq.cli.admin.command import BROKER, CLUSTER, command, flag, option
from troupemq.cli.admin.output import Output, as_json
from troupemq.client.admin import Admin
from troupemq.client.admin.transfer import parse_export
from troupemq.client.errors import ClientError

SECTION = "Export and import"
_DIRECTORY = option(
    "f",
    "filePath",
    "The directory for the file.",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("export"),
    show_default=True,
)
_WHOLE_CLUSTER = option("c", "clusterName", "The cluster.", to="cluster", required=True)


def _write_file(out: Output, path: Path, found: Mapping[str, object]) -> None:
    """Write it as JSON, over what is there. Raises ClientError if it cannot."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent="\t", ensure_ascii=False) + "\n")
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {reason_of(error)}") from None
    out.done(f"{path} is written.", file=str(path))


@command(
    "exportMetadata",
    SECTION,
    CLUSTER,
    BROKER,
    _DIRECTORY,
    flag("t", "topic", "Topics only.", to="only_topics"),
    flag("g", "subscriptionGroup", "Consumer groups only.", to="only_groups"),
    flag("s", "specialTopic", "Retry topics and dead letters too.", to="special"),
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
    """Write topics and groups into topic.json, subscriptionGroup.json or metadata.json.

    Of a cluster the queues of its brokers are added up.
    """
    found = admin.export_metadata(
        with_topics=not only_groups, with_groups=not only_topics, special=special, **where
    )
    name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
    _write_file(out, file_path / f"{name}.json", found)


@command("exportConfigs", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_configs(admin: Admin, out: Output, *, cluster: str, file_path: Path) -> None:
    """Write the settings of a cluster's brokers into configs.json."""
    _write_file(out, file_path / "configs.json", admin.export_configs(cluster))


@command("exportMetrics", SECTION, _WHOLE_CLUSTER, _DIRECTORY)
def export_metrics(admin: Admin, out: Output, *, cluster: str, file_path: Path) -> None:
    """Write the figures of a cluster's brokers into metrics.json."""
    _write_file(out, file_path / "metrics.json", admin.export_metrics(cluster))


@command(
    "export",
    SECTION,
    CLUSTER,
    BROKER,
    option("f", "file", "Into this file; else to stdout.", type=click.Path(path_type=Path)),
)
def export(admin: Admin, out: Output, *, file: Path | None, **where: str | None) -> None:
    """Write the topics and groups of each broker, of all clusters or of one, for `import`."""
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
        "What `export` has written; - is stdin.",
        type=click.File("rb"),
        required=True,
        to="source",
    ),
    flag("d", "dryRun", "Say what would be changed, and change nothing."),
)
def import_(
    admin: Admin, out: Output, *, source: BinaryIO, dry_run: bool, **where: str | None
) -> None:
    """Set topics and groups as `export` has written them, at the brokers that had them.

    With -c or -b at those; one that is not in the file gets what the brokers there have alike.
    What is not in the file stays as it is.
    """
    try:
        data = source.read()
    except OSError as error:
        raise ClientError(f"the file cannot be read: {reason_of(error)}") from None
    out.changes(admin.import_tables(parse_export(data), dry_run=dry_run, **where))
