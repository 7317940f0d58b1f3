"""The wheels for an index: what each holds, and the client's in an environment without packages."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.wheel import WheelBuilder

from hatch_build import BELOW, FRONT, SAMPLES, client_files, main
from tests.compat.wheel_user import AIO_TOPIC
from tests.support.golden import REPOSITORY
from tests.support.runtimes import IS_PYPY
from troupemq.testing.local_broker import LocalBroker, running_broker

STORAGE_OF_CLIENT = {
    *("__init__", "errors", "spelling", "files/__init__", "files/below"),
    *("access/__init__", "access/account", "access/acl_file", "access/acl_yaml"),
    "access/addresses",
}
USER = REPOSITORY / "tests/compat/wheel_user.py"
PACKAGES_OF_EXTRAS = {"dramatiq", "kombu", "opentelemetry", "taskiq", "yaml"}
IMPORTS_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(error.name.partition(".")[0])
"""
TIMEOUT_S = 120
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    """The client's wheel, the server's, and the one that `pip wheel .` makes."""
    pair, whole = (tmp_path_factory.mktemp(name) for name in ("pair", "whole"))
    main(str(pair))
    [*WheelBuilder(str(REPOSITORY)).build(directory=str(whole), versions=["standard"])]
    (client,), (server,) = pair.glob("troupemq_client-*"), pair.glob("troupemq-*")
    (everything,) = whole.iterdir()
    return {"client": ZipFile(client), "server": ZipFile(server), "whole": ZipFile(everything)}


@pytest.fixture(scope="module")
def alone(dist: dict[str, ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Function that runs a Python which has the standard library and the client's wheel only."""
    folder = tmp_path_factory.mktemp("alone")
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(venv, check=True, timeout=TIMEOUT_S)
    (packages,) = folder.glob("venv/lib/*/site-packages")
    dist["client"].extractall(packages)

    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "venv/bin/python", "-W", "error", *arguments],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **variables},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    return run


def contents(wheel: ZipFile) -> dict[str, bytes]:
    names = (name for name in wheel.namelist() if ".dist-info/" not in name)
    return {name: wheel.read(name) for name in names}


def metadata(wheel: ZipFile, file: str = "METADATA") -> str:
    (name,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{file}"))
    return wheel.read(name).decode()


def test_the_client_has_no_actors_and_of_storage_what_reads_an_account() -> None:
    files = client_files(REPOSITORY)
    layers = {name.split("/")[1] for name in files if name.count("/") > 1}
    assert layers <= {"client", "protocol", "remoting", "storage", "kombu", "taskiq", "dramatiq"}
    prefix = f"{FRONT}/storage/"
    assert {name.removeprefix(prefix) for name in files if name.startswith(prefix)} == {
        f"{name}.py" for name in STORAGE_OF_CLIENT
    }


@pytest.mark.slow(seconds=10)
def test_the_two_wheels_divide_the_files_of_the_whole_one(dist: dict[str, ZipFile]) -> None:
    client, server, whole = (contents(dist[name]) for name in ("client", "server", "whole"))
    assert not client.keys() & server.keys()
    assert client | server == whole
    assert {name.split("/")[0] for name in whole} == {FRONT}
    assert {f"{FRONT}/{package}/__init__.py" for package in BELOW} <= whole.keys()
    assert {f"{FRONT}/conf/{name}" for name in SAMPLES} <= server.keys()
    assert {f"{FRONT}/{name}" for name in ("__init__.py", "py.typed", "aio.py")} <= client.keys()
    assert f"{FRONT}/pytest_plugin.py" in server
    manual = (REPOSITORY / "docs/operations.md").read_text(encoding="utf-8")
    for wheel in dist.values():
        assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
        assert Path(wheel.filename or "").name in manual


@pytest.mark.slow
def test_the_server_requires_the_same_version_of_the_client(dist: dict[str, ZipFile]) -> None:
    versions = [
        line.removeprefix("Version: ")
        for wheel in dist.values()
        for line in metadata(wheel).splitlines()
        if line.startswith("Version: ")
    ]
    assert versions == versions[:1] * 3
    wanted = f"Requires-Dist: troupemq-client=={versions[0]}\n"
    assert wanted in metadata(dist["server"]) and wanted not in metadata(dist["whole"])
    required = [line for line in metadata(dist["client"]).splitlines() if "Requires-Dist" in line]
    assert required and all("extra ==" in line for line in required)
    assert "console_scripts" in metadata(dist["server"], "entry_points.txt")
    of_client = metadata(dist["client"], "entry_points.txt")
    assert "opentelemetry_instrumentor" in of_client
    assert "pytest11" not in of_client and "console_scripts" not in of_client


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with running_broker() as found:
        yield found


@pytest.mark.slow(seconds=5)
def test_the_client_alone_sends_and_consumes(alone: Run, broker: LocalBroker) -> None:
    broker.admin.create_topic(AIO_TOPIC, 1)  # else the first receive may warn that it is missing
    done = alone(USER, broker.namesrv)
    assert (done.stdout, done.stderr) == ("hello greeting ('key-1',)\nhello again\n", "")


@pytest.mark.slow
def test_modules_of_the_client_import_only_packages_of_its_extras(
    alone: Run, dist: dict[str, ZipFile]
) -> None:
    modules = [
        name.removesuffix(".py").replace("/", ".")
        for name in contents(dist["client"])
        if name.endswith(".py") and not name.endswith("/__main__.py")
    ]
    done = alone("-c", IMPORTS_EACH, *modules)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) <= PACKAGES_OF_EXTRAS


@pytest.mark.slow
def test_the_command_without_the_servers_names_the_missing_wheel(alone: Run) -> None:
    done = alone("-m", "troupemq", "broker")
    assert done.returncode == 1
    assert done.stderr == (
        "troupemq: only troupemq-client is installed: install troupemq for its commands.\n"
    )


@pytest.mark.slow
def test_an_account_file_without_pyyaml_is_refused_in_one_sentence(alone: Run) -> None:
    done = alone("-c", "import troupemq; troupemq.Producer('g', 'h:1')", TROUPEMQ_ACL_FILE="a.yml")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "a.yml cannot be read without PyYAML: install pyyaml,"
        " or set TROUPEMQ_ACCESS_KEY and TROUPEMQ_SECRET_KEY"
    )


@pytest.mark.slow(seconds=20)
@pytest.mark.skipif(IS_PYPY, reason="mypy is installed on CPython only")
def test_a_users_program_passes_mypy_with_the_installed_client(alone: Run, tmp_path: Path) -> None:
    python = alone("-c", "import sys; print(sys.executable)").stdout.strip()
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
    command += ["--config-file", "", "--cache-dir", str(tmp_path)]
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(USER.read_text())
    bad.write_text("from troupemq import Producer\n\nProducer(1).send(2)\n")
    done = [
        subprocess.run(
            [*command, path],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        for path in (good, bad)
    ]
    assert done[0].returncode == 0, done[0].stdout
    assert done[1].returncode == 1 and "Found 2 errors" in done[1].stdout, done[1].stdout
