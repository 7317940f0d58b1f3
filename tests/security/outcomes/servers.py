"""Attempts on name servers, replication, connections, TLS, and on a start."""

import os
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import SHUT_RDWR, create_connection, socket
from ssl import CERT_NONE, PROTOCOL_TLS_CLIENT, SSLContext, SSLError, TLSVersion
from struct import pack
from threading import Thread
from time import monotonic, sleep

from protocol.bodies_tables import RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode as Code
from protocol.frame import ONEWAY_FLAG, RemotingCommand, encode
from protocol.ha import TransferBuffer, encode_report
from protocol.headers.client import QueueHeader
from protocol.headers.namesrv import BrokerIdentityHeader, PutKvConfigHeader, RegisterBrokerHeader
from tests.compat.servers import BROKER_NAME, CLUSTER
from tests.security.outcomes.peers import CLOSED, Peer, together, told
from tests.security.outcomes.rights import OWNER, stored
from tests.security.outcomes.sides import TOPIC, Side
from tests.support.brokers import send_command

_HELLO = bytes.fromhex("160301020001000001fc0303")
"""First bytes of a TLS handshake."""


# --- name servers


def _registration(address: str, name: str, *topics: str) -> RemotingCommand:
    header = RegisterBrokerHeader(name, address, CLUSTER, "10.9.8.7:10912", 0)
    body = RegisterBrokerBody(TopicConfigTable({each: TopicConfig(each) for each in topics}))
    return RemotingCommand(Code.REGISTER_BROKER, header.encode(), body.encode(), version=407)


def _route(side: Side) -> bytes:
    asked = RemotingCommand(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}, version=407)
    with Peer(side.names.address) as peer:
        answer = peer.ask(asked)
    return answer.encode() if isinstance(answer, str) else bytes(answer.body or b"")


