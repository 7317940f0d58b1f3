"""Many commands of the official `mqadmin` in one Java: the start of each would take seconds."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.compat.agent import SMALL_JVM
from tests.compat.servers import OPENS, official_home
from tests.compat.toolchain import Java

MAIN_CLASS = "interop.AdminShell"
MARK = "@"
END_TIMEOUT_S = 30

Shell = Callable[..., str]
"""Runs one command and gives what it printed, on either stream."""


@contextmanager
def admin_shell(java: Java, scratch: Path, name_server: str) -> Iterator[Shell]:
    """A Java that waits for commands; they go to the brokers of `name_server`."""
    home = official_home(scratch)
    command = [
        java.executable,
        *SMALL_JVM,
        *OPENS,
        f"-Drocketmq.client.logRoot={scratch}",
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={scratch}",
        "-cp",
        java.class_path,
        MAIN_CLASS,
    ]
    with (scratch / "admin-shell.log").open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdin and process.stdout
    lines, answers = process.stdin, process.stdout

    def run(name: str, *options: str) -> str:
        lines.write(json.dumps([name, "-n", name_server, *options]) + "\n")
        lines.flush()
        for line in answers:
            if line.startswith(MARK):
                answer = json.loads(line[len(MARK) :])
                return str(answer["out"] + answer["err"]).strip()
        raise AssertionError(f"mqadmin {name} ended its Java")

    try:
        yield run
    finally:
        lines.close()
        process.kill() if process.poll() is None else None
        process.wait(END_TIMEOUT_S)
        answers.close()
