"""Commands that send stored messages again: `job redrive` dead letters, `job restore` archives."""

from pathlib import Path
from threading import Event
from time import time_ns

import click

from storage.errors import StoreError
from troupemq.cli.admin.output import Output
from troupemq.cli.admin.times import NUMBER, OFFSET, parse_time
from troupemq.cli.options import (
    FilePath,
    FiniteRange,
    acl_option,
    json_option,
    leave,
    namesrv_option,
    tls_options,
)
from troupemq.client.admin import Admin
from troupemq.client.admin.offsets import NEWEST
from troupemq.client.errors import ClientError
from troupemq.redrive import Redrive, Redriven, redrive_some
from troupemq.redrive import discard as discarded
from troupemq.restore import Restore, wanted_of
from troupemq.text import one_line

rate_option = click.option(
    "--rate",
    type=FiniteRange(0.01, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Send at most N messages a second.",
)


@click.command()
@click.argument("group")
@namesrv_option
@acl_option
@tls_options
@rate_option
@click.option("--count", type=click.IntRange(1), metavar="N", help="Send at most N. [default: all]")
@click.option(
    "--id",
    "ids",
    metavar="ID",
    multiple=True,
    help="Send only this message, by the broker's id; may be repeated.",
)
@click.option(
    "--discard",
    is_flag=True,
    help="Send none: let runs pass over all, or those up to the last --id of each queue.",
)
@click.option(
    "--without-original",
    "believes",
    is_flag=True,
    help="Also send dead letters without an existing original, to the topic they name.",
)
@json_option
def redrive(
    group: str,
    namesrv: str | None,
    rate: float,
    count: int | None,
    ids: tuple[str, ...],
    discard: bool,
    believes: bool,
    as_json: bool,
) -> None:
    """Send the dead letters of GROUP back to their original topics, each only once.

    Every group that consumes such a topic gets the messages, not only GROUP. The dead letters stay
    in the dead-letter topic. The brokers remember the progress, so the next run continues there.

    A dead letter names its original topic itself, and any client can forge that name. Brokers with
    access control therefore need the original message to exist, unless --without-original is
    given.
    """
    if discard:
        _discard(group, namesrv, ids, as_json=as_json)
        return
    run = Redrive(group, namesrv, rate=rate, count_max=count, believes=believes, wait=Event().wait)
    try:
        done = _some(group, namesrv, ids, believes=believes) if ids else run.run()
    except ClientError as error:
        leave(f"{one_line(str(error))} ({run.done.sent} were sent; run it again to continue)")
    Output(as_json=as_json).done(
        sentence_of(group, done),
        sent=done.sent,
        found=done.found,
        without_origin=done.without_origin,
        without_original=done.without_original,
    )


def _some(group: str, namesrv: str | None, ids: tuple[str, ...], *, believes: bool) -> Redriven:
    """Redrive the messages of `ids`. Raises the first ClientError after all of them."""
    done, failure = Redriven(), None
    for each in redrive_some(group, namesrv, ids, believes=believes):
        if isinstance(each, ClientError):
            failure = failure or each
        else:
            done = done.plus(each)
    if failure is not None:
        raise failure
    return done


def _discard(group: str, namesrv: str | None, ids: tuple[str, ...], *, as_json: bool) -> None:
    out = Output(as_json=as_json)
    try:
        with Admin(namesrv) as admin:
            for each in discarded(admin, group, ids):
                out.done(each.sentence, **each.row())
    except ClientError as error:
        leave(one_line(str(error)))


def sentence_of(group: str, done: Redriven) -> str:
    sentence = f"{done.sent} dead letters of {group} were sent to their original topics."
    if done.found:
        sentence += f" {done.found} had been sent before."
    if done.without_origin:
        sentence += f" {done.without_origin} were not sent: they name no original topic."
    if done.without_original:
        sentence += (
            f" {done.without_original} were not sent: no broker has their original message"
            " (to send one anyway: job redrive --id ID --without-original)."
        )
    return sentence


SHOWN_MAX = 20


@click.command()
@click.argument("archive", type=FilePath(path_type=Path))
@click.argument("topic")
@namesrv_option
@acl_option
@tls_options
@click.option("--to", metavar="TOPIC", help="Send to this topic. [default: the archived topic]")
@click.option(
    "--queue",
    "queue_id",
    type=NUMBER,
    metavar="ID",
    help="Send only this archived queue. [default: all]",
)
@click.option(
    "--from-offset",
    type=OFFSET,
    default=0,
    show_default=True,
    metavar="OFFSET",
    help="Send from this queue offset on.",
)
@click.option(
    "--to-offset",
    type=OFFSET,
    metavar="OFFSET",
    help="Send up to this queue offset, exclusive. [default: to the end]",
)
@click.option(
    "--from-time",
    metavar="TIME",
    help="Send messages stored at TIME or later: ISO 8601, or ms since 1970.",
)
@click.option("--to-time", metavar="TIME", help="Send messages stored before TIME.")
@rate_option
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
