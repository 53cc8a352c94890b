"""The compiled module: engines of the data plane, which Python starts, stops and reads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from waystage.native_options.aggregators import AggregatorOptions
from waystage.native_options.copies import (
    DeleteOptions,
    FillOptions,
    RemoteCopyOptions,
    RemoveOptions,
    TreeCopyOptions,
)
from waystage.native_options.datasets import AugmentationOptions, DedupProfileOptions
from waystage.native_options.loads import LoadingOptions, MeasureOptions, SimulatedLoadOptions
from waystage.native_options.peers import Peer
from waystage.native_options.proxies import ProxyOptions
from waystage.native_options.restripes import RestripeOptions
from waystage.native_options.routes import RouteOptions
from waystage.native_options.servers import ServerOptions
from waystage.native_options.walks import WalkOptions

__version__: str

class Task:
    """Work that runs in threads, from its start on. Dropping it ends it, as `cancel` does.

    As a context manager it is cancelled when the block ends, which does nothing to a task that has ended.
    """

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until it has ended, for at most `timeout_s`; whether it has. Raises what ended it early.

        Releases the GIL. Signals are handled meanwhile; an exception of a handler, such as KeyboardInterrupt, is
        raised.
        """

    def progress(self) -> dict[str, int]:
        """Counts by name."""

    def cancel(self) -> None:
        """End it, also while it is paused; its threads have ended when this returns."""

    @property
    def controls(self) -> tuple[str, ...]:
        """What may be changed while it runs: any of `rate`, `mode`, `loaders`, `pause`.

        The methods below raise ValueError for what is not among them. Each takes effect within 100 ms, but for bytes
        already on their way. After the end of the task they do nothing.
        """

    def set_rate(self, bytes_per_s: int | None) -> None:
        """Limit the rate, None for no limit. A limit that the user gave holds as well: the lower one counts.

        ValueError where it is not above 0.
        """

    def pause(self) -> None:
        """Move no more bytes. Connections and open files stay, for as long as the pause lasts."""

    def resume(self) -> None:
        """End the pause. Time that passed in it is not made up for."""

    def set_mode(self, mode: str) -> None:
        """Change the congestion control of a wide-area copy. ValueError where there is no such mode."""

    def set_loaders(self, per_target: int | Mapping[int, int]) -> None:
        """Limit the loaders that read at once from each storage target, or from those given by number.

        A loader that reads ends its piece first. ValueError on less than one loader, or an unknown target.
        """

    def flow(self) -> FlowCounts:
        """Bytes moved, and what limits them now."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class FlowCounts:
    """How far a task is.

    `bytes_total` is 0 where nothing is known. `limited_by` is what took most of its threads' time since it was last
    asked for, and at least in 200 ms: `rate`, `source`, `destination`, `network`, `paused`, or an empty string where
    nothing stands out.
    """

    @property
    def bytes_done(self) -> int: ...
    @property
    def bytes_total(self) -> int: ...
    @property
    def limited_by(self) -> str: ...

class LossMeterError(RuntimeError):
    """Probes that cannot be set up or run; the message names the namespace, stream or address."""

@final
class LossStream:
    """UDP packets from `source` to `target` at `rate_pps`, marked with `dscp`.

    A namespace is a name under /run/netns, or None for the caller's. Raises ValueError on an invalid address.
    """

    def __new__(
        cls,
        *,
        source: str,
        target: str,
        port: int,
        rate_pps: int,
        dscp: int = 0,
        source_namespace: str | None = None,
        target_namespace: str | None = None,
    ) -> LossStream: ...

@final
class StreamLoss:
    """The counts of one stream.

    `refused` and `skipped` packets never left the sender and are in no other count. `loss_runs` holds the first
    runs of consecutive losses, as (sequence number, count).
    """

    @property
    def sent(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def duplicated(self) -> int: ...
    @property
    def reordered(self) -> int: ...
    @property
    def loss_runs(self) -> list[tuple[int, int]]: ...
    @property
    def latency_p50_ns(self) -> int: ...
    @property
    def latency_p99_ns(self) -> int: ...
    @property
    def latency_max_ns(self) -> int: ...

@final
class LossReport:
    """The counts of all streams, in the order given.

    `overflowed` packets were dropped by receive buffers of this machine, not by the network; `foreign` ones belong
    to no stream of this run.
    """

    @property
    def streams(self) -> list[StreamLoss]: ...
    @property
    def sending_s(self) -> float: ...
    @property
    def overflowed(self) -> int: ...
    @property
    def foreign(self) -> int: ...
    @property
    def latency_p50_ns(self) -> int: ...
    @property
    def latency_p99_ns(self) -> int: ...
    @property
    def latency_max_ns(self) -> int: ...

@final
class LossMeter:
    """Streams with open sockets, one thread sending and one receiving.

    Every method releases the GIL and raises LossMeterError.
    """

    def __new__(cls, streams: Sequence[LossStream], payload_bytes: int = 64) -> LossMeter: ...
    def warm_up(self, timeout_s: float = 5.0) -> list[int]:
        """Send uncounted packets until each stream has been received; the indexes of streams that were not."""

    def start(self) -> None:
        """Begin to send and count."""

    def totals(self) -> tuple[int, int]:
        """Packets sent and received since the start; (0, 0) when not running."""

    def stop(self, drain_s: float = 1.0) -> LossReport:
        """Stop sending, wait at most `drain_s` for packets in flight, and report."""

class TransferError(RuntimeError):
    """Files that cannot be moved or served; the message names the file or the address."""

    kind: Literal[
        "no-space",
        "missing",
        "refused",
        "damaged",
        "stalled",
        "ended",
        "cancelled",
        "port-in-use",
        "unreachable",
        "protocol",
        "file",
    ]

@final
class FileServer(Task):
    """Serves files over TCP. `wait` raises TransferError once it no longer serves.

    A module is a name of a directory below `root`, and whether it is writable. A namespace is a name under /run/netns,
    or None for the caller's. Raises TransferError, ValueError on an invalid address.
    """

    def __new__(
        cls,
        *,
        address: str,
        port: int,
        root: Path,
        modules: Sequence[tuple[str, bool]],
        namespace: str | None = None,
    ) -> FileServer: ...
    @property
    def port(self) -> int:
        """The port that it listens on, also where 0 was given, which takes any free one."""

@final
class FileTransfer(Task):
    """Copies files between this host and a `FileServer`, verified by digests. Once cancelled, `wait` raises
    TransferError; files in progress never get their names.

    A step is (sources, directory, times): files that are copied into a directory under their last names, and how often,
    None for until cancelled. Local files and directories are absolute paths; a remote one is a module, a slash and a path
    below the module. ValueError on an invalid address, TransferError on names that lead out of a module.
    """

    def __new__(
        cls,
        *,
        address: str,
        port: int,
        way: Literal["get", "put"],
        steps: Sequence[tuple[Sequence[bytes], bytes, int | None]],
        namespace: str | None = None,
    ) -> FileTransfer: ...
    def result(self) -> tuple[int, float]:
        """(verified bytes, seconds). Raises RuntimeError while it runs, TransferError where it failed."""

class FlowError(ValueError):
    """An interconnect, pairs of hosts or paths that cannot be used; the message names which."""

@final
class FlowRoutes:
    """The result of routing: `loads`, the bytes on each link.

    Where paths were kept, demand i carries `bytes[i]` from host `src[i]` to `dst[i]` over
    `links[offsets[i]:offsets[i + 1]]`, from host to host; otherwise all other arrays are empty.
    """

    @property
    def loads(self) -> NDArray[np.float64]: ...
    @property
    def src(self) -> NDArray[np.uint32]: ...
    @property
    def dst(self) -> NDArray[np.uint32]: ...
    @property
    def bytes(self) -> NDArray[np.float64]: ...
    @property
    def offsets(self) -> NDArray[np.uint64]: ...
    @property
    def links(self) -> NDArray[np.uint32]: ...

@final
class Network:
    """Hosts, switches and directed links; nodes are numbered hosts first, then switches.

    `capacity` is in bytes a second, for each link. Raises FlowError on a link that cannot be.
    """

    def __new__(
        cls,
        host_count: int,
        switch_count: int,
        links_from: NDArray[np.uint32],
        links_to: NDArray[np.uint32],
        capacity: NDArray[np.float64],
        names: list[str],
    ) -> Network: ...
    @staticmethod
    def xgft(m: list[int], w: list[int], host_capacity: float, capacity: float) -> Network:
        """XGFT(h; m; w); `m` and `w` from the hosts up. Capacities, here and below, in bytes a second."""

    @staticmethod
    def fat_tree(k: int, host_capacity: float, capacity: float) -> Network:
        """The three-tier fat tree of k-port switches: k^3 / 4 hosts."""

    @staticmethod
    def dragonfly(a: int, h: int, p: int, host_capacity: float, capacity: float) -> Network:
        """a h + 1 groups of `a` switches with `h` cables to other groups and `p` hosts each."""

    @staticmethod
    def torus(dims: list[int], hosts: int, host_capacity: float, capacity: float) -> Network:
        """`dims[i]` switches along dimension i, `hosts` at each."""

    @property
    def host_count(self) -> int: ...
    @property
    def switch_count(self) -> int: ...
    @property
    def names(self) -> list[str]: ...
    @property
    def links_from(self) -> NDArray[np.uint32]: ...
    @property
    def links_to(self) -> NDArray[np.uint32]: ...
    @property
    def capacity(self) -> NDArray[np.float64]: ...
    @property
    def between_switches(self) -> NDArray[np.bool_]:
        """For each link, whether it connects two switches: maxima cover only these."""

    def max_load(self, loads: NDArray[np.float64]) -> float:
        """The largest load on a link between switches."""

    def route_loads(
        self,
        router: str,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        options: RouteOptions | None = None,
    ) -> FlowRoutes:
        """Choose a path for each pair of hosts, and add up what each link carries.

        `router`: d-mod-k, s-mod-k, random, ecmp-hash, greedy-sum, greedy-max, adaptive-minimal or joint, which take
        shortest paths; valiant, ugal-l or ugal-g, which take others too. Entries of one pair are added up first, in
        order of first appearance. Releases the GIL. Raises FlowError.
        """

    def splittable_bound(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        effort: float = 1.0,
    ) -> tuple[float, float, NDArray[np.float64]]:
        """A lower bound on the load of the busiest link between switches, for any routing over shortest paths.

        Returns (bound, busiest link of the best split found, weights). The weights of links, which sum to 1, prove
        the bound: the bytes of all pairs, each times the length of its shortest path under them, sum to it. Raises
        FlowError.
        """

    def any_path_bound(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        effort: float = 1.0,
    ) -> float:
        """A lower bound on the load of the busiest link between switches, for any paths. Raises FlowError."""

    def refine_mapping(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        host_of: NDArray[np.uint32],
        slots: NDArray[np.uint32],
        *,
        seed: int = 0,
        effort: float = 1.0,
    ) -> tuple[NDArray[np.uint32], float]:
        """Exchange processes, from the mapping `host_of`, to reduce the load of the busiest link between switches.

        `src` and `dst` are processes; host h has `slots[h]` slots. Returns the host of each process and the load of
        the busiest link where every pair is split evenly. Empty hosts stay empty. Raises FlowError.
        """

    def add_paths(
        self,
        loads: NDArray[np.float64],
        offsets: NDArray[np.uint64],
        links: NDArray[np.uint32],
        bytes: NDArray[np.float64],
    ) -> None:
        """Add to `loads`, in place, what these paths carry. Raises FlowError on an invalid path."""

@final
class FlowProgram:
    """A sequence of steps, executed `repeat` times. A step is a pause and then a set of flows.

    A step ends with the last of its flows. Raises FlowError on invalid values.
    """

    def __new__(cls, repeat: int = 1) -> FlowProgram: ...
    def step(self, pause_s: float = 0.0) -> None:
        """Begin a step with a pause."""

    def flows(
        self,
        routes: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        flow_class: int = 0,
        weight: float = 1.0,
        limit_bps: float = ...,
    ) -> None:
        """Add a flow of `bytes[i]` by the route of key `routes[i]`, for each i, to the current step.

        Their bytes are counted under `flow_class` (0..65535). `limit_bps`, bytes per second, applies to each flow.
        """

    @property
    def bytes(self) -> float:
        """Bytes that one repetition moves."""

@final
class FlowClock:
    """Flows over resources in simulated time, at max-min fair rates. Time starts at 0 s.

    Resources are numbered in the order of `capacities` (bytes per second). `precision` is the share of its bytes by
    which a flow may end early, and of its capacity by which a resource may be over- or underused: 1e-9 is exact for
    all purposes, 1e-3 much faster with many flows. Deterministic. Raises FlowError.
    """

    def __new__(cls, capacities: NDArray[np.float64], *, precision: float = 1e-9) -> FlowClock: ...
    def add_routes(self, offsets: NDArray[np.uint64], resources: NDArray[np.uint32]) -> int:
        """Add routes, the i-th `resources[offsets[i]:offsets[i + 1]]`; the key of the first, the others follow."""

    def set_routes(
        self, keys: NDArray[np.uint32], offsets: NDArray[np.uint64], resources: NDArray[np.uint32]
    ) -> None:
        """Let `keys[i]` denote the i-th of these routes; active flows are rerouted with their remaining bytes."""

    def route(self, key: int) -> NDArray[np.uint32]:
        """The route that a key denotes now."""

    def set_capacity(self, resource: int, capacity: float) -> None:
        """Give a resource another capacity, bytes per second, from now on; its curve, if it had one, is gone."""

    def set_curve(self, resource: int, points: list[tuple[float, float]]) -> None:
        """Let a resource's capacity follow its number of flows: points (flows, bytes per second), flows rising.

        Linear between the points, constant outside of them.
        """

    def start(self, program: FlowProgram, at_s: float | None = None) -> int:
        """Start a program, now or later; the number of this run. Later changes to the program do not affect it."""

    def cancel(self, run: int) -> None:
        """Stop a run and remove its flows; `run_until` does not report it."""

    def run_until(self, limit_s: float = ...) -> list[tuple[float, int]]:
        """Advance to the next end of a program, or to the limit; (time, run) of what ended at that time.

        An empty list: the limit is reached, or no event remains (`now` is then the limit, or without one the time
        of the last event). Releases the GIL; Ctrl-C interrupts it.
        """

    @property
    def now(self) -> float:
        """Seconds."""

    @property
    def solutions(self) -> int:
        """How often rates were computed."""

    def times(self, run: int) -> tuple[float, float | None]:
        """The start time of a run, and its end time, or None."""

    def bytes_left(self, run: int) -> float:
        """Remaining bytes of the active flows of a run."""

    def left(self, runs: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Remaining bytes of the active flows of each run, shape (runs,)."""

    def totals(self, flow_class: int = 0) -> NDArray[np.float64]:
        """Bytes that each resource has carried so far for a class."""

    def rates(self, flow_class: int | None = None) -> NDArray[np.float64]:
        """Bytes per second that each resource carries now, in total or for a class."""

    def any_carries(self, resources: NDArray[np.uint32], rates: NDArray[np.float64]) -> bool:
        """Whether any of these resources carries at least its rate now, bytes per second, shapes (resources,)."""

