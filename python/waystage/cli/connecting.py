"""Options for connecting to the controllers, and the configuration they give.

Arrives: `--endpoint` and `--config`, or their environment variables.
Leaves: a backplane configuration that only connects.
Must not know: the command.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, UserError, output_options


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--endpoint`, `--config` and the output options."""
    for option in (
        click.option(
            "--endpoint",
            envvar="WAYSTAGE_ENDPOINT",
            help="Endpoint of a controller [default: unixsock-stream//run/waystage/backplane.sock, or $WAYSTAGE_ENDPOINT].",
        ),
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="WAYSTAGE_CONFIG",
            help="YAML file with endpoints and certificates [or $WAYSTAGE_CONFIG].",
        ),
        output_options,
    ):
        function = option(function)
    return function


def configuration(endpoint: str | None, config: Path | None) -> Any:
    """The configuration: the file, overridden by the endpoint. Raises UserError."""
    import msgspec

    from waystage.backplane import BackplaneConfig, BackplaneError, config_from, load_config
    from waystage.jobs.notify import DEFAULT_ENDPOINT

    try:
        base = config_from(load_config(config), str(config)) if config is not None else BackplaneConfig()
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    if endpoint is not None or not base.connect:
        base = msgspec.structs.replace(base, connect=(endpoint or DEFAULT_ENDPOINT,))
    return msgspec.structs.replace(base, listen=(), access=())
