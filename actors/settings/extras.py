"""The package's extras: checks for their libraries, and their installation commands.

No package index has TroupeMQ, so a command names the wheel or the clone that this Python runs.
"""

import sys
from importlib.metadata import Distribution, PackageNotFoundError
from importlib.util import find_spec
from json import loads
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

from storage.errors import WrongSetting

PACKAGE = "troupemq"
LIBRARIES = {
    "console": ("starlette", "uvicorn", "jinja2"),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "spark": ("pyspark", "pyarrow", "numpy"),
}
"""Imported libraries of each extra."""


def is_installed(extra: str) -> bool:
    return all(map(_is_there, LIBRARIES[extra]))


def require_extra(extra: str, setting: str) -> None:
    """Raise WrongSetting if a setting needs an extra that is missing."""
    if not is_installed(extra):
        raise WrongSetting(f"{setting} needs the extra {extra}: {install_command(extra)}")


def install_command(*extras: str, python: str = "") -> str:
    """Return the shell command that installs these extras for this Python or another one."""
    pip = f"{quote(python or sys.executable)} -m pip install"
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return f"{pip} -e {quote(_with_extras(clone, extras))}"
    try:
        installed = Distribution.from_name(PACKAGE)
    except PackageNotFoundError:
        return f"{pip} {quote(_with_extras(Path('troupemq-VERSION-py3-none-any.whl'), extras))}"
    wheel = _wheel_of(installed)
    if wheel is not None:
        return f"{pip} {quote(_with_extras(wheel, extras))}"
    return " ".join((pip, *map(quote, _requirements(installed, extras))))


def _with_extras(path: Path, extras: tuple[str, ...]) -> str:
    return f"{path}[{','.join(extras)}]"


def _wheel_of(installed: Distribution) -> Path | None:
    """Return the installed wheel, or None if the file is missing (PEP 610)."""
    try:
        url = urlsplit(loads(installed.read_text("direct_url.json") or "{}").get("url", ""))
        path = Path(unquote(url.path))
    except (ValueError, AttributeError):
        return None
    return path if url.scheme == "file" and path.is_file() else None


def _requirements(installed: Distribution, extras: tuple[str, ...]) -> list[str]:
    """Return the packages of the extras, which an index does have."""
    wanted = {f"extra=={extra!r}" for extra in extras}
    found = []
    for line in installed.requires or ():
        package, _, marker = line.partition(";")
        marker = marker.replace('"', "'").replace(" ", "")
        if any(each in marker for each in wanted):
            found.append(package.strip())
    return found


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package is missing, too
        return False
