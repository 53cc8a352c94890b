"""The compiled module: engines of the data plane that Python only starts, stops and reads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, final

import numpy as np
from numpy.typing import NDArray

__version__: str

class ProbeError(RuntimeError):
    """Probes that cannot be set up or run; the message names the namespace, stream or address."""

@final
class ProbeStream:
    """UDP packets from `source` to `target` at `rate_pps`, marked with `dscp`.

    A namespace is a name under /run/netns, or None for the caller's own. Raises ValueError on an address
    that is none.
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
    ) -> ProbeStream: ...

@final
class ProbeResult:
    """What became of one stream.

    `refused` and `skipped` packets never left the sender and are in no other count. `loss_runs`
    holds the first (sequence number, count) of packets lost one after the other.
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
class ProbeReport:
    """What became of all streams, in the order given.

    `overflowed` packets were dropped by receive buffers of this machine, not by the network;
    `foreign` ones were no probe of this run.
    """

    @property
    def streams(self) -> list[ProbeResult]: ...
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
class Prober:
    """A set of streams with open sockets, sent by one thread and received by another.

    Every method releases the GIL and raises ProbeError.
    """

    def __new__(cls, streams: Sequence[ProbeStream], payload_bytes: int = 64) -> Prober: ...
    def warm_up(self, timeout_s: float = 5.0) -> list[int]:
        """Send uncounted packets until each stream was received; the indexes of streams that were not."""

    def start(self) -> None:
        """Begin to send and count."""

    def totals(self) -> tuple[int, int]:
        """Packets sent and received since the start; (0, 0) when not running."""

    def stop(self, drain_s: float = 1.0) -> ProbeReport:
        """Stop sending, wait at most `drain_s` for what is under way, and report."""

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
class FileServer:
    """Gives and takes files over TCP, from the start on until it is stopped or dropped.

    A module is a name, a folder and whether files may be put there. A namespace is a name under /run/netns,
    or None for the caller's own. Raises TransferError, ValueError on an address that is none.
    """

    def __new__(
        cls,
        *,
        address: str,
        port: int,
        modules: Sequence[tuple[str, Path, bool]],
        namespace: str | None = None,
    ) -> FileServer: ...
    @property
    def port(self) -> int:
        """Where it listens: of interest where 0 was given, which takes any port that is free."""

    def failure(self) -> str | None:
        """Why it no longer serves; None while it does."""

    def stop(self) -> None:
        """End it and every transfer with it; what arrived in part is gone when this returns."""

@final
class FileTransfer:
    """Moves files between this host and a `FileServer`, in a thread of its own, verified by a digest each.

    A step is a sequence of (path here, name there) and how often it is moved, None for until cancelled. A
    name is a module, a slash and the way from the module's folder. Dropped, the transfer is cancelled.
    """

    def __new__(
        cls,
        *,
        address: str,
        port: int,
        way: Literal["get", "put"],
        steps: Sequence[tuple[Sequence[tuple[Path, bytes]], int | None]],
        namespace: str | None = None,
    ) -> FileTransfer: ...
    @property
    def moved(self) -> int:
        """Bytes of files that have arrived whole so far."""

    def wait(self, timeout_s: float | None = None) -> tuple[int, float] | None:
        """(bytes, seconds) once it has ended, None where it still runs. Raises TransferError where it failed."""

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it ended within that time, well or not."""

    def cancel(self) -> None:
        """End it now; what arrived here in part is gone when this returns."""

class FlowError(ValueError):
    """An interconnect, pairs of hosts or paths that cannot be used; the message names which."""

