"""Required permission of each request code: a table for brokers, a table for name servers.

Both are complete (tests/actors/access/test_rights.py): a missing code is refused. IN_HANDLER marks
codes for which the body or the store decides; their handlers ask the request's grant.

Where a 4.9.7 broker checks less, that is a hole (docs/security.md). It checks permissions for 10,
310, 11, 12, 34, 35, 36, 38 and 15. It requires an administrator for 17, 25, 200, 207 and 215. It
accepts any valid signature for the rest.

Source: acl/plain/PlainAccessValidator.java, PlainPermissionManager.java.

Requests of administrators are refused from addresses outside adminAllowedAddresses, signed or not.
The setting needs no accounts. A server without access control can thus be used by all clients and
administered from a few machines only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import ip_address

from actors.access.grant import Grant
from actors.engine.server_log import RateLimitedLog
from protocol.codes import RequestCode as Code
from protocol.codes import ResponseCode
from protocol.errors import RemoteError
from protocol.host import host_of
from protocol.topic_names import REPLY_TOPIC_SUFFIX, TRACE_TOPIC
from storage.access.acl_file import DENY, PUB, SUB
from storage.access.addresses import Addresses

Fields = Mapping[str, str]


class Level(Enum):
    """Kind of sender that passes, whatever the request names."""

    NOBODY = "permissions for the named topics and groups"
    SIGNED = "accounts, allowlisted addresses"
    MONITOR = "monitors, brokers, allowlisted addresses"
    BROKER = "brokers, allowlisted addresses"
    ADMIN = "administrators"


@dataclass(frozen=True, slots=True)
class RequiredPermission:
    """Required permission of a code: a level, or permissions for what the request names."""

    level: Level
    topics: tuple[tuple[str, int], ...] = ()
    """Ext field of a topic, permissions; the handler reports a missing field."""
    groups: tuple[tuple[str, int], ...] = ()
    either: bool = False
    """Whether one of the permissions is enough."""
    group_field: str = ""
    """Field of the sender's group, for the count of refusals."""
    leaves_open: bool = False
    """Whether the topics of traces and replies are exempt: brokers accept all senders there."""

    def check(self, grant: Grant, code: int, fields: Fields) -> None:
        by_level = self.level is not Level.NOBODY
        if self._has_level(grant) or (grant.is_admin and (by_level or grant.passes_all)):
            return
        topics = [(fields[field], perm) for field, perm in self.topics if field in fields]
        groups = [(fields[field], perm) for field, perm in self.groups if field in fields]
        asker = fields.get(self.group_field, "")
        if by_level and not (topics or groups):
            grant.refuse_administration(code, asker)
        for topic, perm in topics:
            if not self._may_use_topic(grant, topic, perm):
                if by_level:
                    grant.refuse_administration(code, asker)
                grant.refuse_topic(code, topic, asker)
        for group, perm in groups:
            if not grant.may_use_group(group, perm):
                if by_level:
                    grant.refuse_administration(code, group)
                grant.require_group(code, group, perm)

    @property
    def is_administration(self) -> bool:
        """Whether only administrators pass."""
        return self.level is Level.ADMIN and not (self.topics or self.groups)

    def _has_level(self, grant: Grant) -> bool:
        account = grant.account
        if self.level is Level.SIGNED:
            return True
        if self.level is Level.BROKER:
            return grant.is_white or account.broker
        if self.level is Level.MONITOR:
            return grant.is_white or account.broker or account.monitor
        return False

    def _may_use_topic(self, grant: Grant, topic: str, perm: int) -> bool:
        if self.leaves_open and _is_open(grant, topic):
            return True
        if not self.either:
            return grant.may_use_topic(topic, perm)
        return any(grant.may_use_topic(topic, each) for each in (PUB, SUB) if perm & each)


def _is_open(grant: Grant, topic: str) -> bool:
    if topic.endswith(REPLY_TOPIC_SUFFIX):
        return grant.account.topic_perms.get(topic) != DENY
    return topic == TRACE_TOPIC


def _groups(field: str, level: Level = Level.NOBODY) -> RequiredPermission:
    return RequiredPermission(level, groups=((field, SUB),), group_field=field)


def _both(field: str) -> RequiredPermission:
    """Require both permissions, for data about a group's use of a topic."""
    topics, groups = (("topic", SUB),), ((field, SUB),)
    return RequiredPermission(Level.ADMIN, topics=topics, groups=groups, group_field=field)


def _topic(perm: int, level: Level = Level.NOBODY) -> RequiredPermission:
    return RequiredPermission(level, topics=(("topic", perm),), either=perm == PUB | SUB)


