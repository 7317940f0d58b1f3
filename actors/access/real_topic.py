"""Real topic of a stored message, for messages that wait in a topic of the broker's own."""

from protocol.properties import REAL_TOPIC, find_pairs
from protocol.topic_names import REFUSED_TOPICS

_REAL_TOPIC = REAL_TOPIC.encode()


def real_topic(topic: str, properties: bytes) -> str:
    """Return the real topic of a record in `topic`.

    Half messages and delayed messages are stored in topics of the broker's own. Only the broker
    writes to those. Properties of a record with a unit there can thus be trusted
    (storage/reading/record_place.py).
    """
    if topic not in REFUSED_TOPICS:
        return topic
    real = dict(find_pairs(properties)).get(_REAL_TOPIC)
    return topic if real is None else real.decode("utf-8", "replace")
