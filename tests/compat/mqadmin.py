"""Runs the official `mqadmin`, each command in a Java of its own, as its script does."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.compat.agent import SMALL_JVM
from tests.compat.servers import OPENS, official_home
from tests.compat.toolchain import Java

TIMEOUT_S = 60
MAIN_CLASS = "org.apache.rocketmq.tools.command.MQAdminStartup"

Mqadmin = Callable[..., subprocess.CompletedProcess[str]]


def java_command(java: Java, scratch: Path, main_class: str) -> list[str]:
    """Return the command line of the official tools; their own logs go to `scratch`."""
    return [
        java.executable,
        *SMALL_JVM,
        *OPENS,
        f"-Drocketmq.client.logRoot={scratch}",
        f"-Drocketmq.home.dir={official_home(scratch)}",
        f"-Duser.home={scratch}",
        "-cp",
        java.class_path,
        main_class,
    ]


def mqadmin(java: Java, scratch: Path, name_server: str) -> Mqadmin:
    """A function that runs one command against the brokers of `name_server`."""
    program = java_command(java, scratch, MAIN_CLASS)

    def run(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, command, "-n", name_server, *options],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=scratch,  # some commands leave files where they run
            check=False,
        )

    return run