_ADMIN, _MONITOR = RequiredPermission(Level.ADMIN), RequiredPermission(Level.MONITOR)
_SIGNED, _BROKER = RequiredPermission(Level.SIGNED), RequiredPermission(Level.BROKER)
IN_HANDLER = RequiredPermission(Level.SIGNED)
"""Any account reaches the handler, which checks the rest."""

_PULL = RequiredPermission(
    Level.NOBODY,
    topics=(("topic", SUB),),
    groups=(("consumerGroup", SUB),),
    group_field="consumerGroup",
)
_ANY_USE, _MAY_READ, _MAY_SEND = _topic(PUB | SUB), _topic(SUB), _topic(PUB)
_GROUP = _groups("consumerGroup")
_GROUP_OR_ADMIN = _groups("consumerGroup", Level.ADMIN)
_TOPIC_OR_ADMIN = _topic(PUB | SUB, Level.ADMIN)

BROKER_RIGHTS: Mapping[int, RequiredPermission] = {
    # sends: the authorizer checks the topic, in each form of the request
    Code.SEND_MESSAGE: IN_HANDLER,
    Code.SEND_MESSAGE_V2: IN_HANDLER,
    Code.SEND_BATCH_MESSAGE: IN_HANDLER,
    Code.SEND_REPLY_MESSAGE: IN_HANDLER,
    Code.SEND_REPLY_MESSAGE_V2: IN_HANDLER,
    Code.SEND_SINK_BATCH: _MAY_SEND,
    Code.GET_SINK_PROGRESS: _MAY_SEND,
    # consumers
    Code.PULL_MESSAGE: _PULL,
    Code.LITE_PULL_MESSAGE: _PULL,
    Code.POP_MESSAGE: _PULL,
    Code.NOTIFICATION: _PULL,
    Code.ACK_MESSAGE: IN_HANDLER,  # these name retry topics in a way of their own
    Code.BATCH_ACK_MESSAGE: IN_HANDLER,
    Code.CHANGE_MESSAGE_INVISIBLETIME: IN_HANDLER,
    Code.READ_RECORDS: _MAY_READ,
    Code.READ_UNITS: _MAY_READ,
    Code.QUERY_MESSAGE: _MAY_READ,
    Code.VIEW_MESSAGE_BY_ID: IN_HANDLER,
    Code.CONSUMER_SEND_MSG_BACK: _groups("group"),  # also checked in its handler
    Code.QUERY_CONSUMER_OFFSET: _PULL,
    Code.UPDATE_CONSUMER_OFFSET: _PULL,
    Code.GET_CONSUMER_LIST_BY_GROUP: _GROUP,
    Code.UNREGISTER_CLIENT: _GROUP,
    Code.HEART_BEAT: IN_HANDLER,
    Code.LOCK_BATCH_MQ: IN_HANDLER,
    Code.UNLOCK_BATCH_MQ: IN_HANDLER,
    Code.CHECK_CLIENT_CONFIG: IN_HANDLER,
    Code.QUERY_ASSIGNMENT: IN_HANDLER,
    # producers and consumers
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _ANY_USE,
    Code.GET_MAX_OFFSET: _ANY_USE,
    Code.GET_MIN_OFFSET: _ANY_USE,
    Code.GET_EARLIEST_MSG_STORETIME: _ANY_USE,
    Code.END_TRANSACTION: IN_HANDLER,
    Code.RECALL_MESSAGE: _topic(PUB),
    # administrators, and users of the named topics and groups
    Code.GET_CONSUMER_CONNECTION_LIST: _GROUP_OR_ADMIN,
    Code.GET_CONSUME_STATS: _GROUP_OR_ADMIN,  # the handler checks the topics
    Code.GET_CONSUMER_RUNNING_INFO: _GROUP_OR_ADMIN,
    Code.GET_GROUP_CHANGES: _GROUP_OR_ADMIN,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both("group"),
    Code.QUERY_CONSUME_TIME_SPAN: _both("group"),
    Code.QUERY_CORRECTION_OFFSET: _both("compareGroup"),
    Code.GET_TOPIC_STATS_INFO: _TOPIC_OR_ADMIN,
    Code.GET_TOPIC_CONFIG: _TOPIC_OR_ADMIN,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _groups("group", Level.ADMIN),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC_OR_ADMIN,
    Code.QUERY_CONSUME_QUEUE: _TOPIC_OR_ADMIN,
    # monitors: slaves, exporters
    Code.GET_ALL_TOPIC_CONFIG: _MONITOR,
    Code.GET_BROKER_CONFIG: _MONITOR,
    Code.GET_BROKER_RUNTIME_INFO: _MONITOR,
    Code.GET_ALL_CONSUMER_OFFSET: _MONITOR,
    Code.GET_ALL_DELAY_OFFSET: _MONITOR,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _MONITOR,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _MONITOR,
    Code.GET_PRODUCER_CONNECTION_LIST: _MONITOR,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _MONITOR,
    Code.VIEW_BROKER_STATS_DATA: _MONITOR,
    Code.GET_BROKER_CONSUME_STATS: _MONITOR,
    Code.GET_ALL_PRODUCER_INFO: _MONITOR,
    Code.GET_OPEN_TRANSACTIONS: _MONITOR,
    Code.GET_ACTORS: _MONITOR,
    Code.GET_STORE_STATE: _MONITOR,
    Code.LEASE_LOG: _MONITOR,
    Code.GET_JOBS: _MONITOR,  # reports and logs need every topic, because they may show messages
    Code.GET_JOB_LOG: _MONITOR,
    # administrators
    Code.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    Code.DELETE_TOPIC_IN_BROKER: _ADMIN,
    Code.UPDATE_BROKER_CONFIG: _ADMIN,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ADMIN,
    Code.DELETE_SUBSCRIPTIONGROUP: _ADMIN,
    Code.SET_MESSAGE_REQUEST_MODE: _ADMIN,
    Code.UPDATE_AND_CREATE_ACL_CONFIG: _ADMIN,
    Code.DELETE_ACL_CONFIG: _ADMIN,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _ADMIN,
    Code.GET_BROKER_CLUSTER_ACL_INFO: _ADMIN,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: _ADMIN,
    Code.GET_ACL_REFUSALS: _ADMIN,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _ADMIN,
    Code.CONSUME_MESSAGE_DIRECTLY: _ADMIN,
    Code.CLONE_GROUP_OFFSET: _ADMIN,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _ADMIN,
    Code.CLEAN_UNUSED_TOPIC: _ADMIN,
    Code.RESUME_CHECK_HALF_MESSAGE: _ADMIN,
    Code.DELETE_EXPIRED_COMMITLOG: _ADMIN,
    Code.RUN_JOB: _ADMIN,
    Code.CANCEL_JOB: _ADMIN,
}