@final
class FlowRoutes:
    """What routing gave: `loads`, the bytes of the demands routed on each link.

    Where paths were kept, demand i carries `bytes[i]` from host `src[i]` to `dst[i]` over
    `links[offsets[i]:offsets[i + 1]]`, from host to host; else all other arrays are empty.
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
        """For each link whether it joins two switches: only these count in maxima."""

    def max_load(self, loads: NDArray[np.float64]) -> float:
        """The largest load on a link between switches."""

    def route_loads(
        self,
        router: str,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        seed: int = 0,
        initial: NDArray[np.float64] | None = None,
        per_flow: bool = False,
        by_capacity: bool = False,
        keep_paths: bool = False,
        effort: float = 1.0,
        candidates: int = 2,
    ) -> FlowRoutes:
        """Choose a path for each pair of hosts, and add up what each link carries.

        `router`: d-mod-k, s-mod-k, random, ecmp-hash, greedy-sum, greedy-max, adaptive-minimal or joint, which take
        shortest paths; valiant, ugal-l or ugal-g, which take others too, of `candidates` each. Entries of one pair
        are added up first, in the order of first appearance; with `per_flow` each has a path of its own.
        `initial` are loads that greedy and joint routing avoid. `by_capacity` compares loads by what a
        link can carry. The GIL is released. Raises FlowError.
        """

    def splittable_bound(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        initial: NDArray[np.float64] | None = None,
        by_capacity: bool = False,
        effort: float = 1.0,
    ) -> tuple[float, float, NDArray[np.float64]]:
        """A load that the busiest link between switches has at least, whatever the routing over shortest paths.

        Returns (bound, busiest link of the best split found, weights): all bytes together weigh at least
        bound, each pair by its shortest way under `weights`, which add up to 1. Raises FlowError.
        """

    def any_path_bound(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        bytes: NDArray[np.float64],
        *,
        by_capacity: bool = False,
        effort: float = 1.0,
    ) -> float:
        """A load that the busiest link between switches has at least, whatever paths are taken. Raises FlowError."""

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
        """Let processes change places, from `host_of`, so that the busiest link between switches carries less.

        `src`, `dst` are processes; host h takes `slots[h]` of them. Returns the host of each process and the
        busiest link under an even split of every pair. Hosts that nothing was on stay empty. Raises FlowError.
        """

    def add_paths(
        self,
        loads: NDArray[np.float64],
        offsets: NDArray[np.uint64],
        links: NDArray[np.uint32],
        bytes: NDArray[np.float64],
    ) -> None:
        """Add to `loads`, in place, what paths chosen elsewhere carry. Raises FlowError on a path that is none."""

@final
class FlowProgram:
    """Steps, done one after the other and all of them `repeat` times. A step is a pause and then a set of flows.

    A step is over when all its flows have ended. Raises FlowError on what makes no sense.
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
        """Add a flow of `bytes[i]` by the route of key `routes[i]`, for each i, to the step begun last.

        Their bytes are counted under `flow_class` (0..65535). `limit_bps`, bytes a second, holds for each flow.
        """

    @property
    def bytes(self) -> float:
        """Bytes that one pass through the steps moves."""

@final
class FlowClock:
    """Flows over resources in simulated time, at max-min fair rates. It starts at 0 s.

    Resources are numbered as `capacities` (bytes a second) lists them. `precision` is the share of its bytes with
    which a flow may end early, and of its capacity by which a resource may give more or less: 1e-9 is exact for all
    purposes, 1e-3 much faster with very many flows. Same calls, same answers. Raises FlowError.
    """

    def __new__(cls, capacities: NDArray[np.float64], *, precision: float = 1e-9) -> FlowClock: ...
    def add_routes(self, offsets: NDArray[np.uint64], resources: NDArray[np.uint32]) -> int:
        """Add routes, the i-th `resources[offsets[i]:offsets[i + 1]]`; the key of the first, the others follow."""

    def set_routes(
        self, keys: NDArray[np.uint32], offsets: NDArray[np.uint64], resources: NDArray[np.uint32]
    ) -> None:
        """Let `keys[i]` stand for the i-th of these routes; flows under way move over with what is left."""

    def route(self, key: int) -> NDArray[np.uint32]:
        """The route that a key stands for now."""

    def set_capacity(self, resource: int, capacity: float) -> None:
        """Give a resource another capacity from now on; 0 stops its flows until it has one again."""

    def set_curve(self, resource: int, points: Sequence[tuple[float, float]]) -> None:
        """Let what a resource gives be a function of the number of flows on it: (flows, bytes a second)."""

    def start(self, program: FlowProgram, at_s: float | None = None) -> int:
        """Start a program, now or later; the number of this run. Later changes to the program do not touch it."""

    def cancel(self, run: int) -> None:
        """Stop a run and take its flows away; `run_until` does not report it."""

    def run_until(self, limit_s: float = ...) -> list[tuple[float, int]]:
        """Go on to the next end of a program, or to the limit; (time, run) of what ended at that time.

        An empty list: the limit is reached, or nothing will ever happen again (`now` is then the limit, or with
        none, the time of the last event). Releases the GIL; Ctrl-C interrupts it.
        """

    @property
    def now(self) -> float:
        """Seconds."""

    @property
    def flows_under_way(self) -> int:
        """Flows under way; equal ones of a step count once."""

    @property
    def solutions(self) -> int:
        """How often rates were worked out."""

    def times(self, run: int) -> tuple[float, float | None]:
        """When a run was to start, and when it ended, or None."""

    def bytes_left(self, run: int) -> float:
        """Bytes that the flows under way of a run have left."""

    def totals(self, flow_class: int = 0) -> NDArray[np.float64]:
        """Bytes that each resource has carried until now for a class."""

    def rates(self, flow_class: int | None = None) -> NDArray[np.float64]:
        """Bytes a second that each resource carries now, in all or for a class."""

def contention_imbalance(loaders: NDArray[np.uint32]) -> float:
    """CI = 1 - H / Hmax of so many loaders on each target: 0 if all have as many, 1 if one has all."""

