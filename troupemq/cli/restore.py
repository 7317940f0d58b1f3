"""Archived messages sent to a topic again: `job restore`."""

from pathlib import Path
from threading import Event
from time import time_ns

import click

from storage.errors import StoreError
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import parse_time
from troupemq.cli.options import (
    FiniteRange,
    acl_option,
    json_option,
    leave,
    namesrv_option,
    tls_options,
)
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.errors import ClientError
from troupemq.restore import Restore, wanted_of
from troupemq.text import one_line

SHOWN_MAX = 20


@click.command()
@click.argument("archive", type=click.Path(path_type=Path))
@click.argument("topic")
@namesrv_option
@acl_option
@tls_options
@click.option("--to", metavar="TOPIC", help="Send to this topic. [default: the archived topic]")
@click.option(
    "--queue",
    "queue_id",
    type=click.IntRange(0),
    metavar="ID",
    help="Send only this archived queue. [default: all]",
)
@click.option(
    "--from-offset",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="OFFSET",
    help="Send from this queue offset on.",
)
@click.option(
    "--to-offset",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Send up to this queue offset, exclusive. [default: to the end]",
)
@click.option(
    "--from-time",
    metavar="TIME",
    help="Send messages stored at TIME or later: ISO 8601, or ms since 1970.",
)
@click.option("--to-time", metavar="TIME", help="Send messages stored before TIME.")
@click.option(
    "--rate",
    type=FiniteRange(0.01, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Send at most N messages a second.",
)
@json_option
def restore(
    archive: Path,
    topic: str,
    namesrv: str | None,
    to: str | None,
    queue_id: int | None,
    from_offset: int,
    to_offset: int | None,
    from_time: str | None,
    to_time: str | None,
    rate: float,
    as_json: bool,
) -> None:
    """Send the messages of TOPIC in the directory ARCHIVE to a running broker.

    After an interruption, repeat the command to continue. No message is sent twice, even by
    overlapping ranges, while the broker still has the earlier copies. Copies keep body, tags, keys,
    flag and application properties. Offsets, times, hosts and message ids are new.
    """
    from_ms, until_ms = _time_ms(from_time), _time_ms(to_time)
    run = None
    try:
        wanted = wanted_of(topic, queue_id, from_offset, to_offset, from_ms, until_ms)
        run = Restore(str(archive), wanted, to or topic, namesrv, rate=rate, wait=Event().wait)
        done = run.run()
    except (ClientError, StoreError) as error:
        sent = 0 if run is None else run.done.sent
        further = f" ({sent} were sent; run it again to continue)" if sent else ""
        leave(one_line(str(error)) + further)
    sentence = f"{done.sent} messages of {topic} were sent to {to or topic}."
    if done.found:
        sentence += f" {done.found} had been sent before."
    if done.left_out_count:
        sentence += f" {done.left_out_count} cannot be sent: " + "; ".join(
            done.left_out[:SHOWN_MAX]
        )
    Output(as_json=as_json).done(
        sentence,
        sent=done.sent,
        found=done.found,
        left_out=done.left_out_count,
        reasons=list(done.left_out),
    )


def _time_ms(text: str | None) -> int | None:
    if text is None:
        return None
    time_ms = parse_time(text)
    return time_ns() // 1_000_000 if time_ms == NEWEST else time_ms
