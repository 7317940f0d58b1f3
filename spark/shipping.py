"""Our code for Pythons that have pyarrow and numpy, and nothing of ours: as a zip, or by links.

The zip is for workers of Spark. A folder of links is for a job on another Python of this machine:
beside our packages may lie others, which were made for this Python.

The zip holds the packages that tasks import, under the names by which this process imports them,
and the parser that SQL92 needs, which is plain Python. Spark puts it on the workers' path; it takes
a .zip, and would not take a wheel. The same code makes the same bytes.

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
"""What our packages lie in: a clone, or the package that a wheel has them below."""

_DEPTH = __name__.count(".") - 1
"""How many packages that is below the path: 0 or 1."""

_PACKAGES = ("protocol", "storage", "remoting", "spark")
_PARSER = "lark"
_SUFFIXES = (".py", ".lark")
_FRONT = '"""The part of the package that tasks of Spark need."""\n'
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip can say; every file gets it."""

_MODE = 0o644 << 16


def write_zip(directory: str | Path) -> str:
    """Writes the zip into a directory that is there; returns its path. Raises StoreError."""
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
    """Gives the workers of a session what the data source needs there.

    For a session of your own on a cluster whose workers do not have this package; once is enough.
    Raises StoreError.
    """
    directory = mkdtemp(prefix="troupemq-")
    atexit.register(rmtree, directory, ignore_errors=True)  # workers fetch it until then
    spark.sparkContext.addPyFile(write_zip(directory))


def linked_packages() -> dict[str, Path]:
    """Return the folders of what the zip has, by the names of the links to them."""
    ours = {_FLOOR.name: _FLOOR} if _DEPTH else {name: _FLOOR / name for name in _PACKAGES}
    parser = folder_of(_PARSER)
    return ours if parser is None else {**ours, _PARSER: parser}


def _files() -> Iterator[tuple[str, bytes]]:
    """(name in the zip, content)."""
    below = "/".join(_FLOOR.parts[len(_FLOOR.parts) - _DEPTH :])
    if below:
        # What is there itself imports the client, with all that this needs.
        yield f"{below}/__init__.py", _FRONT.encode()
    for package in _PACKAGES:
        yield from _package(_FLOOR / package, f"{below}/{package}".lstrip("/"))
    if parser := folder_of(_PARSER):
        yield from _package(parser, _PARSER)


def folder_of(package: str) -> Path | None:
    """Return the folder of a package of this Python; None where it is not installed."""
    spec = find_spec(package)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _package(directory: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in directory.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file():
            yield f"{name}/{path.relative_to(directory).as_posix()}", path.read_bytes()
