"""No circle of imports among files: neither in a crate nor in the Python package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CRATES = sorted(manifest.parent for manifest in (REPOSITORY / "crates").glob("*/Cargo.toml"))
PACKAGE = REPOSITORY / "python" / "waystage"

NOT_YET: dict[str, str] = {}
"""Crate or Python package that still has a circle -> the date it was listed. Remove a name with its last circle."""

Graph = dict[Path, set[Path]]


def circles(graph: Graph) -> list[list[Path]]:
    """The strongly connected components with more than one file (Tarjan 1972)."""
    index: dict[Path, int] = {}
    low: dict[Path, int] = {}
    stack: list[Path] = []
    found = []

    def visit(at: Path) -> None:
        index[at] = low[at] = len(index)
        stack.append(at)
        for below in sorted(graph.get(at, ())):
            if below not in index:
                visit(below)
                low[at] = min(low[at], low[below])
            elif below in stack:
                low[at] = min(low[at], index[below])
        if low[at] == index[at]:
            component = stack[stack.index(at) :]
            del stack[stack.index(at) :]
            if len(component) > 1:
                found.append(sorted(component))

    for start in sorted(graph):
        if start not in index:
            visit(start)
    return found


# -- Rust ------------------------------------------------------------------------------------------------

LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\bb?r(?P<hashes>\#*)".*?"(?P=hashes)|\bb?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*"
    |\bb?'(?:\\[^']+|\\'|[^\\'])'|'(?:\\[^']+|\\'|[^\\'])'""",
    re.DOTALL | re.VERBOSE,
)
TEST_ITEM = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*)\)\]\s*(?:#\[[^\]]*\]\s*)*")
MODULE = re.compile(r"\bmod\s+(\w+)\s*;")
USE = re.compile(r"(?P<public>\bpub(?:\s*\([^)]*\))?\s+)?\buse\s+(?P<tree>[^;]+);")
PATH = re.compile(r"(?<![\w:])\w+(?:\s*::\s*\w+)+")

Name = tuple[str, ...]


def item_end(text: str, at: int) -> int:
    """Where the item that starts at `at` ends: at its `;`, or at the bracket that closes its body."""
    depth = 0
    for position in range(at, len(text)):
        character = text[position]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and character == "}":
                return position + 1
        elif character == ";" and depth == 0:
            return position + 1
    return len(text)


def shipped(source: str) -> str:
    """Rust code without comments, literals and items under `#[cfg(test)]`."""
    text = LITERAL.sub(" ", source)
    while match := TEST_ITEM.search(text):
        text = text[: match.start()] + text[item_end(text, match.end()) :]
    return text


def leaves(tree: str) -> Iterator[tuple[Name, str]]:
    """`a::{b, c::D as E}` -> ((a, b), b), ((a, c, D), E): each path of a use tree and the name it binds."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        path, _, alias = head.partition(" as ")
        parts = tuple(part.strip() for part in path.split("::"))
        parts = parts[:-1] if parts[-1] == "self" and len(parts) > 1 else parts
        yield parts, alias.strip() or parts[-1]
        return
    prefix = tuple(part.strip() for part in head.split("::") if part.strip())
    depth, start = 0, 0
    body = rest.rstrip().removesuffix("}") + ","
    for position, character in enumerate(body):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            if inner := body[start:position].strip():
                yield from ((prefix + path, name) for path, name in leaves_of(inner))
            start = position + 1


def leaves_of(tree: str) -> Iterator[tuple[Name, str]]:
    """As `leaves`, where a lone `self` stands for the prefix."""
    yield from (((), "") if path == ("self",) else (path, name) for path, name in leaves(tree))


class Crate:
    """The modules of one crate and what the code of each names."""

    def __init__(self, root: Path) -> None:
        self.files: dict[Name, Path] = {}
        self.code: dict[Name, str] = {}
        self.children: dict[Name, set[str]] = {}
        self.exports: dict[Name, dict[str, Name]] = {}
        self.bound: dict[Name, dict[str, Name]] = {}
        self.globs: dict[Name, list[Name]] = {}
        for start in ("lib.rs", "main.rs"):
            if (root / "src" / start).exists():
                self._read((), root / "src" / start)
                break

    def _read(self, name: Name, file: Path) -> None:
        code = shipped(file.read_text(encoding="utf-8"))
        self.files[name], self.code[name] = file, code
        self.children[name] = set()
        folder = file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.with_suffix("")
        for child in MODULE.findall(code):
            below = [folder / f"{child}.rs", folder / child / "mod.rs"]
            if existing := [path for path in below if path.exists()]:
                self.children[name].add(child)
                self._read((*name, child), existing[0])
        self.exports[name], self.bound[name], self.globs[name] = {}, {}, []
        for match in USE.finditer(code):
            for path, alias in leaves(match["tree"]):
                absolute = self.absolute(name, path)
                if absolute is None:
                    continue
                if alias == "*":
                    self.globs[name].append(absolute[:-1])
                    continue
                self.bound[name][alias] = absolute
                if match["public"]:
                    self.exports[name][alias] = absolute

    def absolute(self, here: Name, path: Name) -> Name | None:
        """A path as written in `here`, from the root of the crate; None when it leads elsewhere."""
        if path[0] == "crate":
            return path[1:]
        if path[0] in ("self", "super"):
            at = here
            while path and path[0] in ("self", "super"):
                at = at[:-1] if path[0] == "super" else at
                path = path[1:]
            return (*at, *path)
        if path[0] in self.children.get(here, ()):
            return (*here, *path)
        if path[0] in self.bound.get(here, {}):
            return (*self.bound[here][path[0]], *path[1:])
        return None

    def defining(self, path: Name, seen: frozenset[Name] = frozenset()) -> Path | None:
        """The file that defines what `path` names, through re-exports."""
        at: Name = ()
        for position, part in enumerate(path):
            if part in self.children.get(at, ()):
                at = (*at, part)
                continue
            target = self.exports.get(at, {}).get(part) or self.bound.get(at, {}).get(part)
            if target is not None and target not in seen and target != path:
                return self.defining((*target, *path[position + 1 :]), seen | {target})
            break
        return self.files.get(at)

    def graph(self) -> Graph:
        edges: Graph = {file: set() for file in self.files.values()}
        for name, file in self.files.items():
            body = USE.sub(" ", self.code[name])
            words = set(re.findall(r"\w+", body))
            paths = [tuple(re.split(r"\s*::\s*", match)) for match in PATH.findall(body)]
            used = [p for path in paths if (p := self.absolute(name, path)) is not None]
            used += [
                target
                for alias, target in self.bound[name].items()
                if (alias not in self.exports[name] or alias in words) and not self._is_module(target)
            ]
            used += self.globs[name]
            edges[file] = {found for path in used if (found := self.defining(path)) is not None} - {file}
        return edges

    def _is_module(self, path: Name) -> bool:
        """A module that is only bound to a name: the paths that go through it say what is used."""
        return path in self.files


# -- Python ----------------------------------------------------------------------------------------------


def module_files() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports anywhere in a module, also in functions; not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from statements(other)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        yield from statements(node)


class Modules:
    """The modules of the Python package and what each imports from where."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files
        self.trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in files.items()}

    def _base(self, here: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = here.split(".")
        kept = parts[: len(parts) - node.level + (self.files[here].name == "__init__.py")]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def defining(self, base: str, name: str) -> Path | None:
        """The file that defines `name` as imported from `base`: a module, or through a package's re-export."""
        if f"{base}.{name}" in self.files:
            return self.files[f"{base}.{name}"]
        if base in self.files and self.files[base].name == "__init__.py":
            for node in statements(self.trees[base]):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        if (alias.asname or alias.name) == name and self._base(base, node) != base:
                            return self.defining(self._base(base, node), alias.name)
        return self.files.get(base)

    def graph(self) -> Graph:
        edges: Graph = {}
        for name, file in self.files.items():
            found: set[Path | None] = set()
            for node in statements(self.trees[name]):
                if isinstance(node, ast.Import):
                    found |= {self.files.get(alias.name) for alias in node.names}
                else:
                    found |= {self.defining(self._base(name, node), alias.name) for alias in node.names}
            edges[file] = {target for target in found if target is not None} - {file}
        return edges


# -- what holds ------------------------------------------------------------------------------------------


def all_circles() -> dict[str, list[str]]:
    """Crate or package -> the imports that make its circles, one line a file."""
    found: dict[str, list[str]] = {}
    graphs = [Crate(crate).graph() for crate in CRATES] + [Modules(module_files()).graph()]
    for graph in graphs:
        for circle in circles(graph):
            parts = circle[0].relative_to(REPOSITORY).parts
            unit = "/".join(parts[: 2 if parts[0] == "crates" else 3])
            for file in circle:
                below = [
                    str(other.relative_to(REPOSITORY / unit)) for other in sorted(graph[file] & set(circle))
                ]
                found.setdefault(unit, []).append(
                    f"{file.relative_to(REPOSITORY / unit)} -> {', '.join(below)}"
                )
    return found


@pytest.fixture(scope="module", name="found")
def _found() -> dict[str, list[str]]:
    return all_circles()


def test_no_circle_of_imports_among_files(found: dict[str, list[str]]) -> None:
    new = {unit: lines for unit, lines in found.items() if unit not in NOT_YET}
    assert not new, "\n".join(f"{unit}: {line}" for unit, lines in new.items() for line in lines)


def test_each_listed_unit_exists_and_still_has_a_circle(found: dict[str, list[str]]) -> None:
    gone = [unit for unit in NOT_YET if not (REPOSITORY / unit).exists()]
    assert not gone, f"no longer there: {gone}"
    assert [unit for unit in NOT_YET if unit not in found] == [], "without a circle: remove them from NOT_YET"


def names(graph: Graph, root: Path) -> dict[str, set[str]]:
    def plain(files: Iterable[Path]) -> set[str]:
        return {str(file.relative_to(root)) for file in files}

    return {name: plain(edges) for file, edges in graph.items() for name in plain([file])}


def test_paths_in_rust_lead_to_the_file_that_defines_the_item(tmp_path: Path) -> None:
    src = tmp_path / "src"
    (src / "b").mkdir(parents=True)
    (src / "lib.rs").write_text("mod a; mod b; mod c; pub use b::Item; #[cfg(test)] mod tests;")
    (src / "a.rs").write_text("use crate::{Item, b::inner::{self, One as Two}}; fn f() { inner::g() }")
    (src / "b" / "mod.rs").write_text("mod inner; pub(crate) use self::inner::Item; pub struct Own;")
    (src / "b" / "inner.rs").write_text('pub struct Item; // crate::a::X\nconst S: &str = "crate::c::Y";')
    (src / "c.rs").write_text("fn f() -> super::b::Own { b::x() }\n#[cfg(test)]\nmod t { use crate::a::X; }")
    assert names(Crate(tmp_path).graph(), src) == {
        "lib.rs": set(),
        "a.rs": {"b/inner.rs"},
        "b/mod.rs": set(),
        "b/inner.rs": set(),
        "c.rs": {"b/mod.rs"},
    }


def test_imports_in_python_lead_to_the_file_that_defines_the_name(tmp_path: Path) -> None:
    texts = {
        "p": "from p.low import Low\nTOP = 1\n",
        "p.low": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.high import High\n",
        "p.high": "def f():\n    from p import Low\n    from . import side\n",
        "p.side": "import p.high\nfrom p import TOP\n",
    }
    files = {}
    for name, text in texts.items():
        files[name] = tmp_path / ("__init__.py" if name == "p" else name.removeprefix("p.") + ".py")
        files[name].write_text(text)
    graph = Modules(files).graph()
    assert names(graph, tmp_path) == {
        "__init__.py": {"low.py"},
        "low.py": set(),
        "high.py": {"low.py", "side.py"},
        "side.py": {"high.py", "__init__.py"},
    }
    assert [[file.name for file in circle] for circle in circles(graph)] == [["high.py", "side.py"]]
