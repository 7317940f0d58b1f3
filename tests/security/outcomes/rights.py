"""Attempts on accounts and signatures, at servers with access control."""

from dataclasses import replace
from os import symlink

from protocol.batch import BatchMessage, encode_batch
from protocol.bodies import LockBatchRequest, MessageQueue
from protocol.codes import PULL_COMMIT_OFFSET, TRANSACTION_COMMIT
from protocol.codes import RequestCode as Code
from protocol.frame import RemotingCommand, encode
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
    ViewMessageHeader,
)
from protocol.headers.send import SendMessageHeader
from protocol.headers.transaction import EndTransactionHeader
from protocol.signature import SIGNATURE, Credentials
from tests.compat.servers import official_home
from tests.security.outcomes.peers import CLOSED, Answer, Peer, together, told
from tests.security.outcomes.reading import heartbeat
from tests.security.outcomes.sides import FOREIGN, TOPIC, Side
from tests.support.brokers import pull_command, send_command

READER, NOTHING, OWNER, ADMIN = (
    "reader-account",
    "nothing-account",
    "owner-account",
    "administrator",
)


def code_of(answer: Answer) -> str:
    return answer if isinstance(answer, str) else str(answer.code)


def stored(side: Side, topic: str = FOREIGN, **options: str) -> tuple[int, int]:
    """A message of its owner's: where it lies in the log, and in its queue."""
    command = send_command(topic=topic, **options)  # type: ignore[arg-type]
    answer = side.ask(command, OWNER)
    assert not isinstance(answer, str) and answer.code == 0 and answer.fields, answer
    return int(answer.fields["msgId"][-16:], 16), int(answer.fields["queueOffset"])


def asked_of_all(side: Side, account: str, commands: dict[str, RemotingCommand]) -> str:
    """Return the answers to an account without permission, and name the accepted requests."""
    answers = {name: side.ask(command, account) for name, command in commands.items()}
    passed = [name for name, answer in answers.items() if code_of(answer) == "0"]
    rest = [told(answer)[:52] for answer in answers.values() if code_of(answer) != "0"]
    said = f"done: {', '.join(passed)}" if passed else ""
    return "; ".join(filter(None, (said, together(rest) and f"refused: {together(rest)}")))


def a21(side: Side) -> str:
    """The link is where files of accounts are; the others are reached by leaving that folder."""
    folder = side.broker.scratch if side.is_ours else official_home(side.broker.scratch)
    other = folder / "elsewhere"
    other.mkdir()
    names = {"a file elsewhere": "file", "a .yml elsewhere": "file.yml", "behind a link": "linked"}
    places = {name: other / file for name, file in names.items()}
    for path in places.values():
        path.write_text("")
    link = folder / ("link.yml" if side.is_ours else "conf/link.yml")
    symlink(places["behind a link"], link)
    asked = {name: f"{folder}/conf/../elsewhere/{path.name}" for name, path in places.items()}
    asked["behind a link"] = str(link)
    codes = []
    for target in (*asked.values(), str(other)):
        fields = {"globalWhiteAddrs": "10.9.8.7", "aclFileFullPath": target}
        command = RemotingCommand(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields)
        codes.append(code_of(side.ask(command, ADMIN)))
    written = [name for name, path in places.items() if path.read_text()]
    return f"{together(codes)}; written: {', '.join(written) or 'none'}"


def a22(side: Side) -> str:
    own = {"accessKey": "made-by-reader", "secretKey": "secret-of-mine", "admin": "true"}
    reset = {"topic": FOREIGN, "group": "owners", "timestamp": "0", "isForce": "true"}
    directly = {"consumerGroup": "owners", "clientId": "c", "msgId": "0" * 32}
    white = {"globalWhiteAddrs": "10.9.8.6", "aclFileFullPath": ""}
    return asked_of_all(
        side,
        READER,
        {
            "50": RemotingCommand(50, own),
            "54": RemotingCommand(54),
            "53": RemotingCommand(53, white),
            "51": RemotingCommand(51, {"accessKey": "made-by-reader"}),
            "222": RemotingCommand(222, reset),
            "309": RemotingCommand(309, directly),
        },
    )


