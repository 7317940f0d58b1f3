"""A console of a cluster as a process, and who visits it: a program and a browser."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Client, Response

from tests.compat.child import Child
from tests.compat.patience import wait_until
from troupemq.console.accounts import Accounts


@dataclass
class Visit:
    """A program with a token, and a browser that has logged in."""

    program: Client
    browser: Client

    def json(self, path: str, **query: object) -> Any:
        """Return a page as JSON; try again for a while if brokers exceeded its deadline."""
        found: list[Any] = []

        def is_whole() -> bool:
            answer = self.program.get(f"/api{path}", params=as_text(query))
            assert answer.status_code == 200, f"{path}: {answer.text}"
            found.append(answer.json())
            return not failures_in(found[-1])

        try:
            wait_until(is_whole, f"all of {path}")
        except AssertionError:
            pytest.fail(f"{path}: {failures_in(found[-1])}")
        return found[-1]

    def page(self, path: str, **query: object) -> Response:
        return self.browser.get(path, params=as_text(query))

    def change(self, name: str, *, is_meant: bool, **given: str) -> Any:
        body = json.dumps({"given": given, "do": is_meant})
        answer = self.program.post(f"/api/change/{name}", content=body)
        assert answer.status_code == 200 and answer.json()["failures"] == [], answer.text
        return answer.json()


def failures_in(page: Any) -> list[Any]:
    """Return the parts that a page reports as missing."""
    names = [key for key in page if key == "missing" or key.endswith("failures")]
    return [page[key] for key in names if page[key]]


def as_text(query: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in query.items()}


@contextmanager
def visiting(namesrv: str, scratch: Path) -> Iterator[Visit]:
    """Run `troupemq console -n NAMESRV` with a token and a logged-in user."""
    accounts = Accounts(scratch / "data" / "accounts.json")
    headers = {"Authorization": f"Bearer {accounts.new_token('interop', 'admin')}"}
    ready = scratch / "ready"
    command = [sys.executable, "-m", "troupemq", "console", "-n", namesrv, "-p", "0"]
    files = ["--data", str(scratch / "data"), "--ready-file", str(ready)]
    with Child([*command, *files], scratch / "log"):
        wait_until(lambda: ready.exists() and bool(ready.read_text().strip()), "the console serves")
        at = f"http://127.0.0.1:{json.loads(ready.read_text())['console']}"
        with (
            Client(base_url=at, headers=headers, timeout=60) as program,
            Client(base_url=at, timeout=60) as browser,
        ):
            form = {"name": "admin", "password": accounts.first_password or "", "next": "/"}
            assert browser.post("/login", data=form).status_code == 303
            yield Visit(program, browser)
