"""docs/console.md, followed: what a program asks with a token; the files that the page shows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from storage.access.acl_yaml import parse_acl_file
from tests.compat.patience import wait_until
from tests.manual.following import DOCS, HOST, blocks, commands
from troupemq.client.admin import Admin
from troupemq.console.alerts import load_alert_settings
from troupemq.console.app import Application
from troupemq.console.asking import Console, ConsoleSettings
from troupemq.servers import Servers

PAGE = "console.md"
SERVES = "http://127.0.0.1:8088"
TOKEN = "tmq_…"


@pytest.fixture
def console(servers: Servers, tmp_path: Path) -> Iterator[Console]:
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    console = Console(ConsoleSettings(data=tmp_path / "console", namesrv=namesrv))
    yield console
    console.cluster.close()
    console.audit.close()


def asked(client: TestClient, words: list[str], token: str, *, do: bool = False) -> Response:
    """Send the request of a curl line: with -d a POST with a form."""
    assert words.pop(0) == "curl"
    headers, body = {}, None
    while len(words) > 1 or words[0].startswith("-"):
        if words[0] == "-H":
            name, _, value = words[1].replace(TOKEN, token).partition(": ")
            headers[name] = value
            del words[:2]
        elif words[-2] == "-d":
            body = words[-1]
            del words[-2:]
        else:
            raise AssertionError(f"curl {words}")
    (address,) = words
    path = address.removeprefix(SERVES)
    assert path != address
    if body is None:
        return client.get(path, headers=headers)
    if do:
        body = json.dumps({**json.loads(body), "do": True})
    headers["Content-Type"] = "application/x-www-form-urlencoded"
    return client.post(path, content=body, headers=headers)


def test_a_program_reads_and_changes_with_a_token(console: Console, servers: Servers) -> None:
    (block,) = (each for each in blocks(PAGE) if "curl" in each)
    groups, topic = commands(block)
    token = console.accounts.new_token("ci", "admin")
    namesrv = f"{HOST}:{servers.ports['namesrv']}"
    with (
        TestClient(Application(console).make(), base_url=SERVES) as client,
        Admin(namesrv) as tool,
    ):
        answer = asked(client, list(groups), token)
        assert answer.status_code == 200 and answer.json()
        assert asked(client, list(groups), "tmq_wrong").status_code == 401
        before = asked(client, list(topic), token)
        assert before.status_code == 200, before.text
        assert "Orders" not in tool.topics()
        done = asked(client, list(topic), token, do=True)
        assert done.status_code == 200, done.text
        wait_until(lambda: len(tool.queues("Orders")) == 8, "the topic with its queues")


def shown(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", (DOCS / PAGE).read_text("utf-8"), re.DOTALL)
    return str(found)


def test_the_account_of_the_page_is_valid_for_a_broker() -> None:
    text = "accounts:\n" + "".join(f"  {line}\n" for line in shown("yaml").splitlines())
    (account,) = parse_acl_file("plain_acl.yml", text.encode()).accounts
    assert account.admin


def test_the_alerts_of_the_page_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "alerts.json").write_text(shown("json"), encoding="utf-8")
    found = load_alert_settings(tmp_path / "alerts.json")
    assert found.webhook == "https://chat.example/hook" and found.mail_to == "ops@example.com"
