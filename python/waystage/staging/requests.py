"""What a client submits, and what is known of each request.

Arrives: JSON objects of clients that may be hostile.
Leaves: checked submissions; requests with their state, as the queue stores them and clients see them.
Must not know: sockets, SQLite, processes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from waystage.display import display
from waystage.events import Direction, EventError, JobStarted, check_names
from waystage.staging.errors import Invalid
from waystage.wan.address import parse_remote

State = Literal["queued", "running", "done", "failed", "cancelled"]
FINAL: tuple[State, ...] = ("done", "failed", "cancelled")

MOST_PATH_BYTES = 4096
"""PATH_MAX of Linux, with room for HOST:."""

MOST_KEY_BYTES = 256
MOST_NODES = 4096


class Reach(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a far end is reached: the options of `waystage copy` with the same names."""

    mode: Literal["fair", "fast-start", "modest", "aggressive"] = "fair"
    port: int = 7900
    identity: str = ""
    known_hosts: str = ""
    server_key: str = ""
    trust_new: bool = False
    ssh: bool = False
    connections: int = 1


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request as submitted. Paths are absolute; a far end is [USER@]HOST:PATH.

    `rate_bytes_per_s` is a limit, 0 for none. `due_ns` is when the data is needed, nanoseconds since 1970, 0 if not known. `key` makes the submit idempotent for
    its user; `user` is empty or, from root and submitters, a name or number.
    """

    direction: Direction
    source: str
    destination: str
    job_id: str
    user: str = ""
    nodes: tuple[str, ...] = ()
    node_local: bool = False
    catalog: str = ""
    verify: Literal["none", "cached", "storage"] = "none"
    due_ns: int = 0
    key: str = ""
    dry_run: bool = False
    restart: bool = False
    rate_bytes_per_s: int = 0
    reach: Reach = Reach()


class Choice(msgspec.Struct, frozen=True):
    """One decision about how the data moves: `what` is decided, what was `chosen`, and `why`."""

    what: str
    chosen: str
    why: str


class Request(msgspec.Struct, kw_only=True):
    """One request: what was submitted, whose rights it has, and how far it is. Times are ns since 1970, 0 for never.

    `bytes_total` is 0 until the source is known. `error` is why it failed or was cancelled; `reason` why it waits,
    or why it is at a further attempt; `last_error` is why the last attempt ended, until another moves data.
    """

    id: int
    uid: int
    gid: int
    user: str
    key: str
    submission: Submission
    state: State = "queued"
    submitted_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    not_before_ns: int = 0
    attempts: int = 0
    fruitless: int = 0
    fruitless_since_ns: int = 0
    bytes_total: int = 0
    bytes_done: int = 0
    files_total: int = 0
    files_done: int = 0
    error: str = ""
    last_error: str = ""
    reason: str = ""
    warning: str = ""
    cancelling: bool = False
    announced: bool = False
    pair: str = ""
    choices: tuple[Choice, ...] = ()
    plan: dict[str, Any] | None = None
    engine_pid: int = 0
    engine_start: int = 0
    engine_boot: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL


def checked(submission: Submission) -> Submission:
    """`submission` with normal paths. Raises Invalid, saying what is wrong with it."""
    for text in _texts(submission):
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise Invalid("a text of the submission cannot be encoded: it has a lone surrogate") from None
    try:
        check_names(JobStarted(job_id=submission.job_id, nodes=submission.nodes))
    except EventError as error:
        raise Invalid(str(error)) from None
    if len(submission.nodes) > MOST_NODES:
        raise Invalid(f"{len(submission.nodes)} nodes: at most {MOST_NODES} can be given")
    if submission.node_local and not submission.nodes:
        raise Invalid("--node-local needs --nodes: on which nodes is the data?")
    if len(submission.key.encode("utf-8", "surrogateescape")) > MOST_KEY_BYTES:
        raise Invalid(f"--key has more than {MOST_KEY_BYTES} bytes: use a shorter one")
    if not 0 <= submission.due_ns < 2**63:
        raise Invalid("--deadline is not a time since 1970")
    if not 0 <= submission.rate_bytes_per_s < 2**63:
        raise Invalid("--bandwidth-limit is not a rate")
    if submission.node_local and parse_remote(submission.source) is not None:
        raise Invalid("--node-local takes a SOURCE that every node reaches: stage in to shared storage first")
    if submission.node_local and parse_remote(submission.destination) is not None:
        raise Invalid("--node-local takes a DESTINATION that the nodes have: a path without a host")
    if submission.node_local and submission.direction == "out" and submission.dry_run:
        raise Invalid("--dry-run does not look at the local storage of nodes: omit it, or --node-local")
    if any(name.startswith("-") for name in submission.nodes):
        raise Invalid("the name of a node begins with a dash: give names of hosts")
    reach = submission.reach
    if not 0 < reach.port < 1 << 16 or not 1 <= reach.connections <= 32:
        raise Invalid("a port is 1 to 65535, and connections are 1 to 32")
    if submission.catalog and not submission.catalog.startswith("/"):
        raise Invalid("--catalog is not absolute: the stager has another current directory")
    source = _path(submission.source, "SOURCE")
    destination = _path(submission.destination, "DESTINATION")
    if parse_remote(source) is not None and parse_remote(destination) is not None:
        raise Invalid(f"{display(source)} and {display(destination)} are both remote: one must be local")
    return msgspec.structs.replace(submission, source=source, destination=destination)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _texts(getattr(value, name))


def _path(text: str, name: str) -> str:
    if "\0" in text or not text:
        raise Invalid(f"{name} is empty or holds a NUL byte: give a path")
    if len(text.encode("utf-8", "surrogateescape")) > MOST_PATH_BYTES:
        raise Invalid(f"{name} has more than {MOST_PATH_BYTES} bytes: use a shorter path")
    if parse_remote(text) is not None:
        return text
    if not text.startswith("/"):
        raise Invalid(f"{name} {display(text)} is not absolute: the stager has another current directory")
    # `..` stays: behind a symbolic link it is another directory than the text says.
    kept = "/" + "/".join(part for part in text.split("/") if part not in ("", "."))
    return kept + ("/" if text.endswith(("/", "/.")) and kept != "/" else "")


class Place(msgspec.Struct, frozen=True):
    """An end of a request, for finding conflicts: a host, empty for this one, and a path."""

    host: str
    path: str


def places(submission: Submission) -> tuple[Place, Place]:
    """Source and destination."""
    local = "nodes" if submission.node_local else ""
    hosts = ("", local) if submission.direction == "in" else (local, "")
    return _place(submission.source, hosts[0]), _place(submission.destination, hosts[1])


def _place(end: str, host: str) -> Place:
    far = parse_remote(end)
    if far is None:
        return Place(host, posixpath.normpath(end))
    return Place(f"{far.user}@{far.host}", posixpath.normpath(far.path.decode("utf-8", "surrogateescape")))


def shown(request: Request, now_ns: int, *, explain: bool = False) -> dict[str, Any]:
    """A request as clients see it."""
    asked = request.submission
    began, ended = request.started_ns, request.finished_ns
    value: dict[str, Any] = {
        "id": request.id,
        "job_id": asked.job_id,
        "user": request.user,
        "direction": asked.direction,
        "source": display(asked.source),
        "destination": display(asked.destination),
        "nodes": list(asked.nodes),
        "state": request.state,
        "bytes_total": request.bytes_total,
        "bytes_done": request.bytes_done,
        "files_total": request.files_total,
        "files_done": request.files_done,
        "attempts": request.attempts,
        "error": request.error,
        "reason": request.reason,
        "warning": request.warning,
        "due_ns": asked.due_ns,
        "submitted_ns": request.submitted_ns,
        "started_ns": began,
        "finished_ns": ended,
        "seconds": round(((ended or now_ns) - began) / 1e9, 3) if began else 0.0,
    }
    if explain:
        value["choices"] = [msgspec.to_builtins(each) for each in request.choices]
    if request.plan is not None:
        value["plan"] = request.plan
    return value
