"""Pulls on their quick way: from a socket to the one who serves them, and back."""

from pathlib import Path

import pytest

from actors.network.request import Peer
from actors.network.service import Service
from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.command import RemotingCommand
from protocol.headers.fields import Header
from protocol.headers.pull import PullMessageHeader
from protocol.message import decode_records
from tests.support.brokers import pull_command, send_command
from tests.support.sockets import Line, serving_broker


def test_a_pull_of_either_header_needs_no_general_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_broker(tmp_path) as running, Line.to(running.ports.main) as line:
        assert line.ask(send_command(b"pulled")).code == ResponseCode.SUCCESS
        pass_on, headers = Service.pass_on, []

        def seen(
            service: Service, command: RemotingCommand, peer: Peer, header: Header | None = None
        ) -> None:
            headers.append(header)
            pass_on(service, command, peer, header)

        with monkeypatch.context() as patch:
            patch.setattr(Service, "pass_on", seen)
            for kind in SerializeType:
                for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                    pull = pull_command(hold_ms=10_000)
                    pull.code, pull.serialize_type = code, kind
                    answer = line.ask(pull)
                    assert (answer.code, answer.serialize_type) == (ResponseCode.SUCCESS, kind)
                    records = decode_records(bytes(answer.body or b""))
                    assert [record.body for record in records] == [b"pulled"]
        assert [type(header) for header in headers] == [PullMessageHeader] * 4


def test_a_port_that_does_not_serve_pulls_says_so(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running, Line.to(running.ports.fast) as line:
        for kind in SerializeType:
            pull = pull_command()
            pull.serialize_type = kind
            assert line.ask(pull).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
