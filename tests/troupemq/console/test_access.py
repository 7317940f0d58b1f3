"""Access control pages: accounts are shown without secrets, and changed after a preview."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.config import parse_broker_config, parse_namesrv_config
from storage.access.account import ACCESS_KEY, SECRET_KEY
from tests.compat.patience import wait_until
from tests.troupemq.console.conftest import MakeVisit, Visit
from troupemq.cli.servers import SMALL_FILES
from troupemq.console import snapshot
from troupemq.servers import Servers

ROOT_SECRET = "a-secret-of-root"
SHOP_SECRET = "a-secret-of-shop"
NEW_SECRET = "quite-another-secret"
ACCOUNTS = f"""
globalWhiteRemoteAddresses:
- 192.0.2.7
accounts:
- accessKey: root-account
  secretKey: {ROOT_SECRET}
  admin: true
- accessKey: shop-account
  secretKey: {SHOP_SECRET}
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Orders=PUB|SUB
"""
SHOP = {
    "cluster": "DefaultCluster",
    "account": "shop-account",
    "admin": "false",
    "topics": "SUB",
    "groups": "SUB",
    "topic_perms": "Orders=PUB|SUB,Bills=SUB",
    "group_perms": "",
    "white": "",
    "keeps": "false",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Broker with access control, and a name server without."""
    folder = tmp_path_factory.mktemp("guarded")
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    servers = Servers(lambda reason: None)
    here = {"listenPort": "0", "bindAddress": "127.0.0.1"}
    paths = {
        "kvConfigPath": str(folder / "kv.json"),
        "configStorePath": str(folder / "namesrv.properties"),
    }
    servers.start_namesrv(parse_namesrv_config("", {**here, **paths})[0])
    settings = {
        **here,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "namesrvAddr": f"127.0.0.1:{servers.ports['namesrv']}",
        "storePathRootDir": str(folder / "store"),
        "aclEnable": "true",
        "rocketmq.acl.plain.file": str(accounts),
        **SMALL_FILES,
    }
    broker, store, _ = parse_broker_config("", settings)
    servers.start_broker(broker, store)
    yield servers
    assert servers.stop(20.0)


@pytest.fixture
def with_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ACCESS_KEY, "root-account")
    monkeypatch.setenv(SECRET_KEY, ROOT_SECRET)


@pytest.fixture
def admin(with_account: None, visit_to: MakeVisit, guarded: Servers) -> Visit:
    made = visit_to(namesrv=f"127.0.0.1:{guarded.ports['namesrv']}")

    def is_there() -> bool:
        made.console.watch.forget()
        return any(each.says for each in made.console.watch.newest().brokers)

    wait_until(is_there, "the broker to be registered")
    return made


def accounts(visit: Visit) -> dict[str, dict[str, object]]:
    return {row["account"]: row for row in visit.json("/access")["accounts"]}


def test_the_accounts_page_shows_permissions_and_no_secrets(admin: Visit) -> None:
    found = accounts(admin)
    assert found["root-account"]["admin"] is True
    assert found["shop-account"]["topics"] == ["Orders=PUB|SUB", "all others=DENY"]
    assert admin.json("/access")["white_addresses"][0]["addresses"] == ["192.0.2.7"]
    for text in (admin.get("/access").text, json.dumps(admin.json("/access"))):
        assert ROOT_SECRET not in text and SHOP_SECRET not in text and "ecretKey" not in text


