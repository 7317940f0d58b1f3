"""Log lines of the servers in a test's output: warnings only."""

from contextlib import AbstractContextManager

from actors.engine.server_log import dropping

SLOW_HANDLER = "slow handler"


def quiet() -> AbstractContextManager[None]:
    """Log warnings of the servers only, unless this program has configured structlog itself."""
    return dropping(_is_noise)


def _is_noise(level: str, event: str) -> bool:
    """Return whether a line would fill the output, or says no more than that a machine is busy."""
    return level in ("debug", "info") or event == SLOW_HANDLER
