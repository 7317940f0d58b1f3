"""Messages from and to a terminal or a pipe: `send` and `consume`."""

import base64
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from errno import EPIPE
from math import inf
from threading import Lock, Thread
from time import monotonic
from typing import Any

import click

from protocol.compression import CompressionError
from storage.errors import reason_of
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
from troupemq.client.consuming.listener import RetryLater
from troupemq.client.errors import ClientError, MessageIllegal
from troupemq.client.message import Message, MessageView, SendResult
from troupemq.client.producing.producer import Producer
from troupemq.client.receiving.simple_consumer import RECEIVE_COUNT_MAX, SimpleConsumer
from troupemq.client.settings import ConsumerSettings
from troupemq.interrupts import Interrupts, Wakeup
from troupemq.text import escaped, escaped_json, say


def as_object(view: MessageView) -> dict[str, Any]:
    """Return a message for JSON, with `body` if that is UTF-8, else with `body_base64`.

    One that cannot be decompressed has `body_unreadable`, which says why.
    """
    fields: dict[str, Any] = {
        "topic": view.topic,
        "message_id": view.message_id,
        "broker_name": view.queue.broker_name,
        "queue_id": view.queue.queue_id,
        "queue_offset": view.queue_offset,
        "tags": view.tags,
        "keys": list(view.keys),
        "properties": dict(view.properties),
        "store_timestamp_ms": view.store_timestamp_ms,
        "reconsume_times": view.reconsume_times,
    }
    try:
        fields["body"] = view.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(view.body).decode()
    except CompressionError as error:
        fields["body_unreadable"] = str(error)
    return fields


LOOK_AFTER_S = 5.0
"""Seconds without a message before `consume` gives a reason."""

IN_FLIGHT_MAX = 1000
"""Maximum unanswered sends."""


@click.command()
@click.option(
    "-t",
    "--topic",
    required=True,
    help="Send to this topic. A missing one is created if the broker's autoCreateTopicEnable is"
    " true.",
)
@click.option("-b", "--body", help="Send this body. [default: each line of stdin is a message]")
@click.option("--tags", metavar="TAG", help="Set the tag that subscriptions filter by; only one.")
@click.option(
    "-k",
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="Set a key, by which messages are found; repeatable.",
)
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a property of each message; repeatable.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0),
    default=0,
    metavar="LEVEL",
    help="Delay delivery by the broker's level: normally 1 is 1 s, 2 is 5 s, 3 is 10 s."
    " [default: 0, no delay]",
)
@click.option(
    "--delay",
    type=FiniteRange(0, YEAR_S),
    metavar="SECONDS",
    help="Delay delivery by this time; RocketMQ 4.9 delivers at once. [default: no delay]",
)
@click.option(
    "--deliver-at",
    callback=lambda _context, _option, text: None if text is None else _time(text),
    metavar="TIME",
    help="Deliver at this time: ms since 1970, or 2026-01-31T12:00:00; RocketMQ 4.9 delivers at"
    " once. [default: at once]",
)
@click.option(
    "-g",
    "--group",
    default="troupemq-send",
    show_default=True,
    metavar="NAME",
    help="Send as this producer group.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Send each message N times.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(1),
    default=3000,
    show_default=True,
    metavar="MS",
    help="Timeout of each send, in milliseconds.",
)
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
    delay: float | None,
    deliver_at: int | None,
    group: str,
    count: int,
    timeout_ms: int,
    namesrv: str | None,
    as_json: bool,
) -> None:
    """Send messages and print where each is stored.

    Exit code 1 if a message was not stored. The messages before it are stored.
    """
    own = dict(_name_and_value(text) for text in properties)
    bodies = _lines_of_stdin() if body is None else iter([os.fsencode(body)])
    if body is None and sys.stdin is None:
        leave("stdin is closed: give a body with -b, or its lines in a pipe or a file.")
    if body is None and sys.stdin.isatty():
        say("type one message per line; Ctrl-D ends the input. For a single message use -b BODY.")
    waiting: list[Future[SendResult]] = []
    try:
        with Producer(group, namesrv) as producer:
            try:
                for data in bodies:
                    message = Message(
                        topic,
                        data,
                        tags,
                        keys,
                        own,
                        delay_level=delay_level,
                        delay=delay,
                        deliver_at=deliver_at,
                    )
                    for _ in range(count):
                        waiting.append(producer.send_async(message, timeout_ms))
                        if len(waiting) >= IN_FLIGHT_MAX:
                            _print_result(waiting.pop(0).result(), as_json)
            finally:  # messages sent before a failure are stored: print them
                for future in waiting:
                    _print_result(future.result(), as_json)
    except ClientError as error:
        remedies = [each for each in getattr(error, "__notes__", ()) if "brokerIP1" in each]
        leave("; ".join([str(error), *remedies]))


