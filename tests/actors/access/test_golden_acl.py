"""The recorded talk of official clients with an official broker that has access control, replayed.

Each request goes through the gate of a connection with the accounts of that broker. What the
original let in is let in, what it refused is refused in the same words, but for what is closed
here: queries by unique key fail there always, batches and more go unchecked.
"""

from collections import Counter
from collections.abc import Iterator

from actors.access.access_state import new_guard
from actors.access.authorizer import Authorizer
from actors.access.grant import PREFIX, AccessRefused
from actors.access.refusals import Refusals
from actors.access.rights import BROKER_RIGHTS
from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import RateLimitedLog
from protocol.bodies import HeartbeatData
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, decode_frame
from protocol.send_values import send_of
from storage.access.acl_files import parse_texts
from tests.support import golden

ACCOUNTS = b"""
globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
accounts:
- {accessKey: RocketMQ, secretKey: 12345678, admin: false, defaultTopicPerm: DENY,
   defaultGroupPerm: DENY, topicPerms: [GL_A=PUB|SUB, GL_B=DENY, GL_C=SUB],
   groupPerms: [CG_deny=DENY, CG_acl=PUB|SUB]}
- {accessKey: rocketmq2, secretKey: 12345678, admin: true, whiteRemoteAddress: 192.168.1.*}
"""
SENDS = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
CLOSED_HERE = {
    (Code.QUERY_MESSAGE, "", "Check signature failed for accessKey=rocketmq2"),
    (Code.SEND_BATCH_MESSAGE, "No default permission for topic:GT_Go", ""),
}
"""Code, what we say, what the original said: empty for nothing against it."""


def talk() -> Iterator[tuple[RemotingCommand, str]]:
    """Each request to the broker, and why it was refused; empty: it was not."""
    asked: dict[int, RemotingCommand] = {}
    for frame in golden.frames("acl"):
        if not frame["to"].startswith("broker") or frame.get("truncated"):
            continue
        if frame["direction"] == "request":
            asked[frame["pair"]] = decode_frame(frame["frame"][4:])
        elif frame["direction"] == "response" and frame["pair"] in asked:
            remark = decode_frame(frame["frame"][4:]).remark or ""
            is_refused = remark.startswith(PREFIX)
            text = remark.removeprefix(PREFIX).partition(", org.apache")[0] if is_refused else ""
            yield asked.pop(frame["pair"]), text


def said(gate: Authorizer, command: RemotingCommand) -> str:
    try:
        if command.code in SENDS:
            for error in gate.refused([send_of(command)]).values():
                raise error
        else:
            grant = gate.grant(command)
            if command.code == Code.HEART_BEAT:
                beat = HeartbeatData.decode(command.body)
                grant.require_consumers(command.code, beat.subscribed())
    except AccessRefused as refused:
        return refused.text
    return ""


def test_a_recorded_4_9_7_session_gets_its_answers_except_closed_holes() -> None:
    snapshot = parse_texts({"plain_acl.yml": ACCOUNTS}, takes_samples=True)
    seen: Counter[str] = Counter()
    differing = set()
    for command, theirs in talk():
        guard = new_guard(
            SnapshotRef(snapshot),
            BROKER_RIGHTS,
            lambda: 0,
            Refusals(lambda: 0, RateLimitedLog(lambda: 0)),
            trace_topic="T",
        )
        ours = said(Authorizer(guard, "127.0.0.1"), command)
        if ours != theirs:
            differing.add((command.code, ours, theirs))
        seen["let in" if not ours else ours.partition(" ")[0]] += 1
    assert differing == CLOSED_HERE
    assert seen.total() > 60
    assert seen.keys() == {"let in", "No", "Check"}
