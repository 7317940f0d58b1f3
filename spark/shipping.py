"""TroupeMQ's code for Pythons that have only pyarrow and numpy: as a zip, or by links.

The zip is for Spark workers. A folder of links is for a job on another Python of this machine.
It links single packages, because packages beside them may belong to this Python only.

The zip holds the packages that tasks import, under the names that this process uses. It also holds
lark, the pure-Python parser that SQL92 needs. Spark puts it on the workers' path; it accepts a
.zip but no wheel. Identical code makes identical bytes.

    protocol/ storage/ remoting/ spark/     in a clone; all below troupemq/ in an installed wheel
    lark/                                   for SQL92
"""

import atexit
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from storage.errors import StoreError, reason_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ZIP_NAME = "troupemq-tasks.zip"

_FLOOR = Path(__file__).resolve().parents[1]
"""Directory of the packages: a clone, or the package that contains them in a wheel."""

_DEPTH = __name__.count(".") - 1
"""Number of packages above `spark` in its import name: 0 or 1."""

_PACKAGES = ("protocol", "storage", "remoting", "spark")
_PARSER = "lark"
_SUFFIXES = (".py", ".lark")
_FRONT = '"""The part of the package that tasks of Spark need."""\n'
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""Earliest time that a zip can hold, used for every file."""

_MODE = 0o644 << 16


def write_zip(directory: str | Path) -> str:
    """Write the zip into an existing directory and return its path. Raises StoreError."""
    path = Path(directory) / ZIP_NAME
    try:
        with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=6) as target:
            for name, content in sorted(_files()):
                info = ZipInfo(name, _OLDEST)
                info.compress_type = ZIP_DEFLATED
                info.external_attr = _MODE
                target.writestr(info, content)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}") from error
    return str(path)


def ship_code(spark: "SparkSession") -> None:
    """Give the workers of a session the code that the data source needs.

    Call it once, for your own session if workers of its cluster lack this package. Raises
    StoreError.
    """
    directory = mkdtemp(prefix="troupemq-")
    atexit.register(
        rmtree, directory, ignore_errors=True
    )  # workers fetch it until this process exits
    spark.sparkContext.addPyFile(write_zip(directory))


def linked_packages() -> dict[str, Path]:
    """Return the folders of the zipped packages, by the names of the links to them."""
    ours = {_FLOOR.name: _FLOOR} if _DEPTH else {name: _FLOOR / name for name in _PACKAGES}
    parser = folder_of(_PARSER)
    return ours if parser is None else {**ours, _PARSER: parser}


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield (name in the zip, content)."""
    below = "/".join(_FLOOR.parts[len(_FLOOR.parts) - _DEPTH :])
    if below:
        # The package's own __init__ imports the client and all that it needs.
        yield f"{below}/__init__.py", _FRONT.encode()
    for package in _PACKAGES:
        yield from _package(_FLOOR / package, f"{below}/{package}".lstrip("/"))
    if parser := folder_of(_PARSER):
        yield from _package(parser, _PARSER)


def folder_of(package: str) -> Path | None:
    """Return the folder of an installed package; None if it is not installed."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _package(directory: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in directory.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file():
            yield f"{name}/{path.relative_to(directory).as_posix()}", path.read_bytes()
