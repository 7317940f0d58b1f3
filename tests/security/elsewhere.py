"""A38 from addresses that are no loopback, which the limits leave out, in a network of its own.

Run behind IN_A_NETWORK: `python -m tests.security.elsewhere FOLDER` prints what it tells.
"""

import sys
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

from tests.security.attackers import FROM_ELSEWHERE, OPEN_MAX
from tests.security.test_attempts_in_full import attempt

if __name__ == "__main__":
    _, hard = getrlimit(RLIMIT_NOFILE)
    setrlimit(RLIMIT_NOFILE, (min(OPEN_MAX, hard), hard))
    attempt(FROM_ELSEWHERE, Path(sys.argv[1]), print)
