"""Process of the demonstration: its servers, its stop, and its exit code."""

import os
import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from threading import Event

from actors.config import parse_broker_config, parse_namesrv_config
from troupemq.cluster_demo.standalone import LOOPBACK
from troupemq.cluster_demo.story import Demo
from troupemq.daemon import Serving, serve
from troupemq.logs import set_up_logs
from troupemq.servers import Servers
from troupemq.text import say

MESSAGE_COUNT = 20_000
INTERRUPTED = 130
"""Exit code of a run that Ctrl-C ended without a result."""

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(6000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}


def start_servers(directory: Path, on_give_up: Callable[[str], None]) -> Servers:
    """Start a name server and a broker on free loopback ports."""
    namesrv_config, _ = parse_namesrv_config(
        "",
        {
            "listenPort": "0",
            "bindAddress": LOOPBACK,
            "kvConfigPath": str(directory / "namesrv" / "kvConfig.json"),
            "configStorePath": str(directory / "namesrv" / "namesrv.properties"),
        },
    )
    servers = Servers(on_give_up)
    servers.start_namesrv(namesrv_config)
    settings = {
        "brokerName": "broker-a",
        "brokerIP1": LOOPBACK,
        "brokerIP2": LOOPBACK,
        "bindAddress": LOOPBACK,
        "listenPort": "0",
        "namesrvAddr": f"{LOOPBACK}:{servers.ports['namesrv']}",
        "storePathRootDir": str(directory / "store"),
        **SMALL_FILES,
    }
    with servers.stopped_on_failure():
        broker_config, store_config, _ = parse_broker_config("", settings)
    servers.start_broker(broker_config, store_config)
    return servers


class Run:
    """One run in its own directory, which is kept only after a failure."""

    def __init__(self, messages: int, worker_python: str) -> None:
        self._messages = messages
        self._worker_python = worker_python
        self._directory = Path(mkdtemp(prefix="troupemq-cluster-"))
        self._demo: Demo | None = None
        self._servers: Servers | None = None
        self._is_right = False

    def run(self) -> int:
        """Run to the end; return the exit code."""
        set_up_logs(path=self._directory / "servers.log")
        code = serve(self._start, work=self._work, once=True, end_process=self._end_now)
        if code:
            say(f"Logs and data are kept in {self._directory}.")
        else:
            shutil.rmtree(self._directory, ignore_errors=True)
        return code or (0 if self._is_right else INTERRUPTED)

    def _start(self, on_give_up: Callable[[str], None]) -> Serving:
        self._demo = Demo(self._directory, self._messages, self._worker_python, sys.stdout)
        self._servers = start_servers(self._directory, on_give_up)
        return Serving(self._servers.ports, self._stop)

    def _stop(self, timeout_s: float) -> bool:
        assert self._demo is not None
        assert self._servers is not None
        try:
            self._demo.stop()
        finally:
            in_order = self._servers.stop(timeout_s)
        return in_order

    def _work(self, _: Event) -> None:
        assert self._demo is not None
        assert self._servers is not None
        self._demo.run(self._servers)
        self._is_right = True

    def _end_now(self, code: int) -> None:
        """Kill all processes and exit at once, after a second signal."""
        if self._demo is not None:
            self._demo.kill()
        os._exit(code)


def main(arguments: list[str]) -> int:
    """Run the demonstration; return 0 if its results are right."""
    parser = ArgumentParser(prog="cluster-demo", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--messages",
        type=int,
        default=MESSAGE_COUNT,
        help="Messages to send. [default: %(default)s]",
    )
    parser.add_argument(
        "--worker-python",
        default=sys.executable,
        help="Python for the tasks of the workers. [default: this one]",
    )
    wanted = parser.parse_args(arguments)
    return Run(wanted.messages, wanted.worker_python).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
