"""The image of a broker or name server as an OCI archive, built without a daemon.

    python3 conf/deploy/container/build.py --output troupemq.oci.tar

It contains PyPy of Debian testing with its libraries and PACKAGES, unpacked without their scripts
(debian.py), the wheel of this tree, and the packages that requirements.txt pins by hash. All
modules are compiled. The one layer has sorted names and the time SOURCE_DATE_EPOCH (default: 0).

    /opt/troupemq            the wheel, its dependencies, those of console and metrics
    /etc/troupemq            settings: broker.conf, namesrv.conf; mount others over them
    /var/lib/troupemq        the store: a volume
    user                     troupemq, 10001:10001; the root may be read-only

It has no shell, no package manager and no Java. The build needs a C compiler and no root.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from debian import Apt, DebianError, run, unpack, write_launcher

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
USER_ID = 10001
PACKAGES = ("base-files", "ca-certificates", "tzdata")
"""Beside PyPy and its libraries: folders, certificates, time zones."""

HEADERS = "pypy3-dev"
"""Needed while dependencies are compiled, then removed."""

LEFT_OUT = (
    "usr/share/doc/*/[!c]*",
    *("usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/bug"),
    *("usr/share/binfmts", "usr/share/pixmaps", "usr/share/applications", "usr/lib/*/gconv"),
    *("usr/include", "usr/bin/pypy3c*", "usr/sbin/*", "usr/lib/*/libgdbm*", "usr/lib/*/libpanel*"),
    "opt/troupemq/yaml/_yaml*",
    *(
        f"usr/lib/pypy3*/{name}"
        for name in ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "*_gdbm*")
    ),
)
"""Copyright files stay."""

HEALTH_PORT = 10915
CONSOLE_AND_METRICS = (8088, 5557)
"""Nothing listens there until settings say so."""

PORTS = (9876, 10909, 10911, 10912, HEALTH_PORT, *CONSOLE_AND_METRICS)
BROKER_CONF = f"""\
# Mount a file of yours over this one; conf/broker.conf of the project shows all that can be said.
storePathRootDir = /var/lib/troupemq/store
healthPort = {HEALTH_PORT}
"""
NAMESRV_CONF = f"""\
# Mount a file of yours over this one; conf/namesrv.conf of the project shows all that can be said.
kvConfigPath = /var/lib/troupemq/namesrv/kvConfig.json
healthPort = {HEALTH_PORT}
"""
COMMAND = """\
#!/usr/bin/pypy3 -I
from troupemq.__main__ import main
main()
"""
FOR_EVERY_PYTHON = "usr/lib/python3/dist-packages/troupemq.pth"
"""Path file of our packages for child processes: console, several masters, readers of the log."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the image; return the exit code."""
    parser = argparse.ArgumentParser(description="An OCI archive of TroupeMQ, without a daemon.")
    parser.add_argument("--output", type=Path, required=True, help="where the archive goes")
    parser.add_argument(
        "--wheel", type=Path, help="wheel of `pip wheel .`; without it, it is built"
    )
    options = parser.parse_args(arguments)
    try:
        with TemporaryDirectory(prefix="troupemq-image-") as folder:
            build(Path(folder), options.output, options.wheel)
    except DebianError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {options.output.stat().st_size} bytes")
    return 0


def build(work: Path, output: Path, wheel: Path | None) -> None:
    """Write the archive to `output`; all else stays below `work`."""
    root = work / "root"
    packages = unpack(Apt(work / "apt").downloaded("pypy3", HEADERS, *PACKAGES), root)
    del packages[HEADERS]
    python = root / "usr/bin/pypy3"
    write_launcher(python, root, next(python.parent.glob("pypy3.*")))
    install_wheel(root, wheel or built_wheel(work), python)
    remove_unneeded_files(root)
    compile_modules(root, python)
    version = run(python, "-c", "import platform; print(platform.python_version())").strip()
    write_own_files(root, packages)
    write_archive(root, output, version)


