"""Tests of troupemq/cli/options.py: TLS as a command is told, and what goes over what."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from remoting.tls_options import (
    AUTH_SERVER,
    CERTIFICATE,
    ENABLE,
    KEY,
    KEY_PASSWORD,
    TRUST,
    Tls,
    tls_of_environment,
)
from troupemq.cli import cli
from troupemq.cli.options import tls_options

NAMES = (ENABLE, TRUST, CERTIFICATE, KEY, KEY_PASSWORD, AUTH_SERVER)
FILE = "tls.client.trustCertPath=file-ca.pem\ntls.client.authServer=false\n"


def called(tmp_path: Path, *words: str, file: str = "", **environment: str) -> Tls | None:
    """Return the TLS settings of a command with these options; FILE is a file with this text."""
    found: list[Tls | None] = []

    @click.command()
    @tls_options
    def command() -> None:
        found.append(tls_of_environment())

    (tmp_path / "tls.properties").write_text(file)
    words = tuple(str(tmp_path / "tls.properties") if word == "FILE" else word for word in words)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setenv(name, "")  # so that it is put back
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        result = CliRunner().invoke(command, words)
    assert result.exit_code == 0, result.output
    return found[0]


def test_a_file_with_tls_off_disables_tls(tmp_path: Path) -> None:
    no = f"{FILE}tls.enable=false\n"
    assert called(tmp_path, "--tls-config", "FILE", file=FILE) == Tls(
        "file-ca.pem", checks_server=False
    )
    assert called(tmp_path, "--tls-config", "FILE", file=no) is None
    assert called(tmp_path, "--tls-config", "FILE", file=no, TROUPEMQ_TLS="true") is None


def test_the_command_line_overrides_the_environment(tmp_path: Path) -> None:
    said = {TRUST: "environments.pem", AUTH_SERVER: "true", ENABLE: "false"}
    assert called(tmp_path, **said) is None
    assert called(tmp_path, "--tls", **said) == Tls("environments.pem")
    assert called(tmp_path, "--tls-ca", "ca.pem", **said) == Tls("ca.pem")
    assert called(tmp_path, "--tls-config", "FILE", file=FILE, **said) == Tls(
        "file-ca.pem", checks_server=False
    )


def test_options_override_the_file_in_any_order(tmp_path: Path) -> None:
    no = f"{FILE}tls.enable=false\n"
    pairs = (("--tls-ca", "ca.pem"), ("--tls-config", "FILE"), ("--tls",))
    for order in permutations(pairs):
        words = [word for pair in order for word in pair]
        assert called(tmp_path, *words, file=no) == Tls("ca.pem", checks_server=False), words


def paths_of(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each command with one of its options or arguments that is a path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from paths_of(found, (*names, name))
        for each in found.params:
            if isinstance(each.type, click.Path):
                yield *names, name, each.opts[0] if isinstance(each, click.Option) else ""


@pytest.mark.parametrize("words", [*paths_of(cli)], ids=" ".join)
def test_an_empty_path_did_not_mean_the_current_folder(words: tuple[str, ...]) -> None:
    *names, option = words
    done = CliRunner().invoke(cli, [*names, *([option, ""] if option else [""] * 2)])
    assert done.exit_code == 2
    assert "the path is empty: name a file or folder." in done.output


@pytest.mark.parametrize("option", ["--acl-file", "--tls-config"])
def test_a_path_in_an_error_is_escaped(option: str) -> None:
    """The name of a file could move the cursor of the terminal."""
    done = CliRunner().invoke(cli, ["send", "-t", "T", option, "\x1b[2J\u202egone\x07"], color=True)
    assert done.exit_code == 2
    assert "\\x1b[2J\\u202egone\\x07" in done.stderr and "\x1b" not in done.stderr
