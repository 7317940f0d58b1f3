"""Commands of mqadmin, under its names and short options, and extensions: `admin COMMAND`.

Each command parses its options, calls a method of troupemq/client/admin/ and prints the result.

brokers.py    clusters, brokers, name servers, access control, transactions
topics.py     topics and their queues
groups.py     consumer groups, their members and offsets; producers
messages.py   messages, consume queues, trial sends
transfer.py   exports and imports
"""

import click

from troupemq.cli.admin import brokers, groups, messages, topics, transfer
from troupemq.cli.admin.command import COMMANDS, AdminGroup
from troupemq.cli.options import HELP_OPTIONS

MODULES = (brokers, topics, groups, messages, transfer)
"""Modules that register their commands when imported."""


@click.command(cls=AdminGroup, context_settings=HELP_OPTIONS)
def admin() -> None:
    """Inspect and change clusters: RocketMQ's mqadmin, with --json.

    Case does not matter in command names. With --json, stdout has one object per line. Errors go
    to stderr, with exit code 1.
    """


for name, made in COMMANDS.items():
    admin.add_command(made, name)
