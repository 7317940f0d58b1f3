"""The loader of each JSON table of a broker and of a name server.

    <root>/config/topics.json             topics
    <root>/config/subscriptionGroup.json  consumer groups
    <root>/config/consumerOffset.json     consumer offsets
    <root>/config/delayOffset.json        delivered offsets of the delay levels
    <root>/config/consumerFilter.json     filter expressions of groups
    <root>/config/messageRequestMode.json how groups request messages
    kvConfig.json                         a name server's settings for clients

The loaders are those of a start, so they omit and refuse the same. Each is a Parse
(skipped_entry.py) for `json_config.load`. TroupeMQ's own records below <root>/troupemq/ are used
whole or not at all (storage/files/checked_json.py).
"""

from protocol.bloom import BloomFilter
from storage.tables.consumer_filters import parse_filters
from storage.tables.delay_offsets import parse_delay_offsets
from storage.tables.groups import parse_groups
from storage.tables.kv_config import parse_kv
from storage.tables.offsets import parse_offsets
from storage.tables.request_modes import parse_request_modes
from storage.tables.skipped_entry import Parse
from storage.tables.topics import parse_topics

BROKER_TABLES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "delayOffset.json",
    "consumerFilter.json",
    "messageRequestMode.json",
)
KV_TABLE = "kvConfig.json"


def table_parsers(bloom: BloomFilter) -> dict[str, Parse[object]]:
    """Return the loader of each table by file name; `bloom` follows from the settings."""
    return {
        "topics.json": parse_topics,
        "subscriptionGroup.json": parse_groups,
        "consumerOffset.json": parse_offsets,
        "delayOffset.json": parse_delay_offsets,
        "consumerFilter.json": lambda text, left_out: parse_filters(text, bloom, left_out),
        "messageRequestMode.json": parse_request_modes,
        KV_TABLE: parse_kv,
    }
