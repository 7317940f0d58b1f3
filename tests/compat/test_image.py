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
from pathlib import Path
from typing import Any

import pytest

from tests.compat.patience import wait_until
from troupemq import Message, Producer, PushConsumer
from troupemq.client.consuming.consumer_offsets import ConsumeFrom

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "conf/deploy/container"
HOST = "127.0.0.1"
IMAGE_BYTES_MAX = 150_000_000
USER_ID = 10001
SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")


def pinned() -> dict[str, str]:
    text = (FOLDER / "requirements.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))


def test_what_the_wheel_depends_on_is_pinned_by_hash() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {re.split(r"[^\w-]", text)[0].lower() for text in project["dependencies"]}
    assert wanted == {name.lower() for name in pinned()}


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
def test_it_is_small_and_all_of_it_is_named_by_its_hash(image: Image) -> None:
    assert image.archive.stat().st_size < IMAGE_BYTES_MAX
    assert sum(each.size for each in image.entries.values()) < IMAGE_BYTES_MAX
    assert image.config["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(image.layer).hexdigest()}"
    ]
    assert json.loads(image.blobs["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    assert len(image.blobs) == 5


@pytest.mark.slow
def test_it_runs_as_nobody_special_and_nobody_special_owns_its_files(image: Image) -> None:
    config = image.config["config"]
    assert config["User"] == f"{USER_ID}:{USER_ID}"
    assert config["Entrypoint"] == ["/usr/bin/troupemq"] and config["Cmd"][0] == "broker"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][1:] == ["/usr/bin/troupemq", "health"]
    assert config["Volumes"] == {"/var/lib/troupemq": {}}
    assert {"9876/tcp", "10909/tcp", "10911/tcp", "10912/tcp"} <= config["ExposedPorts"].keys()
    owned = {name for name, each in image.entries.items() if each.uid or each.gid}
    assert owned == {"var/lib/troupemq"}
    real = {name: each for name, each in image.entries.items() if not each.issym()}
    assert {name for name, each in real.items() if each.mode & 0o022} == {"tmp"}
    assert not [name for name, each in real.items() if each.mode & 0o6000]
    assert not [each for each in image.entries.values() if each.mtime]
    for program in ("sh", "bash", "dash", "apt-get", "dpkg", "java", "pip"):
        assert not [name for name in image.entries if name.endswith(f"bin/{program}")]
    assert "usr/share/doc/libc6/copyright" in image.entries
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
        f" && mount -t proc none {root}/proc"
        f' && exec chroot --userspec={USER_ID}:{USER_ID} {root} /usr/bin/troupemq "$@"'
    )
    environment = dict(each.split("=", 1) for each in image.config["config"]["Env"])
    options = ("--ready-file", "/var/lib/troupemq/ready.json")
    command = ["unshare", "--mount", "sh", "-c", script, "sh", *arguments, *options]
    programs = os.environ["PATH"]
    with subprocess.Popen(
        command,
        env={**environment, "PATH": programs},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(lambda: ready.exists() or process.poll() is not None, name)
            assert process.poll() is None, process.stderr and process.stderr.read()
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{USER_ID}\t" in status
            yield json.loads(ready.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0
        finally:
            process.kill()


@pytest.mark.slow(seconds=15)
def test_a_message_goes_through_a_broker_of_the_image(image: Image, tmp_path: Path) -> None:
    """The root is read-only: whatever is written goes to the volume."""
    if os.getuid() or shutil.which("unshare") is None:
        pytest.skip("only root may mount: the image's root file system is not run")
    before = {path for path in image.root.rglob("*") if not path.is_dir()}
    local = ("-s", "listenPort=0", "-s", f"bindAddress={HOST}", "-s", f"brokerIP1={HOST}")
    small = [word for each in SMALL for word in ("-s", each)]
    health = ("-s", "healthPort=0")
    namesrv = ("namesrv", "-c", "/etc/troupemq/namesrv.conf", "-p", "0")
    (image.root / "etc/troupemq/namesrv.conf").write_text(
        f"bindAddress={HOST}\nkvConfigPath=/var/lib/troupemq/kv.json\n"
    )
    with running(image, tmp_path, "namesrv", *namesrv) as ports:
        address = f"{HOST}:{ports['namesrv']}"
        broker = ("broker", "-c", "/etc/troupemq/broker.conf", "-n", address)
        with running(image, tmp_path, "broker", *broker, *local, *small, *health):
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
    assert {path for path in image.root.rglob("*") if not path.is_dir()} == before
