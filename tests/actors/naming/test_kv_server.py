"""Tests of actors/naming/kv_server.py: concurrent changes of settings, and their file."""

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from actors.naming.kv_config import ORDER_TOPIC_CONFIG
from actors.naming.kv_server import KvServer
from actors.naming.table_limits import KV_ORDERED_CHARS_MAX
from actors.network.request import Request
from actors.tables.persisted import Then
from protocol.codes import RequestCode
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
