"""Tests of actors/network/connections.py: accepted, idle, failed and stopped connections."""

import errno
from pathlib import Path
from select import EPOLLIN
from socket import AF_INET6, create_server, has_ipv6, socket, socketpair

import pytest
from structlog.testing import capture_logs

from actors.engine.supervisor import ChildSpec
from actors.engine.system import ActorSystem
from actors.network.connection import Connection
from actors.network.connections import (
    ACCEPT_AGAIN_MS,
    ENDS_AT_ONCE,
    ENDS_REST_MS,
    IDLE_TICK_MS,
    Accepted,
    Acceptor,
    Connections,
    Listener,
    PortTaken,
    open_listener,
    plain_address,
)
from actors.network.limits import ConnectionSlots
from actors.network.request import Service
from protocol.bodies import ConsumerData, HeartbeatData, ProducerData
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from protocol.headers.client import QueueHeader
from tests.support.brokers import SimulatedBroker, pull_command
from tests.support.clock import ManualClock
from tests.support.peers import Told, simulated
from tests.support.pulls import broker
from tests.support.sockets import (
    HOST,
    Line,
    PairedLine,
    connection_of,
    paired_lines,
    serving_broker,
)

IDLE_MS = 120_000


def question() -> RemotingCommand:
    """Something small that is answered at once."""
    return RemotingCommand(RequestCode.GET_MAX_OFFSET, QueueHeader("Topic", 0).encode())


def heartbeat() -> RemotingCommand:
    """Return the heartbeat of a client that consumes and produces."""
    consumer = ConsumerData("consumers", "CONSUME_PASSIVELY", "CLUSTERING", None, [])
    data = HeartbeatData("client", [ProducerData("producers")], [consumer])
    return RemotingCommand(RequestCode.HEART_BEAT, body=data.encode())


def members(made: SimulatedBroker) -> int:
    """The answer's code: 0 with members, 1 without."""
    fields = {"consumerGroup": "consumers"}
    return made.ask(RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)).code


# --- connections of peers that have gone


def test_thousands_of_disconnects_are_handled_in_steps() -> None:
    made = broker()
    with paired_lines(made, lines=3 * ENDS_AT_ONCE + 1) as (busy, *leaving):
        leaving[0].send(heartbeat())
        far = [line.leave() for line in leaving]
        for each in far:
            made.system.loop.make_ready(each, EPOLLIN)
        made.system.drain()
        assert connections_in(made) == 2 * ENDS_AT_ONCE + 1
        busy.send(question())
        assert busy.receive_now()[0].code == ResponseCode.SUCCESS
        made.system.advance(ENDS_REST_MS)
        assert connections_in(made) == ENDS_AT_ONCE + 1
        made.system.advance(ENDS_REST_MS)
        assert connections_in(made) == 1
        assert members(made) == ResponseCode.SYSTEM_ERROR


def connections_in(made: SimulatedBroker) -> int:
    return sum(isinstance(actor, Connection) for actor in made.system.live)


# --- idle connections


def test_an_idle_connection_is_closed_and_its_registrations_removed() -> None:
    made = broker()
    with paired_lines(made, lines=2) as (idle, busy):
        idle.send(heartbeat())
        assert [each.code for each in idle.receive_now() if each.is_response] == [0]
        for _ in range(11):
            made.system.advance(10_000)
            busy.send(question())
            assert busy.receive_now()[0].code == ResponseCode.SUCCESS
        assert members(made) == ResponseCode.SUCCESS
        with capture_logs() as logs:
            made.system.advance(IDLE_MS - 110_000 + IDLE_TICK_MS)
        assert members(made) == ResponseCode.SYSTEM_ERROR, "at once, not at the next scan"
        idle.receive_now()  # what it was told of its group
        assert idle.is_closed()
        closed = [entry for entry in logs if entry["event"] == "connection closed"]
        assert [(entry["peer"], entry["reason"]) for entry in closed] == [(idle.local, "idle")]
        busy.send(question())
        assert len(busy.receive_now()) == 1


def test_the_idle_timeout_is_a_setting() -> None:
    made = broker(channel_max_idle_seconds=2)
    with paired_lines(made, lines=1) as (line,):
        made.system.advance(1_900)
        assert not line.is_closed()
        made.system.advance(700)
        assert line.is_closed()


def test_a_peer_that_reads_nothing_for_too_long_is_idle() -> None:
    made = broker(8)
    with paired_lines(made, lines=1) as (line,):
        connection = connection_of(made.system, line)
        while not connection.unsent_bytes:
            line.send(*[pull_command() for _ in range(50)])
        made.system.advance(IDLE_MS + IDLE_TICK_MS)
        assert connection not in made.system.live


