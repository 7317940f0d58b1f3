"""The setting that says how a server uses its interpreter; a key of ours, the same for both."""

from dataclasses import dataclass

from storage.config import key


@dataclass(frozen=True)
class RuntimeSettings:
    """What has to be known before the server is made."""

    python_jit: bool = key("pythonJit", default=True)
    """Whether to use the JIT of a CPython that has one; PYTHON_JIT in the environment wins."""
