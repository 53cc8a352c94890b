"""Refuses options that have no effect in combination with others.

Arrives: the running command, names of its options.
Leaves: nothing, or a usage error that names them.
Must not know: the meaning of options.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from waystage.cli.common import ExitCode, UserError

_SAID = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def given(names: Iterable[str]) -> list[str]:
    """The option strings of those parameters that were given on the command line."""
    ctx = click.get_current_context()
    said = [name for name in names if ctx.get_parameter_source(name) in _SAID]
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    return [max(parameters[name].opts, key=len) for name in said]


def refuse(names: Iterable[str], why: str) -> None:
    """Raise UserError with the given options of these and `why` they have no effect."""
    said = given(names)
    if said:
        raise UserError(f"{', '.join(said)}: {why}", ExitCode.USAGE)