def _lines_of_stdin() -> Iterator[bytes]:
    number = 0
    try:
        for number, line in enumerate(sys.stdin.buffer, 1):
            body = line.rstrip(b"\r\n")
            if not body:
                raise MessageIllegal(f"line {number} of stdin is empty: a message needs a body")
            yield body
    except OSError as error:
        raise ClientError(f"stdin cannot be read: {reason_of(error)}") from None
    if number == 0:
        say("nothing was sent: stdin is empty. For a single message use -b BODY.")


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _time(text: str) -> int:
    from troupemq.cli.admin.times import parse_time  # here: a slow import, seldom needed

    return max(0, parse_time(text))  # `now` is a negative number


def _print_result(result: SendResult, as_json: bool) -> None:
    if as_json:
        fields: dict[str, object] = {
            "status": result.status.value,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
            "broker_name": result.queue.broker_name,
            "queue_id": result.queue.queue_id,
            "queue_offset": result.queue_offset,
        }
        if result.recall_handle is not None:
            fields["recall_handle"] = result.recall_handle
        click.echo(escaped_json(json.dumps(fields)))
    else:
        status = result.status.value
        where = f"{result.message_id} in {result.queue} at {result.queue_offset}"
        if result.recall_handle is not None:
            where += f", recall handle {result.recall_handle}"
        click.echo(escaped(f"{status} {where}"))


@click.command()
@click.option(
    "-t",
    "--topic",
    required=True,
    metavar="NAME",
    help="Consume this topic; if missing, wait for it.",
)
@click.option(
    "-g",
    "--group",
    default="troupemq-consume",
    show_default=True,
    metavar="NAME",
    help="Consume as a member of this group. Members share the messages.",
)
@click.option(
    "--tags",
    default="*",
    show_default=True,
    metavar="TAGS",
    help="Consume only messages with these tags: `a || b`, or * for all.",
)
@click.option(
    "--sql",
    metavar="EXPRESSION",
    help="Filter by properties in SQL92 instead of tags; needs the broker's enablePropertyFilter.",
)
@click.option(
    "--orderly", is_flag=True, help="Consume each queue in order, under the broker's queue lock."
)
@click.option(
    "--broadcast", is_flag=True, help="Deliver all messages to every member; keep offsets locally."
)
@click.option(
    "--simple",
    is_flag=True,
    help="Receive and acknowledge each message by itself, whatever its queue; needs TroupeMQ or"
    " RocketMQ 5. [default: share the queues among the members]",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="End after N messages. [default: run until Ctrl-C]",
)
@click.option(
    "--wait-s",
    type=FiniteRange(0, YEAR_S),
    metavar="SECONDS",
    help="End after this time, with exit code 1 if fewer than --count messages came.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["first", "last"]),
    default="first",
    show_default=True,
    help="Start a group that is new to the topic at its first or last message.",
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
    simple: bool,
    count: int | None,
    wait_s: float | None,
    begin: str,
    namesrv: str | None,
    as_json: bool,
) -> None:
    """Consume messages in a group and print them.

    If no message comes within five seconds, a line on stderr gives the reason. A missing topic is
    reported at once.

    A message counts as consumed after it was printed. It may be printed twice, but is never lost.
    Pipes and files get bodies unchanged; a terminal gets control characters escaped, as \\x1b.
    """
    if sys.stdout is None:  # closed by the shell: consumed messages would be lost
        leave("stdout is closed, consumed messages would be lost: redirect it to a file.")
    if simple and broadcast:
        raise click.UsageError("--simple shares the messages, and --broadcast does not: use one")
    printer = _Printer(count, as_json)
    position = ConsumeFrom.FIRST_OFFSET if begin == "first" else ConsumeFrom.LAST_OFFSET
    from troupemq.cli.nothing_came import SilenceAdvice  # here: a slow import

    advice = SilenceAdvice(namesrv, topic, group, "*" if sql else tags, is_sql=bool(sql))
    advice.tags()
    try:
        consumer = (
            SimpleConsumer(group, namesrv, orderly=orderly, begin=position)
            if simple
            else _push_consumer(group, namesrv, printer, position, orderly, broadcast)
        )
        consumer.subscribe(topic, tags, sql=sql)
        with _until_signalled(printer), consumer:
            advice.topic()
            if isinstance(consumer, SimpleConsumer):
                Thread(target=printer.receive_from, args=(consumer,), daemon=True).start()
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