def a35(side: Side) -> str:
    """The stranger keeps its connection, as a broker does; others ask on theirs."""
    with Peer(side.names.address) as stranger:
        odd = told(stranger.ask(_registration("x\n", "broker-c", TOPIC)))
        mine = told(stranger.ask(_registration("10.9.8.7:10911", "broker-b", "Mine")))
        identity = BrokerIdentityHeader("broker-b", "10.9.8.7:10911", CLUSTER, 0).encode()
        put = PutKvConfigHeader("n", "k", "v" * (4 << 20)).encode()
        asked = {
            "104 for another's": RemotingCommand(Code.UNREGISTER_BROKER, identity),
            "205": RemotingCommand(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-b"}),
            "100 with 4 MiB": RemotingCommand(Code.PUT_KV_CONFIG, put),
        }
        said = []
        for name, command in asked.items():
            with Peer(side.names.address) as other:
                said.append(f"{name}: {told(other.ask(command))}")
        taken = told(stranger.ask(_registration("10.9.8.7:10911", BROKER_NAME, TOPIC)))
        leads = "the route leads there" if b"10.9.8.7" in _route(side) else "the route stays"
    found = f"103 of a new broker: {mine}; with `x\\n` for its address: {odd}; {'; '.join(said)}"
    return f"{found}; 103 for a live broker's name: {taken}, {leads}"


def a36(side: Side) -> str:
    before = side.memory_bytes(of_names=True)
    with Peer(side.names.address) as peer:
        names = [f"made-up-{number}" for number in range(100_000)]
        topics = told(peer.ask(_registration("10.9.8.7:1", "inventor", *names), 60))
        codes = []
        for number in range(300):
            answer = peer.ask(_registration(f"10.9.8.7:{number + 2}", f"invented-{number}", "T"))
            codes.append(answer if isinstance(answer, str) else str(answer.code))
    said = f"100,000 topics: {topics}; 300 brokers of one connection: {together(codes)}"
    return f"{said}; {side.more_mib(before, of_names=True)}"


# --- replication


def a37(side: Side) -> str:
    """At a broker with access control, from an address that no white list has."""
    stored(side)
    said = []
    for offset in (0, -1, (1 << 63) - 1):
        with create_connection(("127.0.0.1", side.ha_port), 5) as line:
            line.settimeout(6)
            try:
                line.sendall(pack(">q", offset))
                got = len(line.recv(1 << 16))
            except TimeoutError:
                said.append("silence")
            except OSError:
                said.append(CLOSED)
            else:
                said.append("the log" if got > 12 else "heads of frames" if got else CLOSED)
    lines = [create_connection(("127.0.0.1", side.ha_port), 5) for _ in range(100)]
    sleep(1)
    open_ = sum(_is_open(line) for line in lines)
    for line in lines:
        line.close()
    return f"0, −1, 2⁶³−1: {', '.join(said)}; 100 strangers: {open_} stay"


def a37_confirmed(side: Side) -> str:
    """At a master that answers once a slave has it: a stranger confirms, and keeps nothing."""
    send = send_command(topic=TOPIC)
    alone = told(side.ask(send, OWNER))
    with create_connection(("127.0.0.1", side.ha_port), 5) as line:
        confirming = Thread(target=_confirm_all, args=(line,), daemon=True)
        confirming.start()
        sleep(3)
        with_it = told(side.ask(send, OWNER))
        with suppress(OSError):
            line.shutdown(SHUT_RDWR)
        confirming.join()
    return f"a send without a slave: {alone}; with a stranger: {with_it}"


def _confirm_all(line: socket) -> None:
    transfers = TransferBuffer()
    with suppress(OSError):
        line.sendall(encode_report(0))
        while data := line.recv(1 << 16):
            for offset, body in transfers.receive(data):
                line.sendall(encode_report(offset + len(body)))


def _is_open(line: socket) -> bool:
    line.settimeout(0.02)
    try:
        return bool(line.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


# --- connections


def a38(side: Side) -> str:
    """From this machine's own address, for loopback is exempt here; maxConnectionsPerAddress is
    1,000."""
    port = int(side.broker.address.rsplit(":", 1)[1])
    found = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False)
    hosts = found.stdout.split()
    if not hosts:
        return "not tried: this machine has no other address than loopback"
    with ExitStack() as stack:
        lines = []
        for _ in range(1500):
            with suppress(OSError):
                lines.append(stack.enter_context(create_connection((hosts[0], port), 5)))
        sleep(1)
        open_ = sum(_is_open(line) for line in lines)
        with side.peer() as peer:
            another = told(peer.ask(RemotingCommand(Code.GET_BROKER_CONFIG)))
    return f"1,500 of one address, maxConnectionsPerAddress=1000: {open_} stay; another: {another}"


# --- TLS


def _stays_s(address: str, data: bytes, most_s: float = 15) -> str:
    host, port = address.rsplit(":", 1)
    with create_connection((host, int(port)), 5) as line:
        began_s = monotonic()
        line.sendall(data)
        line.settimeout(most_s)
        try:
            while line.recv(1000):
                pass
        except TimeoutError:
            return f"open after {most_s:.0f} s"
        except OSError:
            pass
        took_s = monotonic() - began_s
    return "closed at once" if took_s < 1 else f"closed after {took_s:.0f} s"


def a5(side: Side) -> str:
    silent = _stays_s(side.broker.address, b"\x16")
    garbage = _stays_s(side.broker.address, b"\x16" + b"\xff" * 50)
    return f"0x16 and silence: {silent}; garbage: {garbage}"


def a5_without(side: Side) -> str:
    """Make the attempt without TLS; an official broker always has it in test mode."""
    return f"where no TLS is set: 0x16 and more: {_stays_s(side.broker.address, _HELLO)}"


def _end(side: Side) -> str:
    asked = RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode())
    answer = side.ask(asked)
    assert not isinstance(answer, str) and answer.fields is not None, answer
    return answer.fields["offset"]


