"""The two wheels in a new environment of one Python, with no other program on the PATH.

    .venv/bin/python .ci/wheel_alone.py PYTHON

Installs it there as a package index would have it, starts a name server and a broker, sends and
consumes with the commands, then with the client.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"
TOPIC = "Alone"
SETTINGS = {
    "listenPort": "0",
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "healthPort": "0",
    "mappedFileSizeCommitLog": "16777216",
    "storePathRootDir": "store",
}
TIMEOUT_S = 120
LOOK_EVERY_S = 0.1


class Alone:
    """Environment with the wheel; its folder is where programs run."""

    def __init__(self, python: str, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "venv/bin"
        build = (sys.executable, ROOT / "hatch_build.py", folder)
        subprocess.run(build, check=True, capture_output=True)
        (wheel,) = folder.glob("troupemq-*.whl")
        subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        uv = Path(sys.executable).with_name("uv")
        into = ("--python", self.programs / "python", "--find-links", folder)
        subprocess.run([uv, "pip", "install", "--quiet", *into, wheel], check=True)
        self.variables = {"PATH": str(self.programs), "HOME": str(folder)}

    def said(self, program: str, *arguments: str | Path) -> str:
        """Run a program of the environment to its end; return what it prints."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return done.stdout.strip()

    @contextmanager
    def serving(self, *command: str) -> Iterator[int]:
        """Start a server; give its port, and stop it in order."""
        ready, log = (self.folder / f"{command[0]}.{suffix}" for suffix in ("ready", "log"))
        line = [str(self.programs / "troupemq"), *command, "--ready-file", str(ready)]
        with (
            log.open("w") as said,
            subprocess.Popen(
                line, cwd=self.folder, env=self.variables, stdout=said, stderr=said
            ) as process,
        ):
            try:
                while not ready.exists() and process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LOOK_EVERY_S)
                if process.poll() is None:
                    yield json.loads(ready.read_text())[command[0]]
            finally:
                process.terminate()
            if code := process.wait(TIMEOUT_S):
                sys.exit(f"{command[0]} ended with {code}: {log.read_text()}")


def main() -> int:
    """Try it; give the exit code."""
    with TemporaryDirectory(prefix="alone-") as name:
        alone = Alone(os.path.abspath(sys.argv[1]), Path(name))
        namesrv_conf = alone.folder / "namesrv.conf"
        namesrv_conf.write_text(f"listenPort=0\nbindAddress={HOST}\nkvConfigPath=kv.json\n")
        user = shutil.copy(ROOT / "tests/compat/wheel_user.py", alone.folder)
        settings = [word for each in SETTINGS.items() for word in ("-s", "=".join(each))]
        with alone.serving("namesrv", "-c", str(namesrv_conf)) as port:
            address = f"{HOST}:{port}"
            with alone.serving("broker", "-n", address, *settings):
                to = ("-n", address, "-t", TOPIC)
                alone.said("troupemq", "send", *to, "-b", "a book", "--count", "100")
                got = alone.said("troupemq", "consume", *to, "--count", "100").splitlines()
                client = alone.said("python", user, address)
    runtime = f"{Path(sys.argv[1]).name}, alone"
    bodies = [line.partition(" ")[2] for line in got]
    if bodies != ["a book"] * 100 or client != "hello greeting ('key-1',)\nhello again":
        print(f"{runtime}: consumed {got[:3]} … and {client!r}", file=sys.stderr)
        return 1
    print(f"{runtime}: 102 messages sent and consumed through the wheels' servers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
