"""`troupemq` and `python -m troupemq`: the same command line."""

from troupemq.cli import cli


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    cli(prog_name="troupemq")


if __name__ == "__main__":
    main()
