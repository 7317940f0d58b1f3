"""The code that Spark workers get: a reproducible zip, sufficient to read a store."""

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from spark.shipping import ZIP_NAME, write_zip
from spark.source import options, tasks
from storage.errors import StoreError
from tests.spark.planned import rows_of, tasks_of
from tests.spark.ran import write_messages
from tests.spark.rows import in_order
from tests.spark.store_writer import StoreWriter
from tests.support.bare_python import PACKAGES, bare_python, spark_path
from tests.support.golden import REPOSITORY

OURS = {"protocol", "storage", "remoting", "spark"}
IN_THE_ZIP = OURS | {"lark"}
A_WORKER_HAS = {*PACKAGES, "pyspark", "py4j"}
MAY_LACK = {
    "orjson": "the fast decoders of a broker only",
    "crcmod": "the driver only, of archives and checkpoints",
    "yaml": "the accounts of a broker only",
    "__pypy__": "PyPy only",
}
"""Modules that the zip imports but a worker may lack, and their users."""

READS = f"""
import pickle, sys
sys.path.insert(0, sys.argv[1])
from {options.__name__} import parse_options
from {tasks.__name__} import read_partition
cases, columns = pickle.load(sys.stdin.buffer)
rows = [
    [
        row
        for task in tasks
        for batch in read_partition(task, parse_options(given), columns)
        for row in batch.to_pylist()
    ]
    for tasks, given in cases
]
outside = [
    name for name, module in sys.modules.items()
    if name.partition(".")[0] in {IN_THE_ZIP!r} and sys.argv[1] not in (module.__file__ or "")
]
pickle.dump((rows, outside), sys.stdout.buffer)
"""
IMPORTS_ALL = """
import sys
from importlib import import_module
sys.path.insert(0, sys.argv[1])
for name in sys.stdin.read().split():
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        print(error.name)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_zip(tmp_path_factory.mktemp("shipped"))


def run_bare(python: Path, program: str, shipped: str, given: bytes) -> bytes:
    """Run a program as a worker would, with Spark's own zips on the path."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run(
        [str(python), "-c", program, shipped],
        env={**kept, "PYTHONPATH": str(spark_path(python))},
        cwd=Path(shipped).parent,
        input=given,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def modules(shipped: str) -> list[str]:
    names = [name for name in ZipFile(shipped).namelist() if name.endswith(".py")]
    parts = [name.removesuffix(".py").replace("/", ".") for name in names]
    return [part.removesuffix(".__init__") for part in parts if part.partition(".")[0] in OURS]


def test_equal_code_gives_an_equal_zip(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.mkdir()
    first = Path(write_zip(tmp_path))
    second = Path(write_zip(again))
    assert first.name == ZIP_NAME
    assert first.read_bytes() == second.read_bytes()


def test_zip_holds_exactly_the_packages_of_tasks(shipped: str) -> None:
    names = ZipFile(shipped).namelist()
    assert {name.partition("/")[0] for name in names} == IN_THE_ZIP
    for package in OURS:
        there = {path.relative_to(REPOSITORY) for path in (REPOSITORY / package).rglob("*.py")}
        assert {Path(name) for name in names if name.startswith(f"{package}/")} == there
    assert not [name for name in names if name.endswith((".so", ".pyd", ".pyc"))]


def test_an_unwritable_zip_is_a_one_sentence_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*: "):
        write_zip(tmp_path / "nowhere")


@pytest.mark.heavy
def test_the_zip_imports_only_packages_that_workers_have(shipped: str) -> None:
    known = sys.stdlib_module_names | IN_THE_ZIP | A_WORKER_HAS
    found = {
        (name, path)
        for path in ZipFile(shipped).namelist()
        if path.partition("/")[0] in OURS
        for name in imported(ZipFile(shipped).read(path).decode())
        if name not in known
    }
    assert {(name, path) for name, path in found if name not in MAY_LACK} == set()


def imported(source: str) -> set[str]:
    """Return the packages that a module imports anywhere, in functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.slow
def test_the_zips_modules_need_only_pyarrow_and_numpy(python: Path, shipped: str) -> None:
    told = run_bare(python, IMPORTS_ALL, shipped, "\n".join(modules(shipped)).encode())
    assert set(told.decode().split()) <= {"orjson", "yaml"}


@pytest.mark.slow
def test_a_worker_reads_a_store_with_pyarrow_and_numpy(
    python: Path, shipped: str, tmp_path: Path
) -> None:
    writer = StoreWriter(tmp_path / "store")
    write_messages(writer, 60)
    asked = [
        {"store": str(writer.root), **given}
        for given in (
            {},
            {"subExpression": "a || b"},
            {"subExpression": "KEYS <> 'key4' AND TAGS IS NOT NULL"},
        )
    ]
    columns = ("topic", "queueId", "queueOffset", "body", "keys", "tags", "properties", "bodyCrcOk")
    cases = [(tasks_of(given), given) for given in asked]
    rows, outside = pickle.loads(run_bare(python, READS, shipped, pickle.dumps((cases, columns))))
    assert outside == [], "all of ours comes out of the zip"
    for found, given in zip(rows, asked, strict=True):
        wanted = rows_of(given, columns)
        assert len(wanted) > 0
        assert in_order(found) == wanted
