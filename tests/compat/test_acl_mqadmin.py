"""The official mqadmin with the account of its conf/tools.yml, without TLS and with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import SERVER_KIND, MakeBroker, MakeNameServer
from tests.compat.guarded import (
    ADMINISTRATOR,
    READER,
    guarded_servers,
    java_options,
    write_tools,
)
from tests.compat.servers import CLUSTER, Broker
from tests.compat.test_every_mqadmin_command import all_shapes
from tests.compat.toolchain import Java
from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow(seconds=8)

Shapes = dict[str, list[str]]


@pytest.fixture(scope="module")
def made(scratch: Path) -> Certificates:
    return Certificates(scratch / "mqadmin-tls")


@pytest.fixture(scope="module")
def guarded(scratch: Path, make_broker: MakeBroker, made: Certificates) -> Iterator[Broker]:
    with guarded_servers(scratch / "guarded-mqadmin", make_broker, made, ()) as broker:
        yield broker


@pytest.fixture(scope="module")
def shell(
    request: pytest.FixtureRequest,
    java_tools: Java,
    scratch: Path,
    guarded: Broker,
    made: Certificates,
) -> Iterator[Shell]:
    """mqadmin as the administrator, without TLS and with it."""
    folder = scratch / f"guarded-tools-{request.param}"
    write_tools(folder, ADMINISTRATOR)
    options = java_options(made) if request.param == "tls" else ()
    with admin_shell(java_tools, folder, guarded.name_server.address, *options) as run:
        yield run


@pytest.mark.parametrize("shell", ["plain", "tls"], indirect=True)
def test_mqadmin_changes_and_shows_accounts(shell: Shell, guarded: Broker) -> None:
    address = guarded.address
    made = ("-a", "new-account", "-s", "secret-new", "-t", "T=PUB,U=DENY", "-g", "G=SUB")
    said = shell("updateAclConfig", "-b", address, *made, "-i", "DENY", "-u", "SUB", "-m", "false")
    assert f"create or update plain access config to {address} success." in said
    shown = shell("getAclConfig", "-b", address)
    assert "new-account" in shown and "[T=PUB, U=DENY]" in shown and "secret-" not in shown
    said = shell("updateGlobalWhiteAddr", "-b", address, "-g", "10.10.154.1,10.10.154.2")
    assert "success" in said
    assert "[10.10.154.1, 10.10.154.2]" in shell("getAclConfig", "-c", CLUSTER)
    version = shell("clusterAclConfigVersion", "-c", CLUSTER)
    assert "plain_acl.yml" in version and "get cluster's plain access config version" in version
    said = shell("deleteAclConfig", "-b", address, "-a", "new-account")
    assert "success" in said and "new-account" not in shell("getAclConfig", "-b", address)
    refused = shell("updateAclConfig", "-b", address, "-a", "short", "-s", "secret-new")
    assert "length should longer than 6" in refused


@pytest.fixture(scope="module")
def unguarded_shapes(
    java_tools: Java, scratch: Path, make_name_server: MakeNameServer, make_broker: MakeBroker
) -> Shapes:
    """Return the output shapes with official servers without access control."""
    folder = scratch / "mqadmin-unguarded"
    folder.mkdir()
    with (
        make_name_server("official", folder / "name-server") as name_server,
        make_broker("official", folder / "broker", name_server, traceTopicEnable="true") as broker,
        admin_shell(java_tools, folder, name_server.address) as run,
    ):
        return all_shapes(run, broker, folder / "export")


@pytest.mark.whole
@pytest.mark.skipif(SERVER_KIND == "official", reason="asks ours")
@pytest.mark.parametrize("way", ["plain", "tls"])
def test_every_other_command_works_for_an_administrator(
    way: str,
    java_tools: Java,
    make_broker: MakeBroker,
    unguarded_shapes: Shapes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared are exit and output; no output shows a secret."""
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY"), ADMINISTRATOR, strict=True):
        monkeypatch.setenv(f"TROUPEMQ_{name}", value)
    made, folder = Certificates(tmp_path / "certificates"), tmp_path / "tools"
    write_tools(folder, ADMINISTRATOR)
    options = java_options(made) if way == "tls" else ()
    with (
        guarded_servers(tmp_path, make_broker, made, ()) as broker,
        admin_shell(java_tools, folder, broker.name_server.address, *options) as run,
    ):

        def looked_through(name: str, *options: str) -> str:
            said = run(name, *options)
            assert ADMINISTRATOR[1] not in said
            assert "AclException" not in said, said
            return said

        found = all_shapes(looked_through, broker, tmp_path / "export")
    differing = {
        line: (shown, found.get(line))
        for line, shown in unguarded_shapes.items()
        if shown != found.get(line)
    }
    assert differing == {}


@pytest.mark.whole
def test_mqadmin_without_an_administrators_account_is_refused(
    java_tools: Java, scratch: Path, guarded: Broker
) -> None:
    folder = scratch / "readers-tools"
    write_tools(folder, READER)
    with admin_shell(java_tools, folder, guarded.name_server.address) as run:
        told = {
            code: run(name, "-b", guarded.address, *options)
            for code, name, options in (
                (17, "updateTopic", ("-t", "Mine")),
                (50, "updateAclConfig", ("-a", READER[0], "-s", READER[1], "-m", "true")),
                (51, "deleteAclConfig", ("-a", ADMINISTRATOR[0])),
                (53, "updateGlobalWhiteAddr", ("-g", "*")),
                (54, "getAclConfig", ()),
                (200, "updateSubGroup", ("-g", "mine")),
                (25, "updateBrokerConfig", ("-k", "fileReservedTime", "-v", "1")),
            )
        }
    for code, said in told.items():
        need = f"Need admin permission for request code={code}, but accessKey={READER[0]} is not"
        assert need in said, (code, said)
