"""The official mqadmin with the account of its conf/tools.yml, without TLS and with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.admin_shell import Shell, admin_shell
from tests.compat.conftest import SERVER_KIND, MakeBroker
from tests.compat.guarded import (
    ADMINISTRATOR,
    READER,
    guarded_servers,
    is_known,
    java_options,
    write_tools,
)
from tests.compat.inhabited import inhabited
from tests.compat.patience import wait_until
from tests.compat.servers import CLUSTER, Broker
from tests.compat.test_every_mqadmin_command import GROUP, KEY, TOPIC, commands
from tests.compat.toolchain import Java
from tests.support.certificates import Certificates

pytestmark = pytest.mark.slow(seconds=8)


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


@pytest.mark.whole
@pytest.mark.skipif(SERVER_KIND == "official", reason="asks ours")
@pytest.mark.parametrize("shell", ["tls"], indirect=True)
def test_every_other_command_of_mqadmin_passes_for_an_administrator_and_shows_nothing_of_it(
    shell: Shell, guarded: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY"), ADMINISTRATOR, strict=True):
        monkeypatch.setenv(f"TROUPEMQ_{name}", value)
    shell("updateTopic", "-b", guarded.address, "-t", TOPIC, "-r", "4", "-w", "4")
    wait_until(lambda: is_known(guarded, TOPIC), "a route")
    refused = {}
    with inhabited(guarded, TOPIC, GROUP, KEY) as found:
        for name, *options in commands(guarded, found, tmp_path):
            said = shell(name, *options)
            assert ADMINISTRATOR[1] not in said
            if "AclException" in said:
                refused[name] = said
    assert refused == {}


@pytest.mark.whole
def test_mqadmin_of_an_account_that_is_no_administrator_is_told_so(
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
