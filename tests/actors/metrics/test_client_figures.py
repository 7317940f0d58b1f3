"""Tests of actors/metrics/client_figures.py: consumers are asked; those that answer are shown."""

from collections.abc import Mapping
from http import HTTPStatus

import pytest

from actors.engine.actor import Actor, handles
from actors.engine.interfaces import SnapshotRef
from actors.engine.supervisor import ChildSpec
from actors.metrics.client_figures import (
    ANSWERS_BYTES_MAX,
    WAIT_MS,
    ClientFigures,
    ConsumerAnswers,
)
from actors.metrics.messages import MakePage
from actors.metrics.sources import FigureSet
from actors.network.messages import CallClient, CallEnd
from actors.tables.consumer_views import ConsumerView, Member
from protocol.bodies_client import ConsumerRunningInfo, ConsumeStatus
from protocol.frame import RemotingCommand
from tests.support.peers import RecordingPeer, Told, simulated

OLD, NEW = 1, 407
ODD = {
    "odd": b"{",
    "odd keys": b"{{{1:a,'1':{}}:1}:1}",
    "odd pairs": b"{'mqTable':{{'a':1,a:[]}:1}}",
    "odd numbers": b'{"statusTable":{"T":{"consumeFailedMsgs":1e999,"pullRT":%b}}}' % (b"9" * 390),
    "deep": b'{"mqTable":' + b"[" * 900 + b"]" * 900 + b"}",
    "long": b'{"statusTable":{}}'.ljust(2 << 20),
}
Views = SnapshotRef[Mapping[str, ConsumerView]]


class Consumers(Actor):
    """In the place of ClientCalls: the first answers, the second never does, the third nonsense."""

    asked: list[CallClient]

    def on_start(self) -> None:
        self.asked = []

    @handles(CallClient)
    def on_call(self, call: CallClient) -> None:
        self.asked.append(call)
        if call.command.fields is not None and call.command.fields["clientId"] == "silent":
            return
        status = {"Topic": ConsumeStatus(consume_rt=2.0, consume_failed_msgs=3)}
        body = ConsumerRunningInfo(status_table=status).encode()
        if call.command.fields is not None:
            body = ODD.get(call.command.fields["clientId"], body)
        call.done(CallEnd.ANSWERED, "", RemotingCommand(0, body=body))


def member(name: str, version: int = NEW) -> Member:
    return Member(RecordingPeer(), name, 3, version, 0.0)


def test_answering_consumers_are_exposed_and_silent_ones_omitted() -> None:
    names = (("talks", NEW), ("silent", NEW), *((name, NEW) for name in ODD), ("old", OLD))
    members = {n: member(name, version) for n, (name, version) in enumerate(names)}
    views: Views = SnapshotRef({"g": ConsumerView("CLUSTERING", {}, members)})
    with simulated() as system:
        page_to, calls = Told("exposition"), system.address("client_calls")
        system.start(
            ChildSpec("client_calls", lambda _: Consumers()),
            ChildSpec("client_figures", lambda _: ClientFigures(views, calls, page_to.address)),
        )
        message = MakePage(
            ("/metrics/exporter", "client"), FigureSet({int: 7}), Told("port").address
        )
        system.address("client_figures").tell(message)
        system.advance(WAIT_MS / 2)
        assert not page_to.has_mail(), "one may answer still"
        system.advance(WAIT_MS)
        (made,) = page_to.take()
        assert made.reading.of(int) == 7
        statuses = {
            each.client_id: each.statuses() for each in made.reading.of(ConsumerAnswers).found
        }
        assert statuses.keys() == {"talks", *ODD} - {"long"}
        talks = statuses.pop("talks")["Topic"]
        assert (talks.consume_rt, talks.consume_failed_msgs) == (2.0, 3)
        assert not any(statuses.values())


def test_answers_of_a_page_have_a_limit_and_are_not_read_on_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 answers of 270 KB took 60 ms each on the loop, and 270 MiB."""
    monkeypatch.setitem(ODD, "longest", b"x" * (1 << 20))
    count = ANSWERS_BYTES_MAX >> 20
    views: Views = SnapshotRef(
        {f"g{n}": ConsumerView("CLUSTERING", {}, {0: member("longest")}) for n in range(count + 3)}
    )

    def decode(_: bytes) -> ConsumerRunningInfo:
        raise AssertionError("read where others wait")

    with simulated() as system:
        page_to, calls = Told("exposition"), system.address("client_calls")
        system.start(
            ChildSpec("client_calls", lambda _: Consumers()),
            ChildSpec("client_figures", lambda _: ClientFigures(views, calls, page_to.address)),
        )
        monkeypatch.setattr(ConsumerRunningInfo, "decode", decode)
        system.address("client_figures").tell(
            MakePage(("/x", "client"), FigureSet({}), Told("port").address)
        )
        system.drain()
        (made,) = page_to.take()
    assert len(made.reading.of(ConsumerAnswers).found) == count


def test_without_consumers_the_page_is_rendered_at_once() -> None:
    views: Views = SnapshotRef({})
    with simulated() as system:
        page_to = Told("exposition")
        calls = system.address("client_calls")
        system.start(
            ChildSpec("client_figures", lambda _: ClientFigures(views, calls, page_to.address))
        )
        system.address("client_figures").tell(
            MakePage(("/x", "client"), FigureSet({}), Told("port").address)
        )
        system.drain()
        (made,) = page_to.take()
        assert made.reading == FigureSet({ConsumerAnswers: ConsumerAnswers([])})


def test_a_failed_page_is_reported_to_the_scraper() -> None:
    port = Told("port")
    MakePage(("/x", ""), FigureSet({}), port.address).on_undelivered("a test")
    (made,) = port.take()
    assert made.answer.status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert made.answer.body == b"page not rendered: a test\n"
