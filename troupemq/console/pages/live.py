"""Page of live messages: those of a topic as they come, until it ends by itself."""

from troupemq.client.errors import ClientError
from troupemq.console.asking import PageRequest, failures_of, page
from troupemq.console.findings import spoken
from troupemq.console.names import TOPICS
from troupemq.console.pages.messages import (
    HIDDEN_TEXT,
    filter_inputs,
    filters_of,
    gone,
    gone_on,
    link_to,
    row_of,
    state_of,
)
from troupemq.console.parts import (
    Cells,
    Form,
    Input,
    Link,
    Links,
    LivePart,
    Note,
    Notes,
    Page,
    Part,
    ProgressLine,
    RowTable,
)
from troupemq.console.scans import NEXT, ON, PAUSE, STOP
from troupemq.console.tail import TAIL_SHOWN, LiveTail

PATH = "/tail"
TAIL_S = 2


@page(PATH)
def tail(asked: PageRequest) -> Page:
    """Show the newest messages of a topic, with new ones every TAIL_S."""
    topic = asked.text("topic")
    inputs = [
        Input("topic", "Topic", value=topic, needed=True, offers=TOPICS),
        *filter_inputs(asked),
    ]
    parts: list[Part] = [Form("", PATH, inputs, "Follow")]
    if not topic:
        return Page("Live messages", parts)
    title = f"Live messages of {topic}"
    if asked.text("text") and not asked.sees_bodies():
        return Page(title, [*parts, Notes("hidden", "", [Note("watch", HIDDEN_TEXT)])])
    try:
        scan = gone_on(asked, PATH, lambda: LiveTail(topic, filters_of(asked), row_of(asked)))
    except ClientError as error:
        return Page(title, [*parts, *failures_of([str(error)], "messages")])
    if scan is None:
        return Page(title, [*parts, gone(asked, PATH)])
    assert isinstance(scan, LiveTail)
    shown: list[Part] = [
        _progress(asked, scan),
        *failures_of(scan.failures, "messages"),
        RowTable("messages", "", scan.found, "No messages yet: send one to this topic."),
    ]
    every_s = TAIL_S if scan.is_running else 0
    newest = Link("Newest messages", "/messages", {"topic": topic})
    return Page(
        title,
        [*parts, LivePart("live", shown, link_to(asked, PATH, NEXT), every_s), Links([newest])],
    )


def _progress(asked: PageRequest, scan: LiveTail[Cells]) -> ProgressLine:
    text = f"{scan.seen:,} new messages"
    if scan.filters.is_selective:
        text += f", {scan.matches:,} match"
    if scan.skipped:
        text += f"; {scan.skipped:,} came too fast to be read"
    text += f". The newest {TAIL_SHOWN} are shown."
    links = []
    match state_of(scan):
        case "stopped" | "over":
            text = f"Ended. {text}"
            links = [link_to(asked, PATH, "", "Follow again")]
        case "paused":
            text = f"Paused. {text}"
            links = [link_to(asked, PATH, ON, "Continue"), link_to(asked, PATH, STOP, "Stop")]
        case _:
            left = spoken(int(scan.left_s * 1000))
            text = f"Live, every {TAIL_S} s, ends in {left}. {text}"
            links = [link_to(asked, PATH, PAUSE, "Pause"), link_to(asked, PATH, STOP, "Stop")]
    facts = {
        "state": state_of(scan),
        "new": scan.seen,
        "not_read": scan.skipped,
        "matches": scan.matches,
        "left_s": int(scan.left_s),
    }
    return ProgressLine("progress", text, facts, links)
