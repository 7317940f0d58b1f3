"""Changes about messages: send one, send dead letters back, ask about transactions; jobs."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Event
from typing import Any, TypeVar

from actors.jobs.jobs_conf import argument_value
from actors.jobs.spark_jobs import PATHS
from protocol.bodies_own import JobRun
from protocol.codes import RequestCode
from protocol.headers.jobs import JobRunHeader, RunJobHeader
from protocol.java_numbers import plain_number
from troupemq.cli.redrive import sentence_of
from troupemq.client.admin import Admin, Answers, Result
from troupemq.client.admin.answers import Failures
from troupemq.client.errors import ClientError, understood
from troupemq.client.message import MessageView
from troupemq.console.asking import PageRequest
from troupemq.console.changes import CHANGE_S, ConsoleChange, Given, Preview, register
from troupemq.console.changing.cluster_changes import broker_input
from troupemq.console.cluster import CommandResult
from troupemq.console.given import number
from troupemq.console.parts import Input, Note, Notes
from troupemq.redrive import Redrive, redrive_one

Found = TypeVar("Found")

RATE = 100
REDRIVEN_MAX = 1000
"""Dead letters of one click: more are for the command line, which shows how far it is."""


def _send_words(given: Given) -> list[str]:
    words = ["admin", "sendMessage", "-t", given["topic"], "-p", given["body"]]
    if given.get("tag"):
        words += ["-c", given["tag"]]
    if given.get("key"):
        words += ["-k", given["key"]]
    return words


def _send(admin: Admin, given: Given) -> Iterable[Result]:
    keys = given["key"].split()
    body, tag = given["body"].encode(), given["tag"] or None
    return [admin.send_message(given["topic"], body, tags=tag, keys=keys)]


def _of_ids(admin: Admin, ids: str, act: Callable[[MessageView], Found]) -> Answers[Found]:
    """What is done with each message of these ids, which have commas between."""

    def done(failures: Failures) -> Iterator[Found]:
        for each in filter(None, map(str.strip, ids.split(","))):
            with failures.attempt():
                yield act(admin.find_message(each))

    return Answers(done)


def _letters(asked: PageRequest, given: Given) -> Preview:
    state = asked.snapshot().groups.get(given["group"])
    count = 0 if state is None else state.dead_letters or 0
    notes = [
        Note("fine", f"{count:,} dead letters are kept; those sent before are not sent again."),
        Note("watch", "Every group that consumes the topics they came from gets them."),
    ]
    return Preview([Notes("effect", "What happens", notes)], {"dead_letters": count})


def _redrive(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    count = plain_number(given["count"]) or 0
    if not 0 < count <= REDRIVEN_MAX:
        out.fail(f"At most is 1 to {REDRIVEN_MAX}: the command line sends more")
        return out
    rate = max(RATE, count / (CHANGE_S / 2))
    run = Redrive(
        given["group"], asked.cluster.namesrv, rate=rate, count_max=count, wait=Event().wait
    )
    try:
        out.done(sentence_of(given["group"], run.run()), sent=run.done.sent)
    except ClientError as error:
        out.fail(f"{error} ({run.done.sent} were sent; do it again to go on)")
    return out


def _redrive_one(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    try:
        done = redrive_one(given["group"], asked.cluster.namesrv, given["id"])
        out.done(sentence_of(given["group"], done), sent=done.sent)
    except ClientError as error:
        out.fail(str(error))
    return out


def _run_job(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    session = asked.cluster.session
    try:
        header = RunJobHeader(given["job"], json.dumps(arguments_of(given["arguments"])))
    except ValueError as error:
        out.fail(str(error))
        return out
    try:
        with session.within(CHANGE_S):
            answer = session.ask(given["broker"], RequestCode.RUN_JOB, header)
        run = understood(JobRun.decode, answer.body)
        out.done(f"{run.run} runs when there is room.", run=run.run)
    except ClientError as error:
        out.fail(str(error))
    return out


def arguments_of(text: str) -> dict[str, object]:
    """Lines of name=value, the value JSON or text, as `troupemq job run -a` takes them.

    Raises ValueError with a sentence for what is none.
    """
    found: dict[str, object] = {}
    for line in _lines(text):
        name, is_there, value = line.partition("=")
        if not is_there or not name.strip():
            raise ValueError(f"{line!r} is no name=value")
        found[name.strip()] = argument_value(value)
    return found


def _named_path(given: Given) -> str:
    """Why a job is not run: its user names a file of the broker's machine.

    The console may be on that machine, where a broker takes paths; its users are not.
    """
    try:
        named = [name for name in PATHS if name in arguments_of(given["arguments"])]
    except ValueError:  # said when it is run
        return ""
    if not named:
        return ""
    return f"{named[0]} is named by the schedule, or on the broker's own machine: leave it out"


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def _job_words(given: Given) -> list[str]:
    words = ["job", "run", given["job"], "-b", given["broker"], "--no-wait"]
    return [*words, *(word for line in _lines(given["arguments"]) for word in ("-a", line))]


def _cancel_job(asked: PageRequest, given: Given) -> CommandResult[Any]:
    out = CommandResult[Any]()
    session = asked.cluster.session
    if not _is_run(asked, given):
        asked.console.watch.forget()  # it may be newer than what was asked last
        if not _is_run(asked, given):
            out.fail(f"{given['broker']} knows no run {given['run']}")
            return out
    try:
        with session.within(CHANGE_S):
            session.ask(given["broker"], RequestCode.CANCEL_JOB, JobRunHeader(given["run"]))
        out.done(f"{given['run']} is being ended.", run=given["run"])
    except ClientError as error:
        out.fail(str(error))
    return out


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
            hint="one a line, name=value; those of the schedule's entry stay without",
        ),
    )


register(
    ConsoleChange(
        "send",
        "Send a message",
        "operator",
        lambda asked: (
            Input("topic", "Topic", needed=True),
            Input("body", "Body", "long", needed=True),
            Input("tag", "Tag"),
            Input("key", "Keys", hint="several with blanks between"),
        ),
        _send_words,
        act=_send,
    ),
    ConsoleChange(
        "resend",
        "Send a message to its topic again",
        "operator",
        lambda asked: (Input("id", "The broker's id of it", needed=True),),
        lambda given: ["admin", "queryMsgById", "-i", given["id"], "-s", "true"],
        act=lambda admin, given: _of_ids(admin, given["id"], admin.send_again),
        about="Every group that consumes its topic gets it again.",
    ),
    ConsoleChange(
        "consume-again",
        "Have one consumer take a message again",
        "admin",
        lambda asked: (
            Input("id", "The broker's id of it", needed=True),
            Input("group", "Group", needed=True),
            Input("client", "Member", needed=True, hint="as the page of the group has it"),
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
        about="It is given to that member alone, and no offset is moved. What the member says of it"
        " is shown.",
    ),
    ConsoleChange(
        "redrive",
        "Send dead letters to where they came from",
        "operator",
        lambda asked: (
            Input("group", "Group", needed=True),
            Input("count", "At most", "number", "100", needed=True, rule=number),
        ),
        lambda given: ["job", "redrive", given["group"], "--count", given["count"]],
        _letters,
        do=_redrive,
    ),
    ConsoleChange(
        "redrive-one",
        "Send one dead letter to where it came from",
        "operator",
        lambda asked: (
            Input("group", "Group", needed=True),
            Input("id", "The broker's id of it", needed=True),
        ),
        lambda given: ["job", "redrive", given["group"], "--id", given["id"]],
        _letters,
        do=_redrive_one,
    ),
    ConsoleChange(
        "resume",
        "Ask again about a transaction that was given up",
        "admin",
        lambda asked: (
            broker_input(asked),
            Input("id", "The broker's id of the message", needed=True),
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
        "End a run of a Spark job",
        "operator",
        lambda asked: (
            Input("broker", "Broker", "choice", "", list(asked.snapshot().jobs), needed=True),
            Input("run", "Run", needed=True),
        ),
        lambda given: ["job", "cancel", given["run"], "-b", given["broker"]],
        do=_cancel_job,
    ),
)