def a6(side: Side) -> str:
    side.make_topic(TOPIC)
    before = int(_end(side))
    with Peer(side.broker.address) as plain:
        sends = [send_command(topic=TOPIC) for _ in range(10)]
        for send in sends:
            send.flag = ONEWAY_FLAG
        plain.send_bytes(b"".join(map(encode, sends)))
        became = told(plain.receive(3))
    sleep(0.5)
    return f"ten one-way 310: {became}; {int(_end(side)) - before} are stored"


def a7(side: Side) -> str:
    host, port = side.broker.address.rsplit(":", 1)
    with ExitStack() as stack:
        lines = []
        for _ in range(400):
            with suppress(OSError):
                line = create_connection((host, int(port)), 5, source_address=("127.0.0.9", 0))
                lines.append(stack.enter_context(line))
                line.sendall(_HELLO)
        sleep(1)
        begun = sum(_is_open(line) for line in lines)
        began_s = monotonic()
        another = told(side.ask(RemotingCommand(Code.GET_BROKER_CONFIG)))
        took_s = monotonic() - began_s
        sleep(12)
        open_ = sum(_is_open(line) for line in lines)
    said = f"{begun} of 400 of one address stay, {open_} after 12 s"
    return f"{said}; one of elsewhere is answered {another} after {took_s:.1f} s"


def a8(side: Side) -> str:
    found = []
    for version in (TLSVersion.TLSv1, TLSVersion.TLSv1_1):
        context = SSLContext(PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        found.append(f"{version.name}: {_handshake(side, context)}")
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, CERT_NONE
    context.maximum_version = TLSVersion.TLSv1_2
    context.set_ciphers("kRSA:@SECLEVEL=0")
    found.append(f"no forward secrecy: {_handshake(side, context)}")
    found.append(f"renegotiation: {_renegotiation(side)}")
    return "; ".join(found)


def _handshake(side: Side, context: SSLContext) -> str:
    try:
        with Peer(side.broker.address, context):
            return "taken"
    except (SSLError, OSError):
        return "refused"


def _renegotiation(side: Side) -> str:
    command = ["openssl", "s_client", "-tls1_2", "-connect", side.broker.address]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as client:
            assert client.stdin and client.stdout
            sleep(2)
            client.stdin.write(b"R\n")
            client.stdin.flush()
            sleep(2)
            client.terminate()
            said = client.stdout.read().decode(errors="replace").partition("RENEGOTIATING")[2]
    except OSError as error:
        return f"not tried: {error.strerror}"
    if not said:
        return "not tried: openssl did not get so far"
    is_refused = "rror" in said or "closed" in said or "verify return" not in said
    return "refused" if is_refused else "taken"


# --- a start


def a50(side: Side) -> str:
    """The broker's own store, while it is down: a pipe, a device, a file of 10¹² bytes, a bomb of a
    table."""
    found = []
    for name, prepare in PREPARED.items():
        side.broker.stop()
        made = prepare(side.broker.store)
        found.append(f"{name}: {_started(side)}")
        made.unlink(missing_ok=True)
    side.broker.stop()
    side.broker.address = ""
    side.broker.start()
    return "; ".join(found)


def _pipe(store: Path) -> Path:
    path = store / "commitlog" / "00000000000099999999"
    os.mkfifo(path)
    return path


def _endless(store: Path) -> Path:
    path = store / "consumequeue" / TOPIC / "9" / "00000000000000000000"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(10**12)
    return path


def _deep(store: Path) -> Path:
    path = store / "config" / "consumerFilter.json"
    path.unlink(missing_ok=True)
    path.write_text('{"a":' * 100_000)
    return path


PREPARED = {"a pipe in commitlog": _pipe, "10¹² bytes": _endless, "a table 100,000 deep": _deep}


def _started(side: Side) -> str:
    side.broker.address = ""
    began_s = monotonic()
    try:
        side.broker.start()
    except AssertionError as error:
        if "ended" in str(error):
            side.broker.stop()
            return "the start ends"
        return f"no start within {monotonic() - began_s:.0f} s"
    return f"starts in {monotonic() - began_s:.0f} s"