def _push_consumer(
    group: str,
    namesrv: str | None,
    printer: "_Printer",
    begin: ConsumeFrom,
    orderly: bool,
    broadcast: bool,
) -> PushConsumer:
    consumer = PushConsumer(
        group,
        printer,
        namesrv,
        orderly=orderly,
        broadcast=broadcast,
        begin=begin,
        settings=ConsumerSettings(consume_threads=1),
    )
    printer.on_enough = consumer.finish
    return consumer


class _Printer:
    """Listener that prints messages and ends the command after `count` of them."""

    def __init__(self, count: int | None, as_json: bool) -> None:
        self.is_over = False
        self.wakeup = Wakeup()
        self.printed = 0
        self.failure: OSError | None = None
        """First write error; messages from then on are retried."""
        self.refusal: ClientError | None = None
        """Error of a receive, which ends the command."""
        self.on_enough: Callable[[], None] = lambda: None
        self._count = count
        self._as_json = as_json
        self._lock = Lock()

    def __call__(self, views: Sequence[MessageView]) -> RetryLater | None:
        with self._lock:
            result = self._take(views)
            if self._has_enough():
                self.on_enough()
                self.end()
            return result

    def receive_from(self, consumer: SimpleConsumer) -> None:
        """Print and settle what `consumer` receives, until the end; for a thread."""
        try:
            while not self.is_over and consumer.is_running:
                left = RECEIVE_COUNT_MAX if self._count is None else self._count - self.printed
                for delivery in consumer.receive(min(left, RECEIVE_COUNT_MAX)):
                    with delivery:
                        if (failed := self._take([delivery.message])) is not None:
                            raise failed
                if self._has_enough():
                    self.end()
        except ClientError as error:
            if consumer.is_running:
                self.refusal = error
                self.end()

    def _take(self, views: Sequence[MessageView]) -> RetryLater | None:
        try:
            self._print(views)
        except OSError as error:
            self.failure = error
        except CompressionError as error:
            say(f"{views[0].message_id} is not printed: {error}.")
            return RetryLater(reason=str(error))
        return None if self.failure is None else RetryLater(reason="not printed")

    def _has_enough(self) -> bool:
        return self.failure is not None or self.printed >= (self._count or inf)

    def end(self) -> None:
        """End the command. Signal handlers call this, too."""
        self.is_over = True
        self.wakeup.wake()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait at most `timeout_s` for the end; return whether it has come."""
        until_s = inf if timeout_s is None else monotonic() + timeout_s
        while not self.is_over and (left_s := until_s - monotonic()) > 0:
            self.wakeup.wait(left_s)
        return self.is_over

    def leave_if_failed(self) -> None:
        """End the command after an error; a closed pipe (`| head`) ends it silently."""
        if self.refusal is not None:
            leave(str(self.refusal))
        if self.failure is None:
            return
        if self.failure.errno == EPIPE:
            raise self.failure  # click handles it
        why = self.failure.strerror
        leave(f"cannot write the output: {why}; unprinted messages will be delivered again.")

    def _print(self, views: Sequence[MessageView]) -> None:
        for view in views if self.failure is None else ():
            body, as_json = view.body, self._as_json
            text = escaped_json(json.dumps(as_object(view))) if as_json else _line(view, body)
            click.echo(text)
            self.printed += 1


def _line(view: MessageView, body: bytes) -> str:
    tags = f" [{view.tags}]" if view.tags else ""
    text = body.decode(errors="replace")
    shown = escaped(text) if sys.stdout.isatty() else text
    return f"{escaped(f'{view.queue}+{view.queue_offset}{tags}')} {shown}"


@contextmanager
def _until_signalled(printer: _Printer) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the wait, and a later one the process, as a pipe may be full."""
    numbers, handler = (signal.SIGTERM, signal.SIGINT), Interrupts(printer.end)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        with printer.wakeup:
            yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
