"""Histograms of times from producer to store and on to consumers; the latency job's work.

A histogram has one bucket for each ms below 1024, then 128 buckets for each doubling, so its error
is at most 0.8 %. Histograms can be added, so percentiles need no merged log parts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import compute

from protocol.java_numbers import plain_number
from protocol.properties import DELAY, REAL_TOPIC
from protocol.timers import TIMER_OUT_MS
from protocol.topic_names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, SCHEDULE_TOPIC
from spark.analysis.scan import ScanPart
from spark.decoding.store_files import NumpyArray

COLUMNS = ("topic", "bornTimestamp", "storeTimestamp", "storedProperties")
COLUMNS_WITH_KEYS = (*COLUMNS, "uniqKey")
TRACE_COLUMNS = ("topic", "body")

EXACT_MS = 1024
_STEPS = 128
_FIRST_EXPONENT = 10

Key: TypeAlias = tuple[str, str, int]
"""Topic, or topic and group; way; and slot of time in ms."""

STORED, CONSUMED = "born → stored", "stored → consumed"
DELAYED = "born → delivered after a delay"
"""Stored again in its topic when due; the time includes the delay."""

RETRIED, DEAD = "born → retried", "born → dead letter"
"""Stored again after a failure; the time includes the tries before it."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket; negative values, from differing clocks, are counted apart."""

    counts: dict[int, int] = field(default_factory=dict)
    negative: int = 0
    largest_ms: int = 0

    def add(self, values_ms: NumpyArray) -> None:
        good = values_ms[values_ms >= 0]
        self.negative += len(values_ms) - len(good)
        if len(good):
            self.largest_ms = max(self.largest_ms, int(good.max()))
            buckets, counts = np.unique(bucket_of(good), return_counts=True)
            for bucket, count in zip(buckets.tolist(), counts.tolist(), strict=True):
                self.counts[bucket] = self.counts.get(bucket, 0) + count

    def merge(self, other: "Histogram") -> None:
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.negative += other.negative
        self.largest_ms = max(self.largest_ms, other.largest_ms)

    @property
    def total(self) -> int:
        """Number of values, without negative ones."""
        return sum(self.counts.values())

    def percentile(self, share: float) -> int | None:
        """Return the smallest value that covers at least this share of all; None without values."""
        wanted, seen = share * self.total, 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(upper_of(bucket), self.largest_ms)
        return None


def bucket_of(values_ms: NumpyArray) -> NumpyArray:
    """Return the bucket of each value, which must not be negative."""
    exact = np.minimum(values_ms, EXACT_MS - 1)
    large = np.maximum(values_ms, EXACT_MS).astype(np.int64)
    exponent = np.floor(np.log2(large)).astype(np.int64)
    exponent -= (np.int64(1) << exponent) > large  # log2 may round up to the next power
    step = ((large - (np.int64(1) << exponent)) * _STEPS) >> exponent
    above = EXACT_MS + (exponent - _FIRST_EXPONENT) * _STEPS + step
    return np.where(values_ms < EXACT_MS, exact, above)


