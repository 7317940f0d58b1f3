"""The walk of docs/security.md, from nothing to two accounts over TLS: each line as it stands."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.compat.servers import SMALL_FILES, free_port

ROOT = Path(__file__).resolve().parent.parent
SMALL = "".join(f"{name}={value}\n" for name, value in SMALL_FILES.items())
"""A test has less of the disk than an operator."""
TIMEOUT_S = 300
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


WORDS_OVER_TLS = (
    " over TLS\n",
    "No default permission for topic:Orders",
    "No default permission for group:billing",
    "connection without TLS rejected",
    "; if it takes TLS only: TROUPEMQ_TLS=true, or --tls",
)
Blocks = list[tuple[str, str]]
"""Language and lines of each block."""


def chapter(heading: str) -> Blocks:
    text = (ROOT / "docs" / "security.md").read_text()
    _, _, rest = text.partition(f"\n{heading}\n")
    return BLOCK.findall(rest.partition("\n## ")[0])


def script(blocks: Blocks) -> str:
    """Each line must do what it says; those that are said to be refused must not."""
    lines = []
    for language, text in blocks:
        if language == "python":
            lines += [f"python - <<'END' || exit\n{text}END"]
        for line in text.splitlines() if language == "sh" else ():
            command, _, said = line.partition("  # ")
            if said.strip().startswith("refused"):
                lines += [f"echo '$ {command}'", f"if {command}; then exit 3; fi"]
            else:
                lines += [command if command.endswith("&") else f"{command} || exit"]
    return "\n".join(lines)


def script_over_tls(blocks: Blocks) -> str:
    """Return the following blocks, with the certificates and settings that the page refers to."""
    (_, making), (_, settings), *_ = chapter("### Certificates")
    assert "openssl req" in making and "enforcing" in settings
    made = [f"sh -e <<'END' || exit\n{making}END", f"cat > tls.properties <<'END'\n{settings}END"]
    return "\n".join([*made, script(blocks)])


@pytest.mark.slow(seconds=35)
def test_the_walk_from_an_open_broker_to_two_accounts_works(tmp_path: Path) -> None:
    blocks, port, namesrv = chapter("## From nothing to two accounts"), free_port(), free_port()
    kinds = [language for language, _ in blocks]
    assert kinds == ["yaml", "properties", "properties", *["sh"] * 4, "python", "sh", "sh"]
    parts = ["trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT", script(blocks[:8])]
    has_openssl = which("openssl") is not None
    if has_openssl:  # by which the documents make certificates
        parts.append(script_over_tls(blocks[8:]))
    (tmp_path / "plain_acl.yml").write_text(blocks[0][1])
    broker = blocks[1][1].replace("9876", str(namesrv))
    (tmp_path / "broker.conf").write_text(f"{broker}{SMALL}listenPort={port}\n")
    (tmp_path / "namesrv.conf").write_text(f"{blocks[2][1]}listenPort={namesrv}\n")
    environment = {name: text for name, text in os.environ.items() if "TROUPEMQ" not in name}
    places = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment |= {"PATH": places, "HOME": str(tmp_path), "NAMESRV_ADDR": f"127.0.0.1:{namesrv}"}
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(
            ["bash", "-c", "\n".join(parts)],
            cwd=tmp_path,
            env=environment,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        said.seek(0)
        told = said.read()
    assert code == 0, told
    for words in (
        "hello",
        "No default permission for topic:Invoices",
        "Need admin permission for request code=17, but accessKey=shop-account is not",
        "refused the account shop-account from 127.0.0.1",
        "No default permission for group:strangers",
        "Check signature failed for accessKey=shop-account",
        *(WORDS_OVER_TLS if has_openssl else ()),
    ):
        assert words in told, (words, told)
    for secret in ("choose-a-long-one", "and-another-one", "a-third-one", "a-newer-one"):
        assert secret not in told
    assert (tmp_path / "plain_acl.yml").stat().st_mode & 0o777 == 0o600
