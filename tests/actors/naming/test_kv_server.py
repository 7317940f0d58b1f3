"""Tests of actors/naming/kv_server.py: concurrent changes of settings, and their file."""

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from actors.naming.kv_server import ORDER_TOPIC_CONFIG, KvServer
from actors.naming.table_limits import KV_LISTED_CHARS_MAX, KV_ORDERED_CHARS_MAX
from actors.network.long_answers import ENCODED_HERE_MAX
from actors.network.messages import Request
from actors.tables.persisted import Then
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.fastjson import loads
from storage.tables.kv_config import format_kv
from tests.support.name_servers import KV_PATH, TOPIC, name_server, registration
from tests.support.peers import RecordingPeer, ask, request
from troupemq.testing.fake_disk import FakeDisk


def test_a_batch_of_settings_is_written_together_and_answered_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each had the whole file made on the loop: 0.2 s and more with 60 MiB."""
    peer = RecordingPeer()
    texts: list[int] = []

    def write(self: KvServer, thens: Sequence[Then]) -> None:
        texts.append(len(thens))
        usual(self, thens)

    usual = KvServer.write
    monkeypatch.setattr(KvServer, "write", write)
    with name_server() as system:
        for number in range(200):
            fields = {"namespace": "N", "key": f"k{number}", "value": str(number)}
            command = request(RequestCode.PUT_KV_CONFIG, fields)
            system.address("namesrv").tell(Request(command, peer))
        system.drain()
        assert [answer.code for answer in peer.received] == [0] * 200
        assert sum(texts) == 200 and len(texts) < 20
        table = loads(system.disk.read_bytes(KV_PATH))
    assert table == {"configTable": {"N": {f"k{n}": str(n) for n in range(200)}}}


def test_a_file_with_too_many_ordered_topics_does_not_block_registration() -> None:
    disk = FakeDisk()
    text = format_kv({ORDER_TOPIC_CONFIG: {"T": "v" * (KV_ORDERED_CHARS_MAX + 1)}})
    disk.make_dirs("/data")
    disk.open(KV_PATH, create=True).pwrite(text.encode(), 0)
    with capture_logs() as logs, name_server(disk) as system:
        answer = ask(system, "namesrv", registration(TOPIC))
        assert (answer.code, answer.body) == (0, None)
    assert "ordered topics withheld" in [each["event"] for each in logs]


def test_a_long_namespace_is_listed_by_a_thread_one_at_a_time() -> None:
    """64 MiB of settings took the loop up to 2.7 s, as often as anyone asked."""
    disk, long = FakeDisk(), {"K": "v" * (KV_LISTED_CHARS_MAX + 1)}
    many = {str(number): "v" for number in range(ENCODED_HERE_MAX + 1)}
    disk.make_dirs("/data")
    text = format_kv({"Long": long, "Many": many, "Short": {"K": "v"}})
    disk.open(KV_PATH, create=True).pwrite(text.encode(), 0)
    with name_server(disk) as system:
        address, answers = system.address("namesrv"), []
        for namespace in ("Long", "Many", "Short"):
            peer = RecordingPeer()
            fields = {"namespace": namespace}
            command = request(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
            address.receiver.handlers[Request](address.receiver, Request(command, peer))
            answers.append(peer.received)
        assert [len(each) for each in answers] == [0, 1, 1]
        assert [each.code for (each,) in answers[1:]] == [ResponseCode.SYSTEM_BUSY, 0]
        system.drain()
        assert KVTable.decode(answers[0][0].body).table == long
        fields = {"namespace": "Many"}
        listed = ask(system, "namesrv", request(RequestCode.GET_KVLIST_BY_NAMESPACE, fields))
        assert KVTable.decode(listed.body).table == many
