"""The commands of the command line, whichever way a group has them."""

import click


def commands_of(group: click.Group) -> dict[str, click.Command]:
    """Return all commands by name; imports them."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}