def a23(side: Side) -> str:
    batch = send_command(encode_batch([BatchMessage(b"a")]), topic=TOPIC, batch=True)
    retry = send_command(topic="%RETRY%owners", producer_group="own")
    long_names = SendMessageHeader.of_command(retry).encode()
    side.ask(heartbeat("owners"), OWNER)
    return asked_of_all(
        side,
        NOTHING,
        {
            "320": batch,
            "310 with m=true": replace(batch, code=Code.SEND_MESSAGE_V2),
            "10 to %RETRY%": replace(retry, code=Code.SEND_MESSAGE, fields=long_names),
            "310 to %RETRY%": retry,
        },
    )


def a24(side: Side) -> str:
    offset, _ = stored(side)
    side.ask(heartbeat("readers"), READER)
    header = ConsumerSendMsgBackHeader(offset, "readers", 0)
    return asked_of_all(
        side, READER, {"36": RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, header.encode())}
    )


def a25(side: Side) -> str:
    kinds = {"plain": "", "delayed": "DELAY\x013", "half": "TRAN_MSG\x01true\x02PGROUP\x01p"}
    commands = {}
    for name, properties in kinds.items():
        offset, _ = stored(side, properties=properties)
        header = ViewMessageHeader(offset)
        commands[name] = RemotingCommand(Code.VIEW_MESSAGE_BY_ID, header.encode())
    return asked_of_all(side, READER, commands)


def a26(side: Side) -> str:
    offset, queue_offset = stored(
        side, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u"
    )
    header = EndTransactionHeader("p", queue_offset, offset, TRANSACTION_COMMIT)
    asked = {"37": RemotingCommand(Code.END_TRANSACTION, header.encode())}
    return asked_of_all(side, READER, asked)


def a27(side: Side) -> str:
    for _ in range(3):
        stored(side, TOPIC)
    body = LockBatchRequest("x", "owners", [MessageQueue(TOPIC, "broker-a", 0)]).encode()
    commit = UpdateConsumerOffsetHeader("owners", TOPIC, 0, 2).encode()
    ask = {"consumerGroup": "owners", "topic": TOPIC, "queueId": "0"}
    for queue in range(4):  # 222 is about groups that have an offset of each queue
        of_queue = UpdateConsumerOffsetHeader("owners", TOPIC, queue, 0 if queue else 2).encode()
        side.ask(RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, of_queue), OWNER)
    pull = pull_command(
        topic=TOPIC, consumer_group="owners", sys_flag=PULL_COMMIT_OFFSET, commit_offset=1
    )
    with side.peer() as owner:  # it stays: 222 is passed on to the group's clients
        owner.ask(side.signed(heartbeat("owners"), OWNER))
        return asked_of_all(
            side,
            READER,
            {
                "15": RemotingCommand(Code.UPDATE_CONSUMER_OFFSET, dict(commit)),
                "14": RemotingCommand(Code.QUERY_CONSUMER_OFFSET, ask),
                "41": RemotingCommand(Code.LOCK_BATCH_MQ, body=body),
                "42": RemotingCommand(Code.UNLOCK_BATCH_MQ, body=body),
                "222": RemotingCommand(
                    Code.INVOKE_BROKER_TO_RESET_OFFSET,
                    {"topic": TOPIC, "group": "owners", "timestamp": "0", "isForce": "true"},
                ),
                "11 with a commit": pull,
            },
        )


def a28(side: Side) -> str:
    properties = "CORRELATION_ID\x01guessed\x02REPLY_TO_CLIENT\x01somebody\x02MSG_TYPE\x01reply"
    reply = send_command(topic="DefaultCluster_REPLY_TOPIC", properties=properties)
    reply = replace(reply, code=Code.SEND_REPLY_MESSAGE_V2)
    answer = told(side.ask(reply, NOTHING))
    is_let_in = "permission" not in answer
    who = "it looks for that client" if is_let_in else "refused"
    return f"by an account with DENY for the reply topic: {who}: {answer}"


