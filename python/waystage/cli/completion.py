"""`waystage completion`: the completion script of a shell.

Arrives: the shell's name.
Leaves: its script on stdout.
Must not know: the subcommands; click asks them as the user types.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

INSTALL = {
    "bash": "waystage completion bash > ~/.local/share/bash-completion/completions/waystage",
    "zsh": "waystage completion zsh > ~/.zfunc/_waystage   (with fpath+=~/.zfunc before compinit)",
    "fish": "waystage completion fish > ~/.config/fish/completions/waystage.fish",
}


@click.command(epilog="\b\nTo install:\n" + "\n".join(f"  {line}" for line in INSTALL.values()))
@click.argument("shell", type=click.Choice(sorted(INSTALL)))
def command(shell: str) -> None:
    """Print the completion script of SHELL."""
    from waystage.cli.main import group

    complete = get_completion_class(shell)
    assert complete is not None, "click knows every shell of the choice"
    click.echo(complete(group, {}, "waystage", "_WAYSTAGE_COMPLETE").source())
