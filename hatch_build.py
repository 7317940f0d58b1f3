"""Build of the wheels: every package of this project moves below `troupemq`.

An installation must not add packages called `storage` or `protocol`. So `storage/x.py`
becomes `troupemq/storage/x.py`, and in every file `from storage.x import y` becomes
`from troupemq.storage.x import y`. A clone and an editable install stay flat.

`pip install .` and `pip wheel .` build one wheel with everything. For a package index

    python hatch_build.py DIRECTORY

divides the same files into two wheels of the same version (docs/decisions/0062): troupemq-client
has the modules of CLIENT and all that these import, and troupemq, which requires it, has the rest.
"""

import ast
import shutil
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

FRONT = "troupemq"
BELOW = ("protocol", "storage", "remoting", "actors", "spark")
SAMPLES = ("broker.conf", "namesrv.conf")

CLIENT = ("__init__.py", "aio.py", "client/**/*.py", "dramatiq*", "kombu*", "otel.py", "taskiq*")
"""Public modules of the client, below `troupemq`; a pattern may match a file or a package."""
CLIENT_ALONE = ("__main__.py", "py.typed")
"""Files whose imports do not count: the command names the wheel that is missing."""
CLIENT_NAME = f"{FRONT}-client"
CLIENT_DESCRIPTION = "A client of RocketMQ and TroupeMQ in pure Python, with threads or asyncio."
CLIENT_EXTRAS = {"acl", "dramatiq", "kombu", "otel", "speed", "taskiq", "uvloop"}
CLONE_EXTRAS = {"dev", "docs"}
"""Extras for work on the project, which no published wheel has."""


class Namespace(BuildHookInterface[Any]):
    """Hook that gives the build a rewritten copy of the packages.

    Its option `part` is `client` or `server`; without one the wheel has the files of both.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._copy = Path(mkdtemp(prefix=f"{FRONT}-wheel-"))
        for package in (FRONT, *BELOW):
            target = self._copy / FRONT / ("" if package == FRONT else package)
            shutil.copytree(
                Path(self.root) / package,
                target,
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )
        (self._copy / FRONT / "conf").mkdir()
        for name in SAMPLES:  # read by troupemq/setting_meanings.py
            shutil.copy(Path(self.root) / "conf" / name, self._copy / FRONT / "conf" / name)
        part = self.config.get("part")
        of_client = client_files(Path(self.root)) if part else frozenset()
        for path in [each for each in self._copy.rglob("*") if each.is_file()]:
            if part and (str(path.relative_to(self._copy)) in of_client) != (part == "client"):
                path.unlink()
            elif path.suffix == ".py":
                path.write_text(namespaced(path.read_text(encoding="utf-8")), encoding="utf-8")
        build_data["force_include"][str(self._copy / FRONT)] = FRONT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._copy)


def namespaced(source: str) -> str:
    """Return a module's source with imports of this project's packages moved below `troupemq`."""
    lines = source.splitlines(keepends=True)
    for node in _imports(source):
        if (node.module or "").split(".")[0] in BELOW:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace("from ", f"from {FRONT}.", 1)
    return "".join(lines)


@cache
def _imports(source: str) -> list[ast.ImportFrom]:
    """Return the `from` imports of a module, also those inside functions and blocks."""
    found, waiting = [], list[ast.AST]([ast.parse(source)])
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            found.append(node)
        below = ast.iter_child_nodes(node)
        waiting += [each for each in below if not isinstance(each, ast.expr)]
    return found


@cache
def client_files(root: Path) -> frozenset[str]:
    """Return the files of the client's wheel: CLIENT, and all that these import, types included."""
    waiting: list[Path] = []
    for each in (found for pattern in CLIENT for found in (root / FRONT).glob(pattern)):
        waiting += each.rglob("*.py") if each.is_dir() else [each]
    files: set[Path] = set()
    while waiting:
        if (path := waiting.pop()) in files:
            continue
        files.add(path)
        waiting += _imported(path, root)
        waiting += [each for each in _packages_of(path, root) if each not in files]
    files.update(root / FRONT / name for name in CLIENT_ALONE)
    names = (path.relative_to(root).as_posix() for path in files)
    return frozenset(name if name.startswith(f"{FRONT}/") else f"{FRONT}/{name}" for name in names)


def _imported(path: Path, root: Path) -> Iterator[Path]:
    """Yield the files of this project that a file imports, anywhere in it."""
    for node in _imports(path.read_text(encoding="utf-8")):
        if node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if name.split(".")[0] in (FRONT, *BELOW):
                    place = root.joinpath(*name.split("."))
                    found = (place.with_suffix(".py"), place / "__init__.py")
                    yield from (each for each in found if each.is_file())


def _packages_of(path: Path, root: Path) -> Iterator[Path]:
    for folder in path.relative_to(root).parents:
        if folder.name:
            yield root / folder / "__init__.py"


def configuration(part: str, root: Path) -> dict[str, Any]:
    """Return pyproject.toml's content for the wheel of the client or of the server."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    project = config["project"]
    of_client = client_files(root)
    extras = project["optional-dependencies"]
    if part == "client":
        project |= {"name": CLIENT_NAME, "description": CLIENT_DESCRIPTION, "dependencies": []}
        del project["scripts"]
        extras = {name: extras[name] for name in sorted(CLIENT_EXTRAS)}
    else:
        project["dependencies"].append(f"{CLIENT_NAME}=={project['version']}")
        extras = {name: extras[name] for name in extras if name not in CLONE_EXTRAS}
    project["optional-dependencies"] = extras
    for entries in project["entry-points"].values():
        for name, target in [*entries.items()]:
            place = target.partition(":")[0].replace(".", "/")
            is_client = not of_client.isdisjoint((f"{place}.py", f"{place}/__init__.py"))
            if is_client != (part == "client"):
                del entries[name]
    config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["part"] = part
    return config


def main(directory: str) -> None:
    """Build both wheels, and print their paths."""
    root = Path(__file__).resolve().parent
    for part in ("client", "server"):
        builder = WheelBuilder(str(root), config=configuration(part, root))
        print(*builder.build(directory=directory, versions=["standard"]), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
