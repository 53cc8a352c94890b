"""The words of the field: retired words are refused in code, docs and `--help`, and lines of prose stay short."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

RETIRED = {
    # Prose: a paraphrase where the field has a noun.
    "whoever, whomever": "the role: the user, the client, the caller",
    "somebody": "the role, or 'another process'",
    "nobody, anybody": "the role, or 'no process', 'any client'",
    "so many, so much, so few": "the quantity",
    "so long": "the duration",
    "what is there": "the noun: the files, the entries, the state",
    "lies": "is in, is stored",
    "underway, under way": "in flight (data), in progress (work)",
    "mend, mends, mended, mending": "repair, fix",
    "bear, bears": "has, is named",
    "the other end": "the peer",
    "is told, are told, was told, were told, be told": "is reported",
    "of its own, of their own, of one's own": "its own, separate",
    "a look, the look, one look, each look, every look, first look, last look, another look, looks at": "check, stat",
    # Private metaphors.
    "lane, lanes": "spanning tree; connection of a channel",
    "seat, seats": "receiver",
    "bell, bells": "waker",
    "door, doors": "interface, extension point, admission",
    "errand, errands": "handshake, request",
    "desk, desks": "coordinator",
    "haste": "rate limited",
    "nonsense": "protocol violation",
    "newest spoken of": "largest acknowledged",
    "look round": "a condition variable with a predicate",
    "held back": "limited, blocked; send limit",
    # Types.
    "Book": "the state it holds",
    "Cargo": "payload",
    "Competitor": "TCP-friendly phase",
    "Debt": "token bucket",
    "Draft": "temporary file",
    "Ear": "receiver",
    "Keeper": "attribute preserver",
    "Letters": "receive queue",
    "Look": "queue drain",
    "Mail, Mailbox": "command queue",
    "Visit": "session handler",
    "Wish": "request",
}
"""Retired words -> what to use instead. One with a capital is the name of a type, refused in code alone."""

ALLOWED = {
    ("crates/copy/*", "mended"): re.compile(r"mended"),
    ("crates/remote_copy/*", "mended"): re.compile(r"tally.mended"),
    ("*", "nobody"): re.compile(r"['\"`]nobody|user nobody|nobody:"),
    ("crates/flowsim/*", "lanes"): re.compile(r"."),
    ("crates/server/src/server.rs", "haste"): re.compile(r"away_haste"),
    ("crates/load/src/chunking/*", "lane"): re.compile(r"."),
    ("crates/load/src/chunking/*", "lanes"): re.compile(r"."),
    ("*", "mend"): re.compile(r"--mend\b"),
    ("python/waystage/cli/catalog_check.py", "mend"): re.compile(r"."),
    ("*", "mended"): re.compile(r"['\"`]mended['\"`]|\.mended|mended: bool"),
    ("docs/reference/*", "looks at"): re.compile(r"0031-"),
    ("*", "held back"): re.compile(r"['\"`]held_back['\"`]"),
    ("*", "under way"): re.compile(r"['\"`]under_way['\"`]"),
}
"""Files and a retired word -> where it is meant: the user of that name, the lanes of a SIMD register, an option and
keys of JSON output that keep their names."""

HISTORY = ("CHANGELOG.md", "docs/decisions/*", "tests/house/test_words.py")
"""What tells of the past, and this table."""

NOT_YET: dict[str, str] = {}
"""Folder that still has a retired word -> the date it was listed. Remove a name with its last word."""

LONG_LINES_NOT_YET: dict[str, str] = {}
"""Folder that still has a line of prose over `PROSE_MOST` -> the date it was listed."""

PROSE_MOST = 120
TEXT = (".py", ".pyi", ".rs", ".c", ".h", ".md", ".toml", ".yaml", ".sh")
CODE = (".py", ".pyi", ".rs", ".c", ".h")


TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
GAP = re.compile(r"['\s/!#*_-]*")
"""What may stand between the words of a phrase: space, marks of a comment that goes on, underscores of a name."""

FORMS = [
    (tuple(TOKEN.findall(form)), instead) for forms, instead in RETIRED.items() for form in forms.split(", ")
]
STARTS: dict[str, list[tuple[tuple[str, ...], str]]] = {}
for _form, _instead in FORMS:
    STARTS.setdefault(_form[0], []).append((_form, _instead))


@cache
def files() -> dict[str, str]:
    """Name -> text of each tracked text file; of a tarball, of each file in the tracked folders."""
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files are the project's is unknown")
    found = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = REPOSITORY / name
        script = name.startswith("scripts/") or name == "Makefile"
        if path.is_file() and (script or path.suffix in TEXT):
            found[name] = path.read_text(encoding="utf-8")
    return found


def unit(name: str) -> str:
    """The folder that a file is listed under: a crate, a package, a folder of docs or tests, or the file itself."""
    parts = name.split("/")
    deep = {"crates": 2, "docs": 2, "tests": 2, "shim": 2, "python": 3}.get(parts[0], 1)
    return "/".join(parts[:deep])


def retired(name: str, text: str) -> Iterator[str]:
    """Each retired word in a file, with its line and what to use instead."""
    if any(fnmatch(name, glob) for glob in HISTORY):
        return
    tokens = list(TOKEN.finditer(text))
    for position, token in enumerate(tokens):
        for form, instead in (entry for key in {token[0].lower(), token[0]} for entry in STARTS.get(key, ())):
            phrase = tokens[position : position + len(form)]
            if form[0].istitle():
                isolated = not re.match(r"\w", text[token.start() - 1 : token.start()] or " ")
                if not (
                    name.endswith(CODE)
                    and isolated
                    and not re.match(r"\w|\.toml|\.lock", text[token.end() : token.end() + 5])
                ):
                    continue
            elif tuple(word[0].lower() for word in phrase) != form or not all(
                GAP.fullmatch(text, a.end(), b.start()) for a, b in pairwise(phrase)
            ):
                continue
            line = text.count("\n", 0, token.start()) + 1
            found = " ".join(form)
            around = text[max(0, token.start() - 8) : phrase[-1].end() + 8]
            if not any(w == found and fnmatch(name, g) and c.search(around) for (g, w), c in ALLOWED.items()):
                yield f"{name}:{line}: {found!r}; instead: {instead}"


def long_lines(name: str, text: str) -> Iterator[str]:
    """Lines of prose, in a page or a comment, of more than `PROSE_MOST` characters."""
    if name.endswith(".md"):
        text = re.sub(
            r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
        prose = re.compile(r"(?!\s*\||#)")
    else:
        prose = re.compile(r"\s*(?://|#(?!!)|/?\*)" if name.endswith((".rs", ".c", ".h")) else r"\s*#(?!!)")
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > PROSE_MOST and prose.match(line) and "://" not in line and " " in line.strip()[4:]:
            yield f"{name}:{number}: {len(line)} characters of prose, of at most {PROSE_MOST}"


def by_unit(check: object) -> dict[str, list[str]]:
    assert callable(check)
    found: dict[str, list[str]] = {}
    for name, text in files().items():
        for fault in check(name, text):
            found.setdefault(unit(name), []).append(fault)
    return found


@pytest.mark.parametrize(
    ("check", "not_yet"), [(retired, NOT_YET), (long_lines, LONG_LINES_NOT_YET)], ids=["words", "lines"]
)
def test_prose_is_plain(check: object, not_yet: dict[str, str]) -> None:
    found = by_unit(check)
    new = [fault for name, faults in found.items() if name not in not_yet for fault in faults]
    assert not new, "\n".join(new)
    clean = [name for name in not_yet if name not in found]
    assert not clean, f"clean or gone: remove them from the list: {clean}"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.rs", "/// Whoever sends.\nlet underway_bytes = seat;", ["whoever", "underway", "seat"]),
        ("a.rs", "//! Say so\n//! much.\nstruct MySeat;", ["so much", "seat"]),
        ("a.rs", "struct Cargo; // see Cargo.toml", ["Cargo"]),
        ("a.md", "Cargo builds it; believes, doorstep, flies; `nobody` is a user.", []),
        ("crates/flowsim/a.rs", "const LANES: usize = 8;", []),
        ("CHANGELOG.md", "Whoever.", []),
    ],
)
def test_retired_words_are_found_as_words(name: str, text: str, words: list[str]) -> None:
    found = [re.findall(r": '([^']*)'; ", fault)[0] for fault in retired(name, text)]
    assert sorted(found) == sorted(words)


def test_long_lines_are_found_in_prose_alone() -> None:
    long = "word " * 30
    assert len(list(long_lines("a.md", f"{long}\n| {long}\n```\n{long}\n```\n[a](https://b) {long}"))) == 1
    assert len(list(long_lines("a.rs", f"// {long}\nlet a = {long}"))) == 1
    assert len(list(long_lines("a.py", f"# {long}\na = {long}"))) == 1
