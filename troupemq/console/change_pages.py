"""Pages of a change: the form, the preview with its command line, and the result."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from troupemq.console.asking import PageRequest
from troupemq.console.changes import ConsoleChange, Preview
from troupemq.console.changing.offset_changes import time_of
from troupemq.console.parts import (
    Form,
    Input,
    LongText,
    Note,
    Notes,
    Page,
    Part,
    RowTable,
    plain,
)

VALUE_CHARS_MAX = 64 << 10
LINE = "Equal command line"


@dataclass(frozen=True)
class ChangeStep:
    """Request for a change; `address` is the client's."""

    change: ConsoleChange
    asked: PageRequest
    address: str

    @property
    def path(self) -> str:
        return f"/change/{self.change.name}"

    def taken(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return all fields, missing ones empty, with times as commands accept them."""
        found = {}
        for each in self.change.inputs(self.asked):
            value = given.get(each.name, "")[:VALUE_CHARS_MAX]
            if each.kind not in ("secret", "long"):
                value = value.strip()
            found[each.name] = time_of(self.asked, value) if each.kind == "time" else value
        return found


def asked_page(step: ChangeStep, given: Mapping[str, str], faults: list[str] | None = None) -> Page:
    """Return the form, filled with the values of `given`."""
    change = step.change
    inputs = [
        replace(each, value=_value(each, given)[:VALUE_CHARS_MAX])
        for each in change.inputs(step.asked)
    ]
    is_at_once = change.words is None
    if not is_at_once:  # the last step asks for secrets, so that no page contains them
        inputs = [each for each in inputs if each.kind != "secret"]
    parts: list[Part] = [
        Notes(
            "faults", "", [Note("trouble", f"{each}.".replace("?.", "?")) for each in faults or ()]
        )
    ]
    if change.about:
        parts.append(Notes("about", "", [Note("fine", change.about)]))
    hidden = [Input("step", "", "hidden", "do")] if is_at_once else []
    submit = "Apply" if is_at_once else "Preview"
    parts.append(Form("", step.path, [*inputs, *hidden], submit, True))
    return Page(change.title, parts)


def _value(each: Input, given: Mapping[str, str]) -> str:
    return "" if each.kind == "secret" else given.get(each.name, each.value)


def changed_page(step: ChangeStep, given: Mapping[str, str], is_meant: bool) -> Page:
    """Return the preview or, if `is_meant`, carry out the change and return its result."""
    taken = step.taken(given)
    if faults := step.change.faults(step.asked, taken, is_meant=is_meant):
        return asked_page(step, given, faults)
    if is_meant:
        return _done_page(step, taken)
    change = step.change
    preview = change.preview(step.asked, taken)
    secrets = [each for each in change.inputs(step.asked) if each.kind == "secret"]
    names = {each.name for each in secrets}
    kept = [Input(name, "", "hidden", value) for name, value in taken.items() if name not in names]
    kept += [replace(each, value="") for each in secrets]
    kept.append(Input("step", "", "hidden", "do"))
    parts: list[Part] = [
        *([Notes("about", "", [Note("fine", change.about)])] if change.about else []),
        *preview.parts,
        LongText("line", LINE, change.line(step.asked, taken), copies=True),
        Form("", step.path, kept, "Apply", True),
    ]
    return Page(f"{change.title}?", parts)


def _done_page(step: ChangeStep, taken: Mapping[str, str]) -> Page:
    found = carry_out(step, taken)
    notes = [Note("fine", each) for each in found["sentences"]]
    notes += [Note("trouble", f"{each}.".replace("..", ".")) for each in found["failures"]]
    if not notes:
        notes = [Note("fine", "Done.")]
    parts: list[Part] = [Notes("result", "", notes)]
    if found["rows"]:
        parts.append(RowTable("rows", "Results", found["rows"]))
    if found["line"]:
        parts.append(LongText("line", LINE, found["line"], copies=True))
    return Page(step.change.title, parts)


def carry_out(step: ChangeStep, taken: Mapping[str, str]) -> dict[str, Any]:
    """Carry out a change between two audit entries; without the first it changes nothing."""
    asked, change = step.asked, step.change
    viewer, audit = asked.viewer, asked.console.audit
    preview = change.preview(asked, taken) if change.words is not None else Preview()
    line = change.line(asked, taken)
    about: dict[str, Any] = {"given": change.said(asked, taken), "line": line}
    before = plain(preview.before)
    audit.note(
        viewer.name, viewer.role, step.address, change.name, **about, before=before, result="begun"
    )
    found = change.carry_out(asked, taken)
    result = "failed" if found.failures else "done"
    said = [*found.sentences, *found.failures][:5]
    audit.note(
        viewer.name, viewer.role, step.address, change.name, **about, said=said, result=result
    )
    asked.console.watch.forget()
    return {
        "sentences": found.sentences,
        "failures": found.failures,
        "rows": [plain(row) for row in found.rows],
        "line": line,
    }


def done_json(step: ChangeStep, given: Mapping[str, str], is_meant: bool) -> dict[str, Any]:
    """Return the preview or, if `is_meant`, the result as JSON."""
    taken = step.taken(given)
    if faults := step.change.faults(step.asked, taken, is_meant=is_meant):
        return {"failures": faults}
    if is_meant:
        return carry_out(step, taken)
    preview = step.change.preview(step.asked, taken)
    tables = {part.name: plain(part.rows) for part in preview.parts if isinstance(part, RowTable)}
    line = step.change.line(step.asked, taken)
    return {"line": line, "before": plain(preview.before), **tables, "failures": []}
