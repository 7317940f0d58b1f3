"""Our rules of allocation give what the official client's give: asked side by side, and as kept in
tests/troupemq/client/allocations.json, which this has written (TROUPEMQ_WRITE_VECTORS=1)."""

import json
import os
import subprocess
from random import Random
from typing import Any

from tests.compat.agent import SMALL_JVM
from tests.compat.toolchain import Java
from tests.troupemq.client.consuming.test_assignment import VECTORS, answer_of

SEED = 4711
COUNT = 80
STRATEGIES = ("averagely", "averagely_by_circle", "consistent_hash", "by_machine_room")
TIMEOUT_S = 60


def questions() -> list[dict[str, Any]]:
    """Return fixed cases: groups of many sizes, and queues at brokers with unusual names."""
    random = Random(SEED)
    asked = []
    for number in range(COUNT):
        members = [
            f"10.0.{random.randrange(4)}.{n}@{random.randrange(1 << 20)}#{n}"
            for n in range(random.randint(1, 9))
        ]
        brokers = random.sample(
            ["broker-a", "broker-b", "room1@a", "room1@b", "room2@a", "x@y@z", "@c", "room2@"], 3
        )
        queues = [
            ["T\u00e4st", broker, queue_id]
            for broker in brokers
            for queue_id in range(random.randint(1, 12))
        ]
        asked.append(
            {
                "strategy": STRATEGIES[number % len(STRATEGIES)],
                "rooms": ["room1", "room2"][: random.randint(1, 2)],
                "member": random.choice([*members, "9.9.9.9@stranger"]),
                "members": members,
                "queues": queues,
            }
        )
    return asked


def test_every_allocation_equals_the_official_one(java_tools: Java) -> None:
    asked = questions()
    command = [java_tools.executable, *SMALL_JVM, "-cp", java_tools.class_path]
    done = subprocess.run(
        [*command, "-Dfile.encoding=UTF-8", "interop.Allocations"],
        input="".join(json.dumps(each) + "\n" for each in asked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
    answers = [json.loads(line.removeprefix("answer ")) for line in lines]
    assert len(answers) == COUNT
    if os.environ.get("TROUPEMQ_WRITE_VECTORS"):
        rows = [
            json.dumps({**each, "answer": answer}, ensure_ascii=True)
            for each, answer in zip(asked, answers, strict=True)
        ]
        VECTORS.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    assert [answer_of(each) for each in asked] == answers
    kept = json.loads(VECTORS.read_text())
    assert [{k: v for k, v in each.items() if k != "answer"} for each in kept] == asked
