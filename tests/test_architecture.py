"""Imports: each layer knows only those below it, and does only its own work."""

import ast
import gc
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from actors.engine.actor import Actor
from storage.queues.dispatch_entry import DispatchEntry

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT: dict[str, set[str]] = {
    "protocol": set(),
    "storage": {"protocol"},
    "remoting": {"protocol"},  # below the two that ask servers: tasks of Spark and the client
    "actors": {"protocol", "storage", "remoting"},
    "spark": {"protocol", "storage", "remoting"},
    "troupemq": {"protocol", "storage", "remoting", "actors", "spark"},
}

ROOMS: dict[str, str] = {
    "storage": "errors spelling clock child_python config files access log"
    " queues index tables dispatching recovery reading transactions message_store retention replica"
    " scrub checking backup dump",
    "actors": "engine settings config access network tables statistics dispatching retention"
    " scrubbing naming sending pulling receipts consumers delays transactions replication admin"
    " jobs spans metrics parts"
    " children broker broker_server namesrv_server",
    "spark": "report progress parts arguments accounts class_data masters shipping session"
    " class_data_session leasing decoding sink source archive analysis jobs runner",
    "troupemq/client": "errors arguments settings message log callbacks span_making spans"
    " connection producing consuming receiving admin aio",
}
"""Rooms of a package from the bottom up: each imports only earlier ones."""

CONCURRENCY = {"asyncio", "concurrent", "multiprocessing", "pykka", "queue", "threading"}
NETWORK = {"http", "select", "selectors", "socket", "ssl"}
FILES = {"fcntl", "mmap", "pathlib", "shutil", "tempfile"}
HEAVY = {"numpy", "pyarrow", "pyspark"}
"""Packages that a broker must start without."""

BANNED = {
    "protocol": CONCURRENCY | NETWORK | FILES | HEAVY | {"io", "os", "subprocess", "sys", "time"},
    "storage": CONCURRENCY | NETWORK | HEAVY | {"subprocess"},
    "remoting": CONCURRENCY | FILES | HEAVY | {"subprocess"},
    "actors": HEAVY | {"asyncio", "concurrent", "multiprocessing", "mmap"},
    "spark": {"asyncio", "concurrent", "multiprocessing", "pykka"},
    "troupemq": HEAVY | {"asyncio", "mmap", "multiprocessing"},
}

LIGHT_SPARK_MODULES = {
    "spark.arguments",
    "spark.class_data",
    "spark.jobs",
    "spark.report",
    "spark.runner",
    "spark.session",
    "spark.shipping",
}
"""Modules of spark/ that the front door may import.

They are the command of a run, its Java, our code for another Python, the names of the jobs, the
check of a store, and readable numbers.
"""

EVENT_LOOPS = (
    "troupemq/client/aio/",
    "troupemq/taskiq.py",
    "troupemq/testing/virtual_",
)
"""Modules that may import asyncio (docs/decisions/0054 and 0065)."""

SPARK_FRONT_DOORS = {
    "datasource.py",  # gives notebooks the data source by the same name in a clone and in the wheel
    "restore.py",  # reads an archive, once it is asked to
}
"""Modules of troupemq/ that may import of spark/ what needs numpy and pyarrow."""

MESSAGES_ELSEWHERE = {
    "actors.consumers.queue_work": "the base of two actors, and the step that both send themselves",
    "actors.engine.actor": "what the engine tells each actor and its parent",
    "actors.engine.supervisor": "sent by the system that owns the supervisor",
    "actors.network.connections": "a socket that closes itself when it is undelivered",
    "actors.replication.ha_link": "a part of HaMaster, and what it tells it",
}
"""Modules besides messages.py whose messages another file imports, and why."""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@pytest.fixture(scope="module", autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """Avoid repeated scans of millions of small objects."""
    gc.disable()
    yield
    tree.cache_clear()
    imported.cache_clear()
    gc.enable()


@cache
def imported(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, str], ...]:
    """Every import of a file, with the full name of the module."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node, name.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path, node)}: name the module in full"
            yield node, node.module or ""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree without their expressions, which are most of it."""
    for part in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, part, ()):
            yield each
            yield from statements(each)


def top(module: str) -> str:
    return module.partition(".")[0]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


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


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_the_rooms_before_it(package: str) -> None:
    """Imports for types count, too: who reads a file has to know what they name."""
    order = ROOMS[package].split()
    folder = ROOT / package
    prefix = package.replace("/", ".") + "."

    def room(path: Path) -> str:
        return path.relative_to(folder).with_suffix("").parts[0]

    files = [path for path in sources(package) if path != folder / "__init__.py"]
    assert sorted({room(path) for path in files}) == sorted(order)
    assert [
        f"{where(path, node)} imports {module}"
        for path in files
        for node, module in imported(path)
        if module.startswith(prefix)
        and order.index(module.removeprefix(prefix).split(".")[0]) > order.index(room(path))
    ] == []


def test_contributing_lists_the_rooms_in_their_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawing = text.partition("The rooms, from the bottom up")[2].split("```")[1]
    drawn = re.findall(r"^(\S+)/ +(.*(?:\n +.*)*)", drawing, re.MULTILINE)
    assert {package: names.split() for package, names in drawn} == {
        package: names.split() for package, names in ROOMS.items()
    }


