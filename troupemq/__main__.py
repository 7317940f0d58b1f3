"""`troupemq` and `python -m troupemq`: the same command line."""

from troupemq.interrupts import end_quietly, ignore_signals, interrupt_once


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    end_quietly()
    from troupemq.cli import cli  # here: a Ctrl-C meanwhile shall leave no traceback

    interrupt_once()
    try:
        cli(prog_name="troupemq")
    finally:
        ignore_signals()


if __name__ == "__main__":
    main()
