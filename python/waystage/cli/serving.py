"""Options of commands that serve the view.

Arrives: an address, a token, certificates.
Leaves: the options of a server.
Must not know: what is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, UserError
from waystage.cli.service import pem_option


def page_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Address, token and certificates of a page; passed as `page`, a mapping for `serving_options`."""
    for option in (
        click.option(
            "--listen",
            metavar="HOST:PORT",
            default="127.0.0.1:8077",
            show_default=True,
            help="Address of the page; port 0 for any. Beyond this machine it needs certificates.",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="HOST",
            help="Host name that browsers use for this server (repeatable).",
        ),
        click.option(
            "--token-file",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="File with the token, made if absent, mode 0600 [default: a new token each time].",
        ),
        click.option(
            "--pages",
            type=click.IntRange(min=1, max=10_000),
            default=256,
            show_default=True,
            help="Pages open at once; one more is refused.",
        ),
        pem_option("--tls-certificate", "the server's certificate"),
        pem_option("--tls-key", "the server's private key"),
        pem_option("--tls-ca", "the CA whose certificates browsers must have (mutual TLS)"),
    ):
        function = option(function)
    return function


PAGE_OPTIONS = ("listen", "names", "token_file", "pages", "tls_certificate", "tls_key", "tls_ca")


def serving_options(values: dict[str, Any]) -> Any:
    """Takes the page's options out of `values`. Raises UserError."""
    from waystage.view.access import AccessError, token_from
    from waystage.view.serving import Options

    found = {name: values.pop(name) for name in PAGE_OPTIONS}
    path = found.pop("token_file")
    try:
        token = token_from(path) if path is not None else ""
    except AccessError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    for name in ("tls_certificate", "tls_key", "tls_ca"):
        found[name] = Path(found[name]) if found[name] is not None else None
    return Options(token=token, **found)
