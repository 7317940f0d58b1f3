"""PyPy's collector gets the settings of a server before the server begins."""

import sys
from collections.abc import Mapping

from troupemq.pypy_collector import SETTINGS, execute_with, server_environment


def test_pypy_gets_what_the_environment_lacks_and_another_python_nothing() -> None:
    own = {"PYPY_GC_NURSERY": "32MB", "HOME": "/"}
    wanted = server_environment(own, "pypy")
    assert wanted == {name: value for name, value in SETTINGS.items() if name not in own}
    assert server_environment({**own, **wanted}, "pypy") == {}
    assert server_environment({}, "cpython") == {}


def test_a_server_executes_its_own_command_line_once_more() -> None:
    executed: list[tuple[str, list[str], Mapping[str, str]]] = []

    def execute(path: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        executed.append((path, arguments, environment))

    execute_with({}, {"HOME": "/"}, execute)
    assert executed == []
    execute_with({"NAME": "x"}, {"HOME": "/"}, execute)
    path, arguments, environment = executed[0]
    assert path == arguments[0] == sys.executable
    assert arguments[1:] == sys.orig_argv[1:]
    assert environment == {"HOME": "/", "NAME": "x"}
