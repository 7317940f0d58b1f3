"""Pages in Debian's chromium by playwright, one walk for each subject."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which
from time import monotonic
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Response, ViewportSize, sync_playwright

from protocol.bodies_own import JobRun, Jobs
from protocol.properties import RETRY_TOPIC
from tests.compat.child import Child
from tests.compat.patience import wait_until
from troupemq import Message, Producer, PullConsumer, PushConsumer
from troupemq.client.admin import Admin
from troupemq.client.admin.groups import GroupSettings
from troupemq.client.consuming.consumer_offsets import ConsumeFrom
from troupemq.console import search
from troupemq.console.asking import PLACES, ConsoleSettings
from troupemq.console.server import ConsoleServer
from troupemq.servers import Servers

WAIT_MS = 60_000.0
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
WIDTHS = (390, 1120, 1600)
SCREENS_MAX = 10
CHANGES_SHOWN = ("topic", "acl-account", "reset-offset", "setting", "thresholds")
ASKED = {
    "/topic": "name=Orders",
    "/group": "name=late",
    "/group/members": "name=late",
    "/client": "group=here&client={client}",
    "/messages": "topic=Orders",
    "/tail": "topic=Orders",
    "/message": "topic=Orders&broker=broker-a&queue=0&offset=0",
    "/message/life": "topic=Orders&broker=broker-a&queue=0&offset=0",
    "/trace": "id=key-0&trace_topic=Orders",
    "/producers": "broker={broker}",
    "/broker": "address={broker}",
    "/dead-letters/group": "name=late",
    "/jobs/history": "job=archive",
}
"""Queries of pages about one object."""

PATH = {"PYTHONPATH": str(Path(__file__).parents[3]), "PYTHONDONTWRITEBYTECODE": "1"}
"""Environment of a script that imports the packages of this clone."""

NO_RUN = "/job"
"""Page of a job run, of which no broker here has any."""

CUT = """() => {
    const found = [], width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > width) found.push("the page");
    for (const each of document.querySelectorAll("main *, header *")) {
        if (each.scrollWidth > each.clientWidth + 1 && each.clientWidth
            && !each.matches("input, select, pre, pre *, .chart, .chart *")
            && each.checkVisibility()
            && getComputedStyle(each).overflowX !== "visible") {
            found.push(each.outerHTML.slice(0, 80));
        }
    }
    return found;
}"""
"""Elements that are cut off or need horizontal scrolling."""

FAINT = """() => {
    const parts = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (text) => parts(text).slice(0, 3).map((each) => each / 255)
        .map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
        .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
    const ground = (each) => {
        for (; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if ((parts(colour)[3] ?? 1) === 1) return colour;
        }
    };
    return [...document.querySelectorAll("main *, header *")].filter((each) => {
        if (!each.checkVisibility() || ![...each.childNodes].some((one) => one.nodeType === 3
            && one.textContent.trim()) || each.closest(".u-wrap, .u-legend")) return false;
        const two = [light(getComputedStyle(each).color), light(ground(each))];
        return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05) < 4.5;
    }).map((each) => each.outerHTML.slice(0, 80));
}"""
"""Text with a contrast below 4.5 to 1, the WCAG AA minimum for small text."""

LOOKED_AT = ("/", "/messages", "/group", "/change/topic")
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
"""Light at the end, as it was."""

HOSTILE = b"<script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def chromium() -> str:
    """Path of Debian's browser; without it the tests are skipped, or fail in CI."""
    found = which("chromium")
    if found is None:
        sentence = "the console's walks need Debian's chromium: apt-get install chromium"
        if os.environ.get("TROUPEMQ_CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    return found


@pytest.fixture(scope="module")
def console(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleServer]:
    """Console of a broker with messages and a group with a time lag."""
    namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
    with Producer("shop", namesrv) as producer:
        for number in range(8):
            producer.send(Message("Orders", HOSTILE, keys=f"key-{number}"))
    with PullConsumer("late", namesrv, auto_commit=False, begin=ConsumeFrom.FIRST_OFFSET) as late:
        late.commit(dict.fromkeys(late.fetch_queues("Orders"), 1))
    with Admin(namesrv) as admin:
        assert not admin.update_group(GroupSettings(group_name="late")).failures
    settings = ConsoleSettings(tmp_path_factory.mktemp("console"), namesrv, port=0)
    server = ConsoleServer(settings)
    server.start()
    here = PushConsumer("here", lambda views: None, namesrv, begin=ConsumeFrom.LAST_OFFSET)
    here.subscribe("Orders")
    with here:
        wait_until(lambda: bool(members(server, "here")), "a member to be there")
        yield server
    assert server.stop(60.0)


def members(console: ConsoleServer, group: str) -> list[str]:
    found = console.console.cluster.ask(lambda admin: admin.member_states(group)).found
    return [each.client for each in found]


@pytest.fixture(scope="module")
def browser_page(console: ConsoleServer, chromium: str) -> Iterator[Page]:
    """Page logged in by the form; any error of the browser is a failure."""
    complaints: list[str] = []
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport=DESK, timezone_id="Asia/Tokyo")
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"http://127.0.0.1:{console.port}/")
        page.fill("[name=name]", "admin")
        page.fill("[name=password]", console.console.accounts.first_password or "")
        page.click("button")
        page.wait_for_selector("nav")
        yield page
        browser.close()
    assert complaints == []


