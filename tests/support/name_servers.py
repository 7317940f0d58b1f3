"""A name server on a simulated system, and registrations for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from actors.admin.settings import NamesrvSettings
from actors.config import NamesrvConfig
from actors.engine.supervisor import ChildSpec
from actors.naming.namesrv import Namesrv
from actors.naming.registration_reader import RegistrationReader
from actors.network.long_answers import LongAnswers
from actors.tables.config_writer import ConfigWriter
from protocol.bodies_tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable
from protocol.codes import RequestCode
from protocol.frame import RemotingCommand
from protocol.headers.namesrv import RegisterBrokerHeader
from protocol.message import body_crc
from storage.files.disk import Disk
from tests.support.peers import ask, request, simulated
from troupemq.testing.simulation import SimulatedSystem

KV_PATH = "/data/kvConfig.json"


@contextmanager
def name_server(disk: Disk | None = None, **settings: Any) -> Iterator[SimulatedSystem]:
    config = NamesrvConfig(
        kv_config_path=KV_PATH, config_store_path="/data/namesrv.properties", **settings
    )
    with simulated(disk) as system:
        writer = system.address("config_writer")
        system.start(
            ChildSpec("config_writer", lambda _: ConfigWriter()),
            ChildSpec("reader", lambda _: RegistrationReader()),
            ChildSpec("long_answers", lambda _: LongAnswers()),
            ChildSpec(
                "namesrv",
                lambda _: Namesrv(
                    config, writer, system.address("reader"), system.address("long_answers")
                ),
            ),
            ChildSpec("settings", lambda _: NamesrvSettings(config)),
        )
        yield system


def registration(
    *topics: TopicConfig,
    version: int = 1,
    compressed: bool = False,
    crc: int | None = None,
    oneway: bool = False,
    address: str = "10.0.0.1:10911",
    name: str = "broker-a",
) -> RemotingCommand:
    configs = {topic.topic_name: topic for topic in topics}
    table = TopicConfigTable(configs, DataVersion(1000, version))
    body = RegisterBrokerBody(table).encode(compressed=compressed)
    header = RegisterBrokerHeader(
        name,
        address,
        "C1",
        "10.0.0.1:10912",
        0,
        compressed,
        body_crc(body) if crc is None else crc,
    )
    return request(RequestCode.REGISTER_BROKER, header.encode(), body, oneway=oneway)


def route(system: SimulatedSystem, topic: str, version: int = 407, **more: str) -> RemotingCommand:
    fields = {"topic": topic, **more}
    return ask(
        system, "namesrv", request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=version)
    )


TOPIC = TopicConfig("TopicTest", 4, 4)