@final
class ContentionModel:
    """Files placed on storage targets, and loaders that read them; times in units of one object read alone.

    Components are (end in bytes or None, stripes); targets are taken in turn from `first_target` on. `slowdown` lists
    (loaders on a target, time of an object relative to one loader alone), linear in between. Raises FlowError.
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
        """When each loader had read its last file, and the imbalance while all were reading.

        Releases the GIL; Ctrl-C interrupts it.
        """

    def object_level(self, objects: NDArray[np.uint64], loaders: int) -> NDArray[np.float64]:
        """When each target's objects are read, with `loaders` bound to each target."""

    def best_loaders(self, most: int) -> int:
        """The number of loaders on a target, up to `most`, that reads most objects a unit of time."""

ENTRY_TYPES: list[str]
"""The letters of an entry's type, by their number in a walk's column `type`."""

LAYOUT_KINDS: list[str]
"""The kinds of file systems that have layouts, by their number in a walk's column `layout_kind`."""

def digest_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
    """XXH3, 64 bits, of runs of a file's bytes, each (first byte, length). Raises OSError where one cannot be read whole."""

def digest_bytes(data: bytes) -> int:
    """XXH3, 64 bits."""

def exchange_paths(one: Path, other: Path) -> None:
    """Let two paths of one file system change their names at one moment. Raises OSError where it cannot."""

@final
class WalkBatch:
    """Entries of a walk, as columns."""

    def take(
        self,
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], list[tuple[bytes, str]]]:
        """Columns of entries and of directories by name, and (path, error); to be taken once."""

def generated_batch(first: int, count: int) -> WalkBatch:
    """Entries `first` to `first + count` of a tree that there is not, as a walk gives them; 65,536 at most."""

@final
class TreeWalk:
    """A parallel walk under way. Raises OSError where `root` cannot be read as a directory.

    `exclude` are patterns over names, or over paths below the root where they hold a slash. `known` are directories
    that are not read where they have not changed: path offsets, paths, inodes, devices, mtimes, ctimes.
    A batch has `batch_rows` entries at most. With `layouts` each file system is asked in its own way, or every file
    for the attribute of Lustre. `tops` are where to begin, paths below the root, which is begun at otherwise.
    """

    def __new__(
        cls,
        root: Path,
        *,
        threads: int,
        exclude: Sequence[bytes] = (),
        one_file_system: bool = False,
        known: tuple[
            NDArray[np.int64],
            bytes,
            NDArray[np.uint64],
            NDArray[np.uint64],
            NDArray[np.int64],
            NDArray[np.int64],
        ]
        | None = None,
        batch_rows: int = 65_536,
        layouts: Literal["each", "attribute"] | None = None,
        tops: Sequence[bytes] | None = None,
    ) -> TreeWalk: ...
    def next(self, timeout_s: float) -> tuple[WalkBatch | None, bool]:
        """The next batch, or None after `timeout_s`; and whether the walk is over."""

    def counts(self) -> dict[str, int]: ...
    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of every storage target met so far."""

    def stop(self) -> None:
        """End it; its threads are gone when this returns."""

CHECK_KINDS: list[str]
"""In what an entry may differ from its file, by bit number; columns of a catalog have the column's name."""

CHECKSUM_ALGORITHM: str
"""What checksums of objects are made by."""

def hash_paths(
    directories: tuple[NDArray[np.int32], NDArray[np.uint8]],
    directory: NDArray[np.int32],
    names: tuple[NDArray[np.int32], NDArray[np.uint8]],
) -> NDArray[np.uint64]:
    """A number for each path, the same wherever it is met. Raises ValueError where columns do not fit together."""

