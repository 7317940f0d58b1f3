"""Pulls over a socket, with both headers."""

from pathlib import Path

from protocol.codes import RequestCode, ResponseCode, SerializeType
from protocol.message import decode_records
from tests.support.brokers import pull_command, send_command
from tests.support.sockets import Line, serving_broker


def test_a_pull_is_answered_in_its_header_form(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running, Line.to(running.ports.main) as line:
        assert line.ask(send_command(b"pulled")).code == ResponseCode.SUCCESS
        for kind in SerializeType:
            for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                pull = pull_command(hold_ms=10_000)
                pull.code, pull.serialize_type = code, kind
                answer = line.ask(pull)
                assert (answer.code, answer.serialize_type) == (ResponseCode.SUCCESS, kind)
                records = decode_records(bytes(answer.body or b""))
                assert [record.body for record in records] == [b"pulled"]


def test_a_port_without_pulls_refuses_them_with_an_explanation(tmp_path: Path) -> None:
    with serving_broker(tmp_path) as running, Line.to(running.ports.fast) as line:
        for kind in SerializeType:
            pull = pull_command()
            pull.serialize_type = kind
            assert line.ask(pull).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