def upper_of(bucket: int) -> int:
    """Return the largest value of a bucket."""
    if bucket < EXACT_MS:
        return bucket
    exponent, step = divmod(bucket - EXACT_MS, _STEPS)
    exponent += _FIRST_EXPONENT
    return (1 << exponent) + ((step + 1 << exponent) // _STEPS) - 1


@dataclass(frozen=True, slots=True)
class LatencyPart:
    """Input of one task."""

    scan: ScanPart
    slot_ms: int
    begun: Mapping[str, Sequence[tuple[str, int]]]
    """Traced consumptions by unique key: (group, start in ms)."""


Measured: TypeAlias = dict[Key, Histogram]


def measure_part(part: LatencyPart) -> Measured:
    found: Measured = defaultdict(Histogram)
    for batch in part.scan.batches():
        topic = batch["topic"][0].as_py()
        stored = _ms(batch["storeTimestamp"])
        taken = stored - _ms(batch["bornTimestamp"])
        slots = stored // part.slot_ms * part.slot_ms
        for way, chosen in _ways(topic, batch["storedProperties"]):
            for slot in np.unique(slots[chosen]).tolist():
                found[topic, way, slot].add(taken[chosen & (slots == slot)])
        if part.begun:
            _add_consumed(found, part, topic, batch["uniqKey"].to_pylist(), stored.tolist())
    return dict(found)


def _ways(topic: str, properties: pa.Array) -> Iterator[tuple[str, NumpyArray]]:
    """Yield each way, with a mask of the messages of a batch that it applies to."""
    everything = np.ones(len(properties), np.bool_)
    if topic.startswith(DLQ_TOPIC_PREFIX):
        yield DEAD, everything
    elif topic.startswith(RETRY_TOPIC_PREFIX):
        yield RETRIED, everything
    elif topic == SCHEDULE_TOPIC:  # delayed messages wait there, as stored by their producers
        yield STORED, everything
    else:
        delayed = _has(properties, DELAY) | _has(properties, TIMER_OUT_MS.decode())
        delayed &= _has(properties, REAL_TOPIC)
        yield DELAYED, delayed
        yield STORED, ~delayed


def _has(properties: pa.Array, name: str) -> NumpyArray:
    """Return which property texts have this property."""
    first = compute.starts_with(properties, f"{name}\x01")
    later = compute.match_substring(properties, f"\x02{name}\x01")
    found: NumpyArray = compute.or_(first, later).fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _add_consumed(
    found: Measured, part: LatencyPart, topic: str, keys: list[str | None], stored: list[int]
) -> None:
    for key, stored_ms in zip(keys, stored, strict=True):
        for group, begun_ms in part.begun.get(key or "", ()):
            slot = stored_ms // part.slot_ms * part.slot_ms
            name = f"{topic} → {group}"
            found[name, CONSUMED, slot].add(np.array([begun_ms - stored_ms], np.int64))


def merged(parts: Iterable[Measured]) -> Measured:
    """Return the sum of all parts."""
    total: Measured = defaultdict(Histogram)
    for part in parts:
        for key, histogram in part.items():
            total[key].merge(histogram)
    return dict(total)


def _ms(times: pa.Array) -> NumpyArray:
    values: NumpyArray = times.cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
    return values


_FIELD, _RECORD = "\x01", "\x02"
_BEFORE = "SubBefore"
_TIME_AT, _GROUP_AT, _ID_AT = 1, 3, 5


class Traces:
    """Starts of consumptions by unique key, for one in `every` messages, to limit memory.

    The key alone selects a message, so the sample is spread over all of the time.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self.begun: dict[str, list[tuple[str, int]]] = {}
        """Sampled consumptions by unique key: (group, start in ms)."""

        self.every = 1
        self.consumptions = 0
        """All traced consumptions, including those left out."""

    def add(self, key: str, group: str, begun_ms: int) -> None:
        self.consumptions += 1
        if self._is_taken(key):
            self.begun.setdefault(key, []).append((group, begun_ms))
            while len(self.begun) > self._keys_max:
                self.every *= 2
                self.begun = {
                    each: told for each, told in self.begun.items() if self._is_taken(each)
                }

    def _is_taken(self, key: str) -> bool:
        return crc32(key.encode()) % self.every == 0


def traces_in(parts: Iterable[Sequence[str]], keys_max: int) -> Traces:
    """Return the traces in the bodies of the trace topic, part by part.

    Each body has records `SubBefore`: type, time, region, group, request id, unique key, …
    """
    traces = Traces(keys_max)
    for bodies in parts:
        for body in bodies:
            for record in body.split(_RECORD):
                fields = record.split(_FIELD)
                if fields[0] == _BEFORE and len(fields) > _ID_AT:
                    begun, group, key = (fields[at] for at in (_TIME_AT, _GROUP_AT, _ID_AT))
                    begun_ms = plain_number(begun)
                    if begun_ms is not None:
                        traces.add(key, group, begun_ms)
    return traces


def trace_bodies(part: ScanPart) -> list[str]:
    """Return the bodies of one part of the trace topic."""
    return [
        (body or b"").decode("utf-8", "replace")
        for batch in part.batches()
        for body in batch["body"].to_pylist()
    ]
