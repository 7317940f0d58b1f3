"""An operator's mistake is one sentence: the path, why, and what to do; the exit code is not 0.

What not even root may write stands below /sys.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from troupemq.cli import cli

FORBIDDEN = "/sys/forbidden"
IN_THE_WAY = "; a file is in the way: move it, or name another place"
MISSING = "No such file or directory; make it, or correct the path"
NO_HOST = "host not found; write an address of this machine as bindAddress, or *"
LONG = "a" * 64
"""Longer than any label of a host's name."""

BROKER = ("broker", "-s", "listenPort=0", "-s", "brokerIP1=127.0.0.1", "-s")
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "settings that are not there": (
        ("broker", "-c", "{tmp}/none.conf"),
        f"the settings file {{tmp}}/none.conf cannot be read: {MISSING}.",
    ),
    "a name server's too": (
        ("namesrv", "-c", "{tmp}/none.conf"),
        f"the settings file {{tmp}}/none.conf cannot be read: {MISSING}.",
    ),
    "settings that are a directory": (("broker", "-c", "{tmp}"), "File '{tmp}' is a directory."),
    "settings below a file": (
        ("namesrv", "-c", "{file}/x.conf"),
        f"{{file}}/x.conf cannot be read: Not a directory{IN_THE_WAY}.",
    ),
    "settings with a broken escape": (
        ("broker", "-c", "{file}"),
        "the settings file {file} cannot be read: it has a broken \\uZZ; write four",
    ),
    "a store that may not be made": (
        (*BROKER, f"storePathRootDir={FORBIDDEN}"),
        f"cannot create the store directory ({FORBIDDEN}): ",
    ),
    "a store that is a file": (
        (*BROKER, "storePathRootDir={file}"),
        f"cannot create the store directory ({{file}}): File exists{IN_THE_WAY}.",
    ),
    "a log that may not be made": (
        (*BROKER, "storePathRootDir={tmp}/store", "-s", f"storePathCommitLog={FORBIDDEN}"),
        f"cannot open the store ({FORBIDDEN}): ",
    ),
    "an address that no interface has": (
        (*BROKER, "storePathRootDir={tmp}/store", "-s", "bindAddress=192.0.2.1"),
        "Cannot listen on 192.0.2.1:0 (listenPort): this machine has no such address; write an",
    ),
    "a bind address that is no name": (
        (*BROKER, "storePathRootDir={tmp}/store", "-s", f"bindAddress={LONG}"),
        f"Cannot listen on {LONG}:0 (listenPort): {NO_HOST}",
    ),
    "a brokerIP1 that is no name": (
        (*BROKER, "storePathRootDir={tmp}/store", "-s", f"brokerIP1={LONG}"),
        f"brokerIP1 is {LONG}: host not found; write an address by which clients",
    ),
    "a ready file in no directory": (
        ("namesrv", "-p", "0", "--ready-file", "{tmp}/none/ready"),
        f"Cannot write the ready file {{tmp}}/none/ready: {MISSING}.",
    ),
    "a ready file that may not be written": (
        ("namesrv", "-p", "0", "--ready-file", FORBIDDEN),
        f"Cannot write the ready file {FORBIDDEN}: ",
    ),
    "a log file below a file": (
        ("run", "--once", "--data", "{file}/data"),
        f"Cannot write the log {{file}}/data/logs/troupemq.log: Not a directory{IN_THE_WAY}.",
    ),
    "a log file that may not be written": (
        ("run", "--once", "--data", FORBIDDEN),
        f"Cannot write the log {FORBIDDEN}/logs/troupemq.log: ",
    ),
    "a dump of nothing": (("store", "dump", "{tmp}/none"), "{tmp}/none not found."),
    "a dump of what is below a file": (
        ("store", "dump", "{file}/x"),
        f"Cannot read {{file}}/x: Not a directory{IN_THE_WAY}.",
    ),
    "a check of nothing": (("store", "check", "{tmp}/none"), "'{tmp}/none' does not exist."),
    "a check of no store": (("store", "check", "{tmp}"), "{tmp} is not a store:"),
    "a job's result below a file": (
        ("job", "run", "archive", "--store", "{tmp}", "--output", "{file}/x"),
        "The job archive failed: {file}/jobs/archive-",
    ),
    "a job's result that may not be written": (
        ("job", "run", "archive", "--store", "{tmp}", "--output", FORBIDDEN),
        "The job archive failed: /sys/jobs: ",
    ),
    "a job's settings that are not there": (
        ("job", "run", "archive", "--store", "{tmp}", "--spark-conf", "{tmp}/none"),
        "File '{tmp}/none' does not exist.",
    ),
    "a name server that is no name": (
        ("send", "-t", "T", "-b", "x", "-n", f"{LONG}:9876"),
        f"no name server answers: {LONG}:9876: invalid host name",
    ),
    "an import of nothing": (
        ("admin", "import", "-f", "{tmp}/none", "-n", "127.0.0.1:1"),
        "'{tmp}/none': No such file or directory",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if "a job's result" in name else [])
        for name in CASES  # a job asks the Java that it finds for its version
    ],
)
def test_an_error_is_one_sentence_with_path_and_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x=\\uZZ\n")
    if "a job's result" in name:
        (tmp_path / "commitlog").mkdir()  # a store, if an empty one
    command, said = CASES[name]
    places = {"{tmp}": str(tmp_path), "{file}": str(tmp_path / "file")}

    def filled(text: str) -> str:
        for place, path in places.items():
            text = text.replace(place, path)
        return text

    result = CliRunner().invoke(cli, [filled(each) for each in command])
    lines = [line for line in result.stderr.splitlines() if " info " not in line]
    assert result.exit_code and isinstance(result.exception, SystemExit), result.output
    assert filled(said) in " ".join(lines)
    assert "Errno" not in result.output and "Unknown error" not in result.output
    assert "Traceback" not in result.output
    if any(FORBIDDEN in each for each in command):
        assert "name another place" in lines[-1]
    if result.exit_code != 2:  # click says how to call a command
        assert [line for line in lines if line.startswith("troupemq: ")] == lines[-1:]
