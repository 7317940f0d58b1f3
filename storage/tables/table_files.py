"""The JSON tables of a broker and of a name server: which file is read by which loader.

    <root>/config/topics.json             topics
    <root>/config/subscriptionGroup.json  consumer groups
    <root>/config/consumerOffset.json     how far the groups are
    <root>/config/delayOffset.json        how far the delay levels are
    <root>/config/consumerFilter.json     by which expressions groups filter
    kvConfig.json                         a name server's settings for clients

Each loader is that of the start: what it leaves out or refuses, the start does. It is what
`json_config.load` takes, a Parse of left_out.py. The records of our own below
<root>/troupemq/ are no tables: they are used whole or not at all (storage/files/checked_json.py).
"""

from protocol.bloom import BloomFilter
from storage.tables.consumer_filters import parse_filters
from storage.tables.delay_offsets import parse_delay_offsets
from storage.tables.groups import parse_groups
from storage.tables.kv_config import parse_kv
from storage.tables.offsets import parse_offsets
from storage.tables.skipped_entry import Parse
from storage.tables.topics import parse_topics

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
