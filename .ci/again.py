"""Runs the failed tests of the last run again, alone, and names them if they are unsteady.

`.venv/bin/python .ci/again.py [further arguments of pytest]`

An unrepeatable failure among eight thousand tests must be fixed and visible, but says less about a
change than the other tests. So at most two failed tests are run twice more, one after the other.
The exit code is 0 only if each passed both times. A fault that appears twice in three runs is one
of the code. Nothing is run again if the last run did not reach its end.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
ENDED_IN = Path(".pytest_cache/v/troupemq/ended_in")
"""The test in which a process of the run ended (tests/conftest.py)."""
UNSTEADY = Path(".ci/unsteady")
AGAIN_MAX = 2


def main() -> int:
    if ENDED_IN.exists():
        print(f"the run ended in {ENDED_IN.read_text()}: not run again")
        return 1
    try:
        failed = list(json.loads(FAILED.read_text()))
    except (OSError, ValueError):
        failed = []
    if not 0 < len(failed) <= AGAIN_MAX:
        print(f"{len(failed)} tests failed: not run again")
        return 1
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *sys.argv[1:],
        *failed,
    ]
    for _ in range(2):
        if subprocess.run(command, check=False, env=os.environ).returncode:
            return 1
    with UNSTEADY.open("a") as names:
        names.writelines(f"unsteady: failed once, then passed twice: {name}\n" for name in failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