def test_an_account_is_changed_by_its_form_without_showing_the_secret(
    admin: Visit, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    form = admin.get("/change/acl-account", cluster="DefaultCluster", account="shop-account").text
    assert 'value="Orders=PUB|SUB"' in form and 'name="secret"' not in form
    preview = admin.preview("acl-account", **SHOP).text
    assert "-s SECRET" in preview and 'type="password"' in preview
    done = admin.change("acl-account", **SHOP, secret=NEW_SECRET).text
    assert "The account shop-account is set" in done and "-s SECRET" in done
    topics = ["Orders=PUB|SUB", "Bills=SUB", "all others=SUB"]
    assert accounts(admin)["shop-account"]["topics"] == topics
    log = (tmp_path / "audit.log").read_text()
    said = capfd.readouterr()
    for text in (preview, done, log, said.out, said.err, admin.get("/access").text):
        assert NEW_SECRET not in text
    entry = admin.console.audit.newest(1)[0]
    assert entry["what"] == "acl-account" and entry["result"] == "done"
    line = shlex.split(str(entry["line"]))
    assert line[1:3] == ["admin", "updateAclConfig"] and line[line.index("-s") + 1] == "SECRET"


def test_a_preview_never_returns_a_secret(admin: Visit) -> None:
    assert NEW_SECRET not in admin.preview("acl-account", **SHOP, secret=NEW_SECRET).text
    wrong = {**SHOP, "account": ""}
    assert NEW_SECRET not in admin.change("acl-account", **wrong, secret=NEW_SECRET).text
    page = admin.get("/change/acl-account", cluster="DefaultCluster", secret=NEW_SECRET).text
    assert NEW_SECRET not in page


def test_a_preview_says_that_permissions_do_not_count_at_an_allowlisted_address(
    admin: Visit,
) -> None:
    said = "its name is enough to read and write everything"
    assert said in admin.preview("acl-account", **{**SHOP, "white": "10.0.0.*"}).text
    assert said not in admin.preview("acl-account", **{**SHOP, "white": ""}).text


def test_a_refusal_of_a_broker_is_shown_without_the_secret(admin: Visit) -> None:
    short = "short"
    page = admin.change("acl-account", **{**SHOP, "account": "new-account"}, secret=short).text
    assert "longer than 6" in page and f">{short}" not in page
    wrong = {**SHOP, "topic_perms": "Orders=EVERYTHING"}
    assert "permission error" in admin.change("acl-account", **wrong, secret="").text


def test_accounts_are_created_and_deleted_except_the_last_admin(admin: Visit) -> None:
    made = {**SHOP, "account": "new-account"}
    assert "The account is new" in admin.preview("acl-account", **made).text
    admin.change("acl-account", **made, secret=NEW_SECRET)
    assert "new-account" in accounts(admin)
    named = {"cluster": "DefaultCluster", "account": "new-account"}
    assert (
        "deleteAclConfig -c DefaultCluster -a new-account"
        in admin.preview("acl-delete", **named).text
    )
    admin.change("acl-delete", **named)
    assert "new-account" not in accounts(admin)
    page = admin.change("acl-delete", **{**named, "account": "root-account"}).text
    assert "last admin" in page and "root-account" in accounts(admin)


def test_allowlisted_addresses_are_set_with_a_warning(admin: Visit) -> None:
    given = {"cluster": "DefaultCluster", "addresses": "192.0.2.8,192.0.2.9"}
    preview = admin.preview("acl-white", **given).text
    assert "without an account" in preview and "192.0.2.7" in preview
    admin.change("acl-white", **given)
    rows = admin.json("/access")["white_addresses"]
    assert rows[0]["addresses"] == ["192.0.2.8", "192.0.2.9"]


def test_refusals_are_counted_for_each_account(
    admin: Visit, guarded: Servers, visit_to: MakeVisit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ACCESS_KEY, "unknown-key")
    monkeypatch.setenv(SECRET_KEY, "whatever-that-is")
    monkeypatch.setattr(snapshot, "ACCESS_S", 0.0)
    stranger = visit_to(namesrv=f"127.0.0.1:{guarded.ports['namesrv']}")
    findings = stranger.json("/")["findings"]
    assert any("give it an account" in each["text"] for each in findings)
    admin.console.watch.forget()
    (warning,) = [each for each in admin.json("/")["findings"] if each["level"] == "watch"]
    assert "refused requests of 1 account in the last hour, the last one" in warning["text"]
    assert "unknown-key" not in json.dumps(admin.json("/"))
    rows = admin.json("/access")["refusals"]
    assert any("unknown-key" in row["why"] and row["account"] == "unknown" for row in rows)


def test_the_accounts_page_is_for_admins_only(admin: Visit) -> None:
    admin.console.accounts.new_password("visitor", "operator")
    assert admin.get("/access").status_code == 403
    assert admin.post("acl-account", {**SHOP, "step": "do"}).status_code == 403
