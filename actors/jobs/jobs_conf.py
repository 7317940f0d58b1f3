"""Parser of conf/jobs.conf, which schedules Spark jobs; each section is an entry.

An invalid entry ends the start with one sentence that names file and entry.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from configparser import ConfigParser, SectionProxy
from configparser import Error as ConfigError
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from actors.jobs.messages import DEADLINE_MS, NICE, NICE_MAX
from actors.jobs.timetable import BadExpression, Occasions
from protocol.java_numbers import plain_number
from storage.errors import WrongSetting
from storage.spelling import did_you_mean

RETRIES_MAX = 20

ENTRIES_MAX = 100
"""Each entry costs a check per minute and a slot in the queue of runs."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DURATION = re.compile(r"(\d{1,6})\s*(s|m|h|d)")
_MEMORY = re.compile(r"(\d{1,6})([mg])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MEMORY_MIN_MB = 512
"""Spark needs at least 450 MiB."""

_KEYS = ("job", "cron", "timeZone", "deadline", "memory", "master", "retries", "nice")
_ARGUMENT = "argument."


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """One entry: job, occasions, arguments, and what to do after a failure."""

    name: str
    job: str
    occasions: Occasions
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that override conf/spark.conf."""

    deadline_ms: float = DEADLINE_MS
    """Timeout of one try."""

    retries: int = 0
    """Maximum retries of a failed run."""

    nice: int = NICE


def load_jobs(path: Path, jobs: Collection[str]) -> list[ScheduledJob]:
    """Return the entries of a file in order; `jobs` are the known ones. Raises WrongSetting."""
    parser = ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), default_section=""
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise WrongSetting(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongSetting(f"{path} is not UTF-8: save it in this encoding") from error
    except ConfigError as error:
        raise WrongSetting(f"{path}: {_first_line(error)}") from error
    if len(parser.sections()) > ENTRIES_MAX:
        raise WrongSetting(f"{path} has more than {ENTRIES_MAX} entries: remove some")
    return [_Entry(path, parser[name], jobs).read() for name in parser.sections()]


class _Entry:
    """Parser of one section."""

    def __init__(self, path: Path, section: SectionProxy, jobs: Collection[str]) -> None:
        self._path = path
        self._section = section
        self._jobs = jobs

    def read(self) -> ScheduledJob:
        name = self._section.name
        if not _NAME.fullmatch(name):
            raise self._wrong("invalid name: use letters, digits, - and _")
        for key in self._section:
            if key not in _KEYS and not key.startswith(_ARGUMENT):
                known = f"there is {', '.join(_KEYS)}, {_ARGUMENT}…"
                raise self._wrong(f"{key} is no setting; {did_you_mean(key, _KEYS, known)}")
        job = self._must("job")
        if job not in self._jobs:
            known = f"there is {', '.join(self._jobs)}"
            raise self._wrong(f"there is no job {job}; {did_you_mean(job, self._jobs, known)}")
        return ScheduledJob(
            name=name,
            job=job,
            occasions=self._occasions(),
            arguments=self._arguments(),
            settings=self._settings(),
            deadline_ms=self._optional("deadline", DEADLINE_MS, self._duration_ms),
            retries=self._optional("retries", 0, partial(self._count, "retries", RETRIES_MAX)),
            nice=self._optional("nice", NICE, partial(self._count, "nice", NICE_MAX)),
        )

    def _occasions(self) -> Occasions:
        expression, key = self._must("cron"), self._section.get("timeZone", "UTC")
        try:
            zone = ZoneInfo(key)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise self._wrong(
                f"unknown timeZone '{key}': use one such as Europe/Berlin, or install "
                "the time zones of the system (tzdata)"
            ) from None
        try:
            return Occasions(expression, zone)
        except BadExpression as error:
            raise self._wrong(
                f"invalid cron '{expression}': {error}; use one such as 30 2 * * *"
            ) from None

    def _arguments(self) -> dict[str, Any]:
        return {
            key.removeprefix(_ARGUMENT): argument_value(value)
            for key, value in self._section.items()
            if key.startswith(_ARGUMENT)
        }

    def _settings(self) -> dict[str, str]:
        settings = {}
        if "memory" in self._section:
            settings["spark.driver.memory"] = self._memory(self._section["memory"])
        if "master" in self._section:
            settings["spark.master"] = self._must("master")
        return settings

    def _memory(self, text: str) -> str:
        found = _MEMORY.fullmatch(text)
        if found is None:
            raise self._wrong(f"invalid memory '{text}': use a value such as 512m or 2g")
        if int(found[1]) * (1024 if found[2] == "g" else 1) < _MEMORY_MIN_MB:
            raise self._wrong(f"memory '{text}' is not enough for Spark: use 512m or more")
        return text

    def _duration_ms(self, text: str) -> float:
        found = _DURATION.fullmatch(text)
        if found is None or not int(found[1]):
            raise self._wrong(f"invalid deadline '{text}': use a value such as 90s, 30m, 6h or 1d")
        return float(int(found[1]) * _UNIT_MS[found[2]])

    def _count(self, key: str, most: int, text: str) -> int:
        number = plain_number(text, most)
        if number is None:
            raise self._wrong(f"invalid {key} '{text}': use a number from 0 to {most}")
        return number

    def _optional(self, key: str, default: Any, read: Callable[[str], Any]) -> Any:
        return read(self._section[key]) if key in self._section else default

    def _must(self, key: str) -> str:
        value = self._section.get(key, "")
        if not value:
            raise self._wrong(f"{key} is missing: add the line {key} = …")
        return value

    def _wrong(self, why: str) -> WrongSetting:
        return WrongSetting(f"{self._path}, entry [{self._section.name}]: {why}")


def argument_value(text: str) -> Any:
    """Return the value of a job's argument: parsed JSON, or else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _first_line(error: ConfigError) -> str:
    """Return configparser's message on one line."""
    return " ".join(str(error).split())
