"""Build hook that moves every package of this project below `troupemq` in a wheel.

An installation must not add packages called `storage` or `protocol`. So `storage/x.py`
becomes `troupemq/storage/x.py`, and in every file `from storage.x import y` becomes
`from troupemq.storage.x import y`. A clone and an editable install stay flat.
"""

import ast
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FRONT = "troupemq"
BELOW = ("protocol", "storage", "remoting", "actors", "spark")
SAMPLES = ("broker.conf", "namesrv.conf")


class Namespace(BuildHookInterface[Any]):
    """Hook that gives the build a rewritten copy of the packages."""

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
        for path in self._copy.rglob("*.py"):
            path.write_text(namespaced(path.read_text(encoding="utf-8")), encoding="utf-8")
        build_data["force_include"][str(self._copy / FRONT)] = FRONT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._copy)


def namespaced(source: str) -> str:
    """Return a module's source with imports of this project's packages moved below `troupemq`."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in BELOW:
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace("from ", f"from {FRONT}.", 1)
    return "".join(lines)
