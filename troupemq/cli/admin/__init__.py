"""`troupemq admin COMMAND`: the commands of mqadmin, under its names and short options, and ours.

Each parses its options, calls a method of troupemq/client/admin/ and prints what that returns.

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
"""Importing them has registered their commands."""


@click.command(cls=AdminGroup, context_settings=HELP_OPTIONS)
def admin() -> None:
    """Look at clusters and change them: RocketMQ's mqadmin, with --json.

    Commands are found whatever their capitals. With --json stdout has one object a line; what
    went wrong is on stderr, with exit code 1.
    """


for name, made in COMMANDS.items():
    admin.add_command(made, name)
