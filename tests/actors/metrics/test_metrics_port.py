"""Tests of metrics_port.py and metrics_renderer.py: pages requested over real sockets."""

import gc
import gzip
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from sys import getswitchinterval

import pytest

from actors.config import NamesrvConfig
from actors.engine.actor import Actor, AskFigures, handles
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.metrics_port import MetricsPort, page_of
from actors.metrics.metrics_renderer import SWITCH_S, MetricsRenderer
from actors.metrics.metrics_server import open_metrics
from actors.metrics.page import Packed, Packer
from actors.metrics.page_server import PageServer
from actors.metrics.sources import FigureSet
from actors.network.connections import PortTaken, open_listener
from actors.sending.messages import CommitFigures
from storage.files.disk import RealDisk
from tests.compat.patience import wait_until
from tests.support.runtimes import IS_PYPY

WAIT_S = 30
ASKED = {"/metrics": ("quick", "missing")}


@contextmanager
def serving(write: Callable[[str, FigureSet], Packed]) -> Iterator[tuple[ActorSystem, int]]:
    """A port that serves what `write` makes as /metrics, and with collect=client, too."""
    server = PageServer(open_listener("127.0.0.1", 0, "metrics"))
    system = ActorSystem.real(disk=RealDisk())
    try:
        families = ActorFamilies(system)
        to, port = system.address("exposition"), system.address("metrics_port")
        makers = {"/metrics": {"": to, "client": to}}
        system.start(
            ChildSpec("exposition", lambda _: MetricsRenderer({"/metrics": write}, families, port)),
            ChildSpec("metrics_port", lambda _: MetricsPort(makers, ASKED, families.loop_waits)),
        )
        server.add({"/metrics": page_of(port)})
        yield system, server.port
    finally:
        server.close()
        assert system.stop(WAIT_S)


def text_page(text: str) -> Packed:
    packer = Packer()
    packer.add(text)
    return packer.packed()


def get(port: int, target: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_page_is_served_plain_and_compressed_at_its_path_only() -> None:
    text = "x 1\n" * 500_000
    with serving(lambda collect, _: text_page(text)) as (_, port):
        assert get(port) == (200, text.encode())
        status, packed = get(port, **{"Accept-Encoding": "gzip"})
        assert status == 200 and gzip.decompress(packed) == text.encode()
        assert len(packed) < len(text) // 100
        status, body = get(port, "/etc/passwd")
        assert (status, body) == (404, b"page not found; available: /metrics\n")
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("HEAD", "/metrics")
        response = connection.getresponse()
        assert (response.read(), response.getheader("Content-Length")) == (b"", str(len(text)))
        connection.close()


def test_a_repeated_request_gets_the_same_page_and_unknown_parts_are_ignored() -> None:
    asked: list[str] = []

    def write(collect: str, _: FigureSet) -> Packed:
        asked.append(collect)
        return text_page(f"n {len(asked)}\n")

    with serving(write) as (_, port):
        first = get(port)
        pages = {get(port, f"/metrics?collect={n}") for n in range(20)} | {first}
        assert len(asked) <= 2 + len(pages) and set(asked) == {""}, "names make no pages"
        assert get(port, "/metrics?collect=client")[0] == 200
        assert asked[-1] == "client"


class Counting(Actor):
    """Actor with figures; it fails on every second question."""

    asked_count = 0

    @handles(AskFigures, reads_only=True)
    def on_ask_figures(self, message: AskFigures) -> None:
        self.asked_count += 1
        if not self.asked_count % 2:
            raise ValueError("a test")
        message.reply(CommitFigures(self.asked_count))


def test_figures_of_running_actors_come_with_each_page() -> None:
    def write(collect: str, reading: FigureSet) -> Packed:
        return text_page(f"{collect}{reading.of(CommitFigures).waiting}\n")

    with serving(write) as (system, port):
        assert get(port) == (200, b"0\n"), "no actor runs under these names"
        system.start(ChildSpec("quick", lambda _: Counting()))
        assert get(port, "/metrics?collect=client") == (200, b"client1\n")


def test_an_actor_that_fails_on_the_question_leaves_its_figures_out() -> None:
    with serving(lambda _, reading: text_page(f"{len(reading.found)}\n")) as (system, port):
        system.start(ChildSpec("quick", lambda _: Counting()))
        assert get(port) == (200, b"1\n")
        assert get(port, "/metrics?collect=client") == (200, b"0\n")


@pytest.fixture
def collecting() -> Iterator[None]:
    """Garbage is collected, as in a server; other tests may do without."""
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


def test_collector_and_switch_settings_are_restored_after_every_page(
    collecting: None,
) -> None:
    during: list[tuple[bool, float]] = []
    interval_s = getswitchinterval()

    def write(collect: str, _: FigureSet) -> Packed:
        during.append((gc.isenabled(), round(getswitchinterval(), 6)))
        if len(during) == 1:
            raise ValueError("no page")
        return text_page("x 1\n")

    with serving(write) as (_, port):
        status, body = get(port)
        assert status == 500 and b"ValueError: no page" in body
        assert gc.isenabled() and getswitchinterval() == interval_s
        wait_until(lambda: get(port) == (200, b"x 1\n"), "the actor was started again")
    assert during == [(IS_PYPY, SWITCH_S)] * 2
    assert gc.isenabled() and getswitchinterval() == interval_s


def test_a_foreign_bind_address_is_a_one_sentence_error() -> None:
    settings = NamesrvConfig(metrics_type="PROM", metrics_host="192.0.2.1", metrics_port=0)
    with pytest.raises(PortTaken, match="as metricsPromExporterHost"):
        open_metrics(settings)


def test_a_stop_answers_all_requests_for_pages() -> None:
    families = ActorFamilies(system := ActorSystem.real(disk=RealDisk()))
    nobody, port = system.address("nobody"), system.address("metrics_port")
    makers = {"/metrics": {"": nobody}}
    server = PageServer(open_listener("127.0.0.1", 0, "metrics"))
    try:
        system.start(
            ChildSpec("metrics_port", lambda _: MetricsPort(makers, ASKED, families.loop_waits))
        )
        server.add({"/metrics": page_of(port)})
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(get, server.port)
            (actor,) = [each for each in [*system.live] if isinstance(each, MetricsPort)]
            wait_until(lambda: bool(actor._waiting), "it has been asked")
            assert system.stop(WAIT_S)
            assert asked.result(WAIT_S) == (
                500,
                b"page not rendered: the server stops\n",
            )
    finally:
        server.close()
        system.stop(WAIT_S)
