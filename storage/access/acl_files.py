"""All files of access control, read into one snapshot and written one at a time.

The files below `acl/` come first, by name, then the default file. If two files have the same
account, the first one counts. A save writes NAME.new, readable only by its owner, syncs it and
renames it over NAME. A power cut leaves the old file or the new one. Servers that share the files
(such as several masters of one process) serialize their changes with DEFAULT.lock.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from protocol.bodies_tables import DataVersion
from storage.access.acl_file import (
    ACCOUNTS,
    SHOWN_KEYS,
    VERSION,
    WHITE_LIST,
    Account,
    AclFile,
    AclFileError,
)
from storage.access.addresses import NOWHERE, Addresses
from storage.errors import store_error
from storage.files.checked_json import replace_file
from storage.files.disk import Disk
from storage.spelling import closest

_SUFFIXES = (".yml", ".yaml")
_FILES_MAX = 1000
"""Maximum files of one broker; they are read again every few seconds."""

_DEPTH_MAX = 8

Texts = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class AclSnapshot:
    """Immutable content of all files."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    white: Addresses = NOWHERE
    files: Mapping[str, AclFile] = field(default_factory=dict)
    """The files by path, in order of precedence."""
    warnings: tuple[str, ...] = ()

    def file_of(self, access_key: str) -> AclFile | None:
        for file in self.files.values():
            if any(account.access_key == access_key for account in file.accounts):
                return file
        return None

    @property
    def admin_count(self) -> int:
        return sum(account.admin for account in self.accounts.values())


def read_texts(disk: Disk, default_path: str) -> Texts:
    """Return the content of every file, in order of precedence. Raise StoreError."""
    folder = default_path.rpartition("/")[0] + "/acl"
    paths = [path for path in _below(disk, folder, 0) if path != default_path]
    if len(paths) > _FILES_MAX:
        raise AclFileError(f"{folder}: there are more than {_FILES_MAX} files.")
    found = {}
    for path in [*paths, default_path]:
        try:
            found[path] = disk.read_bytes(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and path != default_path:
                continue  # removed since the folder was read
            raise store_error(f"cannot read {path}", error) from error
    return found


def _below(disk: Disk, folder: str, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        return
    for name in disk.listdir(folder):
        path = f"{folder}/{name}"
        if disk.is_dir(path):
            yield from _below(disk, path, depth + 1)
        elif name.endswith(_SUFFIXES):
            yield path


def parse_texts(texts: Texts, *, takes_samples: bool) -> AclSnapshot:
    """Return the snapshot of all files. Raise AclFileError."""
    from storage.access.acl_yaml import parse_acl_file  # only servers with accounts load YAML

    files = {path: parse_acl_file(path, text) for path, text in texts.items()}
    accounts: dict[str, Account] = {}
    white = Addresses.of(each for file in files.values() for each in file.white.ranges)
    warnings = []
    for path, file in files.items():
        if file.samples and not takes_samples:
            raise AclFileError(
                f"{path}, account {file.samples[0]}: its secret is public, because it comes with"
                " RocketMQ; choose another one, or set aclAllowSampleCredentials=true."
            )
        if file.unknown_keys:
            unknown = ", ".join(_with_hint(each) for each in sorted({*file.unknown_keys}))
            warnings.append(f"{path}: unknown keys: {unknown}")
        for account in file.accounts:
            if account.access_key in accounts:
                warnings.append(f"{path}: account {account.access_key} is in another file, too")
            else:
                accounts[account.access_key] = account
    return AclSnapshot(accounts, white, files, tuple(warnings))


def _with_hint(key: str) -> str:
    found = closest(key, SHOWN_KEYS)
    return key if found is None else f"{key} (did you mean {found}?)"


# --- changes: the new content of one file


def with_account(file: AclFile, access_key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with `values` set for one account; a value of None removes its key.

    Other keys stay as they are. A missing account is created.
    """
    listed = _accounts(file)
    entry = next((each for each in listed if str(each.get("accessKey")) == access_key), None)
    if entry is None:
        listed.append(entry := {"accessKey": access_key})
    entry.update(values)
    for key in [key for key in values if values[key] is None]:
        del entry[key]
    return {**file.raw, ACCOUNTS: listed}


def without_account(file: AclFile, access_key: str) -> dict[str, Any]:
    kept = [entry for entry in _accounts(file) if str(entry.get("accessKey")) != access_key]
    return {**file.raw, ACCOUNTS: kept}


def with_white_list(file: AclFile, addresses: list[str]) -> dict[str, Any]:
    return {**file.raw, WHITE_LIST: addresses}


def with_version(raw: Mapping[str, Any], version: DataVersion) -> dict[str, Any]:
    counted = {"counter": version.counter, "timestamp": version.timestamp}
    return {**{key: raw[key] for key in raw if key != VERSION}, VERSION: [counted]}


@contextmanager
def locked_files(disk: Disk, default_path: str) -> Iterator[None]:
    """Hold the lock for changes of the files, and wait for it. Raise StoreError."""
    path = f"{disk.real_path(default_path)}.lock"
    try:
        file = disk.open(path, create=True)
    except OSError as error:
        raise store_error(f"cannot open {path}", error) from error
    try:
        try:
            disk.make_private(path)
            file.lock_byte(wait=True)
        except OSError as error:
            raise store_error(f"cannot lock {path}", error) from error
        yield
    finally:
        file.close()


def save_acl_file(disk: Disk, path: str, data: bytes) -> None:
    """Save `data` durably, readable only by the file's owner. Raise StoreError."""
    replace_file(disk, path, data, lambda _, new: disk.make_private(new))


def with_versions(snapshot: AclSnapshot, versions: Mapping[str, DataVersion]) -> AclSnapshot:
    """Return the snapshot with other versions of its files."""
    files = {
        path: replace(file, version=versions.get(path, file.version))
        for path, file in snapshot.files.items()
    }
    return replace(snapshot, files=files)


def _accounts(file: AclFile) -> list[dict[str, Any]]:
    return [dict(entry) for entry in file.raw.get(ACCOUNTS) or []]