def _asked(side: Side, consumer: Peer, asker: Peer) -> RemotingCommand:
    """Return the requests that a consumer gets when the administrator queries it."""
    consumer.ask(side.signed(heartbeat("owners"), OWNER))
    fields = {"consumerGroup": "owners", "clientId": "client", "jstackEnable": "false"}
    question = RemotingCommand(Code.GET_CONSUMER_RUNNING_INFO, fields, version=407)
    asker.send(side.signed(question, ADMIN))
    passed_on = consumer.receive()
    while not isinstance(passed_on, str) and passed_on.code != question.code:
        passed_on = consumer.receive()
    assert not isinstance(passed_on, str), passed_on
    return passed_on


def a29(side: Side) -> str:
    with side.peer() as consumer, side.peer() as asker, side.peer() as forger:
        passed_on = _asked(side, consumer, asker)
        forger.send_bytes(encode(passed_on.answer(body=b"forged")))
        forged = asker.receive(1)
        consumer.send_bytes(encode(passed_on.answer(body=b"its own")))
        answer = forged if not isinstance(forged, str) else asker.receive(3)
    body = bytes(answer.body or b"") if not isinstance(answer, str) else answer.encode()
    return "taken" if body == b"forged" else f"ignored; then comes {body.decode()!r}"


def a30(side: Side) -> str:
    with side.peer() as consumer, side.peer() as asker:
        shown = _asked(side, consumer, asker).fields or {}
    found = [name for name in ("AccessKey", SIGNATURE) if name in shown]
    return f"it is shown {' and '.join(found)}" if found else "it is shown neither"


def wrong(side: Side, account: str = READER, secret: str = "another-secret") -> RemotingCommand:
    command = RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode())
    Credentials(account, secret).sign(command, 1)
    return command


def a31(side: Side) -> str:
    answered = 0
    with side.peer() as peer:
        for _ in range(100):
            if peer.ask(wrong(side)) == CLOSED:
                break
            answered += 1
    unknown = RemotingCommand(Code.GET_MAX_OFFSET, {"AccessKey": "k" * 500_000, "Signature": "x"})
    length = len(told_whole(side.ask(unknown)))
    lines = side.log().count("AclException") + side.log().count("wrong keys")
    return (
        f"{answered} of 100 are answered, {lines} lines in the log; a key of 500,000 characters"
        f" is answered with {length:,}"
    )


def told_whole(answer: Answer) -> str:
    return answer if isinstance(answer, str) else answer.remark or ""


def a32(side: Side) -> str:
    made = side.signed(pull_command(topic=TOPIC, consumer_group="owners"), OWNER)
    with side.peer() as peer:
        peer.ask(replace(made))
        again = code_of(peer.ask(replace(made)))
        fields = dict(made.fields or {})
        other = replace(made, code=Code.QUERY_CONSUMER_OFFSET, fields=fields)
        as_other = told(peer.ask(other))
        moved = replace(made, fields={**fields, "topic": TOPIC[:-1]}, body=TOPIC[-1:].encode())
        border = told(peer.ask(moved))
    is_signed = "Check signature" not in as_other
    return (
        f"again: {again}; as another code: {'taken' if is_signed else as_other};"
        f" a letter moved on: {'taken' if 'Check signature' not in border else 'refused'}"
    )


def a33(side: Side) -> str:
    found = []
    for signature in (None, "", "not Base64", "A" * 500_000):
        fields = QueueHeader(TOPIC, 0).encode() | {"AccessKey": READER}
        fields |= {} if signature is None else {SIGNATURE: signature}
        found.append(told(side.ask(RemotingCommand(Code.GET_MAX_OFFSET, fields))))
    return together(found)


def a34(side: Side) -> str:
    with side.peer() as peer:
        plain = encode(RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode()))
        peer.send_bytes(b"PROXY TCP4 10.0.0.1 10.0.0.2 1 10911\r\n" + plain)
        proxied = told(peer.receive(3))
    fields = QueueHeader(TOPIC, 0).encode() | {"X-Forwarded-For": "10.0.0.1"}
    header = told(side.ask(RemotingCommand(Code.GET_MAX_OFFSET, fields)))
    return f"PROXY: {proxied}; a field: {header}"
