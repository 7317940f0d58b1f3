"""Runs a command with a temporary folder of its own, and says how much disk that took.

    python3 .ci/temp_use.py make test

The folder is looked at twice a second: blocks that are allocated, whatever the sizes of the files.
Exits as the command does; with 1 if more than 1 GiB was in use at a time, or if the command
succeeded and left a file behind.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_BYTES = 1 << 30
LOOK_EVERY_S = 0.5
BLOCK_BYTES = 512
"""The unit of st_blocks, whatever the file system's is."""


def in_use(folder: str) -> dict[str, int]:
    """Allocated bytes of every file below a folder; what goes away meanwhile does not count."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            try:
                found[path] = os.lstat(path).st_blocks * BLOCK_BYTES
            except FileNotFoundError:
                continue
    return found


def environment(folder: str) -> dict[str, str]:
    """Return the command's environment; Java and Spark have their own variables for TMPDIR."""
    java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={folder}".strip()
    own = {"TMPDIR": folder, "SPARK_LOCAL_DIRS": folder, "SPARK_SUBMIT_OPTS": java}
    return {**os.environ, **own}


def run(command: list[str], folder: str) -> tuple[int, int]:
    """(exit code, the most bytes that were in use)."""
    peak_bytes = 0
    with subprocess.Popen(command, env=environment(folder)) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            peak_bytes = max(peak_bytes, sum(in_use(folder).values()))
            try:
                return process.wait(LOOK_EVERY_S), peak_bytes
            except subprocess.TimeoutExpired:
                continue


def main() -> int:
    command = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="temp-use-") as folder:
        code, peak_bytes = run(command, folder)
        left = sorted(str(Path(path).relative_to(folder)) for path in in_use(folder))
    print(
        f"temporary files of {' '.join(command)}: {peak_bytes >> 20} MiB at most, "
        f"{len(left)} left behind",
        flush=True,
    )
    if peak_bytes > LIMIT_BYTES:
        print(f"that is more than {LIMIT_BYTES >> 20} MiB", file=sys.stderr)
        return code or 1
    if left and code == 0:
        print(f"left behind: {', '.join(left[:20])}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
