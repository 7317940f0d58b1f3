"""A small store with known figures, for tests of several jobs."""

from pathlib import Path

from protocol.host import pack_host
from tests.spark.store_writer import NOVEMBER_ROOT_MS, StoreWriter

MINUTE_MS = 60_000
EAST, WEST = pack_host("10.0.0.1", 4001), pack_host("10.0.0.2", 4002)


def orders(root: Path) -> StoreWriter:
    """Write Orders: 10 bodies of 100 bytes in minute one, 20 of 50 in minute three.

    Bills has one of 7 bytes. The first ten are tagged `new` and come from EAST, the others from
    WEST without a tag. A retry topic, a system topic, has three. Each message is stored 3 ms after
    its birth.
    """
    writer = StoreWriter(root)
    for number in range(10):
        writer.append(
            "Orders",
            number % 2,
            bytes(100),
            {"TAGS": "new", "UNIQ_KEY": f"U{number}", "KEYS": f"k{number} all"},
            store_timestamp=NOVEMBER_ROOT_MS + number * 1000,
            born_host=EAST,
        )
    for number in range(20):
        writer.append(
            "Orders",
            0,
            bytes(50),
            store_timestamp=NOVEMBER_ROOT_MS + 2 * MINUTE_MS + number,
            born_host=WEST,
        )
    writer.append("Bills", 0, bytes(7), store_timestamp=NOVEMBER_ROOT_MS)
    for _ in range(3):
        writer.append("%RETRY%group", 0, b"again", store_timestamp=NOVEMBER_ROOT_MS)
    return writer.close()
