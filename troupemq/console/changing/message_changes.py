"""Changes about messages: sending, recalls and check-backs; and Spark jobs."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from actors.jobs.jobs_conf import argument_value
from actors.jobs.spark_jobs import PATHS
from protocol.bodies_own import JobRun
from protocol.codes import RequestCode
from protocol.headers.own import JobRunHeader, RunJobHeader
from protocol.timers import RecallHandle
from troupemq.client.admin import Admin, Answers, Result, Time
from troupemq.client.admin.answers import Failures
from troupemq.client.errors import ArgumentIllegal, understood
from troupemq.client.message import MessageView
from troupemq.console.asking import PageRequest
from troupemq.console.changes import CHANGE_S, ConsoleChange, Given, Preview, exist, register
from troupemq.console.changing.cluster_changes import broker_input
from troupemq.console.cluster import CommandResult
from troupemq.console.names import TOPICS, missing_name
from troupemq.console.parts import Input, Note, Notes

Found = TypeVar("Found")


def _send_words(given: Given) -> list[str]:
    words = ["admin", "sendMessage", "-t", given["topic"], "-p", given["body"]]
    if given.get("tag"):
        words += ["-c", given["tag"]]
    if given.get("key"):
        words += ["-k", given["key"]]
    return words


def _send_preview(asked: PageRequest, given: Given) -> Preview:
    """Preview the groups that get the message; the brokers may create an unknown topic."""
    state = asked.snapshot().topics.get(given["topic"])
    if state is None:
        why = missing_name(asked.snapshot(), TOPICS, given["topic"]) or "the topic is unknown"
        sentence = f"{why}. The send fails unless autoCreateTopicEnable creates the topic."
        return Preview([Notes("effect", "Effect", [Note("watch", sentence)])])
    groups = ", ".join(sorted(state.groups)) or "none so far"
    sentence = f"Groups that consume the topic get it: {groups}."
    return Preview([Notes("effect", "Effect", [Note("fine", sentence)])])


def _send(admin: Admin, given: Given) -> Iterable[Result]:
    keys = given["key"].split()
    body, tag = given["body"].encode(), given["tag"] or None
    return [admin.send_message(given["topic"], body, tags=tag, keys=keys)]


def _of_ids(admin: Admin, ids: str, act: Callable[[MessageView], Found]) -> Answers[Found]:
    """Return the results of `act` for each message of comma-separated ids."""

    def done(failures: Failures) -> Iterator[Found]:
        for each in filter(None, map(str.strip, ids.split(","))):
            with failures.attempt():
                yield act(admin.find_message(each))

    return Answers(done)


def _wrong_handle(given: Given) -> str:
    """Return why a recall is rejected: its handle is invalid, or names another topic."""
    if not given["handle"]:  # reported as missing
        return ""
    try:
        named = RecallHandle.decode(given["handle"]).topic
    except ValueError as error:
        return str(error)
    if named == given["topic"]:
        return ""
    return f"the recall handle names the topic {named}, and not {given['topic']}"


def _recall_preview(asked: PageRequest, given: Given) -> Preview:
    """Preview which delivery is cancelled; the broker refuses it once it is made."""
    handle = RecallHandle.decode(given["handle"])
    sentence = (
        f"Message {handle.unique_key} of {handle.broker_name} is due at {Time(handle.due_ms)}."
        f" No group of {handle.topic} gets it."
    )
    before = {"message": handle.unique_key, "due_ms": handle.due_ms}
    return Preview([Notes("effect", "Effect", [Note("watch", sentence)])], before)


def _run_job(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    session = asked.cluster.session
    try:
        header = RunJobHeader(given["job"], json.dumps(arguments_of(given["arguments"])))
    except ValueError as error:
        raise ArgumentIllegal(str(error)) from None
    with session.within(CHANGE_S):
        answer = session.ask(given["broker"], RequestCode.RUN_JOB, header)
    run = understood(JobRun.decode, answer.body)
    out.done(f"{run.run} is queued.", run=run.run)


def arguments_of(text: str) -> dict[str, object]:
    """Parse lines of name=value, the value JSON or text, like `troupemq job run -a`.

    Raises ValueError with a sentence for an invalid line.
    """
    found: dict[str, object] = {}
    for line in _lines(text):
        name, is_there, value = line.partition("=")
        if not is_there or not name.strip():
            raise ValueError(f"{line!r} is not of the form name=value")
        found[name.strip()] = argument_value(value)
    return found


def _named_path(given: Given) -> str:
    """Return why a job is rejected: an argument names a file of the broker's machine.

    A broker accepts paths from its own machine, where the console may run; users must not use that.
    """
    try:
        named = [name for name in PATHS if name in arguments_of(given["arguments"])]
    except ValueError:  # reported when the job runs
        return ""
    if not named:
        return ""
    return f"{named[0]} is allowed in the schedule or on the broker's machine only: leave it out"


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def _job_words(given: Given) -> list[str]:
    words = ["job", "run", given["job"], "-b", given["broker"], "--no-wait"]
    return [*words, *(word for line in _lines(given["arguments"]) for word in ("-a", line))]


def _cancel_job(asked: PageRequest, given: Given, out: CommandResult[Any]) -> None:
    if not _is_run(asked, given):
        asked.console.watch.forget()  # the run may be newer than the snapshot
        if not _is_run(asked, given):
            raise ArgumentIllegal(f"run {given['run']} not found at {given['broker']}")
    session = asked.cluster.session
    with session.within(CHANGE_S):
        session.ask(given["broker"], RequestCode.CANCEL_JOB, JobRunHeader(given["run"]))
    out.done(f"{given['run']} is being cancelled.", run=given["run"])


def _is_run(asked: PageRequest, given: Given) -> bool:
    found = asked.snapshot().jobs.get(given["broker"])
    return found is not None and any(each.run == given["run"] for each in found.runs)


def _job_inputs(asked: PageRequest) -> Sequence[Input]:
    places = list(asked.snapshot().jobs) or [""]
    names = sorted(
        {name for found in asked.snapshot().jobs.values() for name in found.jobs}
        | {each.name for found in asked.snapshot().jobs.values() for each in found.schedule}
    )
    return (
        Input("broker", "Broker", "choice", places[0], places, needed=True),
        Input("job", "Job, or entry of the schedule", "choice", "", names, needed=True),
        Input(
            "arguments",
            "Arguments",
            "long",
            hint="one name=value per line; empty: those of the schedule entry",
        ),
    )


register(
    ConsoleChange(
        "send",
        "Send a message",
        "operator",
        lambda asked: (
            Input("topic", "Topic", needed=True, offers=TOPICS),
            Input("body", "Body", "long", needed=True),
            Input("tag", "Tag"),
            Input("key", "Keys", hint="separated by spaces"),
        ),
        _send_words,
        _send_preview,
        act=_send,
    ),
    ConsoleChange(
        "resend",
        "Send a message again",
        "operator",
        lambda asked: (Input("id", "Offset message id", needed=True),),
        lambda given: ["admin", "queryMsgById", "-i", given["id"], "-s", "true"],
        act=lambda admin, given: _of_ids(admin, given["id"], admin.send_again),
        about="All groups that consume its topic get it again.",
    ),
    ConsoleChange(
        "recall",
        "Recall a timer message",
        "operator",
        lambda asked: (
            Input("topic", "Topic", needed=True, offers=TOPICS),
            Input("handle", "Recall handle", needed=True, hint="from the answer to the send"),
        ),
        lambda given: ["admin", "recallMessage", "-t", given["topic"], "-i", given["handle"]],
        _recall_preview,
        act=lambda admin, given: [admin.recall_message(given["topic"], given["handle"])],
        about="A message that is delivered or recalled already is refused.",
        refuses=_wrong_handle,
        checks=exist(topic=TOPICS),
    ),
    ConsoleChange(
        "consume-again",
        "Consume a message again by one member",
        "admin",
        lambda asked: (
            Input("id", "Offset message id", needed=True),
            Input("group", "Group", needed=True),
            Input("client", "Member", needed=True, hint="a client of the page Group"),
        ),
        lambda given: [
            *("admin", "queryMsgById", "-i", given["id"], "-g", given["group"]),
            *("-d", given["client"]),
        ],
        act=lambda admin, given: _of_ids(
            admin,
            given["id"],
            lambda view: admin.consume_directly(view, given["group"], given["client"]),
        ),
        about="Only this member gets the message, and no offset changes. The result is shown.",
    ),
    ConsoleChange(
        "resume",
        "Resume the check-backs of a transaction",
        "admin",
        lambda asked: (
            broker_input(asked),
            Input("id", "Offset message id", needed=True),
        ),
        lambda given: [*("admin", "resumeTransaction", "-b", given["address"], "-i", given["id"])],
        act=lambda admin, given: [admin.resume_transaction(given["address"], given["id"])],
    ),
    ConsoleChange(
        "job-run",
        "Run a Spark job",
        "operator",
        _job_inputs,
        _job_words,
        do=_run_job,
        refuses=_named_path,
    ),
    ConsoleChange(
        "job-cancel",
        "Cancel a run of a Spark job",
        "operator",
        lambda asked: (
            Input("broker", "Broker", "choice", "", list(asked.snapshot().jobs), needed=True),
            Input("run", "Run", needed=True),
        ),
        lambda given: ["job", "cancel", given["run"], "-b", given["broker"]],
        do=_cancel_job,
    ),
)