def contention_imbalance(loaders: NDArray[np.uint32]) -> float:
    """CI = 1 - H / Hmax of the numbers of loaders on each target: 0 if all are equal, 1 if one target has all."""

@final
class ContentionModel:
    """Files placed on storage targets, and loaders that read them; times in units of reading one object alone.

    Components are (end in bytes or None, stripes); targets are allocated round-robin from `first_target` on.
    `slowdown` lists (loaders on a target, time of an object relative to one loader), interpolated linearly. Raises
    FlowError.
    """

    def __new__(
        cls,
        sizes: NDArray[np.uint64],
        *,
        targets: int,
        stripe_size: int,
        components: Sequence[tuple[int | None, int]],
        slowdown: Sequence[tuple[float, float]],
        most_loaders: int,
        first_target: int = 0,
    ) -> ContentionModel: ...
    def objects(self) -> NDArray[np.uint64]:
        """Objects on each target."""

    def file_level(self, loaders: int, *, from_queue: bool = True) -> tuple[NDArray[np.float64], float]:
        """When each loader finished its last file, and the imbalance while all were reading.

        Releases the GIL; Ctrl-C interrupts it.
        """

    def object_level(self, objects: NDArray[np.uint64], loaders: int) -> NDArray[np.float64]:
        """When each target's objects have been read, with `loaders` bound to each target."""

    def best_loaders(self, most: int) -> int:
        """The number of loaders on a target, up to `most`, with the highest throughput."""

