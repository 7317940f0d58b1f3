"""Brokers and name servers: figures, settings and stores; open transactions."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from time import time_ns
from typing import TypeVar, Unpack

from protocol.bodies_own import OpenTransaction, OpenTransactions, StoreState
from protocol.bodies_tables import KVTable
from protocol.codes import RequestCode
from protocol.headers.namesrv import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    WipeWritePermResponseHeader,
)
from protocol.headers.transaction import OpenTransactionsHeader, ResumeCheckHalfMessageHeader
from protocol.java_numbers import plain_number
from protocol.properties_file import format_property, parse_properties
from protocol.timers import TIMERS_OF_LEVEL, LevelTimers
from storage.spelling import closest
from troupemq.client.admin.answers import OPTIONAL, Change, Failures, Result, Time
from troupemq.client.admin.base import TIMEOUT_MS, AdminBase, BrokerPlace, Where
from troupemq.client.admin.operations import changes, operation, reads
from troupemq.client.errors import ArgumentIllegal, BrokerError, ClientError, understood
from troupemq.numbers import first_finite

_HOUR_MS = 3_600_000

Figures = TypeVar("Figures")


class FilesToClean(Enum):
    """Files that brokers can be told to delete."""

    QUEUES = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
    """Consume queue files of deleted messages."""
    LOG = RequestCode.DELETE_EXPIRED_COMMITLOG
    """Expired files of the commit log."""
    TOPICS = RequestCode.CLEAN_UNUSED_TOPIC
    """Consume queues of deleted topics."""


@dataclass(frozen=True, slots=True)
class BrokerRates(Result):
    """Current figures of one broker; those that it does not answer are 0."""

    cluster: str
    broker: str
    id: int
    address: str
    version: str | None
    in_tps: float
    out_tps: float
    waiting_sends: int
    send_wait_ms: int
    waiting_pulls: int
    pull_wait_ms: int
    page_cache_ms: int
    kept_hours: float
    disk: float
    one_of: str | None = field(default=None, metadata=OPTIONAL)
    """Name of the first of several masters under one process."""


@dataclass(frozen=True, slots=True)
class BrokerDays(Result):
    cluster: str
    broker: str
    id: int
    in_yesterday: int
    out_yesterday: int
    in_today: int
    out_today: int
    one_of: str | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class Properties:
    """Figures or settings of one server by name, in order."""

    address: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoreReport(Result):
    broker_address: str
    log_start: int
    log_end: int
    log_files: int
    not_flushed: int
    not_dispatched: int
    queues: int
    index_files: int
    disk_bytes: int
    disk_free_bytes: int
    verified_percent: int
    verified_ms: Time
    damaged_places: int
    damaged_bytes: int
    damage: tuple[str, ...]
    damaged_tables: tuple[str, ...]
    found_at_start: tuple[str, ...]

    @classmethod
    def of(cls, address: str, found: StoreState) -> "StoreReport":
        return cls(
            address,
            found.log_start,
            found.log_end,
            found.log_files,
            max(0, found.log_end - found.flushed),
            max(0, found.log_end - found.dispatched),
            found.queues,
            found.index_files,
            found.disk_bytes,
            found.disk_free_bytes,
            found.verified_percent,
            Time(found.verified_ms),
            found.damaged_places,
            found.damaged_bytes,
            tuple(f"{each.start} to {each.end}: {each.why}" for each in found.damage),
            tuple(found.damaged_tables),
            tuple(found.found_at_start),
        )


@dataclass(frozen=True, slots=True)
class TimersAt(Result):
    """Pending timers of one delay level of one broker; counts are since the broker's start."""

    broker_address: str
    level: int
    pending: int
    next_due_ms: Time
    """Earliest due time; 0 if the level's timers wait for another level."""
    late_ms: int
    """Milliseconds past that time."""
    delivered: int
    moved: int
    """Timers stored again, because they outlast the level."""
    recalled: int
    late_max_ms: int
    """Greatest lateness of a delivery."""
    not_searched: int
    """Messages of the level that the broker's start has still to search for timers."""

    @classmethod
    def of(cls, address: str, level: int, found: LevelTimers, now_ms: int) -> "TimersAt":
        due_ms = found.next_due_ms
        return cls(
            address,
            level,
            found.pending,
            Time(due_ms),
            max(0, now_ms - due_ms) if due_ms else 0,
            found.delivered_count,
            found.moved_count,
            found.recalled_count,
            found.late_max_ms,
            found.unread,
        )


