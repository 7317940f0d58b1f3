"""A class-data archive (AppCDS): Spark's classes, loaded and verified in advance for the JVM.

    <cache>/class-data-<key>/base.jsa     classes of Java itself; not every Java ships them
    <cache>/class-data-<key>/spark.jsa    classes of Spark, on top of the base
    <cache>/class-data-<key>/checksums    name, bytes and CRC-32 of both files, one per line

The key identifies the Java, the class path and this layout. The JVM also checks both files against
itself and its class path, and ignores files that do not fit. A truncated or changed file kills the
JVM (SIGBUS), so each session first compares the checksums, which takes 0.1 s.

`troupemq job prepare` makes the files in 30 to 50 s of CPU time and 200 MB of disk. Each session
then takes some 10 s of CPU time less. `spark.troupemq.classData = false` disables them.

This module imports nothing heavy, as the command line imports it for its name.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

from storage.child_python import child_command, child_environment
from storage.errors import StoreError, reason_of

SETTING = "spark.troupemq.classData"
MAKE_TIMEOUT_S = 900.0
"""Maximum for making each of the two files, on a machine with other work."""

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_LAYOUT = 1
_BASE, _SPARK = "base.jsa", "spark.jsa"
_CHECKSUMS = "checksums"
_READ_BYTES = 1 << 20
_QUIET = "-Xlog:cds*=off"
"""Suppresses messages about files that do not fit."""

MODULE = __spec__.name
_SESSION_MODULE = f"{MODULE}_session"
"""A separate program, because it imports heavy modules."""


def user_cache(environment: Mapping[str, str]) -> Path:
    """Return this user's cache directory for class archives."""
    named = environment.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "troupemq"


def with_class_data(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session, with the class-data files if they exist and are wanted.

    Raises StoreError if `spark.troupemq.classData` is neither true nor false.
    """
    changed = dict(settings)
    wanted = changed.pop(SETTING, "true")
    if wanted not in ("true", "false"):
        raise StoreError(f"{SETTING} is {wanted}: it must be true or false")
    given = changed.get(_DRIVER_OPTIONS, "")
    if wanted == "false" or "SharedArchiveFile" in given or "-Xshare" in given:
        return changed
    directory = class_data_directory(environment)
    if directory is not None and is_whole(directory):
        changed[_DRIVER_OPTIONS] = f"{given} {' '.join(_use(directory))}".strip()
    return changed


def class_data_directory(environment: Mapping[str, str]) -> Path | None:
    """Return the directory of the files for this Java and this Spark, which may not exist yet.

    Returns None if it cannot be determined. Starts no JVM, as every session calls this.
    """
    from importlib.metadata import (
        version,
    )  # imported late: servers import this file, but run no Spark

    java, spark = _java(environment), find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    try:
        seen = [_LAYOUT, sys.platform, version("pyspark"), *map(_seen, (java, Path(spark.origin)))]
    except OSError:
        return None
    key = crc32("\n".join(map(str, seen)).encode())
    directory = user_cache(environment) / f"class-data-{key:08x}"
    # The JVM separates the two files by a colon, and Spark splits its options at blanks.
    return None if {":", " ", '"', "'", "\\"} & set(str(directory)) else directory


def is_whole(directory: Path) -> bool:
    """Return whether both files exist and match their checksums."""
    try:
        return (directory / _CHECKSUMS).read_text() == _checksums(directory)
    except (OSError, UnicodeDecodeError):
        return False


def _checksums(directory: Path) -> str:
    lines = []
    for name in (_BASE, _SPARK):
        checksum = size = 0
        with (directory / name).open("rb") as file:
            while part := file.read(_READ_BYTES):
                checksum, size = crc32(part, checksum), size + len(part)
        lines.append(f"{name} {size} {checksum:08x}\n")
    return "".join(lines)


def make_class_data(environment: Mapping[str, str]) -> Path:
    """Make missing files and return their directory.

    Several processes may do so at once; one of them wins. Raises StoreError.
    """
    target, java = class_data_directory(environment), _java(environment)
    if target is None or java is None:
        raise StoreError(
            "cannot make a class-data archive: it needs Java, pyspark, and a path without blanks "
            f"and colons for {user_cache(environment)}"
        )
    if is_whole(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="class-data-", dir=target.parent) as scratch:
            made = Path(scratch, "made")
            made.mkdir()
            dump = ["-Xshare:dump", f"-XX:SharedArchiveFile={made / _BASE}", "-Xlog:all=off"]
            _run([str(java), *dump], environment)
            _run(child_command(_SESSION_MODULE, str(made), scratch), child_environment(environment))
            if not (made / _SPARK).is_file():
                raise StoreError(
                    f"{java} did not write {made / _SPARK}: it may not support class-data archives"
                )
            (made / _CHECKSUMS).write_text(_checksums(made))
            _publish(made, target)
    except OSError as error:
        raise StoreError(f"cannot write to {target.parent}: {reason_of(error)}") from error
    return target


def _publish(made: Path, target: Path) -> None:
    """Rename `made` to `target`; keep an existing target, which has the same content."""
    if target.is_dir() and not is_whole(target):
        shutil.rmtree(target, ignore_errors=True)  # a JVM that has mapped the files keeps them
    try:
        made.rename(target)
    except OSError:
        if not is_whole(target):
            raise


def _run(line: list[str], environment: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            line,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=MAKE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(f"{line[0]} did not end within {MAKE_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise StoreError(f"cannot make a class-data archive: {last or line[0]}")


def making(made: Path) -> dict[str, str]:
    """Return the settings of the session that writes its classes beside the base."""
    options = f"-XX:SharedArchiveFile={made / _BASE} -XX:ArchiveClassesAtExit={made / _SPARK}"
    return {_DRIVER_OPTIONS: options, SETTING: "false"}


def _use(directory: Path) -> Iterator[str]:
    yield f"-XX:SharedArchiveFile={directory / _BASE}:{directory / _SPARK}"
    yield _QUIET


def _java(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the `java` that Spark would start."""
    home = environment.get("JAVA_HOME")
    if home:
        return Path(home) / "bin" / "java"
    found = shutil.which("java", path=environment.get("PATH"))
    return None if found is None else Path(found)


def _seen(path: Path) -> tuple[str, int, int]:
    """Return path, size and time of a file, which identify it."""
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def main(environment: Mapping[str, str]) -> int:
    """Make the files with the Python of this process; print where, or why not."""
    try:
        print(make_class_data(environment))
    except StoreError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
