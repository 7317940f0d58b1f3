"""Commands that send messages to see how long that takes."""

from collections.abc import Iterator, Sequence
from time import monotonic, sleep

from troupemq.cli.admin.command import TOPIC, command, option, yes_no
from troupemq.cli.admin.output import Output, Row
from troupemq.cli.admin.session import Session
from troupemq.cli.admin.times import COUNT, NUMBER, SECONDS
from troupemq.client.connection.route import route_of
from troupemq.client.errors import ClientError
from troupemq.client.message import Message, MessageQueue
from troupemq.client.producing.producer import Producer

SECTION = "Trial sends"
PRODUCER_GROUP = "troupemq-admin-trial"

_SIZE = option("s", "size", "Bytes of each.", type=NUMBER, default=128, show_default=True)


def _timed(
    producer: Producer, queues: Sequence[MessageQueue], count: int, size_bytes: int
) -> Iterator[Row]:
    """Sends one after the other, to each queue in turn."""
    for number in range(count):
        queue = queues[number % len(queues)]
        began_s = monotonic()
        try:
            status = producer.send(
                Message(queue.topic, b"a" * size_bytes), queue=queue
            ).status.value
        except ClientError as error:
            status = str(error)
        yield {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "status": status,
            "took_ms": (monotonic() - began_s) * 1000,
        }


def _summary(rows: Sequence[Row]) -> dict[str, object]:
    """Of all but the first: that one pays for the connection."""
    times = sorted(float(str(row["took_ms"])) for row in rows if row["status"] == "OK")
    later = times[:-1] if len(times) > 1 else times
    return {
        "sent": len(times),
        "failed": len(rows) - len(times),
        "average_ms": sum(later) / len(later) if later else None,
        "longest_ms": times[-1] if times else None,
    }


@command(
    "sendMsgStatus",
    SECTION,
    option("b", "brokerName", "The broker's name.", required=True),
    option("s", "messageSize", "Bytes of each.", type=NUMBER, default=128),
    option("c", "count", "How many.", type=COUNT, default=50, show_default=True),
)
def send_msg_status(
    session: Session, out: Output, *, broker_name: str, message_size: int, count: int
) -> None:
    """Send messages to one broker, each with its time; they go to the topic of its name."""
    queues = _queues(session, broker_name, broker_name)
    with Producer(PRODUCER_GROUP, session.namesrv) as producer:
        rows = list(_timed(producer, queues, count, message_size))
    out.table(rows, "Nothing was sent.")
    _note_failures(out, rows)


def _queues(session: Session, topic: str, broker_name: str | None = None) -> list[MessageQueue]:
    route = route_of(topic, session.route(topic))
    found = [queue for queue in route.publish_queues if broker_name in (None, queue.broker_name)]
    if not found:
        raise ClientError(f"no broker takes messages for {topic}")
    return found


def _note_failures(out: Output, rows: Sequence[Row]) -> None:
    failed = sum(row["status"] != "OK" for row in rows)
    if failed:
        out.fail(f"{failed} of {len(rows)} messages were not stored.")


@command(
    "checkMsgSendRT",
    SECTION,
    TOPIC,
    option("a", "amount", "How many.", type=COUNT, default=100, show_default=True),
    _SIZE,
)
def check_msg_send_rt(session: Session, out: Output, *, topic: str, amount: int, size: int) -> None:
    """Send messages to the queues of a topic in turn, each with its time, and the average."""
    with Producer(PRODUCER_GROUP, session.namesrv) as producer:
        rows = list(_timed(producer, _queues(session, topic), amount, size))
    out.table(rows, "Nothing was sent.")
    out.fields(_summary(rows))
    _note_failures(out, rows)


@command(
    "clusterRT",
    SECTION,
    option("a", "amount", "Messages a round.", type=COUNT, default=100),
    _SIZE,
    option("c", "cluster", "This cluster only.", metavar="NAME"),
    yes_no("p", "printLog", "Taken and not used: --json gives lines for a program."),
    option("m", "machineRoom", "A name for where this runs.", default="noname"),
    option("i", "interval", "Seconds between rounds.", type=SECONDS, default=10),
    option("r", "rounds", "End after that many.", type=COUNT),
    until_interrupted=True,
)
def cluster_rt(
    session: Session,
    out: Output,
    *,
    amount: int,
    size: int,
    cluster: str | None,
    print_log: str,
    machine_room: str,
    interval: float,
    rounds: int | None,
) -> None:
    """Send to every broker of a cluster again and again: average times. Ends at Ctrl-C."""
    with Producer(PRODUCER_GROUP, session.namesrv) as producer:
        done = 0
        while rounds is None or done < rounds:
            if done:
                sleep(interval)
            done += 1
            found: list[Row] = []
            for place in session.masters(cluster):
                with out.attempt():
                    queues = _queues(session, place.name, place.name)
                    summary = _summary(list(_timed(producer, queues, amount, size)))
                    where = {"cluster": place.cluster, "broker": place.name, "room": machine_room}
                    found.append({**where, **summary})
            out.table(found, "There are no brokers.")
