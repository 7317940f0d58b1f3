"""Accounts in force: read from their files, replaced as a whole, changed by administrators.

A plain class; one actor owns the instance. If the files cannot be used, one line is logged and the
previous accounts stay in force. An administrator's change is checked and written before it takes
effect. A manual edit counts as a new version, which 4.9.7 does not notice.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from actors.engine.interfaces import SnapshotRef
from actors.engine.server_log import get_logger
from protocol.bodies_tables import DataVersion
from protocol.headers.admin import CreateAccessConfigHeader
from storage.access.acl_file import (
    ACCOUNT_KEYS,
    ACCOUNTS,
    PERMS,
    VERSION,
    WHITE_LIST,
    AclFile,
    AclFileError,
    as_list,
    split_perm,
)
from storage.access.acl_files import (
    AclSnapshot,
    Texts,
    locked_files,
    parse_texts,
    read_texts,
    save_acl_file,
    with_account,
    with_version,
    with_versions,
    with_white_list,
    without_account,
)
from storage.access.addresses import AddressError, parse_addresses
from storage.errors import StoreError
from storage.files.disk import Disk

log = get_logger(__name__)

_FINGERPRINT_DIGITS = 4
MASK = "******"
_FAILED = "The accesskey[%s] corresponding to accessConfig has been %s failed."
_UNCHANGED = "The access control files are unchanged."
_KEY_CHARS_MIN = 7
_SECRETS = ("secretKey", "previousSecretKey")


class ChangeRefused(Exception):
    """A change that is refused; the text is for the administrator."""


class AclStore:
    def __init__(
        self, disk: Disk, path: str, now_ms: Callable[[], int], *, takes_samples: bool
    ) -> None:
        self.path = path
        self.published = SnapshotRef(AclSnapshot())
        self._disk = disk
        self._now_ms = now_ms
        self._takes_samples = takes_samples
        self._texts: Texts = {}
        self._seen: Texts = {}
        """Texts of the last look; the same texts need no further check, valid or not."""
        self._found: Texts = {}
        """Texts that the last look found; the next one takes them if they are still the same."""
        self._versions: dict[str, DataVersion] = {}
        self._fault = ""
        """Reason for which the last look changed nothing."""
        self._gone: frozenset[str] = frozenset()
        """Accounts that the last external change has removed."""
        self._admin_count = 0
        """Before the change in progress."""

    def load(self) -> None:
        """Read the files at the start; create a missing default file. Raises StoreError."""
        if not self._disk.exists(self.path):
            save_acl_file(self._disk, self.path, b"")
        self._seen = read_texts(self._disk, self.path)
        snapshot = parse_texts(self._seen, takes_samples=self._takes_samples)
        versions = {path: file.version for path, file in snapshot.files.items()}
        self._take(self._seen, snapshot, versions)

    def look(self, *, at_once: bool = True) -> bool:
        """Take changed files; return False if another look must take them.

        Unless `at_once`, two looks must find the same texts: a text may be half-written.
        """
        texts: Texts = {}
        try:
            texts = read_texts(self._disk, self.path)
            before, self._found = self._found, texts
            if texts == self._seen:
                return True
            if not at_once and texts != before:
                return False
            snapshot = parse_texts(texts, takes_samples=self._takes_samples)
            self._refuse_emptied(snapshot)
        except StoreError as error:
            if str(error) != self._fault:
                log.error("access control reload failed, old accounts kept", reason=str(error))
            self._seen, self._fault = texts, str(error)
            return True
        self._seen, self._fault = texts, ""
        self._gone = frozenset(self.published.value.accounts) - frozenset(snapshot.accounts)
        now_ms = self._now_ms()
        versions = {}
        for path, file in snapshot.files.items():
            known = self._versions.get(path)
            if known is None or file.version.counter > known.counter:
                versions[path] = file.version
            else:
                edited = texts[path] != self._texts.get(path)
                versions[path] = known.next(now_ms) if edited else known
        self._take(texts, snapshot, versions)
        return True

    def _refuse_emptied(self, snapshot: AclSnapshot) -> None:
        """Raise AclFileError for a file that has lost its content; 4.9.7 passes over it, too."""
        before = self.published.value.files
        for path, file in snapshot.files.items():
            if not file.raw and path in before and before[path].raw:
                raise AclFileError(f"{path} is empty: to remove its accounts, write accounts: [].")

    def _take(self, texts: Texts, snapshot: AclSnapshot, versions: dict[str, DataVersion]) -> None:
        self._texts, self._versions = texts, versions
        self.published.value = with_versions(snapshot, versions)
        for warning in snapshot.warnings:
            log.warning("access control file doubtful", about=warning)
        if not snapshot.accounts:
            log.warning(
                "accounts missing", file=self.path, hint="all requests are refused: add an account"
            )
        log.info(
            "access control loaded",
            file=self.path,
            accounts=len(snapshot.accounts),
            files=len(texts),
        )

    # --- changes

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock and reload the files for a change.

        A manual edit is thus included, and another server of the same files waits. Raises
        ChangeRefused.
        """
        with _refusing(_UNCHANGED):
            self._admin_count = self.published.value.admin_count
            with locked_files(self._disk, self.path):
                self.look()
                if self._fault:
                    raise ChangeRefused(f"{_UNCHANGED} {self._fault}")
                yield

    def update_account(self, header: CreateAccessConfigHeader, *, keeps_previous: bool) -> None:
        """Create or change an account, inside `changing`. Raises ChangeRefused."""
        snapshot = self.published.value
        file = snapshot.file_of(header.access_key)
        secret = header.secret_key or ""
        if file is None and min(len(header.access_key), len(secret)) < _KEY_CHARS_MIN:
            raise ChangeRefused(
                f"The accessKey={header.access_key} and secretKey cannot be null and length should"
                " longer than 6"
            )
        if secret and len(secret) < _KEY_CHARS_MIN:
            raise ChangeRefused("The secretKey value length should longer than 6")
        values = _values_of(header)
        before = None if file is None else _entry(file, header.access_key).get("secretKey")
        # a repeated request changes nothing
        if secret and not (keeps_previous and str(before) == secret):
            values["previousSecretKey"] = before if keeps_previous else None
        failed = _FAILED % (header.access_key, "updated")
        with _refusing(failed):
            target = file or snapshot.files[self.path]
            self._write(target.path, with_account(target, header.access_key, values))

    def delete_account(self, access_key: str) -> None:
        """Delete an account. Raises ChangeRefused.

        If another server of the same files has just deleted it, for the same command, the call
        succeeds.
        """
        failed = _FAILED % (access_key, "deleted")
        file = self.published.value.file_of(access_key)
        if file is None:
            if access_key in self._gone:
                self._gone -= {access_key}
                return
            raise ChangeRefused(failed)
        with _refusing(failed):
            self._write(file.path, without_account(file, access_key))

    def set_white_list(self, addresses: str, path: str) -> None:
        """Set a file's allowlist; "" is the default file. Raises ChangeRefused for other files."""
        failed = f"The globalWhiteAddresses[{addresses}] has been updated failed."
        file = self.published.value.files.get(path or self.path)
        if file is None:
            raise ChangeRefused(failed)
        texts = [text for text in split_addresses(addresses) if text]
        with _refusing(failed):
            self._write(file.path, with_white_list(file, texts))

    def _write(self, path: str, raw: Mapping[str, Any]) -> None:
        from storage.access.acl_yaml import encode_acl_file

        version = self._versions.get(path, DataVersion(0, 0)).next(self._now_ms())
        texts = {**self._texts, path: encode_acl_file(with_version(raw, version))}
        snapshot = parse_texts(texts, takes_samples=self._takes_samples)
        if (self._admin_count or self.published.value.admin_count) and not snapshot.admin_count:
            raise ChangeRefused("The last admin account cannot be deleted or changed to another")
        save_acl_file(self._disk, path, texts[path])
        self._seen = texts
        self._take(texts, snapshot, {**self._versions, path: version})

    # --- views

    def fingerprints(self) -> dict[str, str]:
        """Return a hash of each file without its version, too short for guessing secrets."""
        found = {}
        for path, file in self.published.value.files.items():
            content = {key: file.raw[key] for key in file.raw if key != VERSION}
            text = repr(sorted(content.items())).encode()
            found[path] = sha256(text).hexdigest()[:_FINGERPRINT_DIGITS]
        return found

    def shown(self) -> dict[str, Any]:
        """Return allowlisted addresses and accounts, without secrets: the body of answer 54."""
        accounts: list[dict[str, Any]] = []
        white: list[str] = []
        names: set[str] = set()
        for file in self.published.value.files.values():
            white += map(str, as_list(file.raw.get(WHITE_LIST)))
            for entry in file.raw.get(ACCOUNTS) or []:
                if str(entry.get("accessKey")) not in names:
                    names.add(str(entry.get("accessKey")))
                    accounts.append(_masked(entry))
        return {"globalWhiteAddrs": white, "plainAccessConfigs": accounts}


