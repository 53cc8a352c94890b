"""The walls of ARCHITECTURE.md hold: who may import whom, and which library lives in which room."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "python" / "waystage"

LIBRARY_ROOMS = {
    "os_ken": ("waystage.interconnect.openflow",),
    "zenoh": ("waystage.backplane",),
    "dask": ("waystage.nodes",),
    "dask_jobqueue": ("waystage.nodes.slurm",),
    "distributed": ("waystage.nodes",),
    "fsspec": ("waystage.filesystems",),
    "aiohttp": ("waystage.view.server",),
    "click": ("waystage.cli",),
    "rich": ("waystage.cli",),
    "matplotlib": ("waystage.experiment", "waystage.patterns.heatmap"),
    "pymetis": ("waystage.simulate.mappers",),
    "ruamel": ("waystage.experiment.documents", "waystage.yaml_text"),
}
"""Library -> the only modules (by the start of their name) that may import it."""

PURE_INTERCONNECT = [
    "labels",
    "trees",
    "labelled",
    "per_pair",
    "planner",
    "cookies",
    "marks",
    "soft_table",
    "rules",
    "generate",
    "pipeline",
    "graphml_parser",
]
"""The rule planner and what it stands on: data in, data out."""

PURE_ROOMS = ("topology", "events", "state", "spread", "forecast", "policies")

EFFECTS = {
    "socket",
    "asyncio",
    "threading",
    "subprocess",
    "selectors",
    "time",
    "datetime",
    "os_ken",
    "zenoh",
    "logging",
}
"""What a pure module does not import: sockets, clocks, threads, processes, frameworks."""

PURE_EXCEPTIONS = {("waystage.events.envelope", "time")}
"""`envelope` stamps the time of publication; nothing else in the room reads a clock."""


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Every module that `source` imports, anywhere in it, by absolute name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            yield base
            # `from waystage import events` imports a room by way of the package.
            yield from (f"{base}.{alias.name}" for alias in node.names if base == "waystage")


def modules() -> Iterator[tuple[str, set[str]]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        source = path.read_text(encoding="utf-8")
        yield name, set(imports(source, name, is_package=is_package))


MODULES = dict(modules())


def room(module: str) -> str | None:
    """`waystage.jobs.database` -> `jobs`; None for the package itself and for what is not ours."""
    parts = module.split(".")
    return parts[1] if parts[0] == "waystage" and len(parts) > 1 and not parts[1].startswith("__") else None


def allowed_edges() -> dict[str, set[str]]:
    """The table of ARCHITECTURE.md: lines `room -> room room` in the block called walls."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    block = re.search(r"```walls\n(.*?)```", text, re.DOTALL)
    assert block is not None, "ARCHITECTURE.md has no block ```walls"
    edges = {}
    for line in block.group(1).splitlines():
        left, arrow, right = line.partition("->")
        assert arrow, f"not of the form 'room -> rooms': {line!r}"
        edges[left.strip()] = set(right.split())
    return edges


def test_every_import_between_rooms_is_allowed_by_the_architecture() -> None:
    allowed = allowed_edges()
    broken = []
    for name, imported in MODULES.items():
        here = room(name)
        if here is None:
            continue
        assert here in allowed, f"room {here} is missing from ARCHITECTURE.md"
        for target in imported:
            there = room(target)
            if there not in (None, here, *allowed[here]) and there in allowed:
                broken.append(f"{name} imports {target}, and {here} may import only {sorted(allowed[here])}")
    assert not broken, "\n".join(broken)


def test_the_allowed_edges_make_no_circle() -> None:
    allowed = allowed_edges()
    done: set[str] = set()

    def visit(at: str, way: tuple[str, ...]) -> None:
        assert at not in way, f"a circle of rooms: {' -> '.join((*way, at))}"
        if at not in done:
            for below in allowed[at]:
                visit(below, (*way, at))
            done.add(at)

    for start in allowed:
        visit(start, ())


def test_the_architecture_names_no_room_that_is_not_there() -> None:
    there = {r for name in MODULES if (r := room(name))} | {"_native"}
    assert set(allowed_edges()) <= there


