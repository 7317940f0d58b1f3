"""The comparison sees each thing that can go wrong: otherwise a green suite would prove nothing."""

from base64 import b64encode
from copy import deepcopy
from pathlib import Path
from zlib import crc32

import pytest

from tests.compat.agent import Event, Sent
from tests.compat.comparison import differences, gaps, order_differences
from tests.compat.corpus import Outgoing
from tests.compat.servers import BROKER_NAME, CLUSTER, Broker, NameServer, OurBroker, OurNameServer

NOW_MS = 1_700_000_000_000
BODY = b"body"
PLACE = 4096


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    names: NameServer = OurNameServer(tmp_path)
    broker = OurBroker(tmp_path, names)
    broker.address = "127.0.0.1:10911"
    return broker


def one_send(number: int) -> Sent:
    message = Outgoing(f"m-{number}", BODY, tags="A", keys="k", properties={"colour": "red"})
    result = {
        "status": "SEND_OK",
        "msgIds": [f"UNIQUE{number}"],
        "offsetMsgIds": [offset_id(number)],
        "queueId": 2,
        "queueOffset": number,
    }
    frame = {
        "uniqueKey": f"UNIQUE{number}",
        "queueId": 2,
        "sysFlag": 0,
        "bornTimestamp": NOW_MS,
    }
    return Sent("sync", "T", [message], [result], [frame], NOW_MS, NOW_MS + 5)


def offset_id(number: int) -> str:
    return f"7F00000100002A9F{PLACE + number:016X}"


def one_event(number: int) -> Event:
    properties = {"serial": f"m-{number}", "colour": "red", "TAGS": "A", "KEYS": "k"}
    properties |= {"CLUSTER": CLUSTER, "UNIQ_KEY": f"UNIQUE{number}"}
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return {
        "member": "one",
        "topic": "T",
        "body": b64encode(BODY).decode(),
        "tags": "A",
        "keys": "k",
        "properties": properties | {"MIN_OFFSET": "0", "MAX_OFFSET": "9"},
        "flag": 0,
        "sysFlag": 0,
        "brokerName": BROKER_NAME,
        "queueId": 2,
        "queueOffset": number,
        "msgId": f"UNIQUE{number}",
        "offsetMsgId": offset_id(number),
        "commitLogOffset": PLACE + number,
        "storeSize": 91 + len(BODY) + 1 + len(text),
        "bodyCrc": crc32(BODY) & 0x7FFFFFFF,
        "bornTimestamp": NOW_MS,
        "bornHost": "127.0.0.1:40000",
        "storeTimestamp": NOW_MS + 1,
        "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": 0,
        "preparedTransactionOffset": 0,
    }


SENT = [one_send(number) for number in range(3)]
GOT = [one_event(number) for number in range(3)]


def test_equal_messages_have_no_differences(broker: Broker) -> None:
    assert differences(SENT, GOT, broker) == []
    assert gaps(GOT) == []
    assert order_differences(GOT) == []


@pytest.mark.parametrize("name", sorted(set(GOT[0]) - {"member", "properties"}))
def test_a_changed_value_in_any_field_is_found(name: str, broker: Broker) -> None:
    got = deepcopy(GOT)
    value = got[1][name]
    got[1][name] = value + 1 if isinstance(value, int) else f"{value[:-4]}AAAA"
    if name == "storeTimestamp":
        got[1][name] = NOW_MS - 1
    assert differences(SENT, got, broker)


@pytest.mark.parametrize("name", ["colour", "TAGS", "KEYS", "CLUSTER", "UNIQ_KEY", "MAX_OFFSET"])
def test_a_missing_property_is_found(name: str, broker: Broker) -> None:
    got = deepcopy(GOT)
    del got[1]["properties"][name]
    assert differences(SENT, got, broker)


def test_an_extra_property_is_found(broker: Broker) -> None:
    got = deepcopy(GOT)
    got[1]["properties"]["WAIT"] = "true"
    assert "m-1 (sync): WAIT is 'true', not None" in differences(SENT, got, broker)


def test_lost_foreign_and_repeated_messages_are_found(broker: Broker) -> None:
    assert "lost: m-1" in differences(SENT, [GOT[0], GOT[2]], broker)
    assert "foreign: m-2" in differences(SENT[:2], GOT, broker)
    assert "m-0 came 2 times" in differences(SENT, [*GOT, GOT[0]], broker)


def test_a_gap_and_a_wrong_order_are_found() -> None:
    assert gaps([GOT[0], GOT[2]]) == ["queue 2 holds the offsets [0, 2]"]
    assert order_differences([GOT[1], GOT[0]]) == ["queue 2: 0 came after 1"]


def test_a_store_time_that_goes_back_is_found(broker: Broker) -> None:
    got = deepcopy(GOT)
    got[0]["storeTimestamp"] = NOW_MS + 3
    assert "storeTimestamp goes back at 4097" in differences(SENT, got, broker)
