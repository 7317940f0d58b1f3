"""The JSON tables of a broker and of a name server: which file is read by which loader.

    <root>/config/topics.json             topics
    <root>/config/subscriptionGroup.json  consumer groups
    <root>/config/consumerOffset.json     how far the groups are
    <root>/config/delayOffset.json        how far the delay levels are
    <root>/config/consumerFilter.json     by which expressions groups filter
    kvConfig.json                         a name server's settings for clients

Each loader is that of the start: what it leaves out or refuses, the start does. It is what
`storage.json_config.load` takes, a Parse of storage/left_out.py. The records of our own below
<root>/troupemq/ are no tables: they are used whole or not at all (storage/checked_json.py).
"""

from protocol.bloom import BloomFilter
from storage.consumer_filters import parse_filters
from storage.delay_offsets import parse_delay_offsets
from storage.groups import parse_groups
from storage.kv_config import parse_kv
from storage.left_out import Parse
from storage.offsets import parse_offsets
from storage.topics import parse_topics

BROKER_TABLES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
)
KV_TABLE = "kvConfig.json"


def table_parsers(bloom: BloomFilter) -> dict[str, Parse[object]]:
    """The loader of each table by the name of its file; `bloom` as the settings make it."""
    return {
        "topics.json": parse_topics,
        "subscriptionGroup.json": parse_groups,
        "consumerOffset.json": parse_offsets,
        "delayOffset.json": parse_delay_offsets,
        "consumerFilter.json": lambda text, left_out: parse_filters(text, bloom, left_out),
        KV_TABLE: parse_kv,
    }