class _SettingChanged(Change):
    __slots__ = ()
    key: str
    value: str
    remark: str | None

    def _said(self, address: str) -> str:
        """Return the sentence with the server's remark, such as that it must be restarted."""
        says = f" It says: {self.remark}" if self.remark else ""
        return f"{self.key} is {self.value} at {address}.{says}"


@dataclass(frozen=True, slots=True)
class BrokerSettingChanged(_SettingChanged):
    broker_address: str
    key: str
    value: str
    remark: str | None

    @property
    def sentence(self) -> str:
        return self._said(self.broker_address)


@dataclass(frozen=True, slots=True)
class NamesrvSettingChanged(_SettingChanged):
    namesrv: str
    key: str
    value: str
    remark: str | None

    @property
    def sentence(self) -> str:
        return self._said(self.namesrv)


@dataclass(frozen=True, slots=True)
class CleaningBegun(Change):
    SENTENCE = "{0.broker_address} has started to delete files."
    broker_address: str
    cleans: bool = True


@dataclass(frozen=True, slots=True)
class KvChanged(Change):
    """A changed entry of a table at one name server; value None: deleted."""

    namesrv: str
    namespace: str
    key: str
    value: str | None

    @property
    def sentence(self) -> str:
        what = "deleted" if self.value is None else self.value
        return f"{self.namespace}: {self.key} is {what} at {self.namesrv}."


@dataclass(frozen=True, slots=True)
class WritesWiped(Change):
    """A broker without write permission at one name server: its topics are read-only."""

    SENTENCE = "{0.namesrv}: {0.topics} topics of {0.broker} can only be read."
    namesrv: str
    broker: str
    topics: int


@dataclass(frozen=True, slots=True)
class WritesRestored(Change):
    """A broker with restored write permission at one name server."""

    SENTENCE = "{0.namesrv}: {0.topics} topics of {0.broker} can be written again."
    namesrv: str
    broker: str
    topics: int


@dataclass(frozen=True, slots=True)
class OpenTransactionAt(Result):
    producer_group: str
    topic: str
    message_id: str
    offset_message_id: str
    age_s: int
    born_ms: Time
    checked: int
    producer: str
    broker: str


@dataclass(frozen=True, slots=True)
class TransactionResumed(Change):
    SENTENCE = "{0.message_id} will be checked again."
    broker_address: str
    message_id: str


def first_number(text: str | None) -> float:
    """Return the first of the averages over 10, 60 and 600 s; 0 where it is missing."""
    return first_finite(text) or 0.0


def setting(key: str, value: str) -> bytes:
    """Return a setting as one line. Raises ArgumentIllegal for line breaks or an empty key."""
    if not key.strip() or any(each in key + value for each in "\r\n"):
        raise ArgumentIllegal("A setting has a name and no line breaks.")
    return format_property(key.strip(), value).encode()


def properties_of(body: bytes | memoryview | None) -> dict[str, str]:
    """Return the settings in a body, sorted by name, without comments."""
    found = {}
    for line in bytes(body or b"").decode(errors="replace").split("\n"):
        if "=" in line:
            found.update(_setting_in(line.strip()))
    return dict(sorted(found.items()))


def _setting_in(line: str) -> dict[str, str]:
    """Return the setting of a line; RocketMQ writes values without escaping them."""
    try:
        return parse_properties(line)
    except ValueError:
        name, _, value = line.partition("=")
        return {name.strip(): value.strip()}


