"""What a TLS connection costs a broker: processor for a handshake, memory while it is open.

`python -m tests.bench.tls_handshakes [CONNECTIONS]`: that many with TLS, and as many without, from
this process to a broker of ours in test mode (P-256); one request each.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from tempfile import TemporaryDirectory
from time import perf_counter

from protocol.codes import RequestCode
from protocol.command import RemotingCommand
from protocol.frame import encode
from remoting.tls_options import Tls
from tests.bench.process_figures import cpu_seconds, memory
from tests.compat.servers import HOST, SMALL_FILES, OurBroker, OurNameServer

CONNECTIONS = 1000
ASKED = encode(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))


def main() -> None:
    """Prints a line for each kind."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else CONNECTIONS
    context = Tls(checks_server=False).context()
    with TemporaryDirectory(prefix="troupemq-bench-") as scratch:
        names = OurNameServer(Path(scratch) / "names")
        settings = SMALL_FILES | {"tls.test.mode.enable": "true"}
        with names, OurBroker(Path(scratch) / "broker", names, settings) as broker:
            measured("plain", broker, number, lambda sock: sock)
            measured("TLS", broker, number, lambda sock: context.wrap_socket(sock))
            measured("plain", broker, number, lambda sock: sock)
            measured("TLS", broker, number, lambda sock: context.wrap_socket(sock))


def measured(kind: str, broker: OurBroker, number: int, opened: Callable[[socket], socket]) -> None:
    """Opens them one after the other, and closes them."""
    port = int(broker.address.rpartition(":")[2])
    before, began_s, began_cpu_s = memory(broker.pid), perf_counter(), cpu_seconds(broker.pid)
    with ExitStack() as stack:
        for _ in range(number):
            plain = create_connection((HOST, port), 20)
            plain.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            sock = stack.enter_context(opened(plain))
            sock.sendall(ASKED)
            assert sock.recv(1 << 16)
        seconds, cpu_s = perf_counter() - began_s, cpu_seconds(broker.pid) - began_cpu_s
        grown_kib = (memory(broker.pid).anonymous_kib - before.anonymous_kib) / number
    print(
        f"{kind}: {number / seconds:,.0f}/s one after the other, {cpu_s / number * 1e6:,.0f} µs of"
        f" the broker each, {grown_kib:,.1f} KiB each while open"
    )


if __name__ == "__main__":
    main()