def files_named(path: Path, files: Container[str]) -> set[str]:
    """Return those of `files` that a file imports; `from package import module` names a module."""
    found = set()
    for node, name in imported(path):
        names = [f"{name}.{alias.name}" for alias in node.names]
        modules = [each for each in names if each in files]
        found.update(modules or [each for each in (name,) if each in files])
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_file_imports_itself_through_others(package: str) -> None:
    """Imports for types count, too."""
    files = {module_name(path): path for path in sources(package)}
    below = {module: files_named(path, files) - {module} for module, path in files.items()}
    while free := [module for module, names in below.items() if not names]:
        for module in free:
            del below[module]
        for names in below.values():
            names.difference_update(free)
    assert below == {}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_does_not_do_the_work_of_another_layer(package: str) -> None:
    assert [
        f"{where(path, node)} imports {module}"
        for path in sources(package)
        for node, module in imported(path)
        if top(module) in BANNED[package]
        and not (top(module) == "asyncio" and name_of(path).startswith(EVENT_LOOPS))
        and (name_of(path), module) != ("remoting/local_address.py", "fcntl")  # of a socket
    ] == []


def test_the_front_door_imports_only_light_modules_of_spark() -> None:
    assert [
        f"{where(path, node)} imports {module}"
        for path in sources("troupemq")
        if path.relative_to(ROOT / "troupemq").as_posix() not in SPARK_FRONT_DOORS
        for node, module in imported(path)
        if top(module) == "spark" and module not in LIGHT_SPARK_MODULES
    ] == []


@pytest.mark.slow
def test_a_broker_and_the_command_start_without_spark() -> None:
    """Imported in a fresh process, for the modules of this one came from everywhere."""
    program = (
        "import actors.broker, actors.namesrv_server, troupemq.__main__, sys;"
        f"print(*sorted({HEAVY!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", [*MAY_IMPORT, "tests"])
def test_modules_of_the_project_are_imported_with_from(package: str) -> None:
    """The wheel moves them below troupemq/, which `import storage.x` would not survive."""
    suspect = re.compile(rf"^\s*import\b.*\b(?:{'|'.join(MAY_IMPORT)})\b", re.MULTILINE)
    assert [
        f"{where(path, node)}: import {module}"
        for path in sources(package)
        if suspect.search(path.read_text(encoding="utf-8"))  # parsing all would take seconds
        for node, module in imported(path)
        if isinstance(node, ast.Import) and top(module) in MAY_IMPORT
    ] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_string_names_a_module_of_the_project(package: str) -> None:
    """Nor would `import_module("spark.jobs.x")`; write `jobs.__name__`."""
    assert [
        f"{where(path, constant)}: {name}"
        for path in sources(package)
        if any(module_names(without_imports(path)))  # looking through all strings takes seconds
        for constant in strings(tree(path))
        for name in module_names(str(constant.value))
    ] == []


def without_imports(path: Path) -> str:
    """Return the source of a file without the lines that name the modules it imports."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for node, _ in imported(path):
        lines[node.lineno - 1] = ""
    return "\n".join(lines)


def strings(module: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module that are no docstrings."""
    documents = {
        id(node.value)
        for node in statements(module)
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
    """Yield dotted names in a text that are modules of the project, unlike `spark.master`."""
    for found in re.finditer(rf"\b(?:{'|'.join(MAY_IMPORT)})(?:\.\w+)+", text):
        path = ROOT.joinpath(*found[0].split(".")[:2])
        if path.is_dir() or path.with_suffix(".py").is_file():
            yield found[0]


def test_loops_that_change_a_table_iterate_over_a_copy() -> None:
    """Pairs are new objects, which may begin a collection of garbage, which lets another thread
    change the table: "dictionary changed size during iteration". A copy is one step."""
    pairs = re.compile(r"(?:list|tuple)\([\w.]+\.items\(\)|\[\*[\w.]+\.items\(\)\]")
    assert [
        path for path in sources("actors") if pairs.search(path.read_text(encoding="utf-8"))
    ] == []


def test_messages_between_files_live_in_a_messages_module() -> None:
    """A message that an actor sends to itself may stand beside its handler."""
    handled = {message for path in sources("actors") for message in handled_messages(path)}
    imports = {
        module
        for package in ("actors", "troupemq")
        for path in sources(package)
        for node, module in imported(path)
        for alias in node.names
        if (module, alias.name) in handled and not module.endswith(".messages")
    }
    assert sorted(imports - MESSAGES_ELSEWHERE.keys()) == []
    assert sorted(MESSAGES_ELSEWHERE.keys() - imports) == [], "no longer needed"


def test_metrics_know_no_actor_of_another_room() -> None:
    """Pages are made of what the actors publish, or reply to AskFigures (docs/decisions/0066)."""
    assert [
        f"{where(path, node)} imports {alias.name}"
        for path in sources("actors/metrics")
        for node, module in imported(path)
        if module.startswith("actors.") and not module.startswith("actors.metrics.")
        for alias in node.names
        if isinstance(found := getattr(import_module(module), alias.name), type)
        and issubclass(found, Actor)
        and found is not Actor
    ] == []


def handled_messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each message class that an actor of this file handles."""
    modules = {
        alias.asname or alias.name: module
        for node, module in imported(path)
        for alias in node.names
    }
    for node in ast.walk(tree(path)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "handles"
        ):
            for argument in node.args:
                name = ast.unparse(argument)
                yield modules.get(name, module_name(path)), name


def test_a_dispatch_entry_is_read_by_the_names_of_its_fields() -> None:
    assert not hasattr(DispatchEntry, "__getitem__")
