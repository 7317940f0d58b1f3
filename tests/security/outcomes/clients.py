"""Attempts of a hostile name server and a hostile broker on clients: the official tools and ours.

Both have the same commands: topicRoute asks a name server, sendMessage is a producer, and
queryMsgByOffset a consumer of one message. Each runs in a process of its own, in which an honest
server is asked first, so that what the start takes does not count.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import wait4
from pathlib import Path
from struct import pack
from threading import Timer
from time import monotonic
from zlib import compressobj

from protocol.codes import COMPRESSED, ResponseCode
from protocol.codes import RequestCode as Code
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand, encode
from protocol.headers.client import PullMessageResponseHeader
from protocol.message import MessageRecord, encode_record
from tests.compat.mqadmin import MAIN_CLASS, java_command
from tests.compat.toolchain import Java
from tests.security.outcomes.sides import TOPIC
from tests.troupemq.fake_server import FakeServer, Handler, serve_routes

WAIT_S = 60
"""For a command; who is not done then is ended."""
UNFOLDED_BYTES = 1 << 30
HEAP = "-Xmx512m"
BROKER = "hostile"
FLOOD = 200
_THROWN = re.compile(r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Exception|Error))\b", re.MULTILINE)


def _deep(command: RemotingCommand) -> RemotingCommand:
    return command.answer(body=b'{"a":' + b"[" * 100_000)


def _nobody(command: RemotingCommand) -> RemotingCommand:
    """No group consumes the topic."""
    return command.answer(body=b'{"groupList":[]}')


def _flood(command: RemotingCommand) -> bytes:
    """Send 200 MiB of answers to other requests, and none to this one."""
    other = command.answer(body=bytes(1 << 20))
    other.opaque = command.opaque + 1_000_000
    return encode(other) * FLOOD


ANSWERS: dict[str, Handler] = {
    "silence": lambda _: None,
    "a length of 2 GiB": lambda _: pack(">iI", (1 << 31) - 1, 10),
    "a negative length": lambda _: pack(">iI", -5, 10),
    "a frame over 16 MiB": lambda _: pack(">iI", FRAME_BYTES_MAX + 1, 10) + bytes(1000),
    "no frame": lambda _: b"HTTP/1.1 200 OK\r\n\r\n" * 10,
    "a header 100,000 deep": lambda _: pack(">iI", 100_004, 100_000) + b"[" * 100_000,
    "a body 100,000 deep": _deep,
    "a body that is no JSON": lambda command: command.answer(body=b"\xff" * 1000),
    "200 MiB of answers to others": _flood,
}


def a49(kind: str, java: Java, scratch: Path) -> str:
    """Each answer to each of the three commands, by the tools of that kind."""
    found: dict[str, list[str]] = {}
    with tool(kind, java, scratch / f"{kind}-clients") as run:
        for name, answer in ANSWERS.items():
            for command in ("topicRoute", "sendMessage"):
                found.setdefault(run(command, answer), []).append(f"{command}: {name}")
        unfolds = run("queryMsgByOffset", unfolding())
    said = "; ".join(f"{words}: {', '.join(names)}" for words, names in found.items())
    return f"{said}; a message of 1 MiB that unfolds to 1 GiB: {unfolds}"


def unfolding() -> Handler:
    """A pulled message that is long once it is unfolded."""
    packer = compressobj(9)
    block = bytes(1 << 20)
    body = b"".join(packer.compress(block) for _ in range(UNFOLDED_BYTES >> 20)) + packer.flush()
    record = encode_record(MessageRecord(TOPIC, body, sys_flag=COMPRESSED))
    header = PullMessageResponseHeader(0, 1, 0, 1)

    def answer(command: RemotingCommand) -> RemotingCommand:
        return command.answer(ResponseCode.SUCCESS, header.encode(), body=record)

    return answer


Run = Callable[[str, Handler], str]


@contextmanager
def tool(kind: str, java: Java, scratch: Path) -> Iterator[Run]:
    """Runs a command against a hostile server, and says what became of it."""
    scratch.mkdir(parents=True)
    start = [sys.executable, "-m", "troupemq", "admin"]
    if kind == "official":
        start = java_command(java, scratch, MAIN_CLASS)
        start.insert(start.index("-cp"), HEAP)
    options = {
        "topicRoute": [],
        "sendMessage": ["-p", "hello"],
        "queryMsgByOffset": ["-b", BROKER, "-i", "0", "-o", "0"],
    }

    def once(command: str, address: str) -> tuple[str, float, int]:
        words = [command, "-n", address, "-t", TOPIC, *options[command]]
        began_s = monotonic()
        with (scratch / "said").open("w+b") as said:
            process = subprocess.Popen([*start, *words], stdout=said, stderr=said, cwd=scratch)
            late = Timer(WAIT_S, process.kill)
            late.start()
            _, status, used = wait4(process.pid, 0)
            process.returncode = status
            late.cancel()
            said.seek(0)
            text = said.read().decode(errors="replace")
        return outcome(text, status), monotonic() - began_s, used.ru_maxrss >> 10

    def run(command: str, answer: Handler) -> str:
        with FakeServer() as server:
            serve_routes(server, {BROKER: server}, {TOPIC: 1})
            _, start_s, start_mib = once("topicRoute", server.address)
            code = Code.GET_ROUTEINFO_BY_TOPIC
            if command != "topicRoute":
                code = Code.PULL_MESSAGE if "query" in command else Code.SEND_MESSAGE_V2
                server.on(Code.QUERY_TOPIC_CONSUME_BY_WHO, _nobody)
            server.on(code, answer)
            words, seconds, mib = once(command, server.address)
        more_s, more_mib = max(seconds - start_s, 0), max(mib - start_mib, 0)
        print(f"  {kind} {command}: {words}, {more_s:.1f} s, + {more_mib} MiB", file=sys.stderr)
        within = next((limit for limit in (1, 5, 20, WAIT_S) if more_s < limit), 0)
        memory = f", + {more_mib} MiB" if more_mib > 50 else ""
        return f"{words} {f'within {within} s' if within else 'never'}{memory}"

    yield run


def outcome(text: str, status: int) -> str:
    """Return the exception or the sentence with which a command ends."""
    if status & 0x7F:
        return "hangs"
    for name in ("OutOfMemoryError", "StackOverflowError"):
        if name in text:
            return name
    if thrown := _THROWN.findall(text):
        return str(thrown[-1])
    return "a sentence" if text.startswith("troupemq: ") else "no error"
