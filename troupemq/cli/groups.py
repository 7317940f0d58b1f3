"""Command groups that suggest names and list whole first sentences."""

from collections.abc import Mapping

import click

from storage.spelling import HINT_RATIO, closest

SENTENCE_CHARS = 1000
"""Maximum characters of a command's first sentence in a list; click's default cuts it at 45."""


class CommandGroup(click.Group):
    """Group that suggests the nearest name for a misspelled command."""

    def names(self, ctx: click.Context) -> Mapping[str, str]:
        """Return the accepted names, each with its command."""
        return {name: name for name in self.list_commands(ctx)}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; add a suggestion to the error."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.names(ctx)
            near = closest(args[0], names, HINT_RATIO)
            hint = "" if near is None else f" Did you mean {names[near]}?"
            raise click.UsageError(error.message + hint, ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            self.write_commands(ctx, formatter, self.list_commands(ctx))

    def write_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter, names: list[str]
    ) -> None:
        """Write these commands with their first sentences, except hidden ones."""
        found = ((name, self.get_command(ctx, name)) for name in names)
        formatter.write_dl(
            [
                (name, each.get_short_help_str(SENTENCE_CHARS))
                for name, each in found
                if each is not None and not each.hidden
            ]
        )