ENTRY_TYPES: list[str]
"""The letters of entry types, indexed by a walk's column `type`."""

LAYOUT_KINDS: list[str]
"""The names of layout readers, indexed by a walk's column `layout_kind`."""

def digest_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """XXH3, 64 bits, of ranges of a file, each (offset, length). Raises OSError where one is not readable."""

def digest_bytes(data: bytes) -> int:
    """XXH3, 64 bits."""

def exchange_paths(one: Path, other: Path) -> None:
    """Exchange two paths of one file system atomically. Raises OSError."""

@final
class WalkBatch:
    """Entries of a walk, as columns."""

    def take(
        self,
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], list[tuple[bytes, str]]]:
        """Columns of entries and of directories by name, and (path, error); once."""

def generated_batch(first: int, count: int) -> WalkBatch:
    """Entries `first` to `first + count` of a fictitious tree, as from a walk; at most 65,536."""

@final
class TreeWalk(Task):
    """A parallel walk. `wait` also returns, False, where a batch waits. Raises OSError where `root` cannot be read."""

    def __new__(cls, root: Path, options: WalkOptions) -> TreeWalk: ...
    def next(self) -> WalkBatch | None:
        """The next batch, where one waits."""

    def take_waiting(self) -> list[bytes]:
        """Paths of the directories found and not yet begun, which the walk leaves out from now on."""

    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of every storage target found so far."""

CHECK_KINDS: list[str]
"""How an entry may differ from its file, by bit number; columns of a catalog have the column's name."""

CHECKSUM_ALGORITHM: str
"""The algorithm of objects' checksums."""

def hash_paths(
    directories: tuple[NDArray[np.int32], NDArray[np.uint8]],
    directory: NDArray[np.int32],
    names: tuple[NDArray[np.int32], NDArray[np.uint8]],
) -> NDArray[np.uint64]:
    """A hash of each path. Raises ValueError where columns differ in length."""

class _CheckColumns(TypedDict):
    directories: tuple[NDArray[np.int32], NDArray[np.uint8]]
    directory: NDArray[np.int32]
    names: tuple[NDArray[np.int32], NDArray[np.uint8]]
    kind: NDArray[np.int8]
    size: NDArray[np.int64]
    mtime: NDArray[np.int64]
    ctime: NDArray[np.int64]
    inode: NDArray[np.uint64]

