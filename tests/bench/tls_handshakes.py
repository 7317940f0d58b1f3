"""Cost of a TLS connection for a broker: processor time of a handshake, memory while it is open.

`python -m tests.bench.tls_handshakes [CONNECTIONS]` opens that many with TLS and without, to the
official broker, if there is a JDK, and to ours. Both are in test mode (RSA there, P-256 here), with
one request each. Three rounds alternate, since a cold JVM costs several times as much. All
connections stay open, so that freed memory is not reused. Java's memory is its heap after a
collection, and its memory outside the heap.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from tempfile import TemporaryDirectory
from time import perf_counter

from protocol.codes import RequestCode
from protocol.frame import RemotingCommand, encode
from remoting.tls_options import Tls
from tests.bench.brokers import Opponents
from tests.bench.loads import TLS
from tests.bench.process_figures import cpu_seconds, memory
from tests.compat.servers import HOST, Broker
from tests.compat.toolchain import Java, MissingTool, java

CONNECTIONS = 1000
ASKED = encode(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
TURNS = 3

Wrap = Callable[[socket], socket]


def main() -> None:
    """Prints a line for each broker and kind of connection."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else CONNECTIONS
    tools, kinds = Java("", ""), ["ours"]
    try:
        tools = java()
        kinds.insert(0, "official")
    except MissingTool as missing:
        print(f"no official broker here: {missing}")
    with TemporaryDirectory(prefix="troupemq-bench-") as scratch:
        opponents = Opponents(tools, Path(scratch))
        for kind in kinds:
            jcmd = Path(tools.executable).resolve().with_name("jcmd") if kind != "ours" else None
            with opponents.started(kind, TLS) as (broker, _), ExitStack() as stack:
                take_turns(kind, broker, jcmd, number, stack)


def take_turns(kind: str, broker: Broker, jcmd: Path | None, number: int, stack: ExitStack) -> None:
    """Plain connections and those with TLS."""
    context = Tls(checks_server=False).context()
    wraps: dict[str, Wrap] = {"plain": lambda sock: sock, "TLS": context.wrap_socket}
    for _ in range(TURNS):
        for what, wrap in wraps.items():
            told = measured(broker, jcmd, number, wrap, stack)
            print(f"{kind}, {what}: {told}", flush=True)


def measured(broker: Broker, jcmd: Path | None, number: int, wrap: Wrap, stack: ExitStack) -> str:
    """Opens them one after the other."""
    port = int(broker.address.rpartition(":")[2])
    before_kib = held_kib(broker, jcmd)
    began_s, began_cpu_s = perf_counter(), cpu_seconds(broker.pid)
    for _ in range(number):
        plain = create_connection((HOST, port), 20)
        plain.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        sock = stack.enter_context(wrap(plain))
        sock.sendall(ASKED)
        assert sock.recv(1 << 16)
    seconds, cpu_s = perf_counter() - began_s, cpu_seconds(broker.pid) - began_cpu_s
    grown_kib = (held_kib(broker, jcmd) - before_kib) / number
    return (
        f"{number / seconds:,.0f}/s one after the other, {cpu_s / number * 1e6:,.0f} µs of"
        f" the broker each, {grown_kib:,.1f} KiB each while open"
    )


def held_kib(broker: Broker, jcmd: Path | None) -> float:
    """Return the memory of the process; of Java's heap, which is all touched, only live objects
    count.
    """
    anonymous = memory(broker.pid).anonymous_kib
    if jcmd is None:
        return anonymous
    asked = [str(jcmd), str(broker.pid), "GC.class_histogram"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return anonymous + int(told.split()[-1]) / 1024


if __name__ == "__main__":
    main()
