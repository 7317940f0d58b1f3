"""`troupemq admin COMMAND`: the commands of mqadmin, under its names and short options, and ours.

brokers.py     clusters and brokers: state, settings, cleaning, write permissions
topics.py      topics: create, change, delete, where they are, how full
stats.py       what goes into and out of topics
queues.py      the queues of a topic: how old what they hold is
groups.py      consumer groups: their settings
members.py     who is there: members of groups, producers
progress.py    how far groups are behind
rebalances.py  who joined and left a group
offsets.py     where groups are: reset, skip, clone
messages.py    messages: by id, key or offset, and who has consumed them
printing.py    messages of whole queues, and consume queues
trials.py      how long sends take
transactions.py  those that nobody has ended
namesrv.py     the name servers' settings and tables
acl.py         access control
export.py      configurations and figures into files, as mqadmin writes them
transfer.py    topics and groups into a file, and back
"""

import click

from troupemq.cli.admin import (
    acl,
    brokers,
    export,
    groups,
    members,
    messages,
    namesrv,
    offsets,
    printing,
    progress,
    queues,
    rebalances,
    stats,
    topics,
    transactions,
    transfer,
    trials,
)
from troupemq.cli.admin.command import COMMANDS, AdminGroup
from troupemq.cli.options import HELP_OPTIONS

MODULES = (
    brokers,
    topics,
    stats,
    queues,
    groups,
    members,
    progress,
    rebalances,
    offsets,
    messages,
    printing,
    trials,
    transactions,
    namesrv,
    acl,
    export,
    transfer,
)
"""Importing them has registered their commands."""


@click.command(cls=AdminGroup, context_settings=HELP_OPTIONS)
def admin() -> None:
    """Look at clusters and change them: RocketMQ's mqadmin, with --json.

    Commands are found whatever their capitals. With --json stdout has one object a line; what
    went wrong is on stderr, with exit code 1.
    """


for name, made in COMMANDS.items():
    admin.add_command(made, name)
