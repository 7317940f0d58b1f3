"""Tests of troupemq/cli/messages.py: a message as a JSON object."""

from protocol.host import pack_host
from protocol.message import MessageRecord
from troupemq.cli.messages import as_object
from troupemq.client.message import MessageQueue, view_of

HOST = pack_host("127.0.0.1", 10911)


def test_a_body_is_text_or_base64() -> None:
    queue = MessageQueue("T", "b", 0)
    bodies = [
        as_object(view_of(MessageRecord("T", body, b"", born_host=HOST, store_host=HOST), queue))
        for body in ("é".encode(), b"\xff\x00")
    ]
    assert [each.get("body") for each in bodies] == ["é", None]
    assert [each.get("body_base64") for each in bodies] == [None, "/wA="]
