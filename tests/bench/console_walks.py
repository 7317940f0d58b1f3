"""Records the visits that the bench plays: `python -m tests.bench.console_walks`.

Ten walks through the console in Debian's chromium, some 40 s each, at a cluster as the bench has
it; what the browser asks for goes to console_sessions.json. To be run again when pages, their files
or what they ask by themselves have changed.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import perf_counter
from urllib.parse import quote

from playwright.sync_api import Browser, Page, Request, sync_playwright

from tests.bench.console_load import BUSY, ORDERS, Watched, watched
from tests.bench.console_sessions import BROKER, CSRF, VISITS, Asked, Visit, save

VISIT_S = 40.0
WAIT_MS = 60_000.0


@dataclass
class Walk:
    """Recorded walk of one browser, with pauses between its actions."""

    page: Page
    origin: str
    began_s: float = field(default_factory=perf_counter)

    def go(self, path: str, think_s: float) -> None:
        self.page.goto(self.origin + path)
        self.think(think_s)

    def click(self, selector: str, think_s: float) -> None:
        self.page.click(selector)
        self.page.wait_for_load_state("load")
        self.think(think_s)

    def think(self, seconds: float) -> None:
        self.page.wait_for_timeout(seconds * 1000)

    def stay(self) -> None:
        """Until the visit is over."""
        self.think(max(0.0, VISIT_S - (perf_counter() - self.began_s)))


def keeps_the_overview_open(walk: Walk) -> None:
    walk.go("/", 2)


def finds_a_message(walk: Walk) -> None:
    walk.go("/", 3)
    walk.click("main >> text=Message search", 2)
    walk.page.fill("main [name=topic]", ORDERS)
    walk.page.fill("main [name=key]", "order-7")
    walk.page.keyboard.press("Enter")
    walk.page.wait_for_selector("#messages tbody a")
    walk.think(3)
    walk.click("#messages tbody a", 10)
    walk.click("main >> text=Trace", 6)
    walk.page.go_back()
    walk.think(4)
    walk.click("text=Neighbouring messages", 3)


def looks_into_a_late_group(walk: Walk) -> None:
    walk.go("/", 3)
    walk.click("#late_groups tbody a >> text=late", 8)
    walk.click("#queues tbody a[href*='/message?'] >> nth=0", 6)
    walk.page.go_back()
    walk.think(4)
    walk.click("text=Reset offsets to a time", 3)
    walk.page.fill("[name=time]", "2020-01-01T00:00:00")
    walk.click("text=Preview", 6)
    walk.go("/groups", 3)


def goes_through_topics(walk: Walk) -> None:
    walk.go("/topics", 4)
    walk.page.fill("main [name=filter]", "ord")
    walk.page.keyboard.press("Enter")
    walk.page.wait_for_url("**/topics?filter=ord*")
    walk.think(3)
    walk.click(f"main tbody a >> text={ORDERS}", 10)
    walk.go(f"/topic?name={BUSY}", 10)


def watches_the_brokers(walk: Walk) -> None:
    walk.go("/brokers", 20)
    walk.click("#brokers tbody a", 10)


def follows_a_busy_topic(walk: Walk) -> None:
    walk.go(f"/tail?topic={BUSY}", 2)


def looks_after_what_waits(walk: Walk) -> None:
    for path in ("/dead-letters", "/transactions", "/delays", "/alerts", "/dead-letters"):
        walk.go(path, 6)


def searches_for_a_text(walk: Walk) -> None:
    walk.go(f"/messages?topic={ORDERS}", 5)
    walk.page.fill("main [name=text]", '"order": 42,')
    walk.page.keyboard.press("Enter")
    walk.page.wait_for_selector("#messages tbody a")
    walk.think(6)
    walk.click("#messages tbody a", 10)
    walk.go(f"/messages?topic={BUSY}", 8)


def keeps_house(walk: Walk) -> None:
    for path in ("/jobs", "/users", "/access", "/audit", "/alerts"):
        walk.go(path, 6)


def makes_a_topic(walk: Walk) -> None:
    walk.go("/topics", 3)
    walk.click("text=Create a topic", 6)
    walk.page.fill("main [name=topic]", "Walks")
    walk.click("text=Preview", 5)
    walk.click("text=Apply", 5)
    walk.go("/topic?name=Walks", 5)
    walk.go("/groups?filter=bill", 5)
    walk.go("/group?name=billing", 2)


WALKS: tuple[Callable[[Walk], None], ...] = (
    keeps_the_overview_open,
    finds_a_message,
    looks_into_a_late_group,
    goes_through_topics,
    watches_the_brokers,
    follows_a_busy_topic,
    looks_after_what_waits,
    searches_for_a_text,
    keeps_house,
    makes_a_topic,
)
assert len(WALKS) == VISITS


def record(browser: Browser, made: Watched, walk: Callable[[Walk], None]) -> Visit:
    """One visit, in a browser that has nothing yet but its login."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(WAIT_MS)
    origin = f"http://127.0.0.1:{made.console_port}"
    page.goto(f"{origin}/login?next=%2Faccount")
    page.fill("[name=name]", "admin")
    page.fill("[name=password]", made.password)
    page.click("button")
    page.wait_for_selector("nav")
    token = page.get_attribute("[name=csrf]", "value") or ""
    found: list[Asked] = []
    files: set[str] = set()
    walker = Walk(page, origin)

    def note(request: Request) -> None:
        path = request.url.removeprefix(origin)
        if path in files or not path.startswith("/"):
            return
        if path.startswith("/static/"):
            files.add(path)
        path = path.replace(quote(made.broker.address, safe=""), BROKER)
        path = path.replace(made.broker.address, BROKER)
        form = request.post_data
        if form is not None:
            form = form.replace(quote(token, safe=""), CSRF)
        found.append(Asked(round(perf_counter() - walker.began_s, 2), path, form))

    page.on("request", note)
    walk(walker)
    walker.stay()
    page.close()
    seconds = max(VISIT_S, found[-1].at_s)
    return Visit(walk.__name__.replace("_", " "), round(seconds, 1), found)


def main() -> None:
    chromium = which("chromium")
    if chromium is None:
        raise SystemExit("the recording needs Debian's chromium: apt-get install chromium")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with (
        TemporaryDirectory(prefix="troupemq-console-walks-") as folder,
        watched(Path(folder)) as made,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        visits = []
        for walk in WALKS:
            visits.append(record(browser, made, walk))
            print(f"{visits[-1].name}: {len(visits[-1].requests)} requests", flush=True)
        browser.close()
    save(visits)


if __name__ == "__main__":
    main()
