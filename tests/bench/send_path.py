"""What a send costs, piece by piece: `python -m tests.bench.send_path`; prints a table."""

from collections.abc import Callable
from functools import partial
from timeit import repeat

from actors.sending.send_prepare import Preparer
from protocol.codes import LanguageCode, RequestCode, SerializeType
from protocol.command import RemotingCommand
from protocol.frame import decode_frame, encode
from protocol.headers.send import SendMessageHeader
from protocol.host import pack_host
from protocol.send_reply import SendReplies
from protocol.send_wire import SendDecoder, send_of

ROUNDS = 20_000
PROPERTIES = (
    "KEYS\x01k17\x02UNIQ_KEY\x01C0A80102279300000000946E09652E8C960000\x02WAIT\x01true\x02"
    "TAGS\x01TagA"
)


def measure(what: str, call: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Prints the best of five, in µs a call."""
    print(f"{what:<34}{min(repeat(call, number=rounds, repeat=5)) / rounds * 1e6:8.2f} µs")


def main() -> None:
    header = SendMessageHeader(
        "group", "BenchmarkTest", "TBW102", 4, 3, 0, 1_700_000_000_000, 0, PROPERTIES, 0
    )
    for kind in SerializeType:
        command = RemotingCommand(
            RequestCode.SEND_MESSAGE_V2,
            header.encode_v2(),
            b"x" * 128,
            opaque=77,
            language=LanguageCode.JAVA,
            serialize_type=kind,
        )
        frame = encode(command)
        decoder = SendDecoder()
        decode = decoder.binary if kind == SerializeType.ROCKETMQ else decoder.json
        header_end = 8 + int.from_bytes(frame[5:8])
        assert decode(frame, 8, header_end, len(frame)) is not None

        def fast() -> object:
            return decode(frame, 8, header_end, len(frame))  # noqa: B023

        def general() -> object:
            return send_of(decode_frame(frame[4:]))  # noqa: B023

        measure(f"decode a send, {kind.name}", fast)
        measure(f"the same, general decoder, {kind.name}", general, 2000)
    preparer = Preparer("DefaultCluster", (1000,))
    properties = PROPERTIES.encode()
    measure("properties", lambda: preparer.prepare("BenchmarkTest", 3, 0, properties))
    replies = SendReplies(
        pack_host("127.0.0.1", 10911), "DefaultRegion", trace_on=True, language=LanguageCode.JAVA
    )
    for kind in SerializeType:
        measure(f"answer, {kind.name}", partial(replies.success, kind, 1234, 1 << 33, 3, 1000))


if __name__ == "__main__":
    main()
