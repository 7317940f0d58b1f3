"""The sink's options are refused by name."""

import pytest

from spark.sink.options import SinkOptions, parse_sink_options
from storage.errors import StoreError

SERVER = {"nameServer": "a:1;b:2"}


def test_options_have_defaults() -> None:
    assert parse_sink_options(SERVER) == SinkOptions(("a:1", "b:2"))
    assert parse_sink_options({**SERVER, "checkpointLocation": "/x"}) == SinkOptions(("a:1", "b:2"))


def test_option_names_ignore_case() -> None:
    given = {
        "NAMESERVER": "a:1",
        "TOPIC": "T",
        "Brokers": "y, x",
        "sortrows": "TRUE",
        "messagesperrequest": "7",
        "sendTIMEOUTms": "0",
        "txnappid": "app-1",
        "TXNVERSION": "9",
    }
    wanted = SinkOptions(("a:1",), "T", ("x", "y"), True, 7, 0, "app-1", 9)
    assert parse_sink_options(given) == wanted
    with pytest.raises(StoreError, match="a stream has its checkpoint"):
        wanted.check_stream()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nameServer": ""}, "nameServer is missing"),
        ({"nameServer": "a"}, "nameServer: "),
        ({"topics": "T"}, "no option topics: did you mean topic?"),
        ({"startingOffsets": "latest"}, "no option startingOffsets: it has nameServer, topic"),
        ({"path": "/x"}, "path: messages are not written into a store: give nameServer"),
        ({"topic": "a b"}, "topic is a b: "),
        ({"brokers": "a,,b"}, "brokers has an empty name in it"),
        ({"sortRows": "yes"}, "sortRows is yes: it must be true or false"),
        ({"messagesPerRequest": "1025"}, "it must be a number from 1 to 1024"),
        ({"sendTimeoutMs": "-1"}, "sendTimeoutMs is -1: it must be a number from 0"),
        ({"txnAppId": "a"}, "txnAppId and txnVersion belong together"),
        ({"txnVersion": "1"}, "txnAppId and txnVersion belong together"),
        ({"txnAppId": "a:b", "txnVersion": "1"}, "txnAppId is a:b: it must be up to 128 letters"),
    ],
)
def test_an_invalid_option_is_refused_with_the_valid_values(
    given: dict[str, str], words: str
) -> None:
    with pytest.raises(StoreError) as refused:
        parse_sink_options({**SERVER, **given})
    assert words in str(refused.value)
