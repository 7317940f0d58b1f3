"""The image of conf/deploy/container/build.py: bytes, files, user, and a broker that runs in it."""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.compat.patience import wait_until
from tests.compat.servers import free_port
from tests.test_locks import locked
from troupemq import Message, Producer, PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.cluster_demo.standalone import free_ports

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "conf/deploy/container"
HOST = "127.0.0.1"
IMAGE_BYTES_MAX = 150_000_000
USER_ID = 10001
IN_THE_IMAGE = {
    "extra": "",
    "implementation_name": "pypy",
    "platform_python_implementation": "PyPy",
    "python_version": "3.11",
    "python_full_version": "3.11.0",
}
SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")


def pinned() -> dict[str, str]:
    text = (FOLDER / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))


def test_the_dependencies_of_wheel_console_and_metrics_are_pinned_by_hash() -> None:
    """Up to the last of what those depend on, in the versions of requirements-dev.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["console"], *extras["metrics"]]
    wanted: set[str] = set()
    while asked:
        each = Requirement(asked.pop())
        name = canonicalize_name(each.name)
        if name not in wanted and (each.marker is None or each.marker.evaluate(IN_THE_IMAGE)):
            wanted.add(name)
            asked += distribution(name).requires or []
    found = {canonicalize_name(name): version for name, version in pinned().items()}
    assert wanted == found.keys()
    assert set(found.items()) <= set(locked("requirements-dev.lock"))


class Image:
    """The archive, and its root file system unpacked."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive = archive
        with tarfile.open(archive) as packed:
            files = {each.name: packed.extractfile(each) for each in packed.getmembers()}
            self.blobs = {name: file.read() for name, file in files.items() if file is not None}
        (head,) = json.loads(self.blobs["index.json"])["manifests"]
        manifest = self.named(head)
        self.config = self.named(manifest["config"])
        (layer,) = manifest["layers"]
        self.layer = gzip.decompress(self.blob(layer))
        self.root = folder / "root"
        with tarfile.open(fileobj=io.BytesIO(self.layer)) as packed:
            self.entries = {each.name: each for each in packed.getmembers()}
            packed.extractall(self.root, filter="fully_trusted")

    def blob(self, head: dict[str, Any]) -> bytes:
        data = self.blobs["blobs/" + head["digest"].replace(":", "/")]
        assert head["size"] == len(data)
        assert head["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        return data

    def named(self, head: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(head))
        return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built from the tree as it is."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("no apt-get: the image is built on Debian")
    folder = tmp_path_factory.mktemp("image")
    archive = folder / "troupemq.oci.tar"
    command = [sys.executable, str(FOLDER / "build.py"), "--output", str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode and "apt-get" in done.stderr:  # a machine that has never had its lists
        subprocess.run(["apt-get", "update"], capture_output=True, timeout=300, check=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return Image(archive, folder)


@pytest.mark.slow(seconds=60)
def test_the_image_is_small_and_its_parts_are_named_by_hash(image: Image) -> None:
    assert image.archive.stat().st_size < IMAGE_BYTES_MAX
    assert sum(each.size for each in image.entries.values()) < IMAGE_BYTES_MAX
    assert image.config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(image.layer).hexdigest()}"
    ]
    assert json.loads(image.blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    assert len(image.blobs) == 5


@pytest.mark.slow
def test_the_image_runs_as_an_unprivileged_user_that_owns_no_files(image: Image) -> None:
    config = image.config["config"]
    assert config["User"] == f"{USER_ID}:{USER_ID}"
    assert config["Entrypoint"] == ["/usr/bin/troupemq"] and config["Cmd"][0] == "broker"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][1:] == ["/usr/bin/troupemq", "health"]
    assert config["Volumes"] == {"/var/lib/troupemq": {}}
    named = (9876, 10909, 10911, 10912, 8088, 5557)
    assert {f"{port}/tcp" for port in named} <= config["ExposedPorts"].keys()
    owned = {name for name, each in image.entries.items() if each.uid or each.gid}
    assert owned == {"var/lib/troupemq"}
    real = {name: each for name, each in image.entries.items() if not each.issym()}
    assert {name for name, each in real.items() if each.mode & 0o022} == {"tmp"}
    assert not [name for name, each in real.items() if each.mode & 0o6000]
    assert not [each for each in image.entries.values() if each.mtime]
    for program in ("sh", "bash", "dash", "apt-get", "dpkg", "java", "pip"):
        assert not [name for name in image.entries if name.endswith(f"bin/{program}")]
    assert "usr/share/doc/libc6/copyright" in image.entries
    assert image.entries["usr/bin/pypy3"].linkname == "pypy3.11"
    passwd = (image.root / "etc/passwd").read_text()
    assert f"troupemq:x:{USER_ID}:{USER_ID}:" in passwd


@contextmanager
def running(image: Image, data: Path, name: str, *arguments: str) -> Iterator[dict[str, int]]:
    """A server of the image in a mount namespace: read-only root, the user of the image."""
    volume = data / name
    volume.mkdir()
    os.chown(volume, USER_ID, USER_ID)
    ready = volume / "ready.json"
    root = image.root
    script = (
        f"mount --bind {root} {root} && mount -o remount,ro,bind {root}"
        f" && mount -t tmpfs none {root}/tmp && mount --bind {volume} {root}/var/lib/troupemq"
        f" && mount -t proc none {root}/proc && mount --bind /dev {root}/dev"
        f' && exec chroot --userspec={USER_ID}:{USER_ID} {root} /usr/bin/troupemq "$@"'
    )
    environment = dict(each.split("=", 1) for each in image.config["config"]["Env"])
    options = ("--ready-file", "/var/lib/troupemq/ready.json")
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *arguments, *options]
    programs = os.environ["PATH"]
    log = data / f"{name}.log"
    with (
        log.open("w") as said,
        subprocess.Popen(
            command,
            env={**environment, "PATH": programs},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        ) as process,
    ):
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, name)
            assert process.poll() is None, log.read_text()
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{USER_ID}\t" in status
            yield json.loads(ready.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
        finally:
            process.kill()


@pytest.fixture
def files(image: Image) -> Iterator[None]:
    """The root is read-only: whatever is written goes to the volume."""
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("only root may mount: the image's root file system is not run")
    (image.root / "etc/troupemq/namesrv.conf").write_text(
        f"bindAddress={HOST}\nkvConfigPath=/var/lib/troupemq/kv.json\n"
    )
    before = {path for path in image.root.rglob("*") if not path.is_dir()}
    yield
    assert {path for path in image.root.rglob("*") if not path.is_dir()} == before


LOCAL = ("-s", f"bindAddress={HOST}", "-s", f"brokerIP1={HOST}", "-s", "healthPort=0")
SETTINGS = (*LOCAL, *(word for each in SMALL for word in ("-s", each)))
NAMESRV = ("namesrv", "-c", "/etc/troupemq/namesrv.conf", "-p", "0")


@pytest.mark.slow(seconds=15)
@pytest.mark.usefixtures("files")
def test_a_message_goes_through_a_broker_of_the_image(image: Image, tmp_path: Path) -> None:
    with running(image, tmp_path, "namesrv", *NAMESRV) as ports:
        address = f"{HOST}:{ports['namesrv']}"
        broker = ("broker", "-c", "/etc/troupemq/broker.conf", "-n", address, "-s", "listenPort=0")
        with running(image, tmp_path, "broker", *broker, *SETTINGS):
            got: list[bytes] = []

            def take(messages: Any) -> None:
                got.extend(each.body for each in messages)

            with Producer("image", address) as producer:
                producer.send(Message("FromImage", b"hello"))
            with PushConsumer("image", take, address, begin=ConsumeFrom.FIRST_OFFSET) as consumer:
                consumer.subscribe("FromImage", "*")
                wait_until(lambda: got == [b"hello"], "the message")
    store = tmp_path / "broker" / "store"
    assert (store / "commitlog").is_dir() and not (store / "abort").exists()


def page(url: str, form: dict[str, str] | None = None) -> tuple[str, str]:
    """The address where it ends, and the text; cookies are kept meanwhile."""
    opener = build_opener(HTTPCookieProcessor())
    data = urlencode(form).encode() if form else None
    with opener.open(url, data, timeout=30) as answer:
        return answer.url, answer.read().decode()


@pytest.mark.slow(seconds=20)
@pytest.mark.usefixtures("files")
def test_the_image_has_a_console_metrics_and_several_masters(image: Image, tmp_path: Path) -> None:
    """Processes of the image start others of the same program, which must be found."""
    (console,) = free_ports(1)
    metrics = ("metricsExporterType=PROM", "metricsPromExporterPort=0")
    named = (f"consolePort={console}", "brokerName=broker-a")
    given = [word for each in (*metrics, *named) for word in ("-s", each)]
    here = f"http://{HOST}:{console}"
    with running(image, tmp_path, "namesrv", *NAMESRV) as ports:
        address = f"{HOST}:{ports['namesrv']}"
        broker = ("broker", "-c", "/etc/troupemq/broker.conf", "-n", address, "--masters", "2")
        given += ["-s", f"listenPort={free_port(masters=2)}"]
        with running(image, tmp_path, "broker", *broker, *SETTINGS, *given) as broker_ports:
            assert (
                "troupemq_connections"
                in page(f"http://{HOST}:{broker_ports['metrics']}/metrics")[1]
            )
            log = tmp_path / "broker.log"
            said = re.compile(r"as admin with the password (\S+)")
            wait_until(lambda: said.search(log.read_text()) is not None, "the console")
            found = said.search(log.read_text())
            assert found is not None
            form = {"name": "admin", "password": found[1], "next": "/"}

            def both_are_shown() -> bool:
                where, text = page(f"{here}/login", form)
                return where == f"{here}/" and "broker-a-1" in text

            wait_until(both_are_shown, "the overview")
            assert "htmx" in page(f"{here}/static/htmx.min.js")[1]
    volume = tmp_path / "broker" / "store"
    assert (volume / "troupemq/console/audit.log").is_file()
    assert (tmp_path / "broker" / "store-masters" / "1").is_dir()
