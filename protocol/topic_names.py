"""Topics and groups with a meaning for broker and clients, and prefixes of derived topics.

Source: common/topic/TopicValidator.java, common/MixAll.java.
"""

from re import compile as compile_pattern

LEGAL_CHARACTERS = "^[%|a-zA-Z0-9_-]+$"
"""Characters of topics and groups; none is special to a file system."""
TOPIC_CHARS_MAX = 127
GROUP_CHARS_MAX = 255
_LEGAL = compile_pattern(r"[%|a-zA-Z0-9_-]+")

AUTO_CREATE_TOPIC = "TBW102"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX = "rmq_sys_"

REFUSED_TOPICS = frozenset(
    (
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    )
)
"""Topics to which no client may send."""

SYSTEM_TOPICS = REFUSED_TOPICS | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics that administrators may not change."""

ALWAYS_PRESENT = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Groups that every broker has."""

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Group of the broker's checks of transactions."""


_SYSTEM_PREFIXES = ("RMQ_SYS_", SYSTEM_TOPIC_PREFIX, RETRY_TOPIC_PREFIX)
_OWN_TOPICS = SYSTEM_TOPICS - {BENCHMARK_TOPIC}


def is_system_topic(topic: str) -> bool:
    """Return whether a topic holds the broker's own messages, or copies of messages to deliver.

    Half messages, delayed messages and retries appear in their own topic when delivered. Dead
    letters (%DLQ%) stay in theirs and so count as the user's.
    """
    return topic in _OWN_TOPICS or topic.startswith(_SYSTEM_PREFIXES)


def is_legal_name(name: str, chars_max: int = TOPIC_CHARS_MAX) -> bool:
    """Return whether a name is legal: it may become a directory and a table's key."""
    return len(name) <= chars_max and bool(_LEGAL.fullmatch(name))


def topic_name_fault(topic: str) -> str:
    """Return the remark that refuses a topic of this name; empty for a legal one."""
    if not topic.strip():
        return "The specified topic is blank."
    if not is_legal_name(topic, len(topic)):
        return f"The specified topic contains illegal characters, allowing only {LEGAL_CHARACTERS}"
    if len(topic) > TOPIC_CHARS_MAX:
        return "The specified topic is longer than topic max length."
    return ""


def group_name_fault(group: str) -> str:
    """Return the refusal of a group's name in the words of 4.9.7's clients.

    Its broker accepts any name.
    """
    if not group.strip():
        return "the specified group is blank"
    if len(group) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if not is_legal_name(group, GROUP_CHARS_MAX):
        return (
            f"the specified group[{group}] contains illegal characters, allowing only"
            f" {LEGAL_CHARACTERS}"
        )
    return ""
