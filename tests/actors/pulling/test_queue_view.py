"""Tests of actors/pulling/queue_view.py: units of a consume queue, shown as 4.9.7 shows them."""

from dataclasses import replace
from typing import Any

import pytest

from actors.pulling.queue_view import bits_text
from protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from protocol.bodies_admin import ConsumeQueueView
from protocol.codes import RequestCode, ResponseCode
from protocol.fastjson import loads
from protocol.frame import RemotingCommand
from protocol.headers.admin import QueryConsumeQueueHeader
from protocol.tags import java_hash_code
from tests.support.brokers import BROKER, STORE, SimulatedBroker
from tests.support.guarded import GuardedBroker


def broker(**settings: Any) -> SimulatedBroker:
    config = replace(
        BROKER,
        property_filter_enable=True,
        calc_filter_bit_map_enable=settings.get("enable_consume_queue_ext", False),
    )
    made = SimulatedBroker(1, config=config, store_config=replace(STORE, **settings))
    return made


def query(made: SimulatedBroker, index: int = 0, count: int = 10, **more: Any) -> RemotingCommand:
    made.system.drain()
    header = QueryConsumeQueueHeader("Topic", 0, index, count, **more)
    return made.ask(RemotingCommand(RequestCode.QUERY_CONSUME_QUEUE, header.encode()))


def test_units_are_shown_with_min_and_max_offset() -> None:
    made = broker()
    places = [made.stored(made.send(properties=f"TAGS\x01T{n}")) for n in range(3)]
    answer = query(made, index=1, count=1)
    assert (answer.code, answer.remark) == (0, "not set any response code")
    view = ConsumeQueueView.decode(answer.body)
    assert (view.min_queue_index, view.max_queue_index) == (0, 3)
    (unit,) = view.queue_data
    assert (unit.physic_offset, unit.physic_size) == (
        places[1].physical_offset,
        places[1].record_bytes,
    )
    assert unit.tags_code == java_hash_code("T1")
    assert (unit.extend_data_json, unit.bit_map, unit.msg) == (None, None, None)
    assert not unit.eval
    assert (view.subscription_data, view.filter_data) == (None, None)
    assert len(ConsumeQueueView.decode(query(made, count=100).body).queue_data) == 3


def test_a_group_is_shown_only_with_permission_for_it() -> None:
    made = GuardedBroker(1)
    made.make_topic("Orders")
    made.make_group("shop")
    made.send(topic="Orders", queue_id=0)
    subscribed = [SubscriptionData("Orders", "secret-tag")]
    data = [ConsumerData("shop", "CONSUME_PASSIVELY", "CLUSTERING", None, subscribed)]
    beat = RemotingCommand(
        RequestCode.HEART_BEAT, body=HeartbeatData("c", consumer_data_set=data).encode()
    )
    assert made.ask_as("shop-account", beat).code == 0
    header = QueryConsumeQueueHeader("Orders", 0, 0, 1, consumer_group="shop")
    for account, sees in (
        ("shop-account", True),
        ("administrator", True),
        ("reader-account", False),
    ):
        asked = RemotingCommand(RequestCode.QUERY_CONSUME_QUEUE, header.encode())
        view = ConsumeQueueView.decode(made.ask_as(account, asked).body)
        assert (view.subscription_data is not None) is sees
        assert (view.filter_data == "shop@Orders is not online!") is not sees


def test_a_group_is_shown_with_its_subscription() -> None:
    made = broker()
    made.send()
    view = ConsumeQueueView.decode(query(made, consumer_group="consumers").body)
    assert view.filter_data == "consumers@Topic is not online!"
    made.subscribe("TagA || TagB")
    view = ConsumeQueueView.decode(query(made, consumer_group="consumers").body)
    assert view.filter_data == "null"
    assert view.subscription_data is not None
    assert view.subscription_data.tags_set == ["TagA", "TagB"]


def test_an_extended_unit_is_shown_with_its_bits_and_filter_result() -> None:
    made = broker(enable_consume_queue_ext=True)
    made.make_topic()
    made.subscribe("color = 'red'", kind="SQL92", version=5)
    made.system.advance(1000)
    made.send(properties="color\x01red")
    made.send(properties="color\x01blue")
    view = ConsumeQueueView.decode(query(made, consumer_group="consumers").body)
    red, blue = view.queue_data
    assert red.extend_data_json is not None
    assert red.bit_map is not None
    assert loads(red.extend_data_json)["size"] == 34  # type: ignore[index]
    assert (red.eval, blue.eval) == (True, False)
    assert red.bit_map.count("1") > 0
    assert blue.bit_map is not None
    assert blue.bit_map.count("1") == 0
    assert '"expression":"color = \'red\'"' in (view.filter_data or "")


def test_bit_maps_are_printed_in_reverse_in_rows_of_eight_bytes() -> None:
    assert bits_text(bytes([0b1, 0, 0, 0, 0, 0, 0, 0, 0b110])) == (
        "00000110\n" + "00000000" * 7 + "00000001\n"
    )


@pytest.mark.parametrize("index", [-1, 1, 1 << 40])
def test_a_missing_index_is_answered_with_a_remark(index: int) -> None:
    made = broker()
    made.send()
    answer = query(made, index=index)
    assert (answer.code, answer.body) == (0, None)
    assert answer.remark == f"Index {index} of 0@Topic is not exist!"


@pytest.mark.parametrize("count", [0, -1])
def test_an_empty_range_is_not_an_error(count: int) -> None:
    made = broker()
    made.send()
    assert ConsumeQueueView.decode(query(made, count=count).body).queue_data == []


def test_a_missing_queue_is_an_error() -> None:
    made = broker()
    answer = query(made)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "0@Topic is not exist!")
