"""`waystage lab`: bring an emulated cluster up, look into it, take it down.

Arrives: a topology, a lab's name, a command to run on a host.
Leaves: a lab that stays until `lab down`; what its links carry; the command's own output and status.
Must not know: how namespaces and switches are made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from waystage.cli.common import ExitCode, Output, UserError, needs_root, output_options, table
from waystage.cli.lab_pfs import pfs
from waystage.cli.lab_wan import wan

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

DEFAULT_NAME = "lab"

DYING_S = 0.3
"""A process that is being killed closes its sockets this long, at most, before it counts as gone."""


def _complete_topology(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from waystage.interconnect.graphml import shipped_topologies

    names = [CompletionItem(n) for n in shipped_topologies() if n.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


_name_option = click.option(
    "--name",
    default=DEFAULT_NAME,
    show_default=True,
    envvar="WAYSTAGE_LAB",
    show_envvar=True,
    help="Which lab: several can be up at once.",
)


@click.group()
def command() -> None:
    """Bring an emulated cluster up, look into it, take it down.

    Hosts are network namespaces, switches are bridges of a private Open vSwitch, links have real rates.
    Needs root; `waystage doctor` says what else.
    """


command.add_command(pfs)
command.add_command(wan)


@command.command()
@click.argument("topology", default="paper", shell_complete=_complete_topology)
@_name_option
@click.option(
    "--controller/--no-controller",
    default=True,
    show_default=True,
    help="Start a controller. Without one, no packet crosses a switch until somebody gives it rules.",
)
@click.option("--policy", default="ecmp", show_default=True, help="The controller's policy.")
@output_options
def up(topology: str, name: str, controller: bool, policy: str, output: Output) -> None:
    """Bring up TOPOLOGY: a GraphML file, or a shipped one by name (default: paper).

    Returns when hosts can talk to each other. The lab stays until `waystage lab down`.
    """
    needs_root("a lab")
    with _lab_errors():
        from waystage.interconnect.graphml import read_topology
        from waystage.worlds.lab.controller_process import start_controller
        from waystage.worlds.lab.lab import Lab

        started = time.monotonic()
        lab = Lab(name, read_topology(topology), keep=True)
        with output.progress() as progress:
            progress("making namespaces, links and switches", 0.0)
            lab.up()
            if controller:
                progress("starting the controller", 0.5)
                try:
                    start_controller(lab, policy)
                except BaseException:
                    lab.down()
                    raise
            progress("up", 1.0)
        seconds = round(time.monotonic() - started, 2)
    found = _describe(lab) | {"seconds": seconds}
    hosts, switches = len(found["hosts"]), len(found["switches"])
    output.result(
        found,
        f"lab '{name}' is up after {seconds} s: {hosts} hosts, {switches} switches\n"
        f"try: waystage lab status, waystage lab exec {lab.topology.hosts[0].name} -- ip addr, waystage lab down",
    )


@command.command()
@_name_option
@output_options
def down(name: str, output: Output) -> None:
    """Remove the lab, and whatever a killed one has left behind. Harmless where there is nothing."""
    needs_root("taking a lab down")
    with _lab_errors():
        from waystage.worlds.lab.lab import take_down

        found = take_down(name)
    output.result(
        {"lab": name, "removed": found}, f"lab '{name}' is down" if found else f"there is no lab '{name}'"
    )


@command.command()
@_name_option
@output_options
def status(name: str, output: Output) -> None:
    """Show hosts, switches and what is wrong. Status 1 where the lab is not up or something in it has died."""
    needs_root("looking into a lab")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab

        lab = Lab.attach(name)
        found = _describe(lab)
    text = [f"lab '{name}', topology {found['topology']}, backplane {found['backplane']}", ""]
    text += [table(found["hosts"], ["host", "role", "ip", "mac", "switch", "port"]), ""]
    text += [table(found["switches"], ["switch", "dpid", "controller", "rules"])]
    output.result(found, "\n".join(text))
    if found["problem"]:
        raise UserError(found["problem"])


@command.command(
    "exec",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    # The options of the command are its own.
    options_metavar="[--name TEXT]",
)
@_name_option
@click.argument("host")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
def exec_(name: str, host: str, argv: tuple[str, ...]) -> None:
    """Run COMMAND on HOST, with this terminal; its exit status is this command's.

    HOST `fabric` is the namespace of the switches, in which `ovs-vsctl` and `ovs-ofctl` reach them.
    """
    needs_root("entering a host")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab

        words, environment = Lab.attach(name).enter(host)
    if argv[0] == "--":
        argv = argv[1:]
    os.execve(words[0], [*words, *argv], environment)


@command.command()
@_name_option
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds over which use is measured.",
)
@click.option("--all", "show_all", is_flag=True, help="Show idle links too.")
@output_options
def links(name: str, watch: bool, interval: float, show_all: bool, output: Output) -> None:
    """Show rate, use and drops of every link, by class of traffic where a controller counts it.

    `queue` are packets dropped because the link's queue was full since the lab came up, `cpu` those the
    switches did not read in time: they mean that this machine was too slow for the experiment. With --json
    and --watch, one object a line.
    """
    needs_root("looking into a lab")
    with _lab_errors():
        from waystage.worlds.lab.lab import Lab
        from waystage.worlds.lab.usage import LinkWatch

        lab = Lab.attach(name)
        with LinkWatch(lab) as watcher:
            while True:
                use = watcher.next(interval)
                if watch and not output.json:
                    click.clear()
                output.result(use.as_json(), _links_table(use.rows(), show_all))
                if not watch:
                    return


def _links_table(rows: list[dict[str, Any]], show_all: bool) -> str:
    columns = ["from", "to", "Mbit/s", "of", "mpi", "staging", "io", "wan", "queue", "cpu", "state"]
    shown = (
        rows if show_all else [r for r in rows if r["Mbit/s"] or r["queue"] or r["cpu"] or r["state"] != "up"]
    )
    if not shown:
        return "all links are idle"
    return table(shown, columns)


def _describe(lab: Lab) -> dict[str, Any]:
    from waystage.worlds.lab.controller_process import switches_connected
    from waystage.worlds.lab.errors import LabError

    connected: dict[str, bool] = {}
    rules: dict[str, int] = {}
    problem = ""
    try:
        lab.check()  # who is halted answers no question
        connected = switches_connected(lab)
        rules = {switch: lab.rule_count(switch) for switch in connected}
    except LabError as error:
        problem = str(error)
        time.sleep(DYING_S)
    try:
        lab.check()  # again: it names the cause of what a question to the switches met
    except LabError as error:
        problem = str(error)
    topology = lab.topology
    return {
        "lab": lab.name,
        "topology": topology.name,
        "backplane": lab.backplane_endpoint,
        "run_dir": str(lab.run_dir),
        "hosts": [
            {
                "host": host.name,
                "role": host.role,
                "ip": host.ip,
                "mac": host.mac,
                "switch": topology.attachment[host.name][0],
                "port": topology.attachment[host.name][1],
                "storage_dir": str(lab.host_dir(host.name)),
            }
            for host in topology.hosts
        ],
        "switches": [
            {
                "switch": switch.name,
                "dpid": switch.dpid,
                "controller": "connected" if connected.get(switch.name) else "away",
                "rules": rules.get(switch.name, 0),
            }
            for switch in topology.switches
        ],
        "problem": problem,
    }


@contextmanager
def _lab_errors() -> Iterator[None]:
    """What went wrong with a lab, with the exit status that belongs to it."""
    from waystage.worlds.lab.errors import LabBusy, LabError, MissingProgram, NotRoot

    try:
        yield
    except NotRoot as error:
        raise UserError(str(error), ExitCode.NEEDS_ROOT) from error
    except MissingProgram as error:
        raise UserError(str(error), ExitCode.MISSING) from error
    except LabBusy as error:
        raise UserError(str(error), ExitCode.BUSY) from error
    except LabError as error:
        raise UserError(str(error), ExitCode.FAILED) from error