@pytest.mark.heavy
def test_a_peer_that_reads_answers_slowly_is_not_idle() -> None:
    made = broker(8)
    with paired_lines(made, lines=1) as (line,):
        connection = connection_of(made.system, line)
        pulls = 0
        while connection.unsent_bytes < 1 << 20:
            line.send(*[pull_command() for _ in range(50)])
            pulls += 50
        answers: list[RemotingCommand] = []
        for _ in range(3):
            made.system.advance(IDLE_MS - 2 * IDLE_TICK_MS)
            answers += line.receive_some()
            line.wind()
        answers += line.receive_now()
        assert len(answers) == pulls


def test_idle_connections_of_a_running_broker_are_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        serving_broker(tmp_path, clock=clock) as running,
        Line.to(running.ports.main) as idle,
        Line.to(running.ports.main) as other,
    ):
        idle.ask(heartbeat())
        other.ask(question())  # so the loop is done with the other answer
        clock.advance(IDLE_MS + IDLE_TICK_MS)
        other.ask(question())  # so the loop looks at its clock
        assert idle.rest() == []
        fields = {"consumerGroup": "consumers"}
        asked = RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields)
        assert other.ask(asked).code == ResponseCode.SYSTEM_ERROR


# --- failures


def test_a_failed_connection_is_closed_and_affects_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = broker()
    with paired_lines(made, lines=2) as (failing, other):
        failing.send(heartbeat())
        failing.receive_now()
        monkeypatch.setattr(connection_of(made.system, failing), "_take", None)
        failing.send(question())
        assert failing.is_closed()
        assert members(made) == ResponseCode.SYSTEM_ERROR
        other.send(question())
        assert other.receive_now()[0].code == ResponseCode.SUCCESS


def test_peers_can_reconnect_after_the_connections_actor_fails() -> None:
    made = broker()
    with paired_lines(made, lines=2) as lines:
        made.system.address("connections").tell("no message of ours")
        made.system.advance(1_000)
        assert all(line.is_closed() for line in lines)
        assert not [actor for actor in made.system.live if isinstance(actor, Connection)]
        with PairedLine(made) as again:
            again.send(question())
            assert again.receive_now()[0].code == ResponseCode.SUCCESS


# --- stopping


def test_a_stop_does_not_wait_forever_for_a_peer_that_reads_nothing() -> None:
    made = broker(8)
    with paired_lines(made, lines=1) as (line,):
        connection = connection_of(made.system, line)
        while not connection.unsent_bytes:
            line.send(*[pull_command() for _ in range(50)])
        with capture_logs() as logs:
            made.stop()  # and it is a clean one
        closed = [entry for entry in logs if entry["event"] == "connection closed"]
        reason = "server stopped before the peer took its answers"
        assert [entry["reason"] for entry in closed] == [reason]


def test_connections_accepted_during_a_stop_are_closed() -> None:
    with simulated() as system:
        system.start(ChildSpec("connections", lambda _: Connections(IDLE_MS)))
        connections = system.address("connections").receiver
        assert isinstance(connections, Connections)
        assert connections.can_stop()
        near, far = socketpair()
        system.address("connections").tell(Accepted(far, (HOST, 1), Service({})))
        system.drain()
        assert connections.count == 0
        assert near.recv(1) == b""
        near.close()


def test_a_failure_of_the_connections_actor_releases_all_slots() -> None:
    places = ConnectionSlots(1)
    with simulated() as system:
        system.start(ChildSpec("connections", lambda _: Connections(IDLE_MS, places)))
        connections = system.address("connections")
        for _ in range(3):
            near, far = socketpair()
            far.setblocking(False)
            connections.tell(Accepted(far, ("192.0.2.7", 1), Service({})))
            system.drain()
            assert places.take("192.0.2.7") == "maxConnections"
            connections.tell("unknown message")
            system.advance(5000)
            assert near.recv(1) == b""
            near.close()
            assert places.take("192.0.2.7") is None
            places.leave("192.0.2.7")


# --- accepting