@pytest.mark.parametrize("library", sorted(LIBRARY_ROOMS))
def test_a_library_stays_in_its_room(library: str) -> None:
    rooms = LIBRARY_ROOMS[library]
    gone = [r for r in rooms if not any(name.startswith(r) for name in MODULES)]
    assert not gone, f"no longer there: {gone}"
    users = [n for n, imported in MODULES.items() if any(i.split(".")[0] == library for i in imported)]
    assert [u for u in users if not u.startswith(rooms or ("\0",))] == []


def test_the_planner_and_the_pure_rooms_import_no_effects() -> None:
    pure = {f"waystage.interconnect.{name}" for name in PURE_INTERCONNECT}
    pure |= {name for name in MODULES if room(name) in PURE_ROOMS}
    assert pure <= set(MODULES), f"no longer there: {sorted(pure - set(MODULES))}"
    assert {room(name) for name in pure} >= set(PURE_ROOMS)
    broken = [
        f"{name} imports {target}"
        for name in sorted(pure)
        for target in MODULES[name]
        if target.split(".")[0] in EFFECTS and (name, target) not in PURE_EXCEPTIONS
    ]
    assert not broken, "\n".join(broken)


def test_only_the_bindings_use_pyo3() -> None:
    users = []
    for manifest in sorted((REPOSITORY / "crates").glob("*/Cargo.toml")):
        content = tomllib.loads(manifest.read_text(encoding="utf-8"))
        if any("pyo3" in content.get(kind, {}) for kind in ("dependencies", "dev-dependencies")):
            users.append(manifest.parent.name)
    assert users == ["py"]


def test_tls_and_batches_of_datagrams_are_for_the_wide_area_driver_alone() -> None:
    """The protocol's core must not come to know sockets by way of a library."""
    users: dict[str, list[str]] = {"rustls": [], "quinn-udp": []}
    for manifest in sorted((REPOSITORY / "crates").glob("*/Cargo.toml")):
        names = set(tomllib.loads(manifest.read_text(encoding="utf-8")).get("dependencies", {}))
        for library, found in users.items():
            found += [manifest.parent.name] if library in names else []
        if manifest.parent.name == "protocol":
            assert names == {"ring", "thiserror"}
    assert users == {"rustls": ["loopback", "transport"], "quinn-udp": ["transport"]}


def test_crates_depend_on_one_another_only_downwards() -> None:
    """The bindings see every crate; no crate sees the bindings or a framework of the control plane."""
    for manifest in sorted((REPOSITORY / "crates").glob("*/Cargo.toml")):
        names = set(tomllib.loads(manifest.read_text(encoding="utf-8")).get("dependencies", {}))
        assert "waystage-py" not in names, manifest
        assert manifest.parent.name == "agent" or not any(n.startswith("zenoh") for n in names), manifest


def test_every_module_says_what_its_room_is_for() -> None:
    """Style: a module's docstring names what arrives, what leaves and what it must not know."""
    lacking = []
    for path in sorted(PACKAGE.rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        short = path.name in ("__main__.py",) or (path.parent == PACKAGE and path.name == "__init__.py")
        if not short and not all(word in doc for word in ("Arrives:", "Leaves:", "Must not know:")):
            lacking.append(str(path.relative_to(REPOSITORY)))
    assert not lacking, "\n".join(lacking)


def test_no_file_is_too_long_to_read() -> None:
    """Style: past 500 lines a file wants to be split."""
    sources = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "crates").rglob("*.rs")]
    lengths = {
        str(p.relative_to(REPOSITORY)): len(p.read_text(encoding="utf-8").splitlines()) for p in sources
    }
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def test_an_import_is_found_wherever_it_hides() -> None:
    """The reader of imports itself: relative, nested, and by way of the package."""
    source = (
        "from . import a\nfrom ..jobs import b\nfrom waystage import state\ndef f():\n    import socket\n"
    )
    found = set(imports(source, "waystage.staging.plan"))
    assert {"waystage.staging", "waystage.jobs", "waystage.state", "socket"} <= found
