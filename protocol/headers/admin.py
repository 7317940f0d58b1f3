"""Headers of an administrator's requests: topics, groups, statistics, settings, access control.

Source: common/protocol/header/*.java.
"""

from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.headers.fields import COMMAND_EXCEPTION, Header, wire, wire_long
from protocol.json_body import value

TOPIC_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@value
class CreateTopicHeader(Header):
    """A topic to create or change."""

    topic: str = wire("topic")
    default_topic: str = wire("defaultTopic")
    read_queue_nums: int = wire("readQueueNums")
    write_queue_nums: int = wire("writeQueueNums")
    perm: int = wire("perm")
    topic_filter_type: str = wire("topicFilterType")
    topic_sys_flag: int | None = wire("topicSysFlag", default=None)
    order: bool | None = wire("order", default=False)

    def check(self) -> None:
        if self.topic_filter_type not in TOPIC_FILTER_TYPES:
            remark = (
                f"{COMMAND_EXCEPTION}: topicFilterType = [{self.topic_filter_type}] value invalid"
            )
            raise RemoteError(ResponseCode.SYSTEM_ERROR, remark)


@value
class TopicHeader(Header):
    """One topic: DELETE_TOPIC_IN_BROKER, GET_TOPIC_CONFIG and their like."""

    topic: str = wire("topic")


@value
class GetSubscriptionGroupConfigHeader(Header):
    """One consumer group: GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str = wire("group")


@value
class ConsumerGroupHeader(Header):
    """One consumer group: GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str = wire("consumerGroup")


@value
class ProducerGroupHeader(Header):
    """One producer group: GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str = wire("producerGroup")


@value
class DeleteSubscriptionGroupHeader(Header):
    """A group to delete, with its offsets if requested."""

    group_name: str = wire("groupName")
    remove_offset: bool = wire("removeOffset", default=False)


@value
class GetConsumeStatsHeader(Header):
    """Consumer lag of a group, in one topic or in all."""

    consumer_group: str = wire("consumerGroup")
    topic: str | None = wire("topic", default=None)
    with_progress: bool | None = wire("withProgress", default=None)
    """TroupeMQ extension: also answer with times and pulled offsets; 4.9.7 ignores the field."""


@value
class QueryConsumeTimeSpanHeader(Header):
    """Times of the messages that a group has not consumed."""

    topic: str = wire("topic")
    group: str = wire("group")


@value
class QueryCorrectionOffsetHeader(Header):
    """Offsets of other groups than those filtered, compared with one."""

    compare_group: str = wire("compareGroup")
    topic: str = wire("topic")
    filter_groups: str | None = wire("filterGroups", default=None)


@value
class CloneGroupOffsetHeader(Header):
    """The offsets of one group for another."""

    src_group: str = wire("srcGroup")
    dest_group: str = wire("destGroup")
    topic: str | None = wire("topic", default=None)
    offline: bool = wire("offline", default=False)


@value
class ViewBrokerStatsHeader(Header):
    """One counter of a broker."""

    stats_name: str = wire("statsName")
    stats_key: str = wire("statsKey")


@value
class GetBrokerConsumeStatsHeader(Header):
    """Consumer lag of all groups."""

    is_order: bool = wire("isOrder", default=False)
    with_progress: bool | None = wire("withProgress", default=None)
    """TroupeMQ extension, as in GetConsumeStatsHeader."""


@value
class QueryConsumeQueueHeader(Header):
    """Some units of a consume queue."""

    topic: str | None = wire("topic", default=None)
    queue_id: int = wire("queueId", default=0)
    index: int = wire_long("index", default=0)
    count: int = wire("count", default=0)
    consumer_group: str | None = wire("consumerGroup", default=None)


@value
class GetBrokerConfigResponseHeader(Header):
    """The version of the configuration in the body, as JSON text."""

    version: str = wire("version")


@value
class CreateAccessConfigHeader(Header):
    """An account to create or change; permission lists are `name=PERM`, separated by commas."""

    access_key: str = wire("accessKey")
    secret_key: str | None = wire("secretKey", default=None)
    white_remote_address: str | None = wire("whiteRemoteAddress", default=None)
    admin: bool = wire("admin", default=False)
    default_topic_perm: str | None = wire("defaultTopicPerm", default=None)
    default_group_perm: str | None = wire("defaultGroupPerm", default=None)
    topic_perms: str | None = wire("topicPerms", default=None)
    group_perms: str | None = wire("groupPerms", default=None)
    keep_previous_secret: bool | None = wire("keepPreviousSecret", default=None)
    """TroupeMQ extension: the replaced secret stays valid beside the new one."""


@value
class DeleteAccessConfigHeader(Header):
    """An account to delete."""

    access_key: str = wire("accessKey")


@value
class UpdateGlobalWhiteAddressesHeader(Header):
    """Addresses that need no signature."""

    global_white_addresses: str = wire("globalWhiteAddrs")
    acl_file_full_path: str | None = wire("aclFileFullPath", default=None)


@value
class GetBrokerAclInfoResponseHeader(Header):
    """Versions of the access control files, as JSON text."""

    version: str = wire("version")
    all_acl_file_version: str = wire("allAclFileVersion")
    broker_name: str = wire("brokerName")
    broker_address: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    fingerprints: str | None = wire("aclFingerprints", default=None)
    """TroupeMQ extension: fingerprints of the files' contents, as a JSON object."""