def go(page: Page, path: str) -> None:
    origin = page.url.partition("/")[0] + "//" + page.url.split("/")[2]
    answer: Response | None = page.goto(origin + path)
    assert answer is not None and answer.status == 200, path


@pytest.mark.slow
def test_message_consumer_and_lagging_group_are_three_clicks_away(
    browser_page: Page, console: ConsoleServer
) -> None:
    """Start at the printed address, logged in; use only links."""
    page = browser_page

    def click_from_the_start(*what: str) -> None:
        assert len(what) <= 3
        page.goto(f"http://127.0.0.1:{console.port}/")
        for each in what:
            page.click(each)

    click_from_the_start("#late_groups tbody a >> text=late")
    page.wait_for_selector("h1 >> text=Group late")
    assert page.locator("#queues >> text=Orders").count() > 0
    orders = "#late_groups tbody a >> text=Orders"
    click_from_the_start(orders, "main >> text=Messages", "#messages tbody a")
    page.wait_for_selector("h1 >> text=Message")
    assert HOSTILE.decode() in page.inner_text("#body")
    assert "late" in page.inner_text("#consumers"), "with whether it has consumed it"
    click_from_the_start(orders, "#groups tbody a >> text=late")
    page.wait_for_selector("h1 >> text=Group late")
    click_from_the_start("main >> text=Message search")
    page.fill("main [name=topic]", "Orders")
    page.fill("main [name=key]", "key-3")
    page.keyboard.press("Enter")
    page.click("#messages tbody a")
    page.wait_for_selector("h1 >> text=Message")
    assert "key-3" in page.inner_text("#message")


