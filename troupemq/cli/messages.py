"""`send` and `consume`: messages from and to a terminal or a pipe."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from errno import EPIPE
from math import inf
from threading import Lock
from time import monotonic

import click

from troupemq.cli.message_json import as_object
from troupemq.cli.options import (
    YEAR_S,
    FiniteRange,
    acl_option,
    json_option,
    leave,
    namesrv_option,
    tls_options,
)
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.consumer_settings import ConsumerSettings
from troupemq.client.consuming.listener import RetryLater
from troupemq.client.errors import ClientError, MessageIllegal
from troupemq.client.message import Message, MessageView, SendResult
from troupemq.client.producing.producer import Producer
from troupemq.interrupts import Wakeup
from troupemq.saying import say
from troupemq.text import escaped, escaped_json

LOOK_AFTER_S = 5.0
"""Seconds without a message after which `consume` says why."""

IN_FLIGHT_MAX = 1000
"""Lines of a pipe that are sent before the first of them is answered."""


@click.command()
@click.option(
    "-t",
    "--topic",
    required=True,
    help="Topic; the broker creates it if autoCreateTopicEnable says so.",
)
@click.option("-b", "--body", help="One message. Without it each line of stdin is one.")
@click.option("--tags", help="The one tag that subscriptions filter by.")
@click.option("-k", "--key", "keys", multiple=True, help="A key to find it by; repeatable.")
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of each message; repeatable.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0),
    default=0,
    help="Deliver later, by the broker's levels: as a rule 1 is 1 s, 2 is 5 s, 3 is 10 s.",
)
@click.option("-g", "--group", default="troupemq-send", show_default=True, help="Producer group.")
@click.option("--count", type=click.IntRange(1), default=1, help="Send each that often.")
@click.option("--timeout-ms", type=click.IntRange(1), default=3000, show_default=True)
@namesrv_option
@acl_option
@tls_options
@json_option
def send(
    topic: str,
    body: str | None,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int,
    group: str,
    count: int,
    timeout_ms: int,
    namesrv: str | None,
    as_json: bool,
) -> None:
    """Sends messages and says where they are stored.

    Exit code 1 if one was not stored; those before it are.
    """
    own = dict(_name_and_value(text) for text in properties)
    bodies = _lines_of_stdin() if body is None else iter([os.fsencode(body)])
    if body is None and sys.stdin.isatty():
        say("each line is one message; Ctrl-D ends the input. One message: -b BODY.")
    waiting: list[Future[SendResult]] = []
    try:
        with Producer(group, namesrv) as producer:
            try:
                for data in bodies:
                    message = Message(topic, data, tags, keys, own, delay_level=delay_level)
                    for _ in range(count):
                        waiting.append(producer.send_async(message, timeout_ms))
                        if len(waiting) >= IN_FLIGHT_MAX:
                            _print_result(waiting.pop(0).result(), as_json)
            finally:  # what was sent before a failure is stored, and is said
                for future in waiting:
                    _print_result(future.result(), as_json)
    except ClientError as error:
        leave(str(error))


def _lines_of_stdin() -> Iterator[bytes]:
    number = 0
    for number, line in enumerate(sys.stdin.buffer, 1):
        body = line.rstrip(b"\r\n")
        if not body:
            raise MessageIllegal(f"line {number} of stdin is empty, and a message is not")
        yield body
    if number == 0:
        say("stdin has no line, so nothing was sent. One message: -b BODY.")


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _print_result(result: SendResult, as_json: bool) -> None:
    if as_json:
        fields = {
            "status": result.status.value,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
            "broker_name": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
        click.echo(escaped_json(json.dumps(fields)))
    else:
        status = result.status.value
        where = f"{result.message_id} in {result.queue} at {result.queue_offset}"
        click.echo(escaped(f"{status} {where}"))


@click.command()
@click.option("-t", "--topic", required=True, help="Topic; a missing one is waited for.")
@click.option(
    "-g",
    "--group",
    default="troupemq-consume",
    show_default=True,
    help="Consumer group: its members share the messages.",
)
@click.option("--tags", default="*", show_default=True, help="`a || b`, or * for all.")
@click.option(
    "--sql",
    metavar="EXPRESSION",
    help="By properties instead, in SQL92; needs the broker's enablePropertyFilter.",
)
@click.option("--orderly", is_flag=True, help="Of each queue in its order, whoever else consumes.")
@click.option("--broadcast", is_flag=True, help="Every member gets all; offsets are kept here.")
@click.option("--count", type=click.IntRange(1), help="End after that many. [default: at Ctrl-C]")
@click.option(
    "--wait-s",
    type=FiniteRange(0, YEAR_S),
    metavar="SECONDS",
    help="End after that time, with exit code 1 below --count.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["first", "last"]),
    default="first",
    show_default=True,
    help="Where a group begins that has not consumed the topic yet.",
)
@namesrv_option
@acl_option
@tls_options
@json_option
def consume(
    topic: str,
    group: str,
    tags: str,
    sql: str | None,
    orderly: bool,
    broadcast: bool,
    count: int | None,
    wait_s: float | None,
    begin: str,
    namesrv: str | None,
    as_json: bool,
) -> None:
    """Consumes messages in a group and prints them.

    A missing topic is said at once; a tag that is not sent, or that there is nothing new, after
    five seconds without a message.

    A message is printed before it counts as consumed: it may be printed again, never lost. A pipe
    or file gets bodies as they are; on a terminal what would move its cursor is shown as \\x1b.
    """
    if sys.stdout is None:  # closed by the shell: what is consumed would not be seen
        leave("stdout is closed: messages would count as consumed, and be lost. Send it to a file.")
    printer = _Printer(count, as_json)
    position = ConsumeFrom.FIRST_OFFSET if begin == "first" else ConsumeFrom.LAST_OFFSET
    from troupemq.cli.nothing_came import (
        SilenceAdvice,  # here: it brings the commands of admin along
    )

    advice = SilenceAdvice(namesrv, topic, group, "*" if sql else tags, is_sql=bool(sql))
    advice.tags()
    try:
        consumer = PushConsumer(
            group,
            printer,
            namesrv,
            orderly=orderly,
            broadcast=broadcast,
            begin=position,
            settings=ConsumerSettings(consume_threads=1),
        )
        consumer.subscribe(topic, tags, sql=sql)
        printer.on_enough = consumer.finish
        with _until_signalled(printer), consumer:
            advice.topic()
            look_after_s = LOOK_AFTER_S if wait_s is None else min(wait_s, LOOK_AFTER_S)
            if not printer.wait(look_after_s):
                if not printer.printed:
                    advice.nothing_came()
                printer.wait(None if wait_s is None else wait_s - look_after_s)
    except ClientError as error:
        leave(str(error))
    printer.leave_if_failed()
    if count is not None and printer.printed < count and not printer.is_over:
        say(f"{printer.printed} of {count} messages came in {wait_s} s.")
        sys.exit(1)


class _Printer:
    """The listener: prints, and ends it all when that was enough."""

    def __init__(self, count: int | None, as_json: bool) -> None:
        self.is_over = False
        self.wakeup = Wakeup()
        self.printed = 0
        self.failure: OSError | None = None
        """Why the output takes no more: the messages since then come again."""
        self.on_enough: Callable[[], None] = lambda: None
        self._count = count
        self._as_json = as_json
        self._lock = Lock()

    def __call__(self, views: Sequence[MessageView]) -> RetryLater | None:
        with self._lock:
            try:
                self._print(views)
            except OSError as error:
                self.failure = error
            if self.failure is not None or self.printed >= (self._count or inf):
                self.on_enough()
                self.end()
            return None if self.failure is None else RetryLater(reason="not printed")

    def end(self) -> None:
        """End the command: nothing more is wanted. A signal handler calls it, too."""
        self.is_over = True
        self.wakeup.wake()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end, for so long at most; return whether it has come."""
        until_s = inf if timeout_s is None else monotonic() + timeout_s
        while not self.is_over and (left_s := until_s - monotonic()) > 0:
            self.wakeup.wait(left_s)
        return self.is_over

    def leave_if_failed(self) -> None:
        """End the command if the output takes no more; `| head` ends it without a word."""
        if self.failure is None:
            return
        if self.failure.errno == EPIPE:
            raise self.failure  # click ends then
        why = self.failure.strerror
        leave(f"the output cannot be written: {why}; what was not printed comes again.")

    def _print(self, views: Sequence[MessageView]) -> None:
        for view in views if self.failure is None else ():
            as_json = self._as_json
            text = escaped_json(json.dumps(as_object(view))) if as_json else _line(view)
            click.echo(text)
            self.printed += 1


def _line(view: MessageView) -> str:
    tags = f" [{view.tags}]" if view.tags else ""
    body = view.body.decode(errors="replace")
    shown = escaped(body) if sys.stdout.isatty() else body
    return f"{escaped(f'{view.queue}+{view.queue_offset}{tags}')} {shown}"


@contextmanager
def _until_signalled(printer: _Printer) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the waiting in place of the process."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: printer.end()) for number in numbers}
    try:
        with printer.wakeup:
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
