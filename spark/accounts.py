"""The account that a reader or a sink presents to servers with access control.

The driver takes it from the options, a file or its environment, and passes it to the tasks. It
appears in no plan and no message.
"""

import os
from collections.abc import MutableMapping

from protocol.signature import Credentials
from storage.access.account import account_of, account_of_environment, account_of_file
from storage.errors import StoreError

_KEYS = ("accessKey", "secretKey", "securityToken")
_FILE = "aclFile"
ACCOUNT_NAMES = (*_KEYS, _FILE)


def account_in(given: MutableMapping[str, str]) -> Credentials | None:
    """Return the account in the options, removing its secrets from them, or the environment's.

    Raises StoreError for an incomplete account, or for two of them.
    """
    own = [given.pop(name, "") for name in _KEYS]
    file = given.get(_FILE)
    if file is not None and any(own):
        raise StoreError(f"{_FILE} and accessKey contradict each other: give one of them")
    if file is not None:
        return account_of_file(file)
    try:
        found = account_of(*own)
    except ValueError:
        raise StoreError(
            "accessKey and secretKey must be given together: give both or neither"
        ) from None
    return found or account_of_environment(os.environ)