@pytest.mark.slow
def test_no_page_is_cut_off_at_any_width_and_every_control_has_a_name(
    browser_page: Page, console: ConsoleServer
) -> None:
    page, watch = browser_page, console.console.watch
    broker = watch.newest().brokers[0].place.address
    client = quote(next(iter(members(console, "here"))))
    assert ASKED.keys() <= PLACES.keys()
    paths = [f"{path}?{ASKED.get(path, '')}" for path in PLACES if path != NO_RUN]
    paths += [f"/change/{name}" for name in CHANGES_SHOWN]
    paths += [f"/broker?address={{broker}}&tab={tab}" for tab in ("traffic", "settings")]
    for path in [each.format(broker=broker, client=client) for each in paths]:
        page.set_viewport_size(PHONE)
        go(page, path)
        screens = page.evaluate("document.documentElement.scrollHeight") / PHONE["height"]
        assert screens <= SCREENS_MAX, f"{path} has {screens} screens on a phone, with its folds"
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": PHONE["height"]})
            assert page.evaluate(CUT) == [], f"{path} at a width of {width}"
        for scheme in SCHEMES if path.partition("?")[0] in LOOKED_AT else ():
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(FAINT) == [], f"{path} when it is {scheme}"
        nameless = page.evaluate(
            "[...document.querySelectorAll('input:not([type=hidden]),select,textarea,button,a')]"
            ".filter(each => !each.labels?.length && !each.textContent.trim()).length"
        )
        assert nameless == 0 and page.locator("h1").count() == 1, path
    page.set_viewport_size(DESK)


@pytest.mark.slow
def test_the_menu_is_one_row_at_1280_and_behind_a_button_on_a_phone(browser_page: Page) -> None:
    page = browser_page
    go(page, "/")
    tops = page.evaluate("[...document.querySelectorAll('nav a')].map(each => each.offsetTop)")
    assert len(tops) == 14 and len(set(tops)) == 1
    page.set_viewport_size(PHONE)
    assert not page.is_visible("nav") and page.locator("header").bounding_box()["height"] < 60  # type: ignore[index]
    page.click("label[for=menu]")
    page.click("nav >> text=Alerts")
    page.wait_for_selector("h1 >> text=Alerts")
    page.set_viewport_size(DESK)


@pytest.fixture
def incident(servers: Servers, console: ConsoleServer, tmp_path: Path) -> Iterator[None]:
    """Two consumers of a group as processes, one of them stuck in its own code for a second."""
    namesrv = f"127.0.0.1:{servers.ports['namesrv']}"
    with Admin(namesrv) as admin:
        admin.create_topic("Incidents", 2)
        assert not admin.update_broker_setting("stuckAfterSeconds", "1").failures
    script = str(Path(__file__).with_name("stuck_consumer.py"))
    children = [
        Child([sys.executable, script, namesrv, "oncall", how], tmp_path / f"{how}.log", PATH)
        for how in ("hangs", "works")
    ]
    try:
        wait_until(lambda: _shares(console) == [1, 1], "a queue for each member", 30.0)
        with Producer("shop", namesrv) as producer:
            for number in range(8):
                producer.send(Message("Incidents", b"x", keys=f"incident-{number}"))
        wait_until(lambda: _stuck(console), "the group to be stuck", 30.0)
        yield
    finally:
        for each in children:
            each.kill()
        with Admin(namesrv) as admin:
            assert not admin.update_broker_setting("stuckAfterSeconds", "30").failures


def _shares(console: ConsoleServer) -> list[int]:
    """Return how many queues of Incidents each member has."""
    found = console.console.cluster.ask(lambda admin: admin.member_states("oncall")).found
    return [sum("Incidents@" in name for name in each.queue_names) for each in found]


def _stuck(console: ConsoleServer) -> bool:
    console.console.watch.renew(0.1)
    found = console.console.watch.newest().groups.get("oncall")
    return found is not None and bool(found.stuck_members)


@pytest.mark.slow
def test_an_operator_finds_the_function_of_a_stuck_consumer_in_three_clicks_and_ten_seconds(
    browser_page: Page, incident: None
) -> None:
    page = browser_page
    began_s = monotonic()
    go(page, "/")
    sentence = page.inner_text("#findings .note >> nth=0")
    assert "The group oncall is stuck: its member" in sentence
    assert "offset 0 of Incidents, broker-a, queue" in sentence and "Since 20" in sentence
    page.click("#findings >> text=Verdict")
    verdict = page.inner_text("#verdict")
    assert "2 of 2 threads busy in slow(), stuck_consumer.py:" in verdict
    assert monotonic() - began_s < 10.0
    workers = page.inner_text("#workers")
    assert workers.startswith("2 threads busy: troupemq-consume-oncall-") and "library" in workers
    page.click("main >> text=Group oncall")
    assert "stuck for" in page.inner_text("#queues tr.marked >> nth=0")
    assert "slow(), stuck_consumer.py" in page.inner_text("#members tr.marked")
    page.click("#members tr.marked a >> nth=1")
    page.wait_for_selector("h1 >> text=Message")