def _masked(entry: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in entry.items() if value is not None}
    for name in ("accessKey", "whiteRemoteAddress"):
        if name in shown:
            shown[name] = str(shown[name])
    hidden = shown.keys() - (ACCOUNT_KEYS - {*_SECRETS})  # a misspelled key may have a secret, too
    return {name: MASK if name in hidden else value for name, value in shown.items()}


def _values_of(header: CreateAccessConfigHeader) -> dict[str, Any]:
    values: dict[str, Any] = {"admin": header.admin}
    if header.secret_key:
        values["secretKey"] = header.secret_key
    if header.white_remote_address is not None:
        try:
            parse_addresses(header.white_remote_address)
        except AddressError as error:
            raise ChangeRefused(str(error)) from None
        values["whiteRemoteAddress"] = header.white_remote_address
    if header.default_topic_perm:
        values["defaultTopicPerm"] = header.default_topic_perm
    if header.default_group_perm:
        values["defaultGroupPerm"] = header.default_group_perm
    for name, listed in (("topicPerms", header.topic_perms), ("groupPerms", header.group_perms)):
        if listed is not None:
            values[name] = [_checked_perm(each.strip()) for each in listed.split(",") if each]
    return values


def _checked_perm(entry: str) -> str:
    if split_perm(entry) is None:
        raise ChangeRefused(
            f"Parse Resource format error for {entry}.\n"
            "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
        )
    if entry.partition("=")[2].strip() not in PERMS:
        raise ChangeRefused(
            f"Parse resource permission error for {entry}.\n"
            "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
        )
    return entry


def split_addresses(text: str) -> Iterator[str]:
    """Split at the commas outside of braces."""
    start = open_braces = 0
    for at, char in enumerate(text):
        if char == "," and not open_braces:
            yield text[start:at].strip()
            start = at + 1
        open_braces += (char == "{") - (char == "}")
    yield text[start:].strip()


def _entry(file: AclFile, access_key: str) -> Mapping[str, Any]:
    for entry in file.raw.get(ACCOUNTS) or []:
        if str(entry.get("accessKey")) == access_key:
            return entry if isinstance(entry, dict) else {}
    return {}


@contextmanager
def _refusing(text: str) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        log.warning("access control not changed", reason=str(error))
        raise ChangeRefused(f"{text} {error}") from None