NAMESRV_RIGHTS: Mapping[int, RequiredPermission] = {
    Code.REGISTER_BROKER: _BROKER,
    Code.UNREGISTER_BROKER: _BROKER,
    Code.QUERY_DATA_VERSION: _BROKER,
    Code.GET_ROUTEINFO_BY_TOPIC: _SIGNED,
    Code.GET_KV_CONFIG: _SIGNED,
    Code.GET_BROKER_CLUSTER_INFO: _SIGNED,
    Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _SIGNED,
    Code.GET_KVLIST_BY_NAMESPACE: _SIGNED,
    Code.GET_TOPICS_BY_CLUSTER: _SIGNED,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _SIGNED,
    Code.GET_UNIT_TOPIC_LIST: _SIGNED,
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _SIGNED,
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _SIGNED,
    Code.PUT_KV_CONFIG: _ADMIN,
    Code.DELETE_KV_CONFIG: _ADMIN,
    Code.WIPE_WRITE_PERM_OF_BROKER: _ADMIN,
    Code.ADD_WRITE_PERM_OF_BROKER: _ADMIN,
    Code.DELETE_TOPIC_IN_NAMESRV: _ADMIN,
    Code.UPDATE_NAMESRV_CONFIG: _ADMIN,
    Code.GET_NAMESRV_CONFIG: _ADMIN,
    Code.GET_ACL_REFUSALS: _ADMIN,
}
STRICT_NAMESRV_RIGHTS: Mapping[int, RequiredPermission] = {
    **NAMESRV_RIGHTS,
    Code.GET_ROUTEINFO_BY_TOPIC: replace(_ANY_USE, leaves_open=True),
}
"""Table for aclRoutePermEnable: routes only of topics that the sender may use."""


def admin_codes(rights: Mapping[int, RequiredPermission]) -> frozenset[int]:
    """Return the codes for administrators only, whatever the request names."""
    return frozenset(
        code
        for code, right in rights.items()
        if right.level is Level.ADMIN and not (right.topics or right.groups)
    )


@dataclass(frozen=True)
class Administration:
    codes: frozenset[int]
    allowed: Addresses
    rarely: RateLimitedLog

    def check(self, code: int, remote: str) -> None:
        """Raise RemoteError unless the sender's address is allowed; `remote` has a port."""
        host = host_of(remote)
        try:
            if ip_address(host) in self.allowed:
                return
        except ValueError:  # not an address
            pass
        self.rarely.warn("administration refused", address=host, code=code, names=[host])
        raise RemoteError(
            ResponseCode.NO_PERMISSION,
            f"request code={code} is refused from {host}: see its setting adminAllowedAddresses",
        )


def administration(
    rights: Mapping[int, RequiredPermission], allowed: Addresses | None, rarely: RateLimitedLog
) -> Administration | None:
    """Return the check of addresses; None if administrators may use any address."""
    return None if allowed is None else Administration(admin_codes(rights), allowed, rarely)
