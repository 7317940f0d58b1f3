"""Every command explains itself."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.commands import commands_of
from tests.support.runtimes import needs
from troupemq import cli as cli_module
from troupemq import java
from troupemq.cli import cli, version


def all_commands() -> list[list[str]]:
    found: list[list[str]] = [[]]
    for name, command in commands_of(cli).items():
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, each] for each in commands_of(command)]
    return found


@pytest.mark.parametrize("words", all_commands(), ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help(words: list[str], flag: str) -> None:
    result = CliRunner().invoke(cli, [*words, flag], prog_name="troupemq")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: {' '.join(['troupemq', *words])} ")


def test_every_option_has_help() -> None:
    for words in all_commands()[1:]:
        command: click.Command = cli
        for word in words:
            assert isinstance(command, click.Group)
            command = commands_of(command)[word]
        for option in command.params:
            if isinstance(option, click.Option):
                obvious = option.name in ("topic", "timeout_ms")
                assert option.help or obvious, (words, option.name)


@pytest.mark.slow
def test_a_command_of_clients_imports_neither_the_broker_nor_spark() -> None:
    program = (
        "import sys\n"
        f"from {cli_module.__name__} import cli\n"
        "for name in ('send', 'consume', 'admin', 'top', 'health'):\n"
        "    assert cli.get_command(None, name).name == name\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    imported = set(done.stdout.split())
    assert imported & {"actors.engine.actor", "troupemq.client.admin"}
    assert not imported & {"actors.broker", "troupemq.servers", "spark.runner", "pyarrow"}


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0, result.output
    assert version() in result.output


def test_jobs_are_listed() -> None:
    result = CliRunner().invoke(cli, ["job", "list"])
    assert result.exit_code == 0, result.output
    assert "archive" in result.output.split()


def test_an_unknown_job_is_a_usage_error_with_the_list_of_jobs() -> None:
    result = CliRunner().invoke(cli, ["job", "run", "nonsense"])
    assert result.exit_code == 2
    assert "archive" in result.output


def test_a_job_without_java_has_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("pyspark")
    monkeypatch.setattr(java, "packaged_java", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    words = ["job", "run", "traffic", "--store", str(tmp_path / "store")]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 16
    started, sentence = result.stderr.splitlines()
    assert started == "traffic: starting"
    assert sentence.startswith(
        "troupemq: no Java 17 or later found for Spark (JAVA_HOME is not set"
    )
