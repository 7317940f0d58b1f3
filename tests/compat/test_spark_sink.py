"""Our Spark sink, into the official broker and into ours: what arrives, and what a repeat adds."""

from collections import Counter
from typing import Any

from spark.sink.options import parse_sink_options
from spark.sink.writer import TaskDone, TaskName, send_task
from tests.compat.patience import wait_until
from tests.compat.python_clients import new_topic
from tests.compat.servers import Broker, OurBroker
from tests.spark.planned import rows_of
from tests.spark.sink.served import batches
from troupemq import Admin

COUNT = 50
QUEUES = 4


def test_messages_arrive_and_a_repeat_has_the_same_keys(any_broker: Broker) -> None:
    """Twice from the official broker, and with the same UNIQ_KEY; once from ours."""
    topic = new_topic(any_broker, "spark-sink", QUEUES)
    name_server = any_broker.name_server.address
    rows: list[dict[str, Any]] = [
        {
            "body": f"body {number}",
            "tags": "ab"[number % 2],
            "keys": ["k1", f"k{number}"],
            "properties": [("number", str(number))],
            "flag": number,
            "queueKey": f"customer {number % 7}",
        }
        for number in range(COUNT)
    ]
    rows.append({"body": "one with a delay", "delayLevel": 1})
    options = parse_sink_options({"nameServer": name_server, "topic": topic})
    task = TaskName("spark-sink", 7, 0)
    is_ours = isinstance(any_broker, OurBroker)
    every = COUNT + 1
    assert send_task(task, batches(rows), options) == TaskDone(every, 0)
    repeated = send_task(task, batches(rows), options)
    assert repeated == (TaskDone(0, every) if is_ours else TaskDone(every, 0))
    copies = 1 if is_ours else 2
    with Admin(name_server) as admin:
        wait_until(
            lambda: admin.message_count(topic) == copies * every, f"{every} messages, {copies} each"
        )
    found = rows_of({"nameServer": name_server, "topic": topic})
    keys = Counter(row["uniqKey"] for row in found)
    assert set(keys.values()) == {copies}
    assert len(keys) == every
    by_body = {bytes(row["body"]).decode(): row for row in found}
    for number, row in enumerate(rows[:COUNT]):
        arrived = by_body[row["body"]]
        assert (arrived["tags"], arrived["flag"]) == (row["tags"], row["flag"])
        assert arrived["keys"] == " ".join(row["keys"])
        properties = dict(arrived["properties"])
        assert properties["number"] == str(number)
        assert properties["TROUPE_SINK"].startswith(f"spark-sink:0:7:{number}:")
    queues = {(int(each["flag"]) % 7, each["queueId"]) for each in found if each["tags"]}
    assert len(queues) == 7, "a queueKey has one queue"
    with Admin(name_server) as admin:
        key = next(iter(keys))
        wait_until(
            lambda: len(admin.query_by_key(topic, key, 10)) == copies, f"{copies} in the index"
        )
