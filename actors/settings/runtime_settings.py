"""Setting of the Python interpreter, for brokers and name servers; TroupeMQ extension."""

from dataclasses import dataclass

from storage.config import key


@dataclass(frozen=True)
class RuntimeSettings:
    """Settings needed before the server is created."""

    python_jit: bool = key("pythonJit", default=True)
    """Whether to use the JIT of CPython if it has one; PYTHON_JIT in the environment overrides it.
    """
