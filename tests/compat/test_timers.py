"""A store with pending timers between our broker and an official one, which has no timers.

An official broker delivers each pending timer through its delay level: late, or early if the timer
outlasts the longest level; never not at all.
"""

from pathlib import Path
from threading import Event
from time import time

import pytest

from protocol.codes import ResponseCode
from protocol.properties import parse
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer
from tests.compat.patience import wait_until
from tests.compat.servers import Broker
from tests.support.brokers import send_command
from tests.support.wire import Wire

pytestmark = [
    pytest.mark.slow(seconds=25),
    pytest.mark.skipif(SERVER_KIND == "official", reason="it has no timers"),
]
TOPIC, COUNT = "Timed", 40
LEVELS = "1s 4s 8s"
SOON_MS, LATER_MS, FAR_MS = 300, 6_000, 3_600_000


def sent(wire: Wire, what: str, delay_ms: int) -> set[bytes]:
    bodies = {b"%b %d" % (what.encode(), number) for number in range(COUNT)}
    for number, body in enumerate(sorted(bodies)):
        text = f"TIMER_DELAY_MS\x01{delay_ms + 20 * number}\x02UNIQ_KEY\x01{what}{number:024X}"
        answer = wire.ask(send_command(body, topic=TOPIC, properties=text))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    return bodies


def delivered(wire: Wire) -> list[bytes]:
    return [record.body for record in wire.messages(TOPIC, 0)]


def ended(broker: Broker, *, kills: bool) -> None:
    if kills:
        broker.child.kill()
    else:
        broker.stop()


@pytest.mark.parametrize("kills", [False, True])
def test_official_broker_delivers_the_pending_timers_of_our_store(
    kills: bool, tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    with (
        make_name_server("ours", tmp_path / "names") as names,
        make_broker("ours", tmp_path / "ours", names, messageDelayLevel=LEVELS) as ours,
    ):
        with Wire(ours.address) as wire:
            soon = sent(wire, "soon", SOON_MS)
            wait_until(lambda: soon <= {*delivered(wire)}, "the early timers are delivered")
            later, far = sent(wire, "later", LATER_MS), sent(wire, "far", FAR_MS)
            level = send_command(b"level", topic=TOPIC, properties="DELAY\x013")
            assert wire.ask(level).code == ResponseCode.SUCCESS
            Event().wait(2.5)  # the offsets of the levels are saved within a second
        ended(ours, kills=kills)
    with (
        make_name_server("official", tmp_path / "names2") as names,
        make_broker(
            "official", tmp_path / "official", names, ours.store, messageDelayLevel=LEVELS
        ) as official,
        Wire(official.address) as wire,
    ):
        wanted = soon | later | far | {b"level"}
        wait_until(lambda: wanted <= {*delivered(wire)}, "every timer is delivered", 60)
        assert len(delivered(wire)) <= len(wanted) + COUNT  # those delivered early may come again


def test_our_broker_delivers_the_timers_that_an_official_one_left_in_the_store(
    tmp_path: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> None:
    """Nothing of an official broker's own is taken for a timer."""
    with (
        make_name_server("ours", tmp_path / "names") as names,
        make_broker("ours", tmp_path / "ours", names, messageDelayLevel="1s 30s") as ours,
    ):
        with Wire(ours.address) as wire:
            timers = sent(wire, "timer", 25_000)
            due_ms = time() * 1000 + 25_000
        ours.stop()
    with (
        make_name_server("official", tmp_path / "names2") as names,
        make_broker(
            "official", tmp_path / "official", names, ours.store, messageDelayLevel="1s 30s"
        ) as official,
    ):
        with Wire(official.address) as wire:
            at_once = sent(wire, "plain", 3_600_000)  # properties of a user, for that broker
            assert at_once <= {*delivered(wire)}
            level = send_command(
                b"level", topic=TOPIC, properties="DELAY\x012\x02TIMER_DELAY_MS\x0190000000"
            )
            assert wire.ask(level).code == ResponseCode.SUCCESS
            level_ms = time() * 1000 + 30_000
        official.stop()
    with (
        make_name_server("ours", tmp_path / "names3") as names,
        make_broker(
            "ours", tmp_path / "again", names, ours.store, messageDelayLevel="1s 30s"
        ) as again,
        Wire(again.address) as wire,
    ):
        wanted = timers | at_once | {b"level"}
        wait_until(lambda: wanted <= {*delivered(wire)}, "every message is delivered", 60)
        for record in wire.messages(TOPIC, 0):
            if record.body in timers and b"TIMER_OUT_MS" in record.properties:
                assert record.store_timestamp >= int(parse(record.properties)["TIMER_OUT_MS"])
                assert record.store_timestamp >= due_ms - 2_000
            if record.body == b"level":
                assert record.store_timestamp >= level_ms - 3_000
