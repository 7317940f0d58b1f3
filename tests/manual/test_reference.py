"""Tests of docs/site: the pages made from the code are whole, and a broken link is found."""

import shutil
import warnings
from pathlib import Path

import click
import pytest

from actors.config import BrokerConfig, NamesrvConfig
from docs.site import __main__ as site
from docs.site import reference
from storage.config import StoreConfig, keys_of
from tests.support.commands import commands_of
from troupemq import __all__ as client_names
from troupemq.cli import cli


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("reference")
    assert reference.main([str(folder)]) == 0
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_every_setting_has_a_row_with_a_meaning(pages: dict[str, str]) -> None:
    rows = [line.split(" | ") for line in pages["settings"].splitlines() if line[:3] == "| `"]
    wanted = [key for each in (BrokerConfig, StoreConfig, NamesrvConfig) for key in keys_of(each)]
    assert sorted(row[0].strip("| `") for row in rows) == sorted(wanted)
    assert [row[0] for row in rows if len(row) != 5 or not row[4].strip("| ")] == []
    by_key = {row[0].strip("| `"): row for row in rows}
    assert by_key["fileReservedTime"][2:4] == ["`72`", "yes"]
    assert by_key["listenPort"][1] == "number"


def test_no_default_contains_a_path_of_one_machine(pages: dict[str, str]) -> None:
    assert str(Path.home()) not in pages["settings"]
    assert "`~/store`" in pages["settings"]


def test_the_reference_of_every_command_equals_its_help(pages: dict[str, str]) -> None:
    def paths(command: click.Command, path: str) -> list[str]:
        below = commands_of(command) if isinstance(command, click.Group) else {}
        return [path, *(one for name in below for one in paths(below[name], f"{path} {name}"))]

    missing = [path for path in paths(cli, "troupemq") if f"`{path}`" not in pages["commands"]]
    assert missing == []
    assert "Usage: troupemq admin updateTopic" in pages["commands"]


def test_the_reference_has_every_name_of_the_client(pages: dict[str, str]) -> None:
    assert [name for name in client_names if f"## `{name}`" not in pages["client"]] == []
    assert "### `Producer.send()`" in pages["client"]


@pytest.mark.slow(seconds=10)
def test_a_broken_link_fails_the_build_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Links to files, and to headings. `make docs` builds the whole manual."""
    for name in site.AT_ROOT:
        (tmp_path / name).write_text(f"---\norphan: true\n---\n# {name}\n", encoding="utf-8")
    shutil.copy2(site.ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "index.md"
    right = "# Manual\n\n## Backup\n\n[here](../README.md) [there](#backup)\n"
    page.write_text(right, encoding="utf-8")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(reference, "main", lambda _: 0)
    with warnings.catch_warnings():  # of others' making
        warnings.simplefilter("ignore")
        assert site.main([str(tmp_path / "built")]) == 0, capfd.readouterr().err
        assert (tmp_path / "built" / "site" / "docs" / "index.html").is_file()
        wrong = "[gone](nowhere.md) [too](../README.md#no-such)\n"
        page.write_text(f"{right}\n{wrong}", encoding="utf-8")
        assert site.main([str(tmp_path / "built")]) == 1
    said = capfd.readouterr().err
    assert "nowhere.md" in said and "no-such" in said
