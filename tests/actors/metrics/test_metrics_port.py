"""Tests of actors/metrics/metrics_port.py and exposition.py: scrapes over real sockets."""

import gc
import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from socket import create_connection, socket
from threading import Event

import pytest
from structlog.testing import capture_logs

from actors.children import metrics as made_of
from actors.children.metrics import open_metrics_port
from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.metrics import metrics_port
from actors.metrics.actor_figures import ActorFamilies
from actors.metrics.exposition import Exposition
from actors.metrics.http_text import HEAD_BYTES_MAX
from actors.metrics.metrics_port import CONNECTIONS_MAX, MetricsPort
from actors.metrics.process_page import MISSING
from actors.network.connections import Acceptor, Listener, PortTaken, open_listener
from actors.network.service import Service
from actors.settings.metrics_settings import MetricsSettings
from storage.files.disk import RealDisk
from tests.compat.patience import wait_until

WAIT_S = 30


@contextmanager
def serving(write: Callable[[str, object], Sequence[str]]) -> Iterator[tuple[ActorSystem, int]]:
    """A port that serves what `write` makes as /metrics, and with collect=client, too."""
    sock = open_listener("127.0.0.1", 0, "metrics")
    number = sock.getsockname()[1]
    system = ActorSystem.real(disk=RealDisk())
    try:
        families = ActorFamilies(system)
        to, port = system.address("exposition"), system.address("metrics_port")
        pages = {"/metrics": {"": to, "client": to}}
        listener = Listener("metrics", "127.0.0.1", number, Service({}))
        system.start(
            ChildSpec("exposition", lambda _: Exposition({"/metrics": write}, families, port)),
            ChildSpec("metrics_port", lambda _: MetricsPort(pages, object, families.loop_waits)),
            ChildSpec("metrics_acceptor", lambda _: Acceptor([(listener, sock)], port)),
        )
        yield system, number
    finally:
        assert system.stop(WAIT_S)
        sock.close()


def is_closed(sock: socket) -> bool:
    """Waits until it is; whether nothing has come."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:  # with bytes that nobody has read
        return True


def get(port: int, target: str = "/metrics", **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_page_comes_plain_and_compressed_and_only_from_where_it_is() -> None:
    text = "x 1\n" * 500_000
    with serving(lambda collect, _: [text]) as (_, port):
        assert get(port) == (200, text.encode())
        status, packed = get(port, **{"Accept-Encoding": "gzip"})
        assert status == 200 and gzip.decompress(packed) == text.encode()
        assert len(packed) < len(text) // 100
        status, body = get(port, "/etc/passwd")
        assert (status, body) == (404, b"there are /metrics\n")
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("HEAD", "/metrics")
        response = connection.getresponse()
        assert (response.read(), response.getheader("Content-Length")) == (b"", str(len(text)))
        connection.close()


def test_who_asks_again_at_once_gets_the_same_page_and_unknown_parts_are_none() -> None:
    asked: list[str] = []

    def write(collect: str, _: object) -> Sequence[str]:
        asked.append(collect)
        return [f"n {len(asked)}\n"]

    with serving(write) as (system, port):
        system.actors()["exposition"]._made.clear()  # type: ignore[attr-defined]
        first = get(port)
        pages = {get(port, f"/metrics?collect={n}") for n in range(20)} | {first}
        assert len(asked) <= 2 + len(pages) and set(asked) == {""}, "names make no pages"
        assert get(port, "/metrics?collect=client")[0] == 200
        assert asked[-1] == "client"


@pytest.fixture
def collecting() -> Iterator[None]:
    """Garbage is collected, as in a server; other tests may do without."""
    was_on = gc.isenabled()
    gc.enable()
    yield
    if not was_on:
        gc.disable()


def test_garbage_is_collected_again_after_a_page_even_a_failed_one(collecting: None) -> None:
    during: list[bool] = []

    def write(collect: str, _: object) -> Sequence[str]:
        during.append(gc.isenabled())
        if len(during) == 1:
            raise ValueError("no page")
        return ["x 1\n"]

    with serving(write) as (_, port):
        status, body = get(port)
        assert status == 500 and b"ValueError: no page" in body
        assert gc.isenabled()
        wait_until(lambda: get(port) == (200, b"x 1\n"), "the actor was started again")
    assert during == [False, False] and gc.isenabled()


def test_what_hangs_is_closed_and_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "HEAD_MS", 300.0)
    with serving(lambda *_: ["x 1\n"]) as (_, port):
        hanging = [create_connection(("127.0.0.1", port), WAIT_S) for _ in range(CONNECTIONS_MAX)]
        for each in hanging[::2]:
            with suppress(ConnectionError):  # its time may be over already
                each.sendall(b"GET /metrics HT")
        too_many = create_connection(("127.0.0.1", port), WAIT_S)
        for each in (too_many, *hanging):
            assert is_closed(each), "at once or when its time is over"
            each.close()
        monkeypatch.setattr(metrics_port, "HEAD_MS", 60_000.0)
        assert get(port) == (200, b"x 1\n")


def test_one_that_takes_nothing_is_closed_while_others_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "x 1\n" * 8_000_000
    with serving(lambda *_: [text]) as (system, port):
        actor = system.actors()["metrics_port"]
        assert isinstance(actor, MetricsPort)
        lazy = create_connection(("127.0.0.1", port), WAIT_S)
        lazy.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        status, packed = get(port, **{"Accept-Encoding": "gzip"})
        assert status == 200 and len(gzip.decompress(packed)) == len(text)
        monkeypatch.setattr(metrics_port, "SEND_MS", 500.0)
        impatient = create_connection(("127.0.0.1", port), WAIT_S)
        impatient.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until(lambda: actor.late_count == 1)
        assert received(impatient) < len(text), "what it did not take in time it does not get"
        assert received(lazy) > len(text), "whose time was not over"


def until(is_so: Callable[[], bool]) -> None:
    """Looks again and again, for WAIT_S at most."""
    for _ in range(WAIT_S * 100):
        if is_so():
            return
        Event().wait(0.01)
    raise AssertionError("it never was")


def received(sock: socket) -> int:
    """How many bytes come until the other side closes."""
    count = 0
    with sock, suppress(ConnectionError):
        while data := sock.recv(1 << 20):
            count += len(data)
    return count


def test_garbage_and_floods_are_refused() -> None:
    with serving(lambda *_: ["x 1\n"]) as (_, port):
        for data in (b"\x00\xff" * 100 + b"\r\n\r\n", b"A" * 100_000, b"GET / FTP\r\n\r\n"):
            with create_connection(("127.0.0.1", port), WAIT_S) as sock:
                answer = b""
                try:
                    sock.sendall(data)
                    answer = sock.recv(100)
                except ConnectionError:
                    answer = b"HTTP/1.1 431 reset while it was flooding"
                refused = answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
                assert refused or (not answer and len(data) > HEAD_BYTES_MAX)
        assert get(port)[0] == 200


def test_an_address_that_is_not_ours_is_one_sentence() -> None:
    settings = MetricsSettings(metrics_type="PROM", metrics_host="192.0.2.1", metrics_port=0)
    with pytest.raises(PortTaken, match="as metricsPromExporterHost"):
        open_metrics_port(settings)


def test_without_the_library_the_server_starts_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert open_metrics_port(MetricsSettings()) is None
    monkeypatch.setattr(made_of, "missing_library", lambda: MISSING)
    with capture_logs() as logs:
        assert open_metrics_port(MetricsSettings(metrics_type="PROM", metrics_port=0)) is None
    assert ["pip install 'troupemq[metrics]'" in each["event"] for each in logs] == [True]