class _FileColumns(_CheckColumns):
    layout: NDArray[np.int8]
    generation: NDArray[np.uint32]
    objects: NDArray[np.int32]
    object_target: NDArray[np.uint32]
    object_offset: NDArray[np.int64]
    object_length: NDArray[np.int64]

@final
class CheckedTree:
    """A catalogued tree whose files are opened with a check. Thread-safe; calls release the GIL.

    Raises OSError where `root` cannot be opened as a directory. Paths cannot escape it.
    """

    def __new__(cls, root: Path) -> CheckedTree: ...
    def open(
        self, path: bytes, recorded: tuple[int, int, int, int, int, int, int]
    ) -> tuple[int | None, int, tuple[int, int, int, int, int] | None, dict[str, Any] | None, int]:
        """(descriptor or None, differences as bits, its state now, its layout now where anything differs, errno).

        `recorded` is (type, size, mtime, ctime, inode, layout, layout generation): type and layout as indices into
        ENTRY_TYPES and LAYOUT_KINDS, -1 for no layout; times in ns. The state is the first five of these.
        """

    def sum(
        self, path: bytes, recorded: tuple[int, int, int, int, int, int, int], version: int
    ) -> tuple[
        int,
        tuple[int, int, int, int, int, int, int] | None,
        list[tuple[int, int, int | None, int, int, bytes | None]] | None,
        int,
    ]:
        """(differences as bits, the file's state now, sums, errno), by the rule of checksum files of this `version`.

        A sum is (component or -1, object, target, offset, length, digest). A digest is None where its object could
        not be read; all are None where the file changed while it was read.
        """

    def repair(
        self,
        donor: CheckedTree,
        path: bytes,
        recorded: tuple[int, int, int, int, int, int, int],
        version: int,
        wanted: Sequence[tuple[int, bytes]],
    ) -> list[bool]:
        """Repair the objects `wanted`, (index in the list of sums, digest), from the same path below `donor`.

        Returns which were. Raises OSError where either file has changed (ESTALE), or cannot be read or written.
        """

    def check(self, columns: _CheckColumns) -> NDArray[np.uint16]:
        """The differences of each entry, as bits. Raises ValueError where columns differ in length."""

    def counts(self) -> dict[str, int]:
        """`checked`, `stale`, and how many differed in each of CHECK_KINDS."""

    def summed_bytes(self) -> int:
        """Bytes of files summed so far, including holes and files in progress."""

    def stale_paths(self) -> tuple[list[bytes], bool]:
        """Paths of stale entries, at most 100,000, and whether the list is complete."""

    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of the storage targets of layouts that were read again."""

class CatalogAgent:
    """Collects what preloaded libraries report of files below `root`, an absolute path without symbolic links.

    With `tell_stat` programs report the result of fstat when they close a file. `rings` programs can write at once,
    each into a ring of `ring_bytes`, a power of two. Raises OSError where the shared memory cannot be allocated.
    """

    def __new__(
        cls, root: Path, *, tell_stat: bool = False, rings: int = 64, ring_bytes: int = 1 << 19
    ) -> CatalogAgent: ...
    @property
    def path(self) -> str:
        """The path of the shared memory, which programs take from WAYSTAGE_RING."""

    @property
    def records(self) -> int:
        """Records read so far."""

    def started(self, process: int, name: bytes) -> None:
        """Note that `process` was started with the library as `name`: `unseen` lists those not observed."""

    def finish(
        self,
        *,
        threads: int,
        exclude: Sequence[bytes] = (),
        one_file_system: bool = False,
        layouts: Literal["each", "attribute"] | None = None,
    ) -> CatalogChanges:
        """What changed, once the program has ended. RuntimeError where it was called before."""

class CatalogChanges:
    """The paths that changed while an agent ran. Columns of paths have Arrow's form: offsets, bytes."""

    def unseen(self) -> list[bytes]:
        """The first programs that could not be observed, and bypasses of the library, such as io_uring."""

    def counts(self) -> dict[str, int]:
        """Counts of records, by name."""

    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of every storage target found so far."""

    def add(self, paths: Sequence[bytes]) -> None:
        """Check more paths below the root."""

    def look(self) -> list[WalkBatch]:
        """Entries of the next paths; an empty list after the last."""

    def to_walk(self) -> list[bytes]:
        """Directories to walk again, once `look` has returned everything."""

    def covers(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each path, whether its older entry is superseded."""

    def replaces_directories(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each directory, whether everything known of it is superseded."""

    def touches_directories(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each directory, whether some of its entries were checked."""

class TagService:
    """The running tag service of a node (docs/reference/tags.md)."""

    def __new__(
        cls,
        interfaces: list[str],
        socket: Path,
        layout: list[int],
        key: list[int],
        numbers: tuple[int, int],
    ) -> TagService:
        """`layout` has seven widths in bits, `key` 32 bytes, `numbers` the first and how many. OSError, ValueError."""

    @property
    def connections(self) -> int:
        """Programs connected now."""

    def close(self) -> None:
        """End the service: no packet gets a tag after it."""

def shim_sources(library: str) -> list[tuple[str, str]]:
    """Names and texts of the C sources of a library: "posix", "io", "paths", "multicast" or "tags". KeyError for any
    other."""

class LayoutError(RuntimeError):
    """A layout that cannot be parsed; the message says why. The file remains readable by its path."""

    kind: Literal["truncated", "unsupported", "invalid", "io"]

def parse_layout(
    kind: str,
    data: bytes,
    size: int,
    *,
    block_size: int | None = None,
    mirrors: str = "all",
    limit: int = 1000,
) -> dict[str, Any]:
    """The layout of a file of `size` bytes, parsed from `data` as a file system of this kind reports it.

    `block_size` is that of a sharded GlusterFS volume. `mirrors` is "all", "best" or a number. The keys are those of
    docs/reference/layouts.md, with at most `limit` extents and objects. Raises LayoutError, ValueError on an
    unknown kind.
    """

def read_layout(
    path: Path, *, size: int | None = None, mirrors: str = "all", limit: int = 1000
) -> dict[str, Any] | None:
    """The layout of a file or directory as its file system reports it; None where it reports none.

    Raises OSError where it cannot be opened, LayoutError where the layout cannot be parsed.
    """

def storage_targets(path: Path, *, files: int = 64, entries: int = 1024) -> list[str]:
    """The names of the storage targets of the tree or file at `path`, as its file system reports them, in order.

    A sample: at most `files` files are opened and `entries` entries read. A tree on a local file system has its device.
    Of a path that does not exist yet, the device of its nearest directory. Empty where the file system reports none.
    """

class LoadRefused(ValueError):
    """Options, files or a state that a loader cannot use; the message says which."""

class FileNotLoaded(RuntimeError):
    """A file that could not be delivered. The iterator continues with the next one."""

    path: str
    """Below the root."""
    trouble: Literal["vanished", "not_a_file", "unreadable", "grown"]

@final
class LoadFiles:
    """Files below `root` that a loader reads, as columns."""

    def __new__(cls, root: Path) -> LoadFiles: ...
    def extend(self, columns: _FileColumns) -> None:
        """Append the regular files among these entries. Raises LoadRefused where columns differ in length."""

    def sort(self) -> None:
        """Sort them by directory and name."""

    def __len__(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def targets(self) -> list[int]:
        """Numbers of targets, in order of first appearance; 2**32 - 1 stands for an unknown target."""

    def bytes_by_target(self) -> list[int]: ...
    def fingerprint(self) -> int: ...
    def path(self, file: int) -> str: ...

@final
class LoadedBytes:
    """Bytes that were read; supports the writable buffer protocol."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Loading(Task):
    """An epoch being read; iterates over (path, memoryview), or (path, offset, memoryview) where not `whole_files`.

    `delivered` is what an earlier load delivered, which is not read again. Raises LoadRefused, and OSError where
    the root cannot be opened.
    """

    def __new__(
        cls,
        files: LoadFiles,
        options: LoadingOptions,
        delivered: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, Sequence[int]]]] | None = None,
    ) -> Loading: ...
    def __iter__(self) -> LoadedItems: ...
    def extend(self, columns: Sequence[list[Any]], most: int) -> None:
        """Append what `next` gives to `columns` until they have `most` items or nothing is left. What was appended before an
        error stays.
        """

    def delivered(self) -> tuple[list[tuple[int, int]], list[tuple[int, list[int]]]]:
        """Runs (first, end) of positions delivered in full, and the parts delivered of other units."""

    def targets(self) -> list[tuple[int, int, int, float, float]]:
        """(number, bytes, pieces, busy seconds, seconds of all its readers together) of each target."""

    def failures(self) -> list[tuple[str, str, str]]:
        """(path, trouble, message) of files that were not delivered, the first thousand."""

    def stale_paths(self) -> tuple[list[bytes], bool]:
        """Paths of stale entries, and whether the list is complete."""

class LoadedItems:
    """What a `Loading` delivers, item by item."""

    def __new__(cls, loading: Loading) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[Any, ...]: ...
    def close(self) -> None:
        """Called after the last item."""

def choose_loaders(points: Sequence[tuple[int, float]]) -> tuple[int, list[tuple[int, float]]]:
    """The best number of loaders on a target from points (loaders, slowdown), and the smoothed curve."""

def measure_target(files: LoadFiles, options: MeasureOptions) -> tuple[int, float, int]:
    """Read pieces of one target: (bytes, seconds of all readers together, pieces)."""

def simulate_load(
    files: LoadFiles, targets: Sequence[tuple[NDArray[np.float64], float]], options: SimulatedLoadOptions
) -> dict[str, Any]:
    """The scheduler over emulated targets in simulated time: `makespan_s`, `busy_s`, `bytes`, `stolen`, `most_held`.

    A target is (bytes per second for 1, 2, ... readers together, seconds of latency of each piece).
    """

def load_bound(
    bytes: Sequence[int], targets: Sequence[tuple[NDArray[np.float64], float]], loaders: int
) -> float:
    """A lower bound, in seconds, for any scheduler with `loaders` loaders."""

class PfsError(RuntimeError):
    """An emulated file system that cannot be mounted; the message says why."""

@final
class EmulatedFileSystem:
    """An emulated striped file system, mounted until `end` or until it is unmounted.

    `shape` has the keys of `waystage.worlds.lab.pfs.shape.native`. Without `sizes` it serves the folder of the shape.
    Raises PfsError.
    """

    def __new__(
        cls, point: Path, name: str, shape: dict[str, Any], sizes: NDArray[np.uint64] | None = None
    ) -> EmulatedFileSystem: ...
    def ended(self) -> bool:
        """Whether it has been unmounted."""

    def end(self) -> None:
        """Unmount it; its threads have ended when this returns. Idempotent."""

class CopyError(RuntimeError):
    """A copy that cannot start or continue; the message names the path and the remedy."""

    kind: Literal["no-space", "refused", "busy", "ends", "other-journal", "stopped", "failed"]

COPY_LIST_BYTES: int
"""The maximum size of a list of names."""

@final
class NameList:
    """The names of the entries to copy, one a line, or each terminated by a NUL. ValueError on an invalid one."""

    def __new__(
        cls, list: bytes, nul: bool, objects: tuple[bytes, bytes, bytes, bytes] | None = None
    ) -> NameList:
        """`objects` are the storage targets of the names, as bytes of columns: where those of each name begin (uint32, one
        more than there are names), target (uint32), first byte in the file (uint64), bytes (uint64)."""

    def __len__(self) -> int: ...
    def names(self) -> list[bytes]:
        """In order, a directory directly before its contents; the root's own is empty."""

    def asks_for(self, paths: Sequence[bytes], directories: Sequence[bool]) -> list[bool]:
        """Whether the list names each path, a directory above it or, for a directory, an entry below it."""

    @property
    def has_objects(self) -> bool:
        """Whether storage targets of the names are known."""

@final
class TreeCopy(Task):
    """A copy on this machine. Raises CopyError where an end is not usable, ValueError on an invalid option."""

    def __new__(cls, source: str | Path, destination: str | Path, options: TreeCopyOptions) -> TreeCopy: ...
    @property
    def complete(self) -> bool:
        """Whether everything requested has been copied, as far as the copy has come."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text), the first ten thousand."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """(path, type letter, bytes) of what a dry run would make, the first ten thousand; `h` is a hard link."""

    def take_done(self) -> list[tuple[str, bytes, str, int]]:
        """(what, path, type letter, bytes) of what was done since the last call; `what` is `copied`, `made`, `linked`."""

    def limit(self, bytes_per_s: int | None) -> None:
        """The user's own limit from now on, beside that of `set_rate`: the lower one holds."""

    def divided(self) -> list[_Divided]:
        """Large files that were prepared for `FileFill`."""

@final
class TreeDelete(Task):
    """Deletes entries of a destination that the source lacks. Raises CopyError where an end is not usable, or with kind
    `too-many`."""

    def __new__(cls, source: str | Path, destination: str | Path, options: DeleteOptions) -> TreeDelete: ...
    @staticmethod
    def between(
        local: str | Path, remote: bytes, peer: Peer, options: DeleteOptions, *, push: bool
    ) -> TreeDelete:
        """With one end at a server: the destination with `push`, else the source. ValueError with backups."""

    @property
    def complete(self) -> bool:
        """Whether it met no error, as far as it has come."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text), the first ten thousand."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """(path, type letter, bytes) of what a dry run would delete, the first ten thousand."""

    def take_done(self) -> list[tuple[str, bytes, str, int]]:
        """(what, path, type letter, bytes) of what was done since the last call."""

@final
class SourceRemove(Task):
    """Removes files of a source whose contents the destination holds. Raises CopyError where an end is not usable."""

    def __new__(cls, source: str | Path, destination: str | Path, options: RemoveOptions) -> SourceRemove: ...
    @staticmethod
    def between(
        local: str | Path, remote: bytes, peer: Peer, options: RemoveOptions, *, push: bool
    ) -> SourceRemove:
        """With one end at a server: the destination with `push`, else the source. Paths are those of the copy, and
        `single` is found out."""

    @property
    def complete(self) -> bool:
        """Whether it met no error, as far as it has come."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text), the first ten thousand."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """Nothing: a dry run only counts."""

    def take_done(self) -> list[tuple[str, bytes, str, int]]:
        """(what, path, type letter, bytes) of what was done since the last call."""

_TreeEntry: TypeAlias = tuple[str, bytes, int, int, int, int, int, int, bytes]
"""Type letter, name, bytes, mtime in s since 1970 and ns, mode, uid, gid, target of a link."""

class RemoteTree:
    """The directories of a server, over one connection that is made at the first request."""

    def __new__(cls, peer: Peer) -> RemoteTree: ...
    def ask(
        self, what: str, paths: Sequence[bytes], flag: bool
    ) -> tuple[list[_TreeEntry], int, list[tuple[bytes, str]]]:
        """`list`, `make`, `remove` or `rename`; `flag` asks for the entry itself, or allows parents, contents or a
        replacement.

        Entries, the number of removed ones, and (path, reason) of those that were not. Raises WanError, ValueError for
        any other `what`.
        """

    def read(self, path: bytes, offset: int, length: int) -> tuple[bytes, _TreeEntry | None]:
        """At most `length` bytes of a file from `offset` on, and its entry, named `.`, after they were read. Raises
        WanError."""

    def close(self) -> None:
        """Close the connection, if there is one."""

_Divided: TypeAlias = tuple[tuple[bytes, bytes, bytes, bytes], tuple[int, int, tuple[int, int]], list[int]]
"""Path at the source, directory at the destination, temporary name, name of the map of written extents; inode, size, mtime
as seconds and nanoseconds; missing extents of 32 MiB."""

@final
class FileFill(Task):
    """Writes extents of one large file that a `TreeCopy` with `divide` has prepared, perhaps on another host.

    Raises ValueError on an invalid option.
    """

    def __new__(cls, source: str | Path, destination: str | Path, options: FillOptions) -> FileFill: ...
    @property
    def complete(self) -> bool:
        """Whether all its extents are written, once it has ended."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text)."""

@final
class TreeRestripe(Task):
    """A restriping of the files of a tree, in place, on a file system whose clients choose layouts as on Lustre.

    Raises CopyError where the tree cannot be restriped, ValueError on an invalid option. Counts are those of TreeCopy:
    `files` restriped, `same` already so, `hard_links` names besides the first of each file, `mended` files whose hard
    links a killed run had separated.
    """

    def __new__(cls, tree: str | Path, options: RestripeOptions) -> TreeRestripe: ...
    @property
    def complete(self) -> bool:
        """Whether every file has its layout, as far as it has come."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text) of files left as they were, the first ten thousand."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """(path, type letter, bytes) of what a dry run would restripe, the first ten thousand."""

    def limit(self, bytes_per_s: int | None) -> None:
        """Limit the rate from now on."""

class WanError(RuntimeError):
    """A session with another host, or a server, that cannot start or continue."""

    kind: Literal[
        "unreachable",
        "turned-away",
        "untrusted",
        "denied",
        "lost",
        "input",
        "no-space",
        "refused",
        "busy",
        "ends",
        "other-journal",
        "stopped",
        "failed",
    ]
    server_key: str | None
    """The key that the server presented, where it is not the trusted one."""

def wan_make_key(path: Path) -> str:
    """Make a key in a new file of mode 0600; the line with its public half. WanError where the file exists."""

def wan_read_key(path: Path) -> str:
    """The line with the public half of a key. WanError where others than its owner may read the file."""

def wan_fingerprint(line: str) -> str:
    """The fingerprint of the key on a line. WanError where the line is malformed."""

def wan_loopback(
    bytes: int, largest_datagram: int, mode: str, connections: int = 1
) -> tuple[float, int, int, int]:
    """Transfer over connections within this process: seconds, bytes of a datagram, packets lost, packets sent."""

def wan_tls_stream(bytes: int, segment: int) -> float:
    """TLS over TCP within this process: seconds."""

@final
class RemoteCopy(Task):
    """A copy between hosts. Raises WanError where a key is not usable, ValueError on an invalid option."""

    def __new__(
        cls, local: str | Path, remote: bytes, peer: Peer, options: RemoteCopyOptions, *, push: bool
    ) -> RemoteCopy: ...
    @property
    def complete(self) -> bool:
        """Whether everything requested has been copied, as far as the copy has come."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """As of TreeCopy."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text) of both hosts."""

    def notes(self) -> list[str]:
        """What the user should know of the connection, in sentences."""

    def digest(self) -> str:
        """The digest of all copied contents, on which both hosts agree, in hexadecimal."""

    def connection(self) -> tuple[dict[str, float], str]:
        """Statistics of the connection by name, and what limits it."""

    def limit(self, bytes_per_s: int | None) -> None:
        """Limit the rate from now on, in both directions; None for the rate agreed on at first."""

@final
class WanServer(Task):
    """A server of copies, probes and proxies. `wait` also returns, False, where there are lines for the log, and True
    once it was drained and its last connection has ended.

    Raises WanError where it cannot listen, or a root or key is not usable.
    """

    def __new__(cls, options: ServerOptions) -> WanServer: ...
    @property
    def address(self) -> str: ...
    def limit(self, bytes_per_s: int | None, users: Mapping[str, int]) -> None:
        """Limit each connection's rate from now on, and that of some users further."""

    def sessions(self) -> list[tuple[int, str, str, tuple[bool, bool, Path], tuple[int, int, str]]]:
        """The copies and proxies in progress: number; user; client's address; whether the client sends files, whether it
        is a proxy, and the shared directory of a copy; bytes done, in total (0: unknown), and what limits them.
        """

    def set_session_rate(self, session: int, bytes_per_s: int | None) -> None:
        """The control plane's rate of one session, beside that of all. One that has ended takes none."""

    def set_session_paused(self, session: int, paused: bool) -> None:
        """Pause one session, or let it go on where not all are paused."""

    def log(self) -> list[str]:
        """Lines since the last call."""

    def drain(self) -> None:
        """Stop accepting; active sessions continue."""

def wan_check_rule(line: str) -> bool:
    """Whether a proxy rule, such as `allow 10.0.0.0/8:22`, matches addresses rather than names or all hosts.

    Raises ValueError where `line` is no rule.
    """

class AggregatorError(RuntimeError):
    """An aggregator process that cannot start or go on; the message says why."""

@final
class Aggregator(Task):
    """The aggregator process of a node: serves ranks on a unix socket, other nodes' aggregators over TCP.

    `wait` returns, True, once its last rank has gone or its parent has ended. `progress` has bytes, windows, ranks and
    operations. Raises AggregatorError where a socket cannot be bound, ValueError on an invalid option.
    """

    def __new__(cls, options: AggregatorOptions) -> Aggregator: ...
    @property
    def address(self) -> str:
        """Where other nodes' aggregators reach it: `NAME@HOST:PORT`."""

    def status(self) -> dict[str, Any]:
        """What it does: `address`, `ranks`, `pool_bytes`, `image_bytes`, `files`, `operations`, `lost`;

        `apps`: by application `ranks`, `phase` (idle, waiting, running), `op`, `ops_done`, `op_bytes`, `op_write`,
        `waited_ns`, `took_ns`, `epoch`, `map`, `path`, `weight`, known where the application's rank 0 is on this node;
        `served`: by application `bytes`, `busy_ns`, `windows` since the start, and `queue_bytes`.
        """

    def notices(self) -> list[dict[str, Any]]:
        """What happened since the last call, each with the key `event`.

        `app_started` and `app_finished` (`app`); `requested` (`app`, `path`, `write`, `bytes`); `completed` (`app`,
        `write`, `bytes`, `waited_ns`, `took_ns`); `map_adopted` (`app`, `epoch`, `aggregators`); `aggregator_lost`
        (`address`).
        """

    def fileno(self) -> int:
        """A descriptor that can be read while notices wait, for `select`. Only `notices` may read it."""

    def set_server_map(self, app: str, aggregators: Sequence[str]) -> None:
        """Aggregators of the application's next operations, by name or address; none: the default."""

    def grant(self, app: str, weight: int, until_ns: int) -> None:
        """Let one operation of the application begin until `until_ns` (CLOCK_MONOTONIC), with this weight."""

    def set_scheduled(self, app: str, scheduled: bool) -> None:
        """Whether the application's operations wait for grants; to be repeated within 30 s."""

@final
class CouplingService:
    """Holds pieces of coupled names, and their directories, for ranks of this launch, until `stop`.

    `socket`: a path in a directory of rights 0700; `token`: the launch's secret; `listen`: address and port for
    other hosts, None: none; `host`: what processes that share memory have in common, by default this machine and its
    network namespace. Raises ValueError on an invalid option, OSError where it cannot listen.
    """

    def __new__(
        cls,
        socket: Path,
        token: str,
        *,
        listen: str | None = None,
        lease_s: float = 30.0,
        memory_bytes: int = ...,
        host: str | None = None,
    ) -> CouplingService: ...
    @property
    def address(self) -> str:
        """Where other processes reach it."""

    @property
    def clients(self) -> int:
        """Connections."""

    def status(self) -> tuple[list[tuple[str, list[int]]], int]:
        """Names with the versions that are held, and the bytes of all pieces."""

    def stop(self) -> None:
        """Close all connections and give up all pieces."""

@final
class WanProxy(Task):
    """TCP connections of this host through a server. `wait` also returns, False, where there are notices.

    Raises WanError where it cannot listen or a key is not usable, ValueError on an invalid option.
    """

    def __new__(cls, peer: Peer, options: ProxyOptions) -> WanProxy: ...
    @property
    def listening(self) -> list[str]:
        """Addresses with ports, in the order of `listeners`."""

    def notices(self) -> list[dict[str, Any]]:
        """Notices since the last call, each with the key `event`: `session`, `lost` or `connection`."""

    def connection(self) -> dict[str, float]:
        """Statistics of the session; empty where there is none."""

    def drain(self) -> None:
        """Stop accepting; end with the last open connection."""

class _TrainCount(TypedDict):
    sent: int
    refused: int
    first_sent_ns: int
    last_sent_ns: int
    late: int
    latest_ns: int
    given_up_ns: int
    received: int
    duplicated: int
    reordered: int
    reordered_by: int
    damaged: int
    dropped_here: int
    first_received_ns: int
    last_received_ns: int
    bare: bool
    delays_ns: tuple[int, int, int, int]
    parts: list[tuple[int, int, int]]

class _StreamCount(TypedDict):
    bytes: int
    ns: int
    late_bytes: int
    congestion: str
    retransmits: int
    rtt_us: int
    window_bytes: int

@final
class WanProbe(Task):
    """A session that probes the path to a server; a signal ends it.

    A pause holds it between two trains, streams or echoes. A rate bounds `most_rate_bytes_per_s`, and `train` raises
    WanError on a faster one.

    Raises WanError where the server is unreachable or refuses, or the session ends.
    """

    def __new__(cls, peer: Peer) -> WanProbe: ...
    @property
    def server(self) -> str:
        """The server's address."""

    @property
    def most_rate_bytes_per_s(self) -> int:
        """The limit of the server, or of `set_rate` where that is lower, in each direction."""

    @property
    def longest_s(self) -> float:
        """The longest session that the server permits."""

    @property
    def unseen_bytes(self) -> int:
        """Headers of IP and UDP."""

    def reach(self, wait_s: float) -> tuple[bool, bool, bool]:
        """Whether the server offers UDP, whether packets reach it, and whether they return. Call it first."""

    def echoes(self, count: int, interval_s: float, wait_s: float) -> list[tuple[int, int, int, int, int]]:
        """For each answered echo: number, send time, round trip without the server's processing, one-way delays, in ns.

        The one-way delays are differences of two clocks: only changes of them are meaningful.
        """

    def train(
        self, up: bool, *, packets: int, bytes: int, interval_ns: int, checksum: bool, quiet_s: float
    ) -> _TrainCount:
        """Packets of `bytes` of UDP payload every `interval_ns`, in one direction, counted until `quiet_s` without one.

        `parts` are (received, minimum delay, mean delay) by number; `delays_ns` minimum, median, 99th percentile and
        maximum. Send times are of the sender's clock, arrival times of the receiver's.
        """

    def stream(self, up: bool, duration_s: float) -> _StreamCount:
        """One TCP connection at full rate; retransmits, round trip and window are the sender's."""

    def close(self) -> None:
        """Close the session."""

@final
class TreeComparison(Task):
    """Files of two trees compared, by (path, whether contents are read). OSError where a root cannot be opened."""

    def __new__(
        cls,
        one: Path,
        other: Path,
        pairs: Sequence[tuple[bytes, bool]],
        *,
        xattrs: bool,
        threads: int,
    ) -> TreeComparison: ...
    def unlike(self) -> list[tuple[int, tuple[int, str | None, str | None] | None, bool, bool, str]]:
        """(index of the pair, (first differing byte, digests), whether xattrs, whether device numbers differ, error).

        There are no digests of files with large holes.
        """

class DedupError(RuntimeError):
    """A deduplication profile that cannot be made; the message says why."""

class DedupPartError(DedupError):
    """A file that is no complete part of a profile, or parts of different profiles."""

@final
class DedupProfile(Task):
    """A profile of the files below `root`; see docs/how-to/dedup.md.

    `files` are columns: path offsets, paths, sizes, mtimes, ctimes, inodes, devices, links, storage targets.
    """

    def __new__(
        cls,
        root: Path,
        files: tuple[
            NDArray[np.int64],
            NDArray[np.uint8],
            NDArray[np.int64],
            NDArray[np.int64],
            NDArray[np.int64],
            NDArray[np.uint64],
            NDArray[np.uint64],
            NDArray[np.uint32],
            NDArray[np.uint32],
        ],
        options: DedupProfileOptions,
    ) -> DedupProfile: ...
    def finish(self) -> tuple[dict[str, Any], list[tuple[bytes, str]]]:
        """Wait for the end and take the result: (report, [(path, error)]). Raises DedupError, also after `cancel`."""

DEDUP_SLICES: int
"""Slices of fingerprints that a part is sorted by."""

def dedup_merge(
    parts: Sequence[Path], progress: Callable[[int], object], slices: tuple[int, int] = ...
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Join slices of parts, from `slices[0]` to before `slices[1]`, else all: (question, report). `progress` is called with
    the number of chunks joined."""

def dedup_estimate(
    parts: Sequence[Path], sample: int, seed: int, progress: Callable[[int], object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Estimate from parts in bounded memory: (question, estimate)."""

def dedup_question(part: Path) -> dict[str, Any]:
    """The question that a part answers: `method`, `label`, `parts`, `part`."""

def excluded_paths(
    patterns: Sequence[bytes], offsets: NDArray[np.int64], data: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Which paths a walk with these patterns would not have reached."""

def chunk_lengths(data: bytes, method: str) -> list[int]:
    """The lengths of the chunks of `data`."""

def chunk_and_digest(data: bytes, method: str) -> int:
    """Chunk and hash `data` in this thread: the number of chunks."""

class AugmentError(RuntimeError):
    """Images that cannot be made; the message says why."""

@final
class Augmentation(Task):
    """New images of the files below `root`; see docs/how-to/augment.md.

    `files` are columns: path offsets, paths, sizes, mtimes, ctimes, inodes. Raises ValueError on an invalid
    operation.
    """

    def __new__(
        cls, root: Path, files: tuple[NDArray[Any], ...], options: AugmentationOptions
    ) -> Augmentation: ...
    def next(self) -> tuple[Any, ...] | None:
        """(path, copy, name, bytes), or (path, copy, array of height, width, channels); None after the last."""

    def finish(self) -> tuple[dict[str, int], list[tuple[bytes, str]]]:
        """Wait for the end and take the result: (counts, [(path, error)]). Raises AugmentError, also after `cancel`."""

def augment_image(
    data: bytes, operations: Sequence[str], *, seed: int = 0, encoding: str = "same", max_pixels: int = ...
) -> bytes:
    """One image in memory: the new one, as a file. Raises AugmentError where it is broken."""

def check_operation(text: str) -> None:
    """Raise ValueError where `text` is no valid operation."""

class WanPathError(RuntimeError):
    """An emulated path that cannot be set up; the message says why, and the remedy."""

@final
class EmulatedPath:
    """An emulated wide-area path that forwards packets, in threads, until it is ended or dropped.

    A direction is a mapping, see `waystage.worlds.lab.wan.profile.native`; `work` one of
    `waystage.worlds.lab.wan.serving.work`. The directions are 0, forward, and 1, back.
    """

    @staticmethod
    def join(
        namespaces: tuple[str | None, str | None],
        devices: tuple[str, str],
        forward: Mapping[str, Any],
        back: Mapping[str, Any],
        work: Mapping[str, Any],
    ) -> EmulatedPath:
        """Create a TUN device in each namespace (None: the caller's), and connect them. Raises WanPathError."""

    @staticmethod
    def relay(
        listen: str, to: str, forward: Mapping[str, Any], back: Mapping[str, Any], work: Mapping[str, Any]
    ) -> tuple[EmulatedPath, str]:
        """A path that relays UDP datagrams, and the address that it listens on. Raises WanPathError."""

    def change(self, direction: int, spec: Mapping[str, Any]) -> None:
        """Change a direction for packets that arrive from now on."""

    def reports(self) -> list[dict[str, Any]]:
        """Counts and lateness of each direction."""

    def ended(self) -> bool:
        """Whether a direction has ended because a device or socket of the path is gone."""

    def end(self) -> None:
        """Stop forwarding; packets in flight are lost."""
