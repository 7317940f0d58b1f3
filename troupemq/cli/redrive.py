"""`job redrive`: a group's dead letters, sent to where they came from."""

from threading import Event

import click

from troupemq.cli.admin.output import Output
from troupemq.cli.options import (
    FiniteRange,
    acl_option,
    json_option,
    leave,
    namesrv_option,
    tls_options,
)
from troupemq.client.errors import ClientError
from troupemq.redrive import Redrive, Redriven, redrive_one
from troupemq.text import one_line


@click.command()
@click.argument("group")
@namesrv_option
@acl_option
@tls_options
@click.option(
    "--rate",
    type=FiniteRange(0.01, 10_000),
    default=100,
    show_default=True,
    help="Messages a second.",
)
@click.option("--count", type=click.IntRange(1), help="At most so many. [default: all there are]")
@click.option("--id", "one", metavar="ID", help="This one only, by the broker's id of it.")
@click.option(
    "--without-original",
    "believes",
    is_flag=True,
    help="Send also dead letters whose original is gone, to the topic that they name themselves.",
)
@json_option
def redrive(
    group: str,
    namesrv: str | None,
    rate: float,
    count: int | None,
    one: str | None,
    believes: bool,
    as_json: bool,
) -> None:
    """Sends the dead letters of GROUP to the topics that they came from, none twice.

    Every group that consumes such a topic gets them, not only this one. They stay in the
    dead-letter topic; how far it has come is remembered by the brokers: another run goes on there.

    A dead letter may name any topic as its origin. At brokers with access control only messages
    that are still there are sent again, unless --without-original believes the dead letters.
    """
    run = Redrive(group, namesrv, rate=rate, count_max=count, believes=believes, wait=Event().wait)
    try:
        done = run.run() if one is None else redrive_one(group, namesrv, one, believes=believes)
    except ClientError as error:
        leave(f"{one_line(str(error))} ({run.done.sent} were sent; run it again to go on)")
    Output(as_json=as_json).done(
        sentence_of(group, done),
        sent=done.sent,
        found=done.found,
        without_origin=done.without_origin,
        without_original=done.without_original,
    )


def sentence_of(group: str, done: Redriven) -> str:
    """What became of a group's dead letters."""
    sentence = f"{done.sent} dead letters of {group} were sent to the topics they came from."
    if done.found:
        sentence += f" {done.found} had been sent before."
    if done.without_origin:
        sentence += f" {done.without_origin} do not say where they came from."
    if done.without_original:
        sentence += (
            f" {done.without_original} were not sent: no broker has the message that they name as"
            " their original (job redrive --id ID --without-original sends one all the same)."
        )
    return sentence