def remove_unneeded_files(root: Path) -> None:
    """Pages for people, translations, modules that no server imports."""
    for pattern in LEFT_OUT:
        for path in list(root.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # folders may be links to one another


def built_wheel(work: Path) -> Path:
    """Build the wheel of this tree."""
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", work / "dist", ROOT)
    (wheel,) = (work / "dist").glob("troupemq-*.whl")
    return wheel


def install_wheel(root: Path, wheel: Path, python: Path) -> None:
    """Install the dependencies; each must have its hash of requirements.txt."""
    target = root / "opt/troupemq"
    pip = (sys.executable, "-m", "pip", "--python", python)
    install = (*pip, "install", "--no-deps", "--no-compile", "--target", target)
    run(*install, "--require-hashes", "-r", HERE / "requirements.txt")
    run(*install, "--no-index", "--upgrade", wheel)
    shutil.rmtree(target / "bin", ignore_errors=True)


def compile_modules(root: Path, python: Path) -> None:
    """Compile all modules, since the root is read-only at run time."""
    for path in (*root.glob("usr/lib/pypy3*"), root / "opt/troupemq"):
        command = (python, "-m", "compileall", "-q", "-j", "2")
        run(*command, "--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/", path)


def write_own_files(root: Path, packages: dict[str, str]) -> None:
    """Write the user, the settings, the folder of the store, and the list of packages."""
    user = f"troupemq:x:{USER_ID}:{USER_ID}::/var/lib/troupemq:/nologin"
    certificates = sorted(root.glob("usr/share/ca-certificates/mozilla/*.crt"))
    texts = {
        "etc/passwd": f"root:x:0:0::/:/nologin\n{user}\n",
        "etc/group": f"root:x:0:\ntroupemq:x:{USER_ID}:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/ssl/certs/ca-certificates.crt": "".join(path.read_text() for path in certificates),
        "etc/troupemq/broker.conf": BROKER_CONF,
        "etc/troupemq/namesrv.conf": NAMESRV_CONF,
        "usr/bin/troupemq": COMMAND,
        FOR_EVERY_PYTHON: "/opt/troupemq\n",
        "usr/share/troupemq/packages": "".join(f"{each} {packages[each]}\n" for each in packages),
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    (root / "usr/bin/troupemq").chmod(0o755)
    (python,) = (root / "usr/bin").glob("pypy3.*")
    (root / "usr/bin/pypy3").unlink()
    (root / "usr/bin/pypy3").symlink_to(python.name)
    for name in ("dev", "proc", "sys", "tmp", "var/lib/troupemq"):
        (root / name).mkdir(parents=True, exist_ok=True)


# --- the archive


def configuration(layer: bytes, version: str) -> dict[str, Any]:
    """Return the configuration for a container runtime."""
    second_ns = 1_000_000_000
    return {
        "architecture": run("dpkg", "--print-architecture").strip(),
        "os": "linux",
        "config": {
            "User": f"{USER_ID}:{USER_ID}",
            "Entrypoint": ["/usr/bin/troupemq"],
            "Cmd": ["broker", "-c", "/etc/troupemq/broker.conf", "--log-json"],
            "Env": [
                "PATH=/usr/bin",
                "HOME=/var/lib/troupemq",
                "TMPDIR=/var/lib/troupemq",
                f"TROUPEMQ_HEALTH_PORT={HEALTH_PORT}",
            ],
            "ExposedPorts": {f"{port}/tcp": {} for port in PORTS},
            "Volumes": {"/var/lib/troupemq": {}},
            "WorkingDir": "/var/lib/troupemq",
            "StopSignal": "SIGTERM",
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/troupemq", "health"],
                "Interval": 30 * second_ns,
                "Timeout": 10 * second_ns,
                "StartPeriod": 60 * second_ns,
            },
            "Labels": {
                "org.opencontainers.image.title": "TroupeMQ",
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.description": f"Broker, name server; PyPy {version}",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        "history": [{"created_by": "conf/deploy/container/build.py"}],
    }


def write_archive(root: Path, output: Path, version: str) -> None:
    """Layer, configuration, manifest and index, each named by its hash."""
    blobs: dict[str, bytes] = {}

    def add(data: bytes, kind: str) -> dict[str, Any]:
        blobs[digest := digest_of(data)] = data
        kind = f"application/vnd.oci.image.{kind}"
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    layer = packed_layer(root)
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(json.dumps(configuration(layer, version)).encode(), "config.v1+json"),
        "layers": [add(gzip.compress(layer, 9, mtime=0), "layer.v1.tar+gzip")],
    }
    head = add(json.dumps(manifest).encode(), "manifest.v1+json")
    head["annotations"] = {"org.opencontainers.image.ref.name": "troupemq"}
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [head]}).encode(),
        **{f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(output, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(data), 0o644, epoch_s()
            archive.addfile(entry, io.BytesIO(data))


def digest_of(data: bytes) -> str:
    """Return the digest in OCI's form."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def epoch_s() -> int:
    """Return the time of every file."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def packed_layer(root: Path) -> bytes:
    """Write all files as a tar. They are root's; only the volume and /tmp are writable."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in paths_of(root):
            name = str(path.relative_to(root))
            entry = archive.gettarinfo(path, name)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch_s()
            if not entry.issym():
                entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            if name == "tmp":
                entry.mode = 0o1777
            elif name == "var/lib/troupemq":
                entry.mode, entry.uid, entry.gid = 0o750, USER_ID, USER_ID
            if entry.isreg():
                with path.open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return data.getvalue()


def paths_of(root: Path) -> Iterator[Path]:
    """Every file and folder, sorted; a folder before what is in it."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted({*names, *folders}):
            yield Path(folder) / name


if __name__ == "__main__":
    sys.exit(main())
