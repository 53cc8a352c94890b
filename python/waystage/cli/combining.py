"""Options that do nothing beside others: refused, since an option that is given is meant.

Arrives: the command that runs, names of its options.
Leaves: nothing, or a usage error that names them.
Must not know: what options mean.
"""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from waystage.cli.common import ExitCode, UserError

_SAID = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def given(names: Iterable[str]) -> list[str]:
    """Those of these parameters of the running command that were given, as they are written."""
    ctx = click.get_current_context()
    said = [name for name in names if ctx.get_parameter_source(name) in _SAID]
    parameters = {parameter.name: parameter for parameter in ctx.command.params}
    return [max(parameters[name].opts, key=len) for name in said]


def refuse(names: Iterable[str], why: str) -> None:
    """UserError where any of these was given: they, and `why` they would do nothing."""
    said = given(names)
    if said:
        raise UserError(f"{', '.join(said)}: {why}", ExitCode.USAGE)
