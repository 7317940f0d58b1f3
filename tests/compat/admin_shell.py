"""Many commands of the official `mqadmin` in one Java: the start of each would take seconds."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from tests.compat.mqadmin import Mqadmin, java_command
from tests.compat.toolchain import Java

MAIN_CLASS = "interop.AdminShell"
MARK = "@"
ANSWER_TIMEOUT_S = 90
END_TIMEOUT_S = 30

Shell = Callable[..., str]
"""Runs one command and gives what it printed, on either stream."""


@contextmanager
def admin_shell(java: Java, scratch: Path, name_server: str, *options: str) -> Iterator[Shell]:
    """A Java with these options waits for commands; they go to the brokers of `name_server`."""
    with mqadmin_in_one_java(java, scratch, name_server, *options) as mqadmin:

        def run(command: str, *options: str) -> str:
            done = mqadmin(command, *options)
            return (done.stdout + done.stderr).strip()

        yield run


@contextmanager
def mqadmin_in_one_java(
    java: Java, scratch: Path, name_server: str, *options: str
) -> Iterator[Mqadmin]:
    """Run mqadmin in one JVM, with separate streams; a command that ends the JVM fails."""
    program, *rest = java_command(java, scratch, MAIN_CLASS)
    command = [program, *options, *rest]
    with (scratch / "admin-shell.log").open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=scratch,  # some commands leave files where they run
        )
    assert process.stdin and process.stdout
    lines, answers = process.stdin, process.stdout

    def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        lines.write(json.dumps([name, "-n", name_server, *options]) + "\n")
        lines.flush()
        hangs = Timer(ANSWER_TIMEOUT_S, process.kill)
        hangs.start()
        try:
            for line in answers:
                if line.startswith(MARK):
                    answer = json.loads(line[len(MARK) :])
                    return subprocess.CompletedProcess(name, 0, answer["out"], answer["err"])
        finally:
            hangs.cancel()
        raise AssertionError(f"mqadmin {name} ended its Java, or did not end itself")

    try:
        yield run
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(END_TIMEOUT_S)
        lines.close()
        answers.close()