@pytest.mark.slow
def test_a_fold_stays_open_and_focused_over_a_refresh(browser_page: Page) -> None:
    page = browser_page
    go(page, "/group?name=here")
    page.click("#fold_how summary")
    page.evaluate("document.getElementById('content').dataset.is = 'old'")
    page.wait_for_selector("#content:not([data-is])")
    assert page.is_visible("#how")
    assert page.evaluate("document.activeElement.parentElement.id") == "fold_how"


@pytest.mark.slow
def test_a_reset_is_previewed_executed_and_audited(browser_page: Page) -> None:
    page = browser_page
    go(page, "/group?name=late")
    page.click("text=Reset offsets to a time")
    page.fill("[name=time]", "2020-01-01T00:00:00")
    page.click("text=Preview")
    page.wait_for_selector("text=messages are consumed again")
    assert "resetOffsetByTime -g late -t Orders -s 1577804400000" in page.inner_text("#line")
    page.click("text=Apply")
    page.wait_for_selector("#result")
    go(page, "/audit")
    assert "reset-offset" in page.inner_text("#entries")


@pytest.mark.slow
def test_live_messages_appear_without_a_reload(browser_page: Page, servers: Servers) -> None:
    page = browser_page
    go(page, "/tail?topic=Orders")
    page.wait_for_selector("#messages")
    with Producer("shop", f"127.0.0.1:{servers.ports['namesrv']}") as producer:
        producer.send(Message("Orders", b"fresh", keys="fresh-key"))
    page.wait_for_selector("#messages >> text=fresh-key")


@pytest.mark.slow
def test_live_messages_pause_and_go_on(browser_page: Page, servers: Servers) -> None:
    page = browser_page
    go(page, "/tail?topic=Orders")
    page.click("#live >> text=Pause")
    page.wait_for_selector("#progress >> text=Paused.")
    with Producer("shop", f"127.0.0.1:{servers.ports['namesrv']}") as producer:
        producer.send(Message("Orders", b"later", keys="paused-key"))
    assert page.locator("#messages >> text=paused-key").count() == 0
    page.click("#live >> text=Continue")
    page.wait_for_selector("#messages >> text=paused-key")
    page.click("#live >> text=Stop")
    page.wait_for_selector("#progress >> text=Ended.")