class Full:
    """A listening socket on a machine that has no sockets to give."""

    def __init__(self, sock: socket, number: int) -> None:
        self._sock, self.number = sock, number
        self.asked = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> tuple[socket, tuple[str, int]]:
        self.asked += 1
        raise OSError(self.number, "no")

    def close(self) -> None:
        self._sock.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_an_acceptor_pauses_when_the_machine_has_no_free_socket(number: int) -> None:
    full = Full(open_listener(HOST, 0, "listenPort"), number)
    listeners = [(Listener("listenPort", HOST, 1, Service({})), full)]
    with simulated() as system, capture_logs() as logs:
        told = Told("connections")
        system.start(ChildSpec("acceptor", lambda _: Acceptor(listeners, told.address)))  # type: ignore[arg-type]
        for _ in range(5):
            system.loop.make_ready(full, EPOLLIN)
            system.drain()
        assert full.asked == 1
        system.advance(ACCEPT_AGAIN_MS)
        assert full.asked == 2
        assert told.take() == []
        refusals = [entry for entry in logs if entry["event"] == "no connection accepted"]
        assert len(refusals) == 2


def test_a_peer_that_disconnects_before_accept_is_ignored() -> None:
    gone = Full(open_listener(HOST, 0, "listenPort"), errno.ECONNABORTED)
    listeners = [(Listener("listenPort", HOST, 1, Service({})), gone)]
    with simulated() as system, capture_logs() as logs:
        told = Told("connections")
        system.start(ChildSpec("acceptor", lambda _: Acceptor(listeners, told.address)))  # type: ignore[arg-type]
        for count in (1, 2):
            system.loop.make_ready(gone, EPOLLIN)
            system.drain()
            assert gone.asked == count
        assert [entry for entry in logs if entry["log_level"] == "error"] == []


def test_all_waiting_connections_are_accepted_in_one_round(real_system: ActorSystem) -> None:
    listener = open_listener(HOST, 0, "listenPort")
    port = listener.getsockname()[1]
    lines = [Line.to(port) for _ in range(100)]
    listeners = [(Listener("listenPort", HOST, port, Service({})), listener)]
    real_system.start(
        ChildSpec("connections", lambda _: Connections(IDLE_MS)),
        ChildSpec("acceptor", lambda _: Acceptor(listeners, real_system.address("connections"))),
    )
    for line in lines:  # each is answered by its end only
        line.send_bytes(b"no frame at all" * 2)
        assert line.rest() == []
        line.close()


# --- ports


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        sentence = (
            rf"^Port {port} \(listenPort\) is in use:"
            r" stop what listens there, or choose another port\.$"
        )
        with pytest.raises(PortTaken, match=sentence):
            open_listener(HOST, port, "listenPort")


def test_a_foreign_bind_address_is_reported_with_the_reason() -> None:
    sentence = r"^Cannot listen on 192\.0\.2\.1:1 \(HA port\): this machine has no such address; "
    with pytest.raises(PortTaken, match=sentence):
        open_listener("192.0.2.1", 1, "HA port")


@pytest.mark.parametrize(
    ("remote", "plain"),
    [
        (("192.0.2.7", 5), ("192.0.2.7", 5)),
        (("::ffff:192.0.2.7", 5, 0, 0), ("192.0.2.7", 5)),
        (("fe80::1%eth0", 5, 0, 2), ("fe80::1", 5)),
        (("2001:db8::1", 5, 0, 0), ("2001:db8::1", 5)),
        (("::1", 5, 0, 0), ("::1", 5)),
    ],
)
def test_an_ipv4_peer_has_its_ipv4_address_on_either_socket_family(
    remote: tuple[str, int], plain: tuple[str, int]
) -> None:
    assert plain_address(remote) == plain


def test_a_server_can_listen_on_ipv6() -> None:
    if not has_ipv6:
        pytest.skip("this machine has no IPv6")
    with open_listener("::1", 0, "listenPort") as listener:
        assert listener.family == AF_INET6


@pytest.mark.parametrize(
    "code, said",
    [
        (-2, "host not found; write"),  # the resolver's, as create_server passes it on
        (errno.EADDRNOTAVAIL, "this machine has no such address; write"),
        (errno.EACCES, "Permission denied; choose a port from 1024 on"),
        (errno.EADDRINUSE, "is in use: stop what listens there"),
        (errno.ENOBUFS, "No buffer space available"),
    ],
)
def test_an_unavailable_port_is_a_one_sentence_error(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    def refuse(*_: object, **named: object) -> None:
        raise OSError(code, "")

    monkeypatch.setattr("actors.network.bind_address.create_server", refuse)
    with pytest.raises(PortTaken) as caught:
        open_listener("host", 80, "listenPort")
    assert said in str(caught.value) and "80" in str(caught.value)
