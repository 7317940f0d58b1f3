"""`troupemq admin clusterList`: brokers, and hosts that have several under one process."""

import json
import re
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from protocol.bodies import BrokerData, ClusterInfo
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode, ResponseCode
from protocol.frame import RemotingCommand
from tests.troupemq.fake_server import FakeServer
from troupemq.cli.admin import admin


def listed(one_of: Mapping[str, str], *options: str) -> list[str]:
    """Return the lines of clusterList for brokers at one address, each with 1.5 sends a second.

    `one_of` maps a broker to the first one under the same supervisor; empty for a single broker.
    """
    with FakeServer() as namesrv, FakeServer() as server:
        datas = {name: BrokerData("C", name, {0: server.address}) for name in one_of}
        body = ClusterInfo(datas, {"C": list(one_of)}).encode()
        namesrv.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=body))
        firsts = iter(one_of.values())

        def about(command: RemotingCommand) -> RemotingCommand:
            first = next(firsts)
            figures = {"putTps": "1.5 1.0 1.0", "commitLogDiskRatio": "0.25"}
            table = KVTable(figures | ({"oneOf": first} if first else {}))
            return command.answer(body=table.encode())

        server.on(RequestCode.GET_BROKER_RUNTIME_INFO, about)
        done = CliRunner().invoke(admin, ["clusterList", "-n", namesrv.address, *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "brokers"),
    [
        ((), ["a (3) 4.50 0.25", "b 1.50 0.25"]),
        (("-e",), ["a 1.50 0.25", "a-1 1.50 0.25", "a-2 1.50 0.25", "b 1.50 0.25"]),
    ],
)
def test_several_masters_under_one_process_are_listed_as_one_host(
    options: tuple[str, ...], brokers: list[str]
) -> None:
    _, *rows = listed({"a": "a", "a-1": "a", "a-2": "a", "b": ""}, *options)
    cells = [re.split(r"\s{2,}", row) for row in rows]
    assert [f"{row[1]} {row[5]} {row[13]}" for row in cells] == brokers


def test_each_of_several_masters_is_in_the_json() -> None:
    rows = [json.loads(line) for line in listed({"a": "a", "a-1": "a", "b": ""}, "--json")]
    assert [(row["broker"], row.get("one_of")) for row in rows] == [
        ("a", "a"),
        ("a-1", "a"),
        ("b", None),
    ]


def test_a_refusing_broker_is_not_reported_as_unregistered() -> None:
    """The broker answers NO_PERMISSION."""
    with FakeServer() as namesrv, FakeServer() as server:
        body = ClusterInfo({"a": BrokerData("C", "a", {0: server.address})}, {"C": ["a"]}).encode()
        namesrv.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda command: command.answer(body=body))
        refusal = ResponseCode.NO_PERMISSION, "shop-account may not"
        server.on(
            RequestCode.GET_BROKER_RUNTIME_INFO,
            lambda command: command.answer(refusal[0], remark=refusal[1]),
        )
        done = CliRunner().invoke(admin, ["clusterList", "-n", namesrv.address])
    assert done.exit_code == 1
    assert "a 0 refuses to report its state: " in done.stderr and refusal[1] in done.stderr
    assert "No broker answered." in done.stderr and "registered" not in done.stderr
