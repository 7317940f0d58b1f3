"""Accounts of the console: users with a role, and tokens for programs.

They are one JSON file with mode 0600, replaced as a whole:

    users   name → role, salt, hash: scrypt of the password, hexadecimal
    tokens  name → role, hash: SHA-256 of the token, which is random and long

If the file is missing, a start creates the user `admin` and prints its password once.
"""

import hmac
import json
from dataclasses import asdict, dataclass
from hashlib import scrypt, sha256
from pathlib import Path
from secrets import token_hex, token_urlsafe
from threading import BoundedSemaphore, Lock

from storage.errors import StoreError, reason_of
from storage.files.checked_json import replace_file
from storage.files.disk import RealDisk

ROLES = ("viewer", "operator", "admin")
"""In ascending order: each role includes the rights of the roles before it."""

FIRST_USER = "admin"
NAME_CHARS_MAX = 64
PASSWORD_CHARS_MAX = 256
PASSWORD_CHARS_MIN = 10
ENTRIES_MAX = 1000

SCRYPT = {"n": 1 << 15, "r": 8, "p": 1, "maxmem": 64 << 20}
"""32 MiB and about 80 ms for each password."""

_AT_ONCE = BoundedSemaphore(2)
"""Limit of concurrent password checks: 64 MiB in all."""

TOKEN_PREFIX = "tmq_"


@dataclass(frozen=True)
class Viewer:
    """Authenticated user, or a program if `by_token`."""

    name: str
    role: str
    by_token: bool = False

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class _User:
    role: str
    salt: str
    hash: str


@dataclass(frozen=True)
class _Token:
    role: str
    hash: str


def role_fault(role: str) -> str | None:
    """Return why this is not a role, or None."""
    return None if role in ROLES else f"The role is invalid: use {', '.join(ROLES)}."


def name_fault(name: str) -> str | None:
    """Return why this is not a valid name, or None."""
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        return f"The name is invalid: use 1 to {NAME_CHARS_MAX} printable characters."
    return None


class Accounts:
    """Users and tokens, for any thread.

    Raises StoreError if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._users: dict[str, _User] = {}
        self._tokens: dict[str, _Token] = {}
        self.first_password: str | None = None
        """Created at this start; None if accounts existed."""
        self._unknown_user = _hashed(token_urlsafe(), "viewer")
        if path.exists():
            self._load()
        else:
            self.first_password = self.new_password(FIRST_USER, "admin")

    def check(self, name: str, password: str) -> Viewer | None:
        """Return the user with this password; an unknown name takes as long."""
        user = self._users.get(name)
        is_right = _matches(user or self._unknown_user, password[:PASSWORD_CHARS_MAX])
        return Viewer(name, user.role) if user is not None and is_right else None

    def viewer_of(self, name: str) -> Viewer | None:
        """Return the user with its current role, which may differ from that at login."""
        user = self._users.get(name)
        return None if user is None else Viewer(name, user.role)

    def of_token(self, token: str) -> Viewer | None:
        """Return the program with this token."""
        digest = _digest(token)
        for name, each in list(self._tokens.items()):
            if hmac.compare_digest(each.hash, digest):
                return Viewer(f"token {name}", each.role, by_token=True)
        return None

    def users(self) -> dict[str, str]:
        """Return the role of each user."""
        return {name: user.role for name, user in sorted(self._users.items())}

    def tokens(self) -> dict[str, str]:
        """Return the role of each token."""
        return {name: token.role for name, token in sorted(self._tokens.items())}

    def new_password(self, name: str, role: str) -> str:
        """Create or replace a user; return its password, which is not stored."""
        password = token_urlsafe(15)
        self._put_user(name, _hashed(password, role))
        return password

    def set_password(self, name: str, password: str) -> None:
        self._put_user(name, _hashed(password, self._users[name].role))

    def _put_user(self, name: str, user: _User) -> None:
        with self._lock:
            self._write({**self._users, name: user}, self._tokens)

    def remove_user(self, name: str) -> bool:
        """Remove a user; return False if it is missing or the last admin."""
        with self._lock:
            rest = {each: user for each, user in self._users.items() if each != name}
            if rest.keys() == self._users.keys() or not _has_admin(rest):
                return False
            self._write(rest, self._tokens)
            return True

    def new_token(self, name: str, role: str) -> str:
        """Create or replace a token; return its text, which is not stored."""
        token = TOKEN_PREFIX + token_urlsafe(32)
        with self._lock:
            self._write(self._users, {**self._tokens, name: _Token(role, _digest(token))})
        return token

    def remove_token(self, name: str) -> bool:
        """Remove a token; return False if it is missing."""
        with self._lock:
            rest = {each: token for each, token in self._tokens.items() if each != name}
            if rest.keys() == self._tokens.keys():
                return False
            self._write(self._users, rest)
            return True

    def _load(self) -> None:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            self._users = {name: _User(**each) for name, each in found["users"].items()}
            self._tokens = {name: _Token(**each) for name, each in found["tokens"].items()}
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {reason_of(error)}.") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StoreError(
                f"{self._path} is not a valid accounts file: repair it, or move it away; then the"
                f" next start creates the user {FIRST_USER} with a new password."
            ) from None

    def _write(self, users: dict[str, _User], tokens: dict[str, _Token]) -> None:
        """Write the file. The caller holds the lock, except in the constructor."""
        if len(users) + len(tokens) > ENTRIES_MAX:
            raise StoreError(
                f"limit of {ENTRIES_MAX} accounts and tokens reached: remove one first."
            )
        body = {
            "users": {name: asdict(each) for name, each in users.items()},
            "tokens": {name: asdict(each) for name, each in tokens.items()},
        }
        data = json.dumps(body, indent=1).encode()
        disk = RealDisk()
        replace_file(disk, str(self._path), data, lambda _, new: disk.make_private(new))
        self._users, self._tokens = users, tokens


def _has_admin(users: dict[str, _User]) -> bool:
    return any(user.role == "admin" for user in users.values())


def _digest(token: str) -> str:
    return sha256(token.encode(errors="replace")).hexdigest()


def _scrypt(password: str, salt: str) -> str:
    with _AT_ONCE:
        return scrypt(password.encode(errors="replace"), salt=bytes.fromhex(salt), **SCRYPT).hex()


def _hashed(password: str, role: str) -> _User:
    salt = token_hex(16)
    return _User(role, salt, _scrypt(password, salt))


def _matches(user: _User, password: str) -> bool:
    return hmac.compare_digest(user.hash, _scrypt(password, user.salt))
