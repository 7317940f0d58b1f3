"""The wheels of `make dist`, installed where a stranger would install them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.compat.patience import wait_until
from tests.support.bare_python import bare_python, spark_path

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
OUR_NAMES = ("protocol", "storage", "remoting", "actors", "spark")
COMMAND_TIMEOUT_S = 240.0
SAID = "hello greeting ('key-1',)\nhello again\n"
"""Output of wheel_user.py."""
STOP_TIMEOUT_S = 30.0
SMALL_FILES = {
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
SMALL_SPARK = """\
spark.master = local[1]
spark.driver.memory = 512m
spark.driver.extraJavaOptions = -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
"""


class Stranger:
    """An environment of its own with the wheels, and a folder that has packages of our names."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.bin = environment / "bin"
        self.folder = folder
        inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.variables: Mapping[str, str] = {**inherited, "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """Runs a program of the environment to its end; gives what it prints."""
        done = subprocess.run(
            [str(self.bin / command[0]), *map(str, command[1:])],
            cwd=cwd or self.folder,
            env=self.variables,
            input="\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, *command: str | Path) -> Iterator[dict[str, int]]:
        """A server of the environment; gives its ports, and sees it stop in order."""
        ready, log = (self.folder / f"{command[0]}.{suffix}" for suffix in ("ready", "log"))
        arguments = [self.bin / "troupemq", *command, "--ready-file", ready]
        with (
            log.open("w") as output,
            subprocess.Popen(
                [str(argument) for argument in arguments],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            try:
                wait_until(lambda: ready.exists() or process.poll() is not None, str(command[0]))
                assert process.poll() is None, log.read_text()
                yield json.loads(ready.read_text())
                process.send_signal(signal.SIGTERM)
                assert process.wait(STOP_TIMEOUT_S) == 0, log.read_text()
            finally:
                process.kill()


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """Only the wheels are installed there; what they depend on is lent by this environment."""
    dist = tmp_path_factory.mktemp("dist")
    run_here(ROOT / "hatch_build.py", dist)
    environment = tmp_path_factory.mktemp("environment") / "venv"
    folder = tmp_path_factory.mktemp("stranger")
    run_here("-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    pip = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run_here(*pip, *dist.glob("*.whl"))
    lend_packages(environment)
    for name in OUR_NAMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    return Stranger(environment, folder)


def run_here(*arguments: str | Path) -> None:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def lend_packages(environment: Path) -> None:
    """A directory named in a .pth file is searched, but .pth files in it are not obeyed: so an
    editable install of this project stays behind."""
    (target,) = environment.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (target / "lent.pth").write_text("".join(f"{path}\n" for path in sorted(ours)))


@pytest.mark.slow
def test_the_installed_command_runs_anywhere(stranger: Stranger) -> None:
    assert stranger.run("troupemq", "--version", cwd=Path("/")).startswith("troupemq, version ")


@pytest.mark.slow(seconds=20)
def test_a_wheel_works_beside_packages_of_the_same_names(stranger: Stranger) -> None:
    """Broker and name server, a message there and back, and a Spark job with a Python worker."""
    store, archive = stranger.folder / "store", stranger.folder / "archive"
    shutil.copy(Path(__file__).with_name("wheel_user.py"), stranger.folder / "uses_it.py")
    (stranger.folder / "spark.conf").write_text(SMALL_SPARK)
    namesrv_conf = stranger.folder / "namesrv.conf"
    namesrv_conf.write_text(
        f"listenPort=0\nbindAddress={HOST}\nkvConfigPath={stranger.folder}/kvConfig.json\n"
    )
    with stranger.serving("namesrv", "-c", namesrv_conf) as ports:
        namesrv = f"{HOST}:{ports['namesrv']}"
        settings = {
            "listenPort": "0",
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "storePathRootDir": str(store),
            **SMALL_FILES,
        }
        with stranger.serving("broker", "-n", namesrv, *set_options(settings)):
            assert stranger.run("python", "uses_it.py", namesrv) == SAID
            options = ("--store", store, "--output", archive, "--spark-conf", "spark.conf")
            told = stranger.run("troupemq", "job", "run", "archive", *options, "--json")
            assert json.loads(told)["rows"] == 2
    assert not (store / "abort").exists()


@pytest.mark.slow
def test_a_wheel_has_the_settings_reference(stranger: Stranger) -> None:
    program = (
        "from troupemq.setting_meanings import broker_settings as known\n"
        "print(len(known()['masters'].words))"
    )
    assert int(stranger.run("python", "-c", program)) > 10


@pytest.mark.slow
def test_hooks_are_imported_from_a_wheel_as_the_documents_say(stranger: Stranger) -> None:
    """The program runs unchanged except sizes and address, beside packages of equal names."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "hooks=[taken]" in example
    folder = stranger.folder / "hooks"
    folder.mkdir()
    small = "\\n".join(f"{key}={value}" for key, value in SMALL_FILES.items())
    example = example.replace("listenPort=0", f"listenPort=0\\nbindAddress={HOST}\\n{small}")
    (folder / "serves.py").write_text(example)
    (folder / "actors").mkdir()
    told = stranger.run("python", "serves.py", cwd=folder)
    assert "Clients connect to port " in told
    assert (folder / "data" / "store" / "commitlog").is_dir()
    assert not (folder / "data" / "store" / "abort").exists()


@pytest.mark.slow
def test_a_wheel_ships_its_modules_under_their_own_names(
    stranger: Stranger, tmp_path: Path
) -> None:
    """Below `troupemq`, whose `__init__` in the zip does not want the client."""
    program = "from troupemq.spark.shipping import write_zip; print(write_zip('.'))"
    shipped = stranger.folder / stranger.run("python", "-c", program).strip()
    names = ZipFile(shipped).namelist()
    assert {name.partition("/")[0] for name in names} == {"troupemq", "lark"}
    assert not [name for name in names if name.startswith("troupemq/client/")]
    python = bare_python(tmp_path / "venv")
    reads = "from troupemq.spark.source import reading; print(reading.__file__)"
    path = os.pathsep.join([str(shipped), str(spark_path(python))])
    done = subprocess.run(
        [str(python), "-c", reads],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.stdout == f"{shipped}/troupemq/spark/source/reading.py\n", done.stderr


def set_options(settings: Mapping[str, str]) -> Sequence[str]:
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