class BrokerAdmin(AdminBase):
    @reads
    async def broker_rates(self, failures: Failures) -> AsyncIterator[BrokerRates]:
        """Return the load and the disk usage of all brokers."""
        async for each in self._figures(failures, _rates):
            yield each

    @reads
    async def broker_days(self, failures: Failures) -> AsyncIterator[BrokerDays]:
        """Return the message counts of all brokers, yesterday and today."""
        async for each in self._figures(failures, _days):
            yield each

    async def _figures(
        self, failures: Failures, show: Callable[[BrokerPlace, dict[str, str]], Figures]
    ) -> AsyncIterator[Figures]:
        for place in await self.brokers():
            try:
                table = await self.runtime_info(place.address)
            except BrokerError as error:
                failures.add(f"{place.name} {place.id} refuses to report its state: {error}")
            except ClientError as error:
                failures.add(f"{place.name} {place.id} does not answer: {error}")
            else:
                yield show(place, table)

    @operation
    async def runtime_info(self, address: str, timeout_ms: float = TIMEOUT_MS) -> dict[str, str]:
        """Return a broker's figures by name, under RocketMQ's names."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._read(KVTable, address, code, timeout_ms=timeout_ms)).table

    @reads
    async def broker_status(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[Properties]:
        """Return all figures of a broker, or of the brokers of a cluster or of all."""
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                yield Properties(address, dict(sorted((await self.runtime_info(address)).items())))

    @reads
    async def store_reports(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[StoreReport]:
        """Return the state of stores; damage is also a failure. Official brokers do not answer."""
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                found = await self._read(StoreState, address, RequestCode.GET_STORE_STATE)
                yield StoreReport.of(address, found)
                if found.damaged_places:
                    failures.add(
                        f"{found.damaged_places} places of the log of {address} are damaged,"
                        f" {found.damaged_bytes} bytes in all."
                    )
                for path in found.damaged_tables:
                    failures.add(f"The start of {address} found {path} damaged.")

    @reads
    async def timers(self, failures: Failures, **where: Unpack[Where]) -> AsyncIterator[TimersAt]:
        """Return the timers of brokers by delay level; official brokers have none."""
        for address in await self.targets(**where):
            with failures.attempt():
                table = await self.runtime_info(address)
                levels = {
                    level: text
                    for name, text in table.items()
                    if name.startswith(TIMERS_OF_LEVEL)
                    and (level := plain_number(name.removeprefix(TIMERS_OF_LEVEL))) is not None
                }
                now_ms = time_ns() // 1_000_000
                for level, text in sorted(levels.items()):
                    yield TimersAt.of(address, level, LevelTimers.decode(text), now_ms)

    @reads
    async def broker_settings(
        self, failures: Failures, **where: Unpack[Where]
    ) -> AsyncIterator[Properties]:
        """Return the settings of a broker, or of the brokers of a cluster or of all."""
        for address in await self.targets(**where, masters_only=False):
            with failures.attempt():
                yield Properties(address, await self.settings_at(address))

    @operation
    async def settings_at(self, address: str) -> dict[str, str]:
        answer = await self.ask(address, RequestCode.GET_BROKER_CONFIG)
        return await self._decoded(properties_of, answer.body)

    @changes
    async def update_broker_setting(
        self, failures: Failures, key: str, value: str, **where: Unpack[Where]
    ) -> AsyncIterator[BrokerSettingChanged]:
        """Change a setting of a broker, or of the masters of a cluster or of all.

        The broker applies it at once and saves it in its file.
        """
        body = setting(key, value)
        for address in await self.targets(**where):
            with failures.attempt():
                await self._check_known(address, RequestCode.GET_BROKER_CONFIG, key)
                remark = (
                    await self.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)
                ).remark
                yield BrokerSettingChanged(address, key, value, remark)

    async def _check_known(self, address: str, code: RequestCode, key: str) -> None:
        """Raise ClientError for a misspelled key, as servers answer success for unknown keys."""
        try:
            known = await self._decoded(properties_of, (await self.ask(address, code)).body)
        except ClientError:
            return  # The change itself fails with the reason, or needs less permission than this.
        name = key.strip()
        if name not in known and (found := closest(name, known)) is not None:
            raise ClientError(f"unknown setting {name}: did you mean {found}? nothing was changed")

    @changes
    async def clean(
        self, failures: Failures, what: FilesToClean, **where: Unpack[Where]
    ) -> AsyncIterator[CleaningBegun]:
        """Delete files at one broker, or at the masters of a cluster or of all."""
        for address in await self.targets(**where):
            with failures.attempt():
                await self.ask(address, what.value)
                yield CleaningBegun(address)

    # --- name servers

    @reads
    async def namesrv_settings(self, failures: Failures) -> AsyncIterator[Properties]:
        for address, answer in await self._ask_all_namesrvs(
            failures, RequestCode.GET_NAMESRV_CONFIG
        ):
            yield Properties(address, await self._decoded(properties_of, answer.body))

    @changes
    async def update_namesrv_setting(
        self, failures: Failures, key: str, value: str
    ) -> AsyncIterator[NamesrvSettingChanged]:
        """Change a setting of every name server."""
        body = setting(key, value)
        for address in self.namesrvs:
            await self._check_known(address, RequestCode.GET_NAMESRV_CONFIG, key)
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        for address, answer in await self._ask_all_namesrvs(failures, code, body=body):
            yield NamesrvSettingChanged(address, key, value, answer.remark)

    @changes
    async def put_kv(
        self, failures: Failures, namespace: str, key: str, value: str
    ) -> AsyncIterator[KvChanged]:
        """Set an entry of a table that every name server keeps."""
        for address in await self._put_kv(failures, namespace, key, value):
            yield KvChanged(address, namespace, key, value)

    @changes
    async def delete_kv(
        self, failures: Failures, namespace: str, key: str
    ) -> AsyncIterator[KvChanged]:
        """Delete an entry of a table that every name server keeps."""
        for address in await self._delete_kv(failures, namespace, key):
            yield KvChanged(address, namespace, key, None)

    @changes
    async def wipe_writes(self, failures: Failures, broker_name: str) -> AsyncIterator[WritesWiped]:
        """Revoke a broker's write permission at the name servers, so that producers avoid it."""
        code, header = RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name)
        for address, answer in await self._ask_all_namesrvs(failures, code, header):
            found = understood(WipeWritePermResponseHeader.decode, answer.fields)
            yield WritesWiped(address, broker_name, found.wipe_topic_count)
        await self._check_registered(failures, broker_name)

    @changes
    async def restore_writes(
        self, failures: Failures, broker_name: str
    ) -> AsyncIterator[WritesRestored]:
        code, header = RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name)
        for address, answer in await self._ask_all_namesrvs(failures, code, header):
            found = understood(AddWritePermResponseHeader.decode, answer.fields)
            yield WritesRestored(address, broker_name, found.add_topic_count)
        await self._check_registered(failures, broker_name)

    async def _check_registered(self, failures: Failures, broker_name: str) -> None:
        """Add a failure for an unknown broker; name servers answer success with 0 topics."""
        with failures.attempt():
            if broker_name not in (await self.cluster_info()).broker_addr_table:
                failures.add(f"no broker {broker_name} is registered")

    # --- transactions

    @reads
    async def transactions(
        self, failures: Failures, *, producer_group: str | None = None, **where: Unpack[Where]
    ) -> AsyncIterator[OpenTransactionAt]:
        """Return open transactions, oldest first; official brokers keep no table of them."""
        now_ms = time_ns() // 1_000_000
        for address in await self.targets(**where):
            async for each in self._open_at(failures, address):
                if producer_group in (None, each.producer_group):
                    yield OpenTransactionAt(
                        each.producer_group,
                        each.topic,
                        each.message_id,
                        each.offset_message_id,
                        (now_ms - each.born_timestamp) // 1000,
                        Time(each.born_timestamp),
                        each.check_times,
                        each.born_host,
                        address,
                    )

    async def _open_at(self, failures: Failures, address: str) -> AsyncIterator[OpenTransaction]:
        """Yield all open transactions of one broker, from as many answers as needed."""
        behind = -1
        code = RequestCode.GET_OPEN_TRANSACTIONS
        while True:
            found: list[OpenTransaction] = []
            with failures.attempt():
                header = OpenTransactionsHeader(behind)
                found = (await self._read(OpenTransactions, address, code, header)).transactions
            if not found:
                return
            for each in found:
                yield each
            behind = found[-1].physical_offset

    @operation
    async def resume_transaction(self, broker: str, offset_message_id: str) -> TransactionResumed:
        """Make the broker check back a transaction again that it no longer checks."""
        header = ResumeCheckHalfMessageHeader(offset_message_id)
        await self.ask(broker, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
        return TransactionResumed(broker, offset_message_id)


def _number(table: dict[str, str], name: str) -> float:
    return first_number(table.get(name))


def _rates(place: BrokerPlace, table: dict[str, str]) -> BrokerRates:
    earliest_ms = int(_number(table, "earliestMessageTimeStamp"))
    now_ms = time_ns() // 1_000_000
    return BrokerRates(
        place.cluster,
        place.name,
        place.id,
        place.address,
        table.get("brokerVersionDesc"),
        _number(table, "putTps"),
        _number(table, "getTransferedTps"),
        int(_number(table, "sendThreadPoolQueueSize")),
        int(_number(table, "sendThreadPoolQueueHeadWaitTimeMills")),
        int(_number(table, "pullThreadPoolQueueSize")),
        int(_number(table, "pullThreadPoolQueueHeadWaitTimeMills")),
        int(_number(table, "pageCacheLockTimeMills")),
        (now_ms - earliest_ms) / _HOUR_MS if earliest_ms > 0 else 0.0,
        _number(table, "commitLogDiskRatio"),
        table.get("oneOf"),
    )


def _days(place: BrokerPlace, table: dict[str, str]) -> BrokerDays:
    put, get = (
        [
            int(_number(table, f"msg{kind}TotalTodayMorning")),
            int(_number(table, f"msg{kind}TotalYesterdayMorning")),
            int(_number(table, f"msg{kind}TotalTodayNow")),
        ]
        for kind in ("Put", "Get")
    )
    days = put[0] - put[1], get[0] - get[1], put[2] - put[0], get[2] - get[0]
    return BrokerDays(place.cluster, place.name, place.id, *days, table.get("oneOf"))
