"""Rules for the entries of tables, applied to changes and to what is loaded.

The tables are the JSON files of a broker and of a name server. A request is refused if the next
start would skip its entry. The rules accept every value that 4.9.7's own clients and tools send,
odd ones included.

Each function returns the fault of an entry as a sentence, or an empty text. A name that is in a
file may be any text, as 4.9.7 takes any for a group; new entries need a legal one
(protocol/topic_names.py).

Source: common/TopicConfig.java, SubscriptionGroupConfig.java, ConsumerOffsetManager.java: what is
an int there, what a long.
"""

from protocol.bodies_assignment import POP, PULL, RequestMode
from protocol.bodies_tables import SubscriptionGroupConfig, TopicConfig
from protocol.headers.admin import TOPIC_FILTER_TYPES
from protocol.topic_names import group_name_fault, topic_name_fault

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
TAKEN_KEYS = ("$ref", "@type")
"""Keys of a JSON object that have a meaning for fastjson."""
QUEUE_NUMS_MAX = 65_536
"""Maximum queues of a topic, for reading and for writing, in a request.

4.9.7 accepts any number, and queries for such queues then fill its memory.
"""


def key_fault(key: str) -> str:
    """Return the fault of a key in a file: a name, or a name server's namespace or key."""
    if key in TAKEN_KEYS:
        return f"no entry can be called {key}: JSON files use that for something else"
    return ""


def topic_fault(topic: TopicConfig) -> str:
    """Return the fault of a topic's settings."""
    for key, number in (
        ("readQueueNums", topic.read_queue_nums),
        ("writeQueueNums", topic.write_queue_nums),
        ("perm", topic.perm),
    ):
        if not 0 <= number <= INT_MAX:
            return f"{key} is {number}: it has to be from 0 to {INT_MAX}"
    if not INT_MIN <= topic.topic_sys_flag <= INT_MAX:
        return f"topicSysFlag is {topic.topic_sys_flag}: it has to be from {INT_MIN} to {INT_MAX}"
    if topic.topic_filter_type not in TOPIC_FILTER_TYPES:
        names = " or ".join(TOPIC_FILTER_TYPES)
        return f"topicFilterType is {topic.topic_filter_type[:100]!r}: it has to be {names}"
    return ""


def asked_topic_fault(topic: TopicConfig) -> str:
    """Return the fault of a requested topic, whose name and number of queues have limits."""
    if fault := topic_name_fault(topic.topic_name):
        return fault
    for key, number in (
        ("readQueueNums", topic.read_queue_nums),
        ("writeQueueNums", topic.write_queue_nums),
    ):
        if number > QUEUE_NUMS_MAX:
            return f"{key} is {number}: a topic has {QUEUE_NUMS_MAX} queues at the most."
    return topic_fault(topic)


def group_fault(group: SubscriptionGroupConfig) -> str:
    """Return the fault of a group's settings; negative numbers have a meaning there."""
    for key, number in (
        ("retryQueueNums", group.retry_queue_nums),
        ("retryMaxTimes", group.retry_max_times),
    ):
        if not INT_MIN <= number <= INT_MAX:
            return f"{key} is {number}: it has to be from {INT_MIN} to {INT_MAX}"
    for key, number in (
        ("brokerId", group.broker_id),
        ("whichBrokerWhenConsumeSlowly", group.which_broker_when_consume_slowly),
    ):
        if not LONG_MIN <= number <= LONG_MAX:
            return f"{key} is {number}: it has to be from {LONG_MIN} to {LONG_MAX}"
    return ""


def asked_group_fault(group: SubscriptionGroupConfig) -> str:
    """Return the fault of a requested group, whose number of retry queues has a limit."""
    if fault := group_name_fault(group.group_name):
        return fault
    if group.retry_queue_nums > QUEUE_NUMS_MAX:
        number = group.retry_queue_nums
        return f"retryQueueNums is {number}: a topic has {QUEUE_NUMS_MAX} queues at the most."
    return group_fault(group)


def queue_id_fault(queue_id: int) -> str:
    """Return the fault of a queue id with an offset."""
    if not 0 <= queue_id <= INT_MAX:
        return f"queueId is {queue_id}: it has to be from 0 to {INT_MAX}"
    return ""


def offset_fault(offset: int) -> str:
    """Return the fault of a consumer offset; 4.9.7 keeps negative ones, too."""
    if not LONG_MIN <= offset <= LONG_MAX:
        return f"the offset is {offset}: it has to be from {LONG_MIN} to {LONG_MAX}"
    return ""


def delay_offset_fault(level: int, offset: int) -> str:
    """Return why a delay level's offset is invalid, or ""."""
    if not 0 <= level <= INT_MAX:
        return f"the delay level is {level}: it has to be from 0 to {INT_MAX}"
    if not 0 <= offset <= LONG_MAX:
        return f"the offset is {offset}: it has to be from 0 to {LONG_MAX}"
    return ""


def request_mode_fault(mode: RequestMode) -> str:
    """Return the fault of a group's request mode."""
    if mode.mode not in (PULL, POP):
        return f"mode is {mode.mode[:100]!r}: it has to be {PULL} or {POP}"
    number = mode.pop_share_queue_num
    if not INT_MIN <= number <= INT_MAX:
        return f"popShareQueueNum is {number}: it has to be from {INT_MIN} to {INT_MAX}"
    return ""
