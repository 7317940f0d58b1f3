"""Python consumers as members of groups: what each got, and processes that can be killed."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGKILL
from threading import Lock

from tests.compat.patience import wait_until
from tests.compat.servers import ROOT
from troupemq.client.consuming.consumer import PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.client.consuming.listener import ConsumeResult, Listener
from troupemq.client.message import MessageView
from troupemq.client.settings import ConsumerSettings

WAIT_S = 90.0
SETTINGS = ConsumerSettings(commit_interval_ms=500, rebalance_interval_ms=5000)


class Got:
    """A listener that remembers what it got, in the order of its calls."""

    def __init__(self, fails: Callable[[MessageView], bool] = lambda view: False) -> None:
        self._fails = fails
        self._lock = Lock()
        self._views: list[MessageView] = []

    def __call__(self, views: Sequence[MessageView]) -> ConsumeResult:
        with self._lock:
            self._views += views
        failed = any(map(self._fails, views))
        return ConsumeResult.RETRY_LATER if failed else ConsumeResult.SUCCESS

    @property
    def views(self) -> list[MessageView]:
        with self._lock:
            return list(self._views)

    def bodies(self) -> list[str]:
        return [view.body.decode() for view in self.views]

    def wait(self, count: int, timeout_s: float = WAIT_S) -> list[MessageView]:
        """Return the messages once a number have arrived."""
        wait_until(lambda: len(self.views) >= count, f"{count} messages", timeout_s)
        return self.views


def member(
    group: str,
    listener: Listener,
    name_server: str,
    *,
    settings: ConsumerSettings = SETTINGS,
    **options: object,
) -> PushConsumer:
    """A consumer that begins at the first message; `options` are PushConsumer's."""
    return PushConsumer(
        group,
        listener,
        name_server,
        begin=ConsumeFrom.FIRST_OFFSET,
        settings=settings,
        **options,  # type: ignore[arg-type]
    )


class ConsumerProcess:
    """A consumer in a process of its own, which writes down each body that it consumes."""

    def __init__(self, name_server: str, group: str, topic: str, out: Path) -> None:
        self.out = out
        command = [sys.executable, "-m", "tests.compat.python_members", name_server, group, topic]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [*command, str(out)], cwd=ROOT, env=environment, stdin=subprocess.PIPE
        )

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.send_signal(SIGKILL)
        self._process.communicate()

    def bodies(self) -> list[str]:
        """Return the consumed messages; a line truncated by the kill does not count."""
        if not self.out.exists():
            return []
        return [line for line in self.out.read_text().split("\n")[:-1] if line]


def consume_to_file(name_server: str, group: str, topic: str, out: Path) -> None:
    """Consume until the process is killed; run by ConsumerProcess."""
    lock = Lock()
    with out.open("a") as file:

        def listen(views: Sequence[MessageView]) -> None:
            with lock:
                file.write("".join(f"{view.body.decode()}\n" for view in views))
                file.flush()

        with member(group, listen, name_server) as consumer:
            consumer.subscribe(topic)
            sys.stdin.read()


if __name__ == "__main__":
    consume_to_file(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
