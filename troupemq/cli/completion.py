"""Shell completion: `completion SHELL`."""

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands and options.

    \b
    For bash, store it once and open a new shell:
    troupemq completion bash > ~/.local/share/bash-completion/completions/troupemq
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    root = ctx.find_root()
    click.echo(made(root.command, {}, "troupemq", "_TROUPEMQ_COMPLETE").source())
