"""The account that a program presents to servers: from its environment or from a file.

The file has the keys of mqadmin's conf/tools.yml: accessKey, secretKey, and optionally
securityToken. No command-line option takes them, because every user of the machine can read it.
"""

from collections.abc import Mapping

from protocol.signature import Credentials
from storage.errors import StoreError, reason_of
from storage.spelling import closest

ACL_FILE = "TROUPEMQ_ACL_FILE"
ACCESS_KEY, SECRET_KEY = "TROUPEMQ_ACCESS_KEY", "TROUPEMQ_SECRET_KEY"
SECURITY_TOKEN = "TROUPEMQ_SECURITY_TOKEN"
BROKER_ACCESS_KEY, BROKER_SECRET_KEY = "TROUPEMQ_BROKER_ACCESS_KEY", "TROUPEMQ_BROKER_SECRET_KEY"
"""A broker's own account, which is kept from the programs that it starts."""


def account_of(access_key: str, secret_key: str, security_token: str = "") -> Credentials | None:
    """Return the account, or None if both keys are empty. Raise ValueError for one alone."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise ValueError
    return Credentials(access_key, secret_key, security_token or None)


def account_of_environment(environment: Mapping[str, str]) -> Credentials | None:
    """Return the account of the variables, else of their file, else None. Raise StoreError."""
    names = ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN
    try:
        found = account_of(*(environment.get(name, "") for name in names))
    except ValueError:
        raise StoreError(f"{ACCESS_KEY} and {SECRET_KEY} belong together") from None
    if found is None and environment.get(ACL_FILE):
        return account_of_file(environment[ACL_FILE])
    return found


def account_of_file(path: str) -> Credentials | None:
    """Return the account in a file, or None if it has no keys. Raise StoreError."""
    try:  # Imported here: without such a file a program needs no YAML.
        from storage.access.acl_yaml import read_keys
    except ModuleNotFoundError:
        advice = f"install pyyaml, or set {ACCESS_KEY} and {SECRET_KEY}"
        raise StoreError(f"{path} cannot be read without PyYAML: {advice}") from None
    try:
        with open(path, "rb") as file:
            found = read_keys(path, file.read())
        for name in found:
            if name not in _KEYS and (known := closest(name, _KEYS)) is not None:
                raise StoreError(f"{path}: unknown key {name}: did you mean {known}?")
        return account_of(*(found.get(name, "") for name in _KEYS))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}") from None
    except ValueError:
        raise StoreError(f"{path}: accessKey and secretKey belong together") from None


_KEYS = ("accessKey", "secretKey", "securityToken")
