"""Tests of actors/settings/extras.py: the command that installs what is missing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.settings import extras
from actors.settings.extras import LIBRARIES, install_command, is_installed, require_extra
from storage.errors import WrongSetting

ROOT = Path(__file__).resolve().parents[3]
PIP = "/opt/mq/bin/python -m pip install "
METADATA = """\
Metadata-Version: 2.4
Name: troupemq
Version: 0.1.0
Requires-Dist: click>=8.1
Requires-Dist: jinja2>=3.1; extra == 'console'
Requires-Dist: starlette<2,>=1.10; extra == "console"
Requires-Dist: prometheus-client>=0.21; extra == 'metrics'
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Puts an installed package there, with the URL that it came from."""
    packages = tmp_path / "site-packages"
    info = packages / "troupemq-0.1.0.dist-info"
    module = packages / "troupemq" / "actors" / "settings" / "extras.py"

    def put(url: str | None) -> None:
        info.mkdir(parents=True)
        (info / "METADATA").write_text(METADATA)
        if url is not None:
            (info / "direct_url.json").write_text(json.dumps({"url": url, "archive_info": {}}))
        monkeypatch.syspath_prepend(str(packages))
        monkeypatch.setattr(extras, "__file__", str(module))
        monkeypatch.setattr(sys, "executable", "/opt/mq/bin/python")

    return put


def test_the_install_hint_names_the_wheel_and_the_extra(
    tmp_path: Path, install: Callable[[str | None], None]
) -> None:
    """`pip install 'troupemq[metrics]'` was named: no index has that."""
    wheel = tmp_path / "my dist" / "troupemq-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    install(wheel.as_uri())
    assert install_command("spark", "java") == f"{PIP}'{wheel}[spark,java]'"


@pytest.mark.parametrize("url", [None, "file:///gone/troupemq.whl", "https://host.example/a.whl"])
def test_without_the_wheel_the_install_hint_names_the_packages(
    install: Callable[[str | None], None], url: str | None
) -> None:
    install(url)
    assert install_command("metrics") == f"{PIP}'prometheus-client>=0.21'"
    assert install_command("console") == f"{PIP}'jinja2>=3.1' 'starlette<2,>=1.10'"


def test_in_a_clone_the_install_hint_names_the_clone() -> None:
    assert install_command("metrics").endswith(f" -m pip install -e '{ROOT}[metrics]'")


def test_a_library_without_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed("metrics")
    for missing in ("no_such_library", "no_such_library.part"):
        monkeypatch.setitem(LIBRARIES, "metrics", (missing,))
        with pytest.raises(WrongSetting, match=r"^key=on needs the extra metrics: "):
            require_extra("metrics", "key=on")
