"""The answer to a send, filled into a template, is what the general encoder would write."""

from collections.abc import Callable
from random import Random

import pytest

from protocol.codes import LanguageCode, SerializeType
from protocol.frame import RESPONSE_FLAG, RemotingCommand, decode_frame, encode
from protocol.host import pack_host
from protocol.send_wire import SendReplies
from tests.protocol.vectors import JSON_RESPONSE
from tests.support.by_hand import BY_HAND
from tests.support.golden import frames

HOST = pack_host("127.0.0.1", 20911)
KINDS = [SerializeType.JSON, SerializeType.ROCKETMQ]
GOLDEN_FILES = ("java-4.9.7", "acl", "binary-header", "java-5.3.3", "negative", "go-v2", BY_HAND)
JAVA = LanguageCode.JAVA


def replies(region: str = "DefaultRegion", *, trace_on: bool = True) -> SendReplies:
    return SendReplies(HOST, region, trace_on=trace_on, language=JAVA)


def in_general(
    made_by: SendReplies, kind: int, opaque: int, physical: int, queue_id: int, offset: int
) -> bytes:
    """Return the answer of the general encoder; the maps of both forms have their own order."""
    region, trace = made_by.constant_fields["MSG_REGION"], made_by.constant_fields["TRACE_ON"]
    ids = {"msgId": made_by.message_ids([physical])}
    queue = {"queueId": str(queue_id)}
    if kind == SerializeType.JSON:
        fields = queue | {"TRACE_ON": trace, "MSG_REGION": region} | ids
        fields |= {"queueOffset": str(offset)}
    else:
        fields = ids | queue | {"queueOffset": str(offset)}
        fields |= {"TRACE_ON": trace, "MSG_REGION": region}
    return encode(
        RemotingCommand(0, fields, None, opaque, RESPONSE_FLAG, language=JAVA, serialize_type=kind)
    )


def test_an_answer_equals_the_originals_byte_for_byte() -> None:
    assert replies().success(SerializeType.JSON, 8, 0, 0, 0) == JSON_RESPONSE


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_every_golden_success_is_encoded_byte_for_byte(
    name: str, tell: Callable[[str], None]
) -> None:
    """All but those to batches with a JSON header, which go through the encoder."""
    made_by, count = replies(), 0
    for record in frames(name):
        if record["direction"] != "response" or record["request_code"] not in (10, 310, 320):
            continue
        command = decode_frame(record["frame"][4:])
        fields = command.fields or {}
        if command.code:
            continue
        if "," in fields["msgId"]:
            ids = fields["msgId"].split(",")
            assert made_by.message_ids([int(each[-16:], 16) for each in ids]) == fields["msgId"]
            queue_id, offset = int(fields["queueId"]), int(fields["queueOffset"])
            if command.serialize_type == SerializeType.ROCKETMQ:
                frame = made_by.batch_success(command.opaque, fields["msgId"], queue_id, offset)
                assert frame == record["frame"]
            continue
        physical = int(fields["msgId"][-16:], 16)
        assert made_by.message_ids([physical]) == fields["msgId"]
        numbers = physical, int(fields["queueId"]), int(fields["queueOffset"])
        assert made_by.success(command.serialize_type, command.opaque, *numbers) == record["frame"]
        count += 1
    tell(f"{count} success frames made byte for byte")
    assert count > 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_an_answer_equals_the_general_encoder_s_for_numbers_of_any_length(
    kind: SerializeType,
) -> None:
    random, made_by = Random(5), replies()
    for _ in range(3000):
        opaque = random.choice((1, -1)) * random.getrandbits(random.randrange(31))
        physical = random.getrandbits(random.randrange(50))
        queue_id = random.getrandbits(random.randrange(20))
        offset = random.getrandbits(random.randrange(60))
        frame = made_by.success(kind, opaque, physical, queue_id, offset)
        assert frame == in_general(made_by, kind, opaque, physical, queue_id, offset)


def test_the_answer_to_a_batch_equals_the_general_encoder_s() -> None:
    random, made_by = Random(6), replies("100%")
    for _ in range(300):
        places = [random.getrandbits(random.randrange(63)) for _ in range(random.randrange(1, 9))]
        opaque, queue_id = random.getrandbits(31), random.getrandbits(random.randrange(20))
        offset = random.getrandbits(random.randrange(60))
        ids = made_by.message_ids(places)
        assert ids == ",".join(f"{HOST.hex().upper()}{place:016X}" for place in places)
        fields = {"msgId": ids, "queueId": str(queue_id), "queueOffset": str(offset)}
        fields |= {"TRACE_ON": "true", "MSG_REGION": "100%"}
        kind = SerializeType.ROCKETMQ
        wanted = RemotingCommand(
            0, fields, None, opaque, RESPONSE_FLAG, language=JAVA, serialize_type=kind
        )
        assert made_by.batch_success(opaque, ids, queue_id, offset) == encode(wanted)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "region", ["100%", "%d%b%%", 'a"b\\c', "région 地区", "tab\tnew\nline", ""]
)
def test_a_region_with_unusual_letters_is_written_as_by_the_general_encoder(
    kind: SerializeType, region: str
) -> None:
    made_by = replies(region, trace_on=False)
    assert made_by.success(kind, 1, 2, 3, 4) == in_general(made_by, kind, 1, 2, 3, 4)
    assert decode_frame(made_by.success(kind, 1, 2, 3, 4)[4:]).fields is not None


def test_the_message_id_of_a_v6_broker_has_56_digits() -> None:
    made_by = SendReplies(pack_host("::1", 20911), "R", trace_on=True, language=JAVA)
    identifier = made_by.message_ids([255])
    assert identifier == "00000000000000000000000000000001000051AF00000000000000FF"
    assert made_by.message_ids([255, 256]) == f"{identifier},{identifier[:-4]}0100"
    frame = made_by.success(SerializeType.JSON, 1, 255, 0, 0)
    assert (decode_frame(frame[4:]).fields or {})["msgId"] == identifier


def test_the_language_of_an_answer_is_the_broker_s() -> None:
    for kind in KINDS:
        made_by = SendReplies(HOST, "R", trace_on=True, language=LanguageCode.PYTHON)
        assert decode_frame(made_by.success(kind, 1, 2, 3, 4)[4:]).language == LanguageCode.PYTHON


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_queue_s_frame_grows_and_shrinks_with_its_offset(kind: SerializeType) -> None:
    made_by = replies()
    for offset in (0, 1, 9, 10, 99, 100, 999_999, 1_000_000, 0):
        for queue_id in (0, 9, 10):
            frame = made_by.success(kind, 5, 6, queue_id, offset)
            assert frame == in_general(made_by, kind, 5, 6, queue_id, offset)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_frames_are_cached_for_a_limited_number_of_queues(
    kind: SerializeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protocol.send_wire._TEMPLATES_MAX", 3)
    made_by = replies()
    for digits in range(1, 9):
        frame = made_by.success(kind, 5, 6, 10**digits, 7)
        assert frame == in_general(made_by, kind, 5, 6, 10**digits, 7)
        assert len(made_by._templates) <= 3
