"""docs/security.md, Certificates, followed: made by openssl, used by servers, commands, Python."""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from remoting.tls_options import ENABLE, TRUST
from tests.manual.following import DOCS, HOST, commands, run, wait_for_registration
from troupemq.cli.servers import SMALL_FILES
from troupemq.servers import Servers


def chapter() -> list[tuple[str, str]]:
    """Return the blocks of the chapter: language and lines."""
    text = (DOCS / "security.md").read_text("utf-8").partition("### Certificates")[2]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(str(kind), str(block)) for kind, block in found]


@pytest.mark.slow(seconds=1)
def test_the_certificates_of_the_page_work_for_servers_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which("openssl") is None:
        pytest.skip("the openssl command, with which the documents make certificates, is not here")
    monkeypatch.chdir(tmp_path)
    for name in (ENABLE, TRUST):  # a command leaves them to its process
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (_, making), (_, settings), (_, asking), (kind, program), *more = chapter()
    assert kind == "python" and not more
    subprocess.run(["sh", "-e"], input=making, check=True, text=True, capture_output=True)
    servers = Servers(lambda reason: None)
    here = {"listenPort": "0", "bindAddress": HOST}
    try:
        servers.start_namesrv(parse_namesrv_config(settings, here)[0])
        namesrv = f"{HOST}:{servers.ports['namesrv']}"
        monkeypatch.setenv("NAMESRV_ADDR", namesrv)
        own = {**here, **SMALL_FILES, "brokerIP1": HOST, "namesrvAddr": namesrv}
        broker, store, findings = parse_broker_config(
            settings, {**own, "storePathRootDir": "store"}
        )
        assert not findings
        servers.start_broker(broker, store)
        wait_for_registration(servers)
        (words,) = commands(asking)
        assert broker.broker_name in run(*words)
        run("troupemq", "admin", "updateTopic", "-c", "DefaultCluster", "-t", "Orders", *words[3:])
        exec(compile(program, "security", "exec"), {"__name__": "security"})
        said = run("troupemq", "consume", "-t", "Orders", "--count", "1", *words[3:])
        assert "one book" in said
        localhost = namesrv.replace(HOST, "localhost")
        assert broker.broker_name in run(*words, "-n", localhost)
        monkeypatch.delenv(TRUST)
        assert "if it takes TLS only: TROUPEMQ_TLS=true, or --tls" in run(*words[:3], exit_code=1)
    finally:
        assert servers.stop(20)
