"""Who may import whom: each layer knows only those below it, and none does another one's work."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "storage": {"protocol"},
    "remoting": {"protocol"},  # below the two that ask servers: tasks of Spark and the client
    "actors": {"protocol", "storage"},
    "spark": {"protocol", "storage", "remoting"},
    "troupemq": {"protocol", "storage", "remoting", "actors", "spark"},
}

CONCURRENCY = {"asyncio", "concurrent", "multiprocessing", "pykka", "queue", "threading"}
NETWORK = {"http", "select", "selectors", "socket", "ssl"}
FILES = {"fcntl", "mmap", "pathlib", "shutil", "tempfile"}
HEAVY = {"numpy", "pyarrow", "pyspark"}
"""What a broker must start without."""

BANNED = {
    "protocol": CONCURRENCY | NETWORK | FILES | HEAVY | {"io", "os", "subprocess", "sys", "time"},
    "storage": CONCURRENCY | NETWORK | HEAVY | {"subprocess"},
    "remoting": CONCURRENCY | FILES | HEAVY | {"subprocess"},
    "actors": HEAVY | {"asyncio", "concurrent", "multiprocessing", "mmap"},
    "spark": {"asyncio", "concurrent", "multiprocessing", "pykka"},
    "troupemq": HEAVY | {"asyncio", "mmap", "multiprocessing"},
}

LIGHT_SPARK_MODULES = {"spark.jobs", "spark.runner", "spark.session"}
"""What the front door may import of spark/: the command of a run, and the names of the jobs."""

SPARK_FRONT_DOORS = {
    "datasource.py",  # gives notebooks the data source by the same name in a clone and in the wheel
    "restore.py",  # reads an archive, once it is asked to
}
"""Modules of troupemq/ that may import of spark/ what needs numpy and pyarrow."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def teardown_module() -> None:
    """Millions of small objects, which every collection of garbage would go through."""
    tree.cache_clear()


def imported(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import of a file, with the full name of the module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path, node)}: name the module in full"
            yield node, node.module or ""


def top(module: str) -> str:
    return module.partition(".")[0]


def where(path: Path, node: ast.stmt | ast.expr) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_the_layers_below(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    assert [
        f"{where(path, node)} imports {module}"
        for path in sources(package)
        for node, module in imported(path)
        if top(module) in MAY_IMPORT.keys() - allowed
    ] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_does_not_do_the_work_of_another_layer(package: str) -> None:
    assert [
        f"{where(path, node)} imports {module}"
        for path in sources(package)
        for node, module in imported(path)
        if top(module) in BANNED[package]
    ] == []


def test_the_front_door_reaches_spark_only_by_what_is_light() -> None:
    assert [
        f"{where(path, node)} imports {module}"
        for path in sources("troupemq")
        if path.relative_to(ROOT / "troupemq").as_posix() not in SPARK_FRONT_DOORS
        for node, module in imported(path)
        if top(module) == "spark" and module not in LIGHT_SPARK_MODULES
    ] == []


def test_a_broker_and_the_command_start_without_spark() -> None:
    """Imported in a fresh process, for the modules of this one came from everywhere."""
    program = (
        "import actors.broker, actors.naming.namesrv_server, troupemq.__main__, sys;"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", [*MAY_IMPORT, "tests"])
def test_our_modules_are_imported_by_from(package: str) -> None:
    """The wheel moves them below troupemq/, which `import storage.x` would not survive."""
    assert [
        f"{where(path, node)}: import {module}"
        for path in sources(package)
        for node, module in imported(path)
        if isinstance(node, ast.Import) and top(module) in MAY_IMPORT
    ] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_string_names_a_module_of_ours(package: str) -> None:
    """Nor would `import_module("spark.jobs.x")`; write `jobs.__name__`."""
    assert [
        f"{where(path, constant)}: {name}"
        for path in sources(package)
        for constant in strings(tree(path))
        for name in module_names(str(constant.value))
    ] == []


def strings(module: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module that are no docstrings."""
    documents = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documents
        ):
            yield node


def module_names(text: str) -> Iterator[str]:
    """Dotted names in a text that are modules of ours; Spark's own `spark.master` is none."""
    for found in re.finditer(rf"\b(?:{'|'.join(MAY_IMPORT)})(?:\.\w+)+", text):
        path = ROOT.joinpath(*found[0].split(".")[:2])
        if path.is_dir() or path.with_suffix(".py").is_file():
            yield found[0]
