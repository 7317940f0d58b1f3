"""Exit codes of commands.

0      clean stop, or success of a command
1      failure without its own code
2      invalid options
10 …   REFUSALS below; docs/operations.md has the same table (a test compares them)
"""

from dataclasses import dataclass

from actors.engine.system import StartFailed
from actors.network.connections import PortTaken
from storage.access.acl_file import AclFileError
from storage.errors import (
    ClockBehind,
    DiskFull,
    NewerStore,
    NotPermitted,
    StoreLocked,
    TooManyFiles,
    UnfinishedCopy,
    WrongSetting,
    kind_of,
)
from troupemq.java import NoJava
from troupemq.text import FAILED

WRONG_OPTIONS = 2
WRONG_PYTHON = 17
"""Exit code of troupemq/__init__.py, the only module that an older Python imports."""


@dataclass(frozen=True)
class StartRefusal:
    """Reason to refuse a start, with its exit code; also a check of `troupemq doctor`."""

    name: str
    code: int
    errors: tuple[type[BaseException], ...]
    meaning: str


REFUSALS = (
    StartRefusal("settings", 10, (WrongSetting, AclFileError), "a setting that cannot work"),
    StartRefusal(
        "port", 11, (PortTaken,), "a port that is taken, or an address that cannot be used"
    ),
    StartRefusal("lock", 12, (StoreLocked,), "another process has the store"),
    StartRefusal("disk", 13, (DiskFull,), "no room on the disk"),
    StartRefusal(
        "permissions", 14, (NotPermitted,), "a file or folder that may not be read or written"
    ),
    StartRefusal("files", 15, (TooManyFiles,), "too few open files are allowed"),
    StartRefusal("java", 16, (NoJava,), "Spark needs a Java that is not there"),
    StartRefusal("python", WRONG_PYTHON, (), "the Python is older than 3.11"),
    StartRefusal("clock", 18, (ClockBehind,), "the clock is behind the store's newest message"),
    StartRefusal("format", 19, (NewerStore,), "a later version has written the store"),
    StartRefusal("copy", 20, (UnfinishedCopy,), "the store is a copy that is not finished"),
)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code for an error; for StartFailed, the code of its cause."""
    cause = error.__cause__ if isinstance(error, StartFailed) else error
    kind = kind_of(cause) if isinstance(cause, OSError) else type(cause)
    return next((each.code for each in REFUSALS if issubclass(kind, each.errors)), FAILED)