@pytest.mark.slow
def test_a_topic_is_offered_and_a_search_goes_on_until_it_is_stopped(
    browser_page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the search reads one message only."""
    page = browser_page
    monkeypatch.setattr(search, "PULLED_MAX", 1)
    monkeypatch.setattr(search, "STEP_READ_MAX", 1)
    go(page, "/messages")
    page.fill("main [name=topic]", "ord")
    page.wait_for_selector("#offered-topic option[value=Orders]", state="attached")
    page.fill("main [name=topic]", "Orders")
    page.fill("main [name=text]", "nowhere")
    page.keyboard.press("Enter")
    page.wait_for_selector("#progress >> text=/Searching. Read [23] of/")
    page.click("#progress >> text=Stop")
    page.wait_for_selector("#progress >> text=/Stopped. Read [2-5] of/")
    assert page.locator("[hx-trigger^=every]").count() == 0


@pytest.mark.slow
def test_a_message_tells_its_life_and_its_command_lines_are_copied(browser_page: Page) -> None:
    page = browser_page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, "/message?topic=Orders&broker=broker-a&queue=0&offset=0")
    page.wait_for_selector("#life #events >> text=stored")
    page.click("#commands button >> nth=0")
    page.wait_for_selector("#commands >> text=Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("troupemq admin queryMsgByOffset -t Orders -b broker-a -i 0 -o 0")


@pytest.mark.slow
def test_a_change_of_a_topic_shows_each_broker_before_and_after(browser_page: Page) -> None:
    page = browser_page
    go(page, "/topic?name=Orders")
    page.click("text=Change queues")
    assert page.input_value("[name=topic]") == "Orders"
    page.fill("[name=read_queues]", "3")
    page.click("text=Preview")
    assert "2 → 3" in page.inner_text("#brokers")
    go(page, "/change/topic-permission?topic=orders")
    page.click("text=Preview")
    page.wait_for_selector("#faults >> text=did you mean Orders?")


@pytest.mark.slow
def test_chosen_dead_letters_are_redriven(browser_page: Page, servers: Servers) -> None:
    page, namesrv = browser_page, f"127.0.0.1:{servers.ports['namesrv']}"
    with Admin(namesrv) as admin, Producer("shop", namesrv) as producer:
        admin.create_topic("%DLQ%late", 1)
        wait_until(lambda: len(admin.queues("%DLQ%late")) == 1, "the topic")
        own = {RETRY_TOPIC: "Orders"}
        for number in range(3):
            letter = Message("%DLQ%late", b"dead %d" % number, system_properties=own)
            producer.send(letter)
        wait_until(lambda: admin.message_count("%DLQ%late") == 3, "the dead letters")
    go(page, "/dead-letters/group?name=late")
    page.check("input.all")
    assert page.locator("#letters tbody input:checked").count() == 3
    page.uncheck("#letters tbody tr:nth-child(1) input")
    page.click("button >> text=Redrive")
    page.wait_for_selector("text=2 dead letters are sent")
    page.click("text=Apply")
    page.wait_for_selector("#result >> text=2 dead letters of late were sent")


@pytest.mark.slow
def test_keys_lead_to_pages_and_fields_and_the_chart_is_drawn(browser_page: Page) -> None:
    page = browser_page
    go(page, "/")
    page.wait_for_selector(".chart canvas")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("h1 >> text=Topics")
    page.wait_for_load_state("load")  # the keys are heard from then on
    page.keyboard.press("/")
    page.keyboard.type("Ord")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?filter=Ord*")
    go(page, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.slow
def test_a_broker_shows_its_actors_and_finds_settings_by_meaning(
    browser_page: Page,
) -> None:
    page = browser_page
    go(page, "/brokers")
    page.click("#brokers tbody a")
    assert "No damage is known" in page.inner_text("#damage")
    page.click(".tabs >> text=Actors")
    page.click("text=/All [0-9]+ actors/")
    page.wait_for_selector("#actors >> text=put_message")
    page.click(".tabs >> text=Settings")
    page.fill("main [name=filter]", "fileReservedTime")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=fileReservedTime**")
    assert "3 days" in page.inner_text("#settings")
    page.click("#settings tbody a")
    page.fill("main [name=value]", "73")
    page.click("text=Preview")
    assert "-k fileReservedTime -v 73" in page.inner_text("#line")


@pytest.mark.slow
def test_the_runs_of_a_job_are_drawn(
    browser_page: Page, console: ConsoleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, watch = browser_page, console.console.watch
    runs = [
        JobRun(f"a-{n}", "archive", "finished", started_ms=n * 60_000, ended_ms=n * 60_000 + 900)
        for n in range(1, 5)
    ]
    now = replace(watch.newest(), jobs={"127.0.0.1:1": Jobs(["archive"], runs)})
    monkeypatch.setattr(watch, "newest", lambda: now)
    go(page, "/jobs")
    page.wait_for_selector("#chart_archive canvas")
    assert "seconds" in page.inner_text("#chart_archive .u-legend")
    page.click("text=Values of this chart")
    page.wait_for_selector("#history >> text=0.9")
