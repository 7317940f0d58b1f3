"""Entry point of `troupemq` and `python -m troupemq`."""

import os
import sys

try:
    from troupemq.interrupts import INTERRUPTED, end_quietly, ignore_signals, interrupt_once
except ModuleNotFoundError:  # this module is in the wheel of the client, too
    sys.exit("troupemq: only troupemq-client is installed: install troupemq for its commands.")

SERVERS = ("broker", "namesrv", "run")


def main() -> None:
    end_quietly()
    if sys.argv[1:2] and sys.argv[1] in SERVERS:
        from troupemq.interpreter_environment import execute_for_server

        execute_for_server(os.environ)
    from troupemq.cli import cli  # here: Ctrl-C during the import must print no traceback

    try:
        interrupt_once()
        cli(prog_name="troupemq")
    except KeyboardInterrupt:  # outside a command
        raise SystemExit(INTERRUPTED) from None
    finally:
        ignore_signals()


if __name__ == "__main__":
    main()
