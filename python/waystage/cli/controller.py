"""`waystage controller`: a site controller in the foreground, for systemd or a lab.

Arrives: a configuration file and options, which override it.
Leaves: one line when ready; exit status 0 after SIGTERM or SIGINT, when all events are handled and saved.
Must not know: what controllers do.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.service import (
    Signals,
    log_format_option,
    pem_option,
    ready_file_option,
    removed_at_exit,
    start_logging,
    tell_systemd,
    write_ready,
)


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="WAYSTAGE_CONTROLLER_CONFIG",
    help="YAML file with any of the settings below; options override it.",
)
@click.option(
    "--tier",
    type=click.Choice(["global", "application", "node"]),
    help="Tier in the hierarchy [default: global].",
)
@click.option(
    "--listen",
    multiple=True,
    metavar="ENDPOINT",
    help="Endpoint for lower tiers: unixsock-stream//PATH on this machine, tls/HOST:7447 for others.",
)
@click.option(
    "--connect", multiple=True, metavar="ENDPOINT", help="Endpoint of the tier above (tiers below global)."
)
@click.option("--topology", metavar="FILE", help="GraphML file, or name of a shipped topology.")
@click.option(
    "--policy",
    metavar="NAME[:KEY=VALUE,...]",
    help="Shipped policy, or your own as module:Class [default: null].",
)
@click.option(
    "--openflow",
    metavar="HOST:PORT",
    help="Address for the switches' connections; without it, no switch is controlled.",
)
@click.option(
    "--openflow-allow",
    multiple=True,
    metavar="NETWORK",
    help="Address or network of the switches (repeatable).",
)
@pem_option("--openflow-tls-ca", "the CA of the switches' certificates; switches then connect with ssl:")
@pem_option("--openflow-tls-certificate", "the controller's certificate for switches")
@pem_option("--openflow-tls-key", "the private key of that certificate")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False),
    help="Directory of the journal [default: /var/lib/waystage, or ~/.local/state/waystage].",
)
@pem_option("--tls-ca", "the CA of all certificates")
@pem_option("--tls-certificate", "the controller's certificate")
@pem_option("--tls-key", "the controller's private key")
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow endpoints without TLS, e.g. tcp/127.0.0.1:7447. Any local process, of any user, can then read and "
    "publish.",
)
@click.option("--name", help="Source name in published events [default: host and process id].")
@click.option("--scope", help="Scope of the controller: node3, job-17 [default: site].")
@ready_file_option("File to write when ready")
@log_format_option
@output_options
def command(ready_file: Path | None, output: Output, **options: Any) -> None:
    """Run a controller until SIGTERM or Ctrl-C, then handle the events received and exit with 0.

    Prints one line when ready (with --json an object: tier, source, listen, policy, pid) and notifies systemd
    (Type=notify). Logs to stderr.
    """
    start_logging(quiet=output.quiet)
    signals = Signals()
    site = _start(options)
    # What was imported stays: a search of all of it would hold up a switch-over for tens of milliseconds.
    gc.collect()
    gc.freeze()
    with contextlib.closing(site), removed_at_exit(ready_file):
        about = site.describe()
        where = ", ".join(about["listen"]) or "this process alone"
        output.result(about, f"ready: {about['tier']} controller {about['source']} at {where}")
        sys.stdout.flush()
        write_ready(ready_file, f"{os.getpid()}\n")
        tell_systemd("READY=1")
        signals.wait()
        tell_systemd("STOPPING=1")


def _start(options: dict[str, Any]) -> Any:
    from waystage.backplane import BackplaneError
    from waystage.controllers import JournalError, site
    from waystage.interconnect.openflow_errors import AccessError, OpenFlowError
    from waystage.jobs.database import DatabaseError
    from waystage.policies.base import PolicyError
    from waystage.topology import TopologyError

    try:
        return site.start(_configuration(options))
    except (site.SiteError, PolicyError, AccessError) as error:
        raise UserError(str(error), ExitCode.USAGE) from None
    except TopologyError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    except (BackplaneError, JournalError, DatabaseError, OpenFlowError) as error:
        raise UserError(str(error), ExitCode.FAILED) from None


def _configuration(options: dict[str, Any]) -> Any:
    from waystage.backplane import BackplaneError, load_config
    from waystage.controllers import site

    path: Path | None = options["config"]
    try:
        values = load_config(path) if path is not None else {}
        for name in ("tier", "topology", "state_dir"):
            if options[name] is not None:
                values[name] = options[name]
        _switches_from(options, values)
        if options["policy"] is not None:
            values["policy"], values["policy_options"] = site.parse_policy(options["policy"])
        values.setdefault("state_dir", site.default_state_dir())
        below = values.setdefault("backplane", {})
        above = values.get("above") or {}
        if options["connect"]:
            above["connect"] = list(options["connect"])
        if options["listen"]:
            below["listen"] = list(options["listen"])
        if options["insecure"]:
            for side in (below, above) if above else (below,):
                side["insecure"] = True
        tls = {
            k: options[f"tls_{k}"] for k in ("ca", "certificate", "key") if options[f"tls_{k}"] is not None
        }
        for side in (below, above) if above else (below,):
            side |= {k: options[k] for k in ("name", "scope") if options[k] is not None}
            if tls:
                side["tls"] = {**(side.get("tls") or {}), **tls}
        if above:
            values["above"] = above
        return site.site_from(values, str(path) if path is not None else "options")
    except BackplaneError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None


def _switches_from(options: dict[str, Any], values: dict[str, Any]) -> None:
    """The settings of `openflow`, a string or a mapping; options override them."""
    tls = {k: options[f"openflow_tls_{k}"] for k in ("ca", "certificate", "key")}
    tls = {k: v for k, v in tls.items() if v is not None}
    if options["openflow"] is None and not options["openflow_allow"] and not tls:
        return
    given = values.get("openflow")
    switches: dict[str, Any] = {"listen": given} if isinstance(given, str) else dict(given or {})
    if options["openflow"] is not None:
        switches["listen"] = options["openflow"]
    if options["openflow_allow"]:
        switches["allow"] = list(options["openflow_allow"])
    if tls:
        switches["tls"] = {**(switches.get("tls") or {}), **tls}
    if "listen" not in switches:
        raise UserError(
            "give --openflow HOST:PORT too: the address for the switches' connections", ExitCode.USAGE
        )
    values["openflow"] = switches
