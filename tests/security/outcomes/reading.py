"""Attempts on what is read: frames, headers, bodies, expressions, names, settings; no accounts."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from socket import IPPROTO_TCP, TCP_NODELAY
from struct import pack
from time import monotonic, sleep
from zlib import compress

from protocol.bodies import CheckClientRequest, ConsumerData, HeartbeatData, SubscriptionData
from protocol.bodies_tables import SubscriptionGroupConfig
from protocol.codes import RequestCode as Code
from protocol.codes import SerializeType
from protocol.frame import FRAME_BYTES_MAX, RemotingCommand, encode
from protocol.headers.admin import CreateTopicHeader
from protocol.headers.client import (
    ConsumerSendMsgBackHeader,
    QueueHeader,
    UpdateConsumerOffsetHeader,
)
from protocol.headers.namesrv import RegisterBrokerHeader
from tests.security.outcomes.peers import CLOSED, SILENCE, Peer, longest, neighbour, together, told
from tests.security.outcomes.sides import AUTO_TOPICS, TOPIC, Side
from tests.support.brokers import pull_command, send_command

Attempt = Callable[[Side], str]
HEAD = pack(">iI", FRAME_BYTES_MAX - 4, 100)


def frame(header: bytes, body: bytes = b"", form: int = 0) -> bytes:
    return pack(">iI", 4 + len(header) + len(body), form << 24 | len(header)) + header + body


def a1(side: Side) -> str:
    peers = [side.peer() for _ in range(20)]
    head, began_s, closed_s = pack(">iI", 1000, 100), monotonic(), None
    for place in range(36):
        for peer in peers:
            peer.send_bytes(head[place : place + 1] or b"{")
        sleep(1)
        if closed_s is None and not peers[0].is_open():
            closed_s = monotonic() - began_s
    if closed_s is None:
        return "20 connections, a byte a second: all are open after 36 s"
    return f"20 connections, a byte a second: closed after {closed_s:.0f} s"


def a2(side: Side) -> str:
    before, peers = side.memory_bytes(), []
    for _ in range(150):
        peers.append(side.peer())
        peers[-1].send_bytes(HEAD + bytes(1 << 20))
    sleep(1)
    open_ = sum(peer.is_open() for peer in peers)
    said = f"150 halves of 1 MiB: {open_} are held, {side.more_mib(before)}"
    for peer in peers:
        peer.close()
    return said


def a3(side: Side) -> str:
    with side.peer() as peer:
        peer.sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        before = side.memory_bytes()
        peer.send_bytes(pack(">iI", (1 << 20) + 4, 100))
        for _ in range(1 << 18):
            if not peer.send_bytes(b"xx"):
                break
        return f"half of 1 MiB in pieces of 2 bytes: {side.more_mib(before)}"


def a4(side: Side) -> str:
    found = []
    for length, header in ((0, 0), (3, 0), (-1, 0), ((1 << 31) - 1, 100), (100, 1 << 20)):
        with side.peer() as peer:
            peer.send_bytes(pack(">iI", length, header) + bytes(100))
            found.append(told(peer.receive(3)))
    return f"0, 3, −1, 2³¹−1, a header longer than its frame: {together(found)}"


def a9(side: Side) -> str:
    deep = b'{"code":34,"extFields":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"
    with side.peer() as peer, neighbour(side.broker.address) as waits:
        peer.send_bytes(frame(deep))
        header = told(peer.receive(5))
        body = told(side.ask(RemotingCommand(Code.HEART_BEAT, body=b"[" * 100_000), ""))
    return f"header: {header}; body of 34: {body}; {longest(waits)}"


def a10(side: Side) -> str:
    many = {f"f{number}": "x" for number in range(100_000)}
    twice = b'{"code":30,"extFields":{"topic":"Other","topic":"%b","queueId":"0"},"opaque":7}'
    with neighbour(side.broker.address) as waits:
        fields = told(side.ask(RemotingCommand(Code.GET_MAX_OFFSET, many)))
        long = told(side.ask(RemotingCommand(Code.GET_MAX_OFFSET, {"topic": "x" * (15 << 20)})))
        with side.peer() as peer:
            peer.send_bytes(frame(twice % TOPIC.encode()))
            double = told(peer.receive(3))
    said = f"100,000 fields: {fields}; a value of 15 MiB: {long}; a key twice: {double}"
    return f"{said}; {longest(waits)}"


def a11(side: Side) -> str:
    binary = encode(
        RemotingCommand(
            Code.GET_MAX_OFFSET, {"topic": TOPIC}, serialize_type=SerializeType.ROCKETMQ
        )
    )
    at = 8 + 5 + 8  # of the remark's length
    sent = {
        f"a remark of {name}": binary[:at] + size.to_bytes(4) + binary[at + 4 :]
        for name, size in (("2³¹−1", (1 << 31) - 1), ("128 MiB", 128 << 20))
    }
    found = []
    for name, data in {**sent, "an unknown form": frame(b"{}", form=9)}.items():
        before = side.memory_bytes()
        with side.peer() as peer:
            peer.send_bytes(data)
            found.append(f"{name}: {told(peer.receive(3))}, {side.more_mib(before)}")
    return "; ".join(found)


def a12(side: Side) -> str:
    size = 192 << 20
    body = compress(pack(">i", size) + b" " * size, 9)
    header = RegisterBrokerHeader("bomb", "10.9.8.7:1", "C", "10.9.8.7:2", 0)
    fields = header.encode() | {"compressed": "true"}
    before = side.memory_bytes(of_names=True)
    with Peer(side.names.address) as peer:
        asked = RemotingCommand(Code.REGISTER_BROKER, fields, body, version=407)
        answer = told(peer.ask(asked, 20))
    said = f"a registration of {len(body) >> 10} KiB that unfolds to 192 MiB: {answer}"
    return f"{said}; {side.more_mib(before, of_names=True)} at the name server"


def checked(expression: str, kind: str = "SQL92") -> RemotingCommand:
    data = SubscriptionData(TOPIC, expression, expression_type=kind)
    body = CheckClientRequest("c", "readers", data).encode()
    return RemotingCommand(Code.CHECK_CLIENT_CONFIG, body=body)


def a13(side: Side) -> str:
    found = []
    with neighbour(side.broker.address) as waits:
        for text in (
            "a = '" + "x" * 8200 + "'",
            "(" * 5000 + "a > 5" + ")" * 5000,
            "a IN (" + ",".join(f"'{number}'" for number in range(100_000)) + ")",
        ):
            found.append(told(side.ask(checked(text)))[:45])
    said = "; ".join(found)
    return f"8,200 characters, 5,000 parentheses, an IN of 100,000: {said}; {longest(waits)}"


def a14(side: Side) -> str:
    random = Random(1)
    with side.peer() as peer, neighbour(side.broker.address) as waits:
        found = []
        for number in range(1000):
            text = " OR ".join(f"a{random.randrange(1 << 30)} = '{number}'" for _ in range(20))
            answer = peer.ask(checked(text))
            found.append(answer if isinstance(answer, str) else str(answer.code))
    return f"1,000 new ones at once: {together(sorted(found))}; {longest(waits)}"


def a15(side: Side) -> str:
    text = "||".join(f"t{number}" for number in range(100_000))
    with neighbour(side.broker.address) as waits:
        answer = told(side.ask(heartbeat("readers-of-tags", text)))
        pulled = told(side.ask(pull_command(topic=TOPIC, expression=text)))
    return f"100,000 tags in 34: {answer}; in 11: {pulled}; {longest(waits)}"


def heartbeat(group: str, expression: str = "*", topic: str = TOPIC) -> RemotingCommand:
    data = ConsumerData(
        group, "CONSUME_PASSIVELY", "CLUSTERING", None, [SubscriptionData(topic, expression)]
    )
    body = HeartbeatData("client", consumer_data_set=[data]).encode()
    return RemotingCommand(Code.HEART_BEAT, body=body, version=407)


def a16(side: Side) -> str:
    many = "".join(f"\x01\x02{n % 10}" for n in range(10_000))
    odd = {"16,000 entries": "\x01\x02" * 16_000, "32,768 bytes": "x" * 32_768, "0x01, 0x02": many}
    found = [
        f"{name}: {told(side.ask(send_command(topic=TOPIC, properties=text)))}"
        for name, text in odd.items()
    ]
    return "; ".join(found)


BAD_NAMES = ("../../x", "a/b", "a\0b", "x" * 300, "%RETRY%../x")


def a17(side: Side) -> str:
    stored = side.ask(send_command(topic=TOPIC))
    assert not isinstance(stored, str) and stored.fields is not None
    offset = int(stored.fields["msgId"][-16:], 16)
    taken = []
    for name in BAD_NAMES:
        header = CreateTopicHeader(name, "TBW102", 4, 4, 6, "SINGLE_TAG")
        group = SubscriptionGroupConfig(name).encode()
        for code, command in {
            "topic by 17": RemotingCommand(Code.UPDATE_AND_CREATE_TOPIC, header.encode()),
            "topic by 310": send_command(topic=name),
            "group by 200": RemotingCommand(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group),
            "group by 34": heartbeat(name),
            "group by 36": RemotingCommand(
                Code.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackHeader(offset, name, 0).encode()
            ),
            "group by 15": RemotingCommand(
                Code.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetHeader(name, TOPIC, 0, 0).encode(),
            ),
        }.items():
            answer = side.ask(command)
            if not isinstance(answer, str) and answer.code == 0:
                taken.append(code)
    if not taken:
        return "five names, six codes: none is taken"
    return f"five names, six codes: taken are {together(taken)}"


def a18(side: Side) -> str:
    with side.peer() as peer:
        found = []
        for number in range(AUTO_TOPICS + 200):
            answer = peer.ask(send_command(topic=f"made-up-{number}"))
            found.append(answer if isinstance(answer, str) else str(answer.code))
    taken = found.count("0")
    return f"{len(found)} topics, maxAutoTopics={AUTO_TOPICS}: {taken} are made, then {found[-1]}"


KEYS = (
    *("storePathRootDir", "filterServerNums", "rocketmqHome", "tls.server.keyPath"),
    *("namesrvAddr", "aclEnable", "brokerIP1"),
)


def a19(side: Side) -> str:
    before = side.ask(RemotingCommand(Code.GET_BROKER_CONFIG))
    address = side.names.address
    values = {"namesrvAddr": f"{address};{address}", "aclEnable": "false", "filterServerNums": "0"}
    values["storePathRootDir"] = str(side.broker.scratch / "moved")  # it is obeyed
    codes, taken = {}, []
    for key in KEYS:
        text = f"{key}={values.get(key, '127.0.0.1')}\n"
        answer = side.ask(RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=text.encode()))
        codes[key] = answer if isinstance(answer, str) else str(answer.code)
        if codes[key] == "0":
            taken.append(key)
    smuggled = side.ask(
        RemotingCommand(Code.UPDATE_BROKER_CONFIG, body=b"\\u0062rokerIP1=127.0.0.1\n")
    )
    assert before
    said = f"answered 0: {', '.join(taken)}" if taken else f"all {together([*codes.values()])}"
    hidden = smuggled if isinstance(smuggled, str) else smuggled.code
    return f"{len(KEYS)} keys: {said}; brokerIP1 written with \\u0062: {hidden}"


def a20(side: Side) -> str:
    found = []
    for text in ("kvConfigPath=/tmp/x", "configStorePath=/tmp/x", "\\u006bvConfigPath=/tmp/x"):
        with Peer(side.names.address) as peer:
            asked = RemotingCommand(Code.UPDATE_NAMESRV_CONFIG, body=text.encode())
            found.append(told(peer.ask(asked)))
    return f"kvConfigPath, configStorePath, one in disguise: {together(found)}"


def a39(side: Side) -> str:
    for _ in range(64):
        side.ask(send_command(bytes(60_000), topic=TOPIC, queue_id=1))
    before, peers = side.memory_bytes(), []
    pull = encode(pull_command(topic=TOPIC, queue_id=1))
    for _ in range(40):
        peers.append(Peer(side.broker.address))
        peers[-1].sock.settimeout(0.3)
        peers[-1].send_bytes(pull * 256)
    sleep(2)
    said = f"40 that ask 20 MiB each and read nothing: {side.more_mib(before)}"
    end = side.ask(RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader(TOPIC, 0).encode()))
    for peer in peers:
        peer.close()
    return f"{said}; another client: {told(end)}"


def a40(side: Side) -> str:
    held = pull_command(1 << 20, topic=TOPIC, queue_id=3, hold_ms=20_000)
    side.ask(heartbeat("consumers"))
    end = side.ask(RemotingCommand(Code.GET_MAX_OFFSET, QueueHeader(TOPIC, 3).encode()))
    assert not isinstance(end, str) and end.fields is not None
    held = pull_command(int(end.fields["offset"]), topic=TOPIC, queue_id=3, hold_ms=20_000)
    with side.peer() as peer:
        for number in range(10_500):
            peer.send_bytes(encode(replace(held, opaque=100_000 + number)))
        answered = 0
        while peer.receive(2) not in (SILENCE, CLOSED):
            answered += 1
    return f"10,500 of one connection: {answered} are answered at once, the others wait"


def a41(side: Side) -> str:
    evil = "\x1b[2J\x1b]0;owned\x07evil\nERROR forged\u202e"
    for command in (
        heartbeat(evil),
        send_command(topic=evil),
        RemotingCommand(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": evil}),
        RemotingCommand(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": evil}),
    ):
        side.ask(command)
    sleep(0.5)
    log = side.log()
    raw = "\x1b[2J" in log, "\nERROR forged" in log, "\u202e" in log
    names = ("escape sequences", "forged lines", "right-to-left marks")
    found = [name for name, is_there in zip(names, raw, strict=True) if is_there]
    return f"in the log: {', '.join(found) if found else 'none of it raw'}"