@final
class CheckedTree:
    """A catalogued tree whose files are opened with a check. One serves all threads; calls release the GIL.

    Raises OSError where `root` cannot be opened as a directory. No path leads out of it.
    """

    def __new__(cls, root: Path) -> CheckedTree: ...
    def open(
        self, path: bytes, recorded: tuple[int, int, int, int, int, int, int]
    ) -> tuple[int | None, int, tuple[int, int, int, int, int] | None, dict[str, Any] | None, int]:
        """(descriptor or None, differences as bits, what it is now, its layout now where anything differs, errno).

        `recorded` is (type, size, mtime, ctime, inode, layout, layout generation): type and layout as indices into
        ENTRY_TYPES and LAYOUT_KINDS, -1 for no layout; times in ns. What it is now are the first five of these.
        """

    def sum(
        self, path: bytes, recorded: tuple[int, int, int, int, int, int, int], version: int
    ) -> tuple[
        int,
        tuple[int, int, int, int, int, int, int] | None,
        list[tuple[int, int, int | None, int, int, bytes | None]] | None,
        int,
    ]:
        """(differences as bits, what the file is now, sums, errno).

        By the rule of files of checksums of this version. A sum is (component or -1, object, target, offset, length, digest); a digest is None where the object could not be
        read, all are None where the file changed while it was read.
        """

    def mend(
        self,
        donor: CheckedTree,
        path: bytes,
        recorded: tuple[int, int, int, int, int, int, int],
        version: int,
        wanted: Sequence[tuple[int, bytes]],
    ) -> list[bool]:
        """Make objects, (place in the list of sums, digest), whole from the same path below `donor`: which were.

        Raises OSError where either file is not what it should be (ESTALE), or cannot be read or written.
        """

    def look_at(
        self,
        *,
        directories: tuple[NDArray[np.int32], NDArray[np.uint8]],
        directory: NDArray[np.int32],
        names: tuple[NDArray[np.int32], NDArray[np.uint8]],
        kind: NDArray[np.int8],
        size: NDArray[np.int64],
        mtime: NDArray[np.int64],
        ctime: NDArray[np.int64],
        inode: NDArray[np.uint64],
    ) -> NDArray[np.uint16]:
        """In what each entry differs, as bits. Raises ValueError where columns do not fit together."""

    def counts(self) -> dict[str, int]:
        """`checked`, `stale`, and how many differed in each of CHECK_KINDS."""

    def summed_bytes(self) -> int:
        """Bytes of files summed so far, holes and files in hand among them."""

    def stale_paths(self) -> tuple[list[bytes], bool]:
        """Paths of entries that did not hold, 100,000 at most, and whether these are all."""

    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of the storage targets of layouts that were read anew."""

class CatalogAgent:
    """Reads what preloaded libraries say of files below `root`, an absolute path without links.

    With `tell_stat` programs say on closing what fstat says. `rings` programs can write at once, each into `ring_bytes`, a
    power of two. Raises OSError where the memory cannot be had.
    """

    def __new__(
        cls, root: Path, *, tell_stat: bool = False, rings: int = 64, ring_bytes: int = 1 << 19
    ) -> CatalogAgent: ...
    @property
    def path(self) -> str:
        """What programs find the memory by, as WAYSTAGE_RING, while this process lives."""

    @property
    def records(self) -> int:
        """Records read so far."""

    def started(self, process: int, name: bytes) -> None:
        """A process was started with the library, as the program `name`: whether it can be seen is told at the end."""

    def finish(
        self,
        *,
        threads: int,
        exclude: Sequence[bytes] = (),
        one_file_system: bool = False,
        layouts: Literal["each", "attribute"] | None = None,
    ) -> CatalogChanges:
        """The program is over: what changed. RuntimeError when it was asked before."""

class CatalogChanges:
    """The paths that changed while an agent worked. Paths are given in Arrow's form: offsets, bytes."""

    def unseen(self) -> list[bytes]:
        """The first programs that could not be seen, as they were named, and ways past the library, such as io_uring."""

    def counts(self) -> dict[str, int]:
        """What became of records, by name."""

    def targets(self) -> list[tuple[int, str]]:
        """(number, name) of every storage target met so far."""

    def add(self, paths: Sequence[bytes]) -> None:
        """Look at more paths below the root too."""

    def look(self) -> list[WalkBatch]:
        """Entries of the next paths; an empty list when there are none."""

    def to_walk(self) -> list[bytes]:
        """Directories below which all is to be walked anew, when everything was looked at."""

    def covers(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each path, whether an older entry of it no longer counts."""

    def replaces_directories(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each directory, whether what was known of it no longer counts at all."""

    def touches_directories(self, offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each directory, whether some of its entries were looked at."""

def shim_sources(library: str) -> list[tuple[str, str]]:
    """Names and texts of the C sources of a library: "posix". KeyError for another."""

class LayoutError(RuntimeError):
    """What a file system said of a file is no layout; the message says why. Read the file by its path."""

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
    """The layout that `data`, as a file system of this kind tells it, gives a file of `size` bytes.

    Raises LayoutError on data that is none, ValueError on a kind that is none. `block_size` is of a sharded GlusterFS
    volume. `mirrors` is "all", "best" or a number. The keys are those of docs/reference/layouts.md; there are at most
    `limit` extents and objects.
    """

def read_layout(
    path: Path, *, size: int | None = None, mirrors: str = "all", limit: int = 1000
) -> dict[str, Any] | None:
    """The layout of a file or directory as its file system tells it; None where it tells none.

    Raises OSError where it cannot be opened, LayoutError where its file system's answer is not understood.
    """

class LoadRefused(ValueError):
    """Options, files or a state that a loader cannot use; the message says which."""

class FileNotLoaded(RuntimeError):
    """A file that could not be delivered. The iterator goes on with the next one."""

    path: str
    """Below the root."""
    trouble: Literal["vanished", "not_a_file", "unreadable", "grown"]

@final
class LoadFiles:
    """Files below `root` that a loader reads, as columns."""

    def __new__(cls, root: Path) -> LoadFiles: ...
    def extend(
        self,
        *,
        directories: tuple[NDArray[np.int32], NDArray[np.uint8]],
        directory: NDArray[np.int32],
        kind: NDArray[np.int8],
        names: tuple[NDArray[np.int32], NDArray[np.uint8]],
        size: NDArray[np.int64],
        mtime: NDArray[np.int64],
        ctime: NDArray[np.int64],
        inode: NDArray[np.uint64],
        layout: NDArray[np.int8],
        generation: NDArray[np.uint32],
        objects: NDArray[np.int32],
        object_target: NDArray[np.uint32],
        object_offset: NDArray[np.int64],
        object_length: NDArray[np.int64],
    ) -> None:
        """Append the regular files among these entries. Raises LoadRefused where columns do not fit together."""

    def sort(self) -> None:
        """Bring them into the order of their directories and names."""

    def __len__(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def targets(self) -> list[int]:
        """Numbers of targets, in the order in which they were met; 2**32 - 1 is the one nobody knows."""

    def bytes_by_target(self) -> list[int]: ...
    def fingerprint(self) -> int: ...
    def path(self, file: int) -> str: ...

@final
class LoadedBytes:
    """Bytes that were read; supports the buffer protocol, writable."""

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Loading:
    """An epoch being read: an iterator of (path, memoryview), or of (path, offset, memoryview) where not `whole_files`.

    `runs` and `parts` are what was delivered before, as `progress` gives them. With `raises` a file that cannot be
    delivered raises FileNotLoaded in its place, else it is counted. With `resized` one of another size than recorded is
    delivered as it is. Raises LoadRefused, and OSError where the root cannot be opened.
    """

    def __new__(
        cls,
        files: LoadFiles,
        *,
        whole_files: bool,
        seed: int,
        epoch: int,
        shuffle: bool,
        rank: int,
        world: int,
        uneven: str,
        loaders: int,
        best_loaders: int | None,
        in_order: bool,
        memory_bytes: int,
        piece_bytes: int,
        steal: bool,
        raises: bool,
        resized: bool,
        runs: Sequence[tuple[int, int]],
        parts: Sequence[tuple[int, Sequence[int]]],
    ) -> Loading: ...
    def __iter__(self) -> Loading: ...
    def __next__(self) -> tuple[Any, ...]: ...
    def progress(self) -> tuple[list[tuple[int, int]], list[tuple[int, list[int]]]]:
        """Runs of positions delivered in full, and the parts delivered of units that are not."""

    def counts(self) -> dict[str, Any]: ...
    def failures(self) -> list[tuple[str, str, str]]: ...
    def stale_paths(self) -> tuple[list[bytes], bool]: ...
    def stop(self) -> None:
        """End it; its threads are gone when this returns."""

def choose_loaders(points: Sequence[tuple[int, float]]) -> tuple[int, list[tuple[int, float]]]:
    """The best number of loaders on a target by (loaders, slowdown), and that curve, smoothed. Raises LoadRefused."""

def measure_target(
    files: LoadFiles,
    *,
    target: int,
    skip: int,
    pieces: int,
    readers: int,
    piece_bytes: int,
    most_bytes: int,
) -> tuple[int, float, int]:
    """Read pieces of one target with so many readers: (bytes, seconds of all readers together, pieces)."""

def simulate_load(
    files: LoadFiles,
    targets: Sequence[tuple[NDArray[np.float64], float]],
    *,
    whole_files: bool,
    loaders: int,
    most_readers: int | None,
    in_order: bool,
    steal: bool,
    memory_bytes: int,
    piece_bytes: int,
    seed: int = 0,
    shuffle: bool = True,
) -> dict[str, Any]:
    """The scheduler over emulated targets in simulated time: `makespan_s`, `busy_s`, `bytes`, `stolen`, `most_held`.

    A target is (bytes a second for 1, 2, ... readers together, seconds of latency of each piece).
    """

def load_bound(
    bytes: Sequence[int], targets: Sequence[tuple[NDArray[np.float64], float]], loaders: int
) -> float:
    """Seconds that no scheduler with so many loaders gets below, whatever it does."""

class PfsError(RuntimeError):
    """An emulated file system that cannot be had; the message says why."""

@final
class EmulatedFileSystem:
    """A striped file system that is emulated and mounted until `end` or until somebody unmounts it.

    `shape` has the keys that `waystage.worlds.lab.pfs.shape.native` writes. Without `sizes` the folder of the shape is
    served. Raises PfsError.
    """

    def __new__(
        cls, point: Path, name: str, shape: dict[str, Any], sizes: NDArray[np.uint64] | None = None
    ) -> EmulatedFileSystem: ...
    def ended(self) -> bool:
        """Whether somebody unmounted it."""

    def end(self) -> None:
        """Unmount it; its threads are gone when this returns. A second time it does nothing."""

class CopyError(RuntimeError):
    """A copy that cannot be begun or go on; the message names the path and how to mend it."""

    kind: Literal["no-space", "refused", "busy", "ends", "other-journal", "stopped", "failed"]

COPY_LIST_BYTES: int
"""How long the list of a copy may be."""

@final
class NameList:
    """A list of the names that are to be copied: one a line, or each ended by a NUL. ValueError where one cannot be taken."""

    def __new__(cls, list: bytes, nul: bool) -> NameList: ...
    def __len__(self) -> int: ...
    def names(self) -> list[bytes]:
        """In order, a directory right before what lies in it; the root's own is empty."""

@final
class TreeCopy:
    """A copy under way in threads of its own. Raises CopyError where an end cannot be used, ValueError on an odd option."""

    def __new__(
        cls,
        source: str | Path,
        destination: str | Path,
        *,
        workers: int,
        exclude: Sequence[bytes] = ...,
        include: Sequence[bytes] | None = None,
        names: NameList | None = None,
        one_file_system: bool = False,
        update: str = "changed",
        fsync: str = "none",
        verify: str = "none",
        rate_bytes_per_s: int | None = None,
        rate_changes: bool = False,
        dry_run: bool = False,
        read_sources: bool = False,
        restart: bool = False,
        xattrs: bool = True,
        owners: bool = True,
        hard_links: bool = True,
    ) -> TreeCopy: ...
    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended; CopyError where it could not go on."""

    def counts(self) -> dict[str, int]: ...
    @property
    def complete(self) -> bool: ...
    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text), the first ten thousand."""

    def planned(self) -> list[tuple[bytes, str, int]]:
        """(path, letter of its type, bytes) of what a dry run would make, the first ten thousand; `h` is a further name of a file."""

    def limit(self, bytes_per_s: int | None) -> None:
        """Move no more than this from now on; of a copy with `rate_changes`."""

    def stop(self) -> None:
        """End it; its threads and unfinished small files are gone when this returns."""

class WanError(RuntimeError):
    """A copy between hosts, or a server, that cannot be begun or go on."""

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
    """The key that the server showed, where it is not the one that is trusted."""

def wan_make_key(path: Path) -> str:
    """Make a key in a new file of mode 0600; the line that names its public half. WanError where the file is there already."""

def wan_read_key(path: Path) -> str:
    """The line that names the public half of a key. WanError where others than its owner may read the file."""

def wan_fingerprint(line: str) -> str:
    """The fingerprint of the key that a line names. WanError where it names none."""

def wan_loopback(
    bytes: int, largest_datagram: int, mode: str, connections: int = 1
) -> tuple[float, int, int, int]:
    """One connection within this process: seconds, bytes of a datagram, packets lost, packets sent."""

def wan_tls_stream(bytes: int, segment: int) -> float:
    """TLS over TCP within this process: seconds."""

@final
class WanCopy:
    """A copy between hosts under way. Raises WanError where a key cannot be used, ValueError on an odd option."""

    def __new__(
        cls,
        local: Path,
        remote: bytes,
        *,
        push: bool,
        host: str,
        port: int,
        user: str,
        key: Path,
        trusted: str | None,
        mode: str,
        rate_bytes_per_s: int | None,
        udp_wait_s: float | None,
        workers: int,
        connections: int = 1,
        memory_bytes: int = ...,
        known_as: str | None = None,
        exclude: Sequence[bytes] = ...,
        include: Sequence[bytes] | None = None,
        names: NameList | None = None,
        one_file_system: bool = False,
        update: str = "changed",
        fsync: str = "none",
        verify: str = "none",
        dry_run: str | None = None,
        restart: bool = False,
        xattrs: bool = True,
        owners: bool = True,
        hard_links: bool = True,
        privileged: bool = False,
    ) -> WanCopy: ...
    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended; WanError where it could not go on."""

    def counts(self) -> dict[str, int]: ...
    @property
    def complete(self) -> bool: ...
    def planned(self) -> list[tuple[bytes, str, int]]:
        """As of a copy on one machine."""

    def problems(self) -> list[tuple[bytes, str, str]]:
        """(path, kind, text) of both ends."""

    def notes(self) -> list[str]:
        """What the user should know of the connection, in sentences."""

    def digest(self) -> str:
        """What both ends added up of all contents that were copied."""

    def connection(self) -> tuple[dict[str, float], str]:
        """Numbers on the connection by name, and what limits it."""

    def limit(self, bytes_per_s: int | None) -> None:
        """Have no more than this sent from now on, by either end; None for as much as was agreed at first."""

    def stop(self) -> None:
        """End it; its threads are gone when this returns."""

@final
class WanServer:
    """A server of copies. Raises WanError where it cannot listen or a root or key cannot be used."""

    def __new__(
        cls,
        listen: str,
        key: Path,
        users: Sequence[
            tuple[str, Sequence[str], Sequence[str], Sequence[tuple[str, int]], int | None, int | None]
        ],
        roots: Sequence[tuple[Path, bool, Sequence[str], bool]],
        *,
        rate_bytes_per_s: int | None,
        connections: int,
        memory_bytes: int,
        udp: bool,
        workers: int,
        proxy: Sequence[tuple[str, Sequence[str], Sequence[str]]] = (),
        probe_users: Sequence[str] = ...,
        probe_rate_bytes_per_s: int | None = None,
        probe_s: float = 0.0,
        copy_connections: int = 1,
        sockets: int = 1,
        accounts: Sequence[tuple[str, int, int, Sequence[int]]] = (),
    ) -> WanServer: ...
    @property
    def address(self) -> str: ...
    def connections(self) -> int: ...
    def strange_datagrams(self) -> int:
        """Datagrams that belonged to no connection."""

    def counts(self) -> dict[str, int]:
        """What became of those who knocked: handshakes begun and failed, connections turned away, datagrams of no connection."""

    def limit(self, bytes_per_s: int | None, users: Mapping[str, int]) -> None:
        """Have no connection carry more than this from now on, and those of some users even less."""

    def log(self) -> list[str]:
        """Lines since the last call."""

    def drain(self) -> None:
        """Let nobody in any more."""

    def stop(self) -> None:
        """End every connection; all threads are gone when this returns."""

def wan_check_rule(line: str) -> bool:
    """Whether a rule of a proxy, such as `allow 10.0.0.0/8:22`, is about addresses, and not about names or all hosts. ValueError where `line` is none."""

@final
class WanProxy:
    """TCP connections of this host through a server. `places` are (`socks`, `forward`, `redirect` or `tproxy`, where to listen, where to).

    Raises WanError where it cannot listen or a key cannot be used, ValueError on an odd option.
    """

    def __new__(
        cls,
        places: Sequence[tuple[str, str, str]],
        reverse: Sequence[tuple[str, str]],
        rules: Sequence[str],
        *,
        host: str,
        port: int,
        user: str,
        key: Path,
        trusted: str | None,
        mode: str,
        rate_bytes_per_s: int | None,
        udp_wait_s: float | None,
        wait_s: float,
    ) -> WanProxy: ...
    @property
    def listening(self) -> list[str]:
        """Addresses with ports, in the order of `places`."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended; returns early where there is something to tell. WanError where it could not go on."""

    def notices(self) -> list[dict[str, Any]]:
        """What there is to tell since the last call, each with the key `event`: `session`, `lost` or `connection`."""

    def counts(self) -> dict[str, int]: ...
    def connection(self) -> dict[str, float]:
        """How the session is doing; empty where there is none."""

    def drain(self) -> None:
        """Take no more connections, and end with the last."""

    def stop(self) -> None:
        """End every connection; all threads are gone when this returns."""

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
class WanProbe:
    """A probe of the path to a server. WanError where the server cannot be reached, refuses, or the session ends; after a signal it has ended."""

    def __new__(cls, host: str, port: int, *, user: str, key: Path, trusted: str | None) -> WanProbe: ...
    @property
    def server(self) -> str: ...
    @property
    def most_rate_bytes_per_s(self) -> int:
        """What the server allows, in each direction."""

    @property
    def longest_s(self) -> float:
        """How long the server lets the session last."""

    @property
    def unseen_bytes(self) -> int:
        """Headers of IP and UDP."""

    def reach(self, wait_s: float) -> tuple[bool, bool, bool]:
        """Whether the server offers UDP; whether packets get there; and back. Before anything else over UDP."""

    def echoes(self, count: int, interval_s: float, wait_s: float) -> list[tuple[int, int, int, int, int]]:
        """Of each echo that was answered: number, when it was sent, round trip without the other end's time, there and back, in ns.

        The last two are differences of two clocks: only differences between them mean anything.
        """

    def train(
        self, up: bool, *, packets: int, bytes: int, interval_ns: int, checksum: bool, quiet_s: float
    ) -> _TrainCount:
        """Packets of a size (UDP payload) at a distance, to the server or from it, counted until none has come for `quiet_s`.

        `parts` are (received, least delay, mean delay) by number; `delays_ns` least, median, 99th percentile and most. Times of
        sending are of the sender's clock, of arrival of the receiver's.
        """

    def stream(self, up: bool, duration_s: float) -> _StreamCount:
        """One TCP connection that carries as much as it can; retransmits, round trip and window are the sender's."""

    def close(self) -> None:
        """Say goodbye."""

@final
class TreeComparison:
    """Files of two trees, by path and whether contents are read, compared in threads. OSError on a root that cannot be opened."""

    def __new__(
        cls,
        one: Path,
        other: Path,
        pairs: Sequence[tuple[bytes, bool]],
        *,
        xattrs: bool,
        threads: int,
    ) -> TreeComparison: ...
    def wait(self, timeout_s: float) -> bool: ...
    def progress(self) -> tuple[int, int, int]:
        """Pairs taken up, bytes read of each side, bytes compared with holes among them."""

    def unlike(self) -> list[tuple[int, tuple[int, str | None, str | None] | None, bool, bool, str]]:
        """(index of the pair, (first byte, digests) where contents differ, whether xattrs do, whether they are other devices, why
        it cannot be told). There are no digests of files with large holes."""

    def stop(self) -> None: ...

class DedupError(RuntimeError):
    """A deduplication profile could not be made; the message says why."""

class DedupPartError(DedupError):
    """A file that is no whole part of a profile, or parts that do not belong together."""

class DedupProfile:
    """A profile being made of files below `root`; see docs/how-to/dedup.md.

    `files` are columns: path offsets, paths, sizes, mtimes, ctimes, inodes, devices, links, storage targets. With `part`
    fingerprints are written there, as part `number` of `parts`, and nothing is reported.
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
        *,
        method: str,
        threads: int,
        bytes_per_s: int = 0,
        part: Path | None = None,
        parts: int = 1,
        number: int = 0,
        label: str = "",
    ) -> DedupProfile: ...
    def wait(self, timeout_s: float) -> bool:
        """Whether it is over, after at most so long."""

    def progress(self) -> tuple[int, int, int]:
        """(bytes read, files done with, files there are)."""

    def stop(self) -> None:
        """End it early; `finish` then raises."""

    def finish(self) -> tuple[dict[str, Any], list[tuple[bytes, str]]]:
        """Wait for the end: (report, [(path, what befell it)])."""

def dedup_merge(
    parts: Sequence[Path], progress: Callable[[int], object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Join parts: (what they are of, report). `progress` is told how many chunks are in."""

def dedup_estimate(
    parts: Sequence[Path], sample: int, seed: int, progress: Callable[[int], object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Estimate from parts in bounded memory: (what they are of, estimate)."""

def dedup_question(part: Path) -> dict[str, Any]:
    """What a part is of: `method`, `label`, `parts`, `part`."""

def excluded_paths(
    patterns: Sequence[bytes], offsets: NDArray[np.int64], paths: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Which paths a walk with these patterns would never have come to."""

def chunk_lengths(data: bytes, method: str) -> list[int]:
    """How long the chunks of `data` are."""

def chunk_and_digest(data: bytes, method: str) -> int:
    """Cut `data` and take the digest of every chunk, in this thread: how many chunks there are."""

class AugmentError(RuntimeError):
    """Images could not be made; the message says why."""

class Augmentation:
    """New images being made of files below `root`; see docs/how-to/augment.md. Dropping it ends its threads.

    `files` are columns: path offsets, paths, sizes, mtimes, ctimes, inodes. `target` is "tree" or "shard" with a `path`, or
    "files" or "pixels", which `next` gives. Raises ValueError on an operation that is none.
    """

    def __new__(
        cls,
        root: Path,
        files: tuple[NDArray[Any], ...],
        *,
        operations: Sequence[str],
        seed: int,
        encoding: str = "same",
        quality: int = 90,
        max_pixels: int,
        first_copy: int = 0,
        copies: int = 1,
        threads: int,
        bytes_per_s: int = 0,
        target: str,
        path: Path | None = None,
        overwrite: bool = False,
    ) -> Augmentation: ...
    def next(self) -> tuple[Any, ...] | None:
        """(path, copy, name, bytes), or (path, copy, array of height, width, channels); None when all have come."""

    def wait(self, timeout_s: float) -> bool:
        """Whether all is written, after at most so long."""

    def progress(self) -> tuple[int, int, int]:
        """(bytes read, files done with, files there are)."""

    def stop(self) -> None:
        """End it early; `finish` then raises."""

    def finish(self) -> tuple[dict[str, int], list[tuple[bytes, str]]]:
        """Wait for the end: (counts by name, [(path, what befell it)])."""

def augment_image(
    data: bytes,
    operations: Sequence[str],
    *,
    seed: int = 0,
    path: bytes | None = None,
    copy: int = 0,
    encoding: str = "same",
    quality: int = 90,
    max_pixels: int = ...,
) -> bytes:
    """One image in memory: the new one, as a file. Raises AugmentError where it is broken."""

def check_operation(text: str) -> None:
    """Raise ValueError where `text` is no operation."""

class WanPathError(RuntimeError):
    """An emulated path that cannot be had; the message says what is in the way, and how to mend it."""

@final
class EmulatedPath:
    """A wide-area path that carries packets, in threads of its own, until it is ended or dropped.

    A direction is a mapping of numbers, see `waystage.worlds.lab.wan.profile.native`; how it works,
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
        """Make a TUN device in each namespace (None: the caller's), and join them. Raises WanPathError."""

    @staticmethod
    def relay(
        listen: str, to: str, forward: Mapping[str, Any], back: Mapping[str, Any], work: Mapping[str, Any]
    ) -> tuple[EmulatedPath, str]:
        """Pass UDP datagrams on, and where it listens. Raises WanPathError."""

    def change(self, direction: int, spec: Mapping[str, Any]) -> None:
        """Make a direction another, for packets that come from now on."""

    def reports(self) -> list[dict[str, Any]]:
        """What each direction did."""

    def ended(self) -> bool:
        """Whether a direction has ended by itself, because an end of the path has gone."""

    def end(self) -> None:
        """Carry no more; packets under way are lost."""
