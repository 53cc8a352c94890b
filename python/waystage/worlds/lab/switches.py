"""The lab's own Open vSwitch: one database, one daemon, one bridge for every switch.

Arrives: a wiring, a run directory, a way into the fabric namespace.
Leaves: running daemons with bridges and ports, or `LabError`.
Must not know: hosts, controllers' ways, policies.

A private instance in the fabric namespace was preferred to the machine's: no name can collide, the
machine's own switches are never touched, and ending two processes removes it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from waystage.worlds.lab.buffers import widen
from waystage.worlds.lab.commands import program, run
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.processes import ProcessId
from waystage.worlds.lab.wiring import Wiring

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
START_TIMEOUT_S = 15
CONTROLLER_BACKOFF_MS = 1000  # a switch asks a controller that is away again after at most this long
SWITCH_NICENESS = -10
REVALIDATED_EVERY_MS = (
    100  # the least that it takes; a second of the default of 500 would hide a change of paths
)
KEPT_BYTES = 16 << 20
"""Memory that the daemon keeps. For every port that it reads, Open vSwitch allocates 32 packets and frees them, 132 KB:
glibc would give these to the kernel and take them back 50 times a turn of the only thread that forwards."""

PROBE_MS = 5000  # an idle control connection is probed after this long, and dropped after twice


class Switches:
    """`enter` is the command prefix that enters the fabric namespace."""

    def __init__(self, folder: Path, enter: Sequence[str]) -> None:
        self._folder = folder
        self._enter = tuple(enter)
        self.environment = {
            name: str(folder) for name in ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR")
        }
        # mallopt(3): with the first set, the second no longer follows what is freed.
        self.environment |= {
            name: str(KEPT_BYTES)
            for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
        }
        self.database = f"unix:{folder}/db.sock"

    def start(self) -> None:
        """Start database and daemon, each in its own session."""
        if not SCHEMA.exists():
            raise LabError(f"{SCHEMA} is missing: install with 'apt-get install openvswitch-switch'")
        database = self._folder / "conf.db"
        run(["ovsdb-tool", "create", str(database), str(SCHEMA)], env=self.environment)
        common = ["--detach", "--no-chdir", "-vconsole:off", "-vsyslog:off", "-vfile:info"]
        self._run(
            "ovsdb-server",
            f"--remote=punix:{self._folder}/db.sock",
            f"--pidfile={self._folder}/ovsdb-server.pid",
            f"--log-file={self._folder}/ovsdb-server.log",
            *common,
            str(database),
        )
        self._run("ovs-vsctl", f"--db={self.database}", "--no-wait", "init")
        # What matched a flow entry is added to its counter this often; counters are read as often.
        often = f"other_config:max-revalidator={REVALIDATED_EVERY_MS}"
        self._run("ovs-vsctl", f"--db={self.database}", "--no-wait", "set", "Open_vSwitch", ".", often)
        # A real switch has its own silicon: jobs and controller must not take the emulated one's time. Where the
        # right to this is missing, nice says so and goes on.
        self._run(
            "nice",
            "-n",
            str(SWITCH_NICENESS),
            program("ovs-vswitchd"),
            f"--pidfile={self._folder}/ovs-vswitchd.pid",
            f"--log-file={self._folder}/ovs-vswitchd.log",
            *common,
            self.database,
        )
        self._prefer()

    def _prefer(self) -> None:
        """Where the kernel shares processors among sessions first, a niceness counts only within one (sched(7))."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._pid('ovs-vswitchd')}/autogroup").write_text(str(SWITCH_NICENESS))

    def build(self, wiring: Wiring, controller: str) -> None:
        """All bridges and ports in one transaction; returns when the daemon has made them."""
        words: list[str] = []
        for switch in wiring.topology.switches:
            bridge = wiring.bridges[switch.name]
            words += ["--", "add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"]
            words += ["fail_mode=secure", "protocols=OpenFlow13,OpenFlow14,OpenFlow15"]
            words += [f"other-config:datapath-id={switch.dpid:016x}", "other-config:disable-in-band=true"]
            words += ["--", "set-controller", bridge, f"tcp:{controller}"]
            words += ["--", "set", "controller", bridge, "connection_mode=out-of-band"]
            words += [f"max_backoff={CONTROLLER_BACKOFF_MS}", f"inactivity_probe={PROBE_MS}"]
        # Without a QoS of this type OVS would delete the links' shapers at every reconfiguration.
        words += ["--", "--id=@shaped-elsewhere", "create", "qos", "type=linux-noop"]
        for end in wiring.ports:
            words += ["--", "add-port", wiring.bridges[end.node], end.device]
            words += ["--", "set", "interface", end.device, f"ofport_request={end.port}"]
            words += ["--", "set", "port", end.device, "qos=@shaped-elsewhere"]
        self.vsctl(f"--timeout={START_TIMEOUT_S}", *words[1:])
        self._verify(wiring)
        self._widen_buffers(wiring)

    def vsctl(self, *arguments: str) -> str:
        return self._run("ovs-vsctl", f"--db={self.database}", *arguments)

    def ofctl(self, *arguments: str) -> str:
        """`ovs-ofctl` on the lab's bridges, with OpenFlow 1.3 unless the arguments say otherwise."""
        given = any(a.startswith(("-O", "--protocols")) for a in arguments)
        return self._run("ovs-ofctl", *([] if given else ["-O", "OpenFlow13"]), *arguments)

    def appctl(self, *arguments: str) -> str:
        pid = self._pid("ovs-vswitchd")
        return self._run("ovs-appctl", "-t", f"{self._folder}/ovs-vswitchd.{pid}.ctl", *arguments)

    def process(self, daemon: str) -> ProcessId | None:
        """`ovsdb-server` or `ovs-vswitchd`; None where it does not run."""
        try:
            return ProcessId.of(self._pid(daemon))
        except LabError:
            return None

    def check(self) -> None:
        """Raises LabError naming the daemon that has died, and its log, or that is halted."""
        for daemon in ("ovsdb-server", "ovs-vswitchd"):
            process = self.process(daemon)
            if process is None:
                raise LabError(
                    f"{daemon} of the lab has stopped: see {self._folder}/{daemon}.log, then take the lab down and up"
                )
            if process.halted:
                raise LabError(
                    f"{daemon} of the lab is halted by SIGSTOP: let it go on with 'kill -CONT {process.pid}', "
                    "or take the lab down and up"
                )

    def _pid(self, daemon: str) -> int:
        try:
            return int((self._folder / f"{daemon}.pid").read_text())
        except (OSError, ValueError):
            raise LabError(f"{daemon} of the lab does not run: take the lab down and up") from None

    def _run(self, name: str, *arguments: str) -> str:
        try:
            return run([*self._enter, program(name), *arguments], env=self.environment)
        except LabError as error:
            if self._started_once():
                self.check()
            raise LabError(str(error).replace(" ".join(self._enter) + " ", "")) from None

    def _started_once(self) -> bool:
        return (self._folder / "ovs-vswitchd.pid").exists()

    def _widen_buffers(self, wiring: Wiring) -> None:
        # The sending socket is made with the first packet that leaves: an empty frame, which hosts ignore.
        first = wiring.ports[0]
        frame = "packet=ffffffffffff02000000000088b500"
        self.ofctl(
            "packet-out",
            wiring.bridges[first.node],
            f"in_port=controller {frame} actions=output:{first.port}",
        )
        widened = widen(self._pid("ovs-vswitchd"))
        if widened <= len(wiring.ports):
            raise LabError(
                f"Open vSwitch has {widened} packet sockets for {len(wiring.ports)} ports: this version is not known"
            )

    def _verify(self, wiring: Wiring) -> None:
        """Every port must have got the number that was asked for."""
        wanted = {end.device: end for end in wiring.ports}
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            text = self.vsctl("--format=json", "--columns=name,ofport,error", "list", "interface")
            rows = {row[0]: (row[1], row[2]) for row in json.loads(text)["data"]}
            wrong = [d for d, end in wanted.items() if rows.get(d, (None, None))[0] != end.port]
            if not wrong:
                return
            if time.monotonic() > deadline:
                end, (number, error) = wanted[wrong[0]], rows.get(wrong[0], (None, None))
                said = f": {error}" if isinstance(error, str) and error else ""
                raise LabError(
                    f"Open vSwitch did not make port {end.port} of switch {end.node} (got {number}){said}"
                )
            time.sleep(0.05)
