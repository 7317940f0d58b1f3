"""The account that a reader or a sink shows to servers with access control: from their options.

Tasks get it with what they are to do, from the driver, which has it from the options, a file, or
its environment. It appears in no plan and no message.
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
    """The one that the options name, whose secrets it takes out of them; else the environment's.

    Raises StoreError for half of one, or two of them.
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
        raise StoreError("accessKey and secretKey belong together: give both or none") from None
    return found or account_of_environment(os.environ)
