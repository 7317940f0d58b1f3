"""Settings of a store: sizes in bytes, times in ms, RocketMQ's key beside each field."""

import os
from dataclasses import dataclass, field, fields
from typing import Any

from protocol.delay_levels import delay_levels_ms
from protocol.java_numbers import parse_int
from storage.errors import WrongSetting

CONSUME_QUEUE_UNIT_BYTES = 20
_HOURS_PER_DAY = 24
_INT_MAX = (1 << 31) - 1
"""Limit of a Java int, and so of any position in a file."""
_INDEX_ENTRIES_MIN = 2
"""Entry 0 of a file is never used."""
_AT_LEAST_1 = frozenset(
    (
        *("commit_log_file_bytes", "consume_queue_file_bytes", "consume_queue_ext_file_bytes"),
        *("max_hash_slots", "max_index_entries", "max_message_bytes"),
        *("flush_interval_ms", "flush_queue_interval_ms", "flush_delay_offset_interval_ms"),
    )
)
_DISK_MAX_USED_PERCENT = (10, 95)
_TIMER_DELAY_SEC_MAX = 10 * 366 * 86_400
_WRONG_HOURS = "deleteWhen is %s: write hours of the day from 00 to 23, several with ; between."


def key(name: str, *, default: Any, live: bool = False, secret: bool = False) -> Any:
    """Return a field that is filled from the setting `name` of a server's properties file.

    A `live` setting is read where it is used, so an administrator may change it at run time. A
    component that keeps a copy takes the new value at its next start. A `secret` value is never
    shown.
    """
    metadata = {"key": name, "live": live, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


def keys_of(config: type[Any]) -> dict[str, str]:
    """Return the field name for each external key of a configuration class."""
    return {item.metadata["key"]: item.name for item in fields(config) if "key" in item.metadata}


def live_keys_of(config: type[Any]) -> dict[str, str]:
    """Return `keys_of` reduced to the settings that may change while the server runs."""
    live = {item.name for item in fields(config) if item.metadata.get("live")}
    return {external: name for external, name in keys_of(config).items() if name in live}


def secret_keys_of(config: type[Any]) -> set[str]:
    """Return the external keys of values that are never shown."""
    return {item.metadata["key"] for item in fields(config) if item.metadata.get("secret")}


@dataclass(frozen=True)
class StoreConfig:
    """Configuration of a store; names and defaults are those of RocketMQ 4.9.7.

    Raise WrongSetting for a value that cannot work.
    """

    root: str = key("storePathRootDir", default=os.path.expanduser("~/store"))
    commit_log_dir: str = key("storePathCommitLog", default="")
    """Empty means `commitlog` below the root."""

    commit_log_file_bytes: int = key("mappedFileSizeCommitLog", default=1 << 30)
    consume_queue_file_bytes: int = key("mappedFileSizeConsumeQueue", default=6_000_000)
    """Rounded up to whole units of 20 bytes."""
    enable_consume_queue_ext: bool = key("enableConsumeQueueExt", default=False)
    consume_queue_ext_file_bytes: int = key("mappedFileSizeConsumeQueueExt", default=48 << 20)
    max_hash_slots: int = key("maxHashSlotNum", default=5_000_000)
    max_index_entries: int = key("maxIndexNum", default=20_000_000)
    max_message_bytes: int = key("maxMessageSize", default=4 << 20, live=True)
    message_index_enable: bool = key("messageIndexEnable", default=True)
    message_index_safe: bool = key("messageIndexSafe", default=False)
    max_query_count: int = key("maxMsgsNumBatch", default=64, live=True)
    """Maximum number of messages that one query by key finds."""
    default_query_max_num: int = key("defaultQueryMaxNum", default=32, live=True)
    """Number of messages that a query for a UNIQ_KEY gets, whatever number it requests."""
    check_crc_on_recover: bool = key("checkCRCOnRecover", default=True)
    warm_mapped_file_enable: bool = key("warmMapedFileEnable", default=False)
    message_delay_level: str = key(
        "messageDelayLevel",
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )

    flush_delay_offset_interval_ms: int = key("flushDelayOffsetInterval", default=10_000)
    timer_wheel_enable: bool = key("timerWheelEnable", default=True, live=True)
    """Whether messages with the timer properties of RocketMQ 5.x are accepted (send_rules.py)."""
    timer_max_delay_sec: int = key("timerMaxDelaySec", default=3 * 86_400, live=True)
    """Longest delay of a timer; both are settings of RocketMQ 5.x."""

    flush_disk_type: str = key("flushDiskType", default="ASYNC_FLUSH")
    flush_interval_ms: int = key("flushIntervalCommitLog", default=500)
    flush_least_pages: int = key("flushCommitLogLeastPages", default=4, live=True)
    flush_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval", default=10_000, live=True
    )
    flush_queue_interval_ms: int = key("flushIntervalConsumeQueue", default=1000)
    flush_queue_least_pages: int = key("flushConsumeQueueLeastPages", default=2, live=True)
    flush_queue_thorough_interval_ms: int = key(
        "flushConsumeQueueThoroughInterval", default=60_000, live=True
    )
    sync_flush_timeout_ms: int = key("syncFlushTimeout", default=5000)

    file_reserved_hours: int = key("fileReservedTime", default=72, live=True)
    delete_when: str = key("deleteWhen", default="04", live=True)
    """Hours of the day, local time, several separated by `;`."""
    disk_max_used_percent: int = key("diskMaxUsedSpaceRatio", default=75, live=True)
    """Kept within 10 and 95, as in 4.9.7."""
    clean_file_forcibly_enable: bool = key("cleanFileForciblyEnable", default=True, live=True)
    disk_clean_forcibly_ratio: float = key(
        "rocketmq.broker.diskSpaceCleanForciblyRatio", default=0.85, live=True
    )
    disk_warning_ratio: float = key(
        "rocketmq.broker.diskSpaceWarningLevelRatio", default=0.9, live=True
    )
    clean_interval_ms: int = key("cleanResourceInterval", default=10_000, live=True)
    delete_log_files_interval_ms: int = key("deleteCommitLogFilesInterval", default=100, live=True)
    delete_queue_files_interval_ms: int = key(
        "deleteConsumeQueueFilesInterval", default=100, live=True
    )

    retention_archive_dir: str = key("retentionArchivePath", default="")
    """Archive that must have a file's messages before it expires by age; empty: off. Extension."""

    scrub_enable: bool = key("scrubEnable", default=True)
    """TroupeMQ extensions: this setting and the next."""
    scrub_duty_percent: int = key("scrubDutyPercent", default=10, live=True)
    """Percent of one processor."""

    sink_progress_days: int = key("sinkProgressDays", default=30)
    """Days for which a sink's progress is kept after its last message. TroupeMQ extension."""
    sink_progress_max: int = key("sinkProgressMax", default=20_000)
    """Maximum number of pairs of task and topic with known progress. TroupeMQ extension."""

    max_transfer_bytes_in_memory: int = key(
        "maxTransferBytesOnMessageInMemory", default=256 << 10, live=True
    )
    max_transfer_count_in_memory: int = key(
        "maxTransferCountOnMessageInMemory", default=32, live=True
    )
    max_transfer_bytes_on_disk: int = key(
        "maxTransferBytesOnMessageInDisk", default=64 << 10, live=True
    )
    max_transfer_count_on_disk: int = key("maxTransferCountOnMessageInDisk", default=8, live=True)
    clock_behind_max_ms: int = key("clockBehindMaxMs", default=600_000)
    """Maximum lag of the clock behind the newest stored message at a start. TroupeMQ extension."""
    access_in_memory_max_ratio: int = key("accessMessageInMemoryMaxRatio", default=40)
    """Percent of the machine's memory that counts as cached before the end of the commit log."""
    offset_check_in_slave: bool = key("offsetCheckInSlave", default=False)
    """Whether a slave corrects readers' offsets, instead of only telling them to retry."""

    def __post_init__(self) -> None:
        if not self.root:
            raise WrongSetting("storePathRootDir is empty: name the folder of the store.")
        for setting, path in (
            ("storePathRootDir", self.root),
            ("storePathCommitLog", self.commit_log_dir),
        ):
            if path.startswith(("~", "$")):
                raise WrongSetting(
                    f"{setting} is {path}: write the whole path, for neither ~ nor $ is replaced;"
                    " a folder of that name is ./~ or ./$."
                )
        if "," in self.commit_log_dir:
            raise WrongSetting(
                f"storePathCommitLog names several directories ({self.commit_log_dir}): name one."
            )
        set_value = object.__setattr__
        set_value(self, "commit_log_dir", self.commit_log_dir or f"{self.root}/commitlog")
        self._check_sizes()
        units = -(-self.consume_queue_file_bytes // CONSUME_QUEUE_UNIT_BYTES)
        set_value(self, "consume_queue_file_bytes", units * CONSUME_QUEUE_UNIT_BYTES)
        if self.file_reserved_hours < 0:
            raise WrongSetting(
                f"fileReservedTime is {self.file_reserved_hours}: it must not be less than 0."
            )
        try:
            if not delay_levels_ms(self.message_delay_level):
                raise WrongSetting("messageDelayLevel is empty: name delays such as 1s 5s 1m.")
        except ValueError as error:
            levels = self.message_delay_level
            raise WrongSetting(f"messageDelayLevel is {levels}: {error}.") from None
        low_percent, high_percent = _DISK_MAX_USED_PERCENT
        set_value(
            self,
            "disk_max_used_percent",
            min(max(self.disk_max_used_percent, low_percent), high_percent),
        )
        if not 1 <= self.timer_max_delay_sec <= _TIMER_DELAY_SEC_MAX:
            raise WrongSetting(
                f"timerMaxDelaySec is {self.timer_max_delay_sec}: it must be 1 to"
                f" {_TIMER_DELAY_SEC_MAX}."
            )
        if self.clock_behind_max_ms < 0:
            raise WrongSetting("clockBehindMaxMs must not be less than 0.")
        if self.clean_interval_ms <= 0:
            raise WrongSetting("cleanResourceInterval must be greater than 0.")
        if not all(0 <= hour < _HOURS_PER_DAY for hour in self.delete_hours):
            raise WrongSetting(_WRONG_HOURS % self.delete_when)
        if not 1 <= self.scrub_duty_percent <= 100:
            raise WrongSetting("scrubDutyPercent must be between 1 and 100.")
        if self.sink_progress_days < 1 or self.sink_progress_max < 1:
            raise WrongSetting("sinkProgressDays and sinkProgressMax must be 1 or more.")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise WrongSetting(
                f"flushDiskType is {self.flush_disk_type}: use ASYNC_FLUSH or SYNC_FLUSH."
            )

    def _check_sizes(self) -> None:
        for external, name in keys_of(type(self)).items():
            if name not in _AT_LEAST_1:
                continue
            value = getattr(self, name)
            if value <= 0:
                raise WrongSetting(f"{external} must be greater than 0.")
            if name == "max_index_entries" and value < _INDEX_ENTRIES_MIN:
                raise WrongSetting(f"{external} must be {_INDEX_ENTRIES_MIN} or more.")
            if value > _INT_MAX:
                raise WrongSetting(f"{external} is {value}: it must be at most {_INT_MAX}.")

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day in which expired files are deleted. Raises WrongSetting."""
        try:
            return frozenset(
                parse_int(hour.strip()) for hour in self.delete_when.split(";") if hour.strip()
            )
        except ValueError:
            raise WrongSetting(_WRONG_HOURS % self.delete_when) from None

    @property
    def consume_queue_dir(self) -> str:
        return f"{self.root}/consumequeue"

    @property
    def consume_queue_ext_dir(self) -> str:
        return f"{self.root}/consumequeue_ext"

    @property
    def index_dir(self) -> str:
        return f"{self.root}/index"

    @property
    def config_dir(self) -> str:
        return f"{self.root}/config"

    @property
    def checkpoint_path(self) -> str:
        return f"{self.root}/checkpoint"

    @property
    def clean_stop_path(self) -> str:
        return f"{self.root}/troupemq/clean_stop.json"

    @property
    def format_path(self) -> str:
        return f"{self.root}/troupemq/format.json"

    @property
    def queue_list_path(self) -> str:
        return f"{self.root}/troupemq/queues.json"

    @property
    def sinks_path(self) -> str:
        return f"{self.root}/troupemq/sinks.json"

    @property
    def replica_mark_path(self) -> str:
        return f"{self.root}/troupemq/replica"

    @property
    def abort_path(self) -> str:
        return f"{self.root}/abort"

    @property
    def lock_path(self) -> str:
        return f"{self.root}/lock"
