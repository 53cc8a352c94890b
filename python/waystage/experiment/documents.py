"""A YAML file as a typed value, and every complaint with its line.

Arrives: the path of a YAML file, and the struct that describes what it may hold.
Leaves: the struct, or `FILE:LINE: KEY: what is wrong and how to fix it`.
Must not know: what the keys mean.

Every kind of experiment is read this way, and the lab's shapes and profiles. The structure is checked by msgspec; what
msgspec cannot know raises `Problem` with the key, and `complaint` finds its line.
"""

from __future__ import annotations

import difflib
import math
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from waystage import yaml_text
from waystage.bounded import read_bounded
from waystage.experiment.problems import ExperimentError, Key, Problem
from waystage.experiment.units import MAX_BYTES
from waystage.shipped import namesake
from waystage.units import parse_size

LARGEST = 2**63
"""What is larger fits no counter of any world."""

_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]")

T = TypeVar("T")

Rewrite = Callable[[Key, Any], Any]
"""Called with the key of every list and scalar and its plain value; gives what stands there instead."""


def read(path: Path, what: str, keys: str) -> CommentedMap:
    """The document in `path`; `what` it should be (`an experiment`), with which `keys`. Raises ExperimentError."""
    noun = what.split(maxsplit=1)[1]
    try:
        document = yaml_text.load(read_bounded(path, yaml_text.MAX_BYTES))
    except FileNotFoundError:
        shipped = namesake("experiments", path)
        hint = f"; this installation has {shipped}" if shipped is not None else ""
        raise ExperimentError(f"{path}: there is no such {noun} file{hint}") from None
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read as {what}: {error.strerror}") from None
    except yaml_text.YamlError as error:
        raise ExperimentError(f"{path.name}:{error.line}: {error}") from None
    if not isinstance(document, CommentedMap):
        raise ExperimentError(f"{path.name}:1: {what} is a mapping with the keys {keys}")
    return document


def complaint(path: Path, document: CommentedMap, problem: Problem) -> ExperimentError:
    """What is wrong, with file, line and key."""
    line = _line(document, problem.key)
    dotted = ".".join(str(step) for step in problem.key)
    where = f"{path.name}:{line}" + (f": {dotted}" if dotted else "")
    return ExperimentError(f"{where}: {problem.text}")


def plain(node: Any, rewrite: Rewrite, key: Key = ()) -> Any:
    """YAML nodes to plain values, each list and scalar through `rewrite`. Raises Problem."""
    if isinstance(node, CommentedMap):
        return {_name(k, key): plain(v, rewrite, (*key, str(k))) for k, v in node.items()}
    if isinstance(node, CommentedSeq | list):
        return rewrite(key, [plain(v, rewrite, (*key, i)) for i, v in enumerate(node)])
    return rewrite(key, _scalar(node, key))


def amounts(keys: frozenset[str], most: int = MAX_BYTES) -> Rewrite:
    """A rewrite of amounts such as `8 MB`, at the keys named `keys`, into bytes; options of policies are their own."""

    def rewrite(key: Key, value: Any) -> Any:
        if not key or key[-1] not in keys or "options" in key or value is None or isinstance(value, list):
            return value
        try:
            return parse_size(value, most=most)
        except ValueError as error:
            raise Problem(key, str(error)) from None

    return rewrite


def _scalar(node: Any, key: Key) -> Any:
    if isinstance(node, bool) or node is None:
        return node
    if isinstance(node, int) and abs(node) > LARGEST:
        raise Problem(key, f"a number of {node.bit_length()} bits is too large: give at most 2^63")
    if isinstance(node, float) and not math.isfinite(node):
        raise Problem(key, f"{float(node)} is no number to reckon with: give a finite one")
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node)


def _name(key: object, at: Key) -> str:
    if not isinstance(key, str):
        raise Problem((*at, str(key)), "is no name: keys are words")
    return key


def convert(tree: Any, kind: type[T]) -> T:
    """The plain values as a `kind`. Raises Problem at the key that does not fit."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None


def suggest(text: str, given: str, known: Sequence[str]) -> str:
    """`text` with the known name that is nearest to `given`, or all of them."""
    return f"{text}: {nearest(given, known)}" if known else text


def nearest(given: str, known: Sequence[str]) -> str:
    """`did you mean ...?`, or all known names where none is near."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(known) or '(none)'}"


def _explain(message: str, root: Any) -> Problem:
    """msgspec's sentence as ours, at the key it is about."""
    found = re.fullmatch(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", message, re.DOTALL)
    text, key = (found[1], _key(found[2] or "")) if found else (message, ())
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return Problem((*key, unknown[1]), suggest("unknown key", unknown[1], _fields_at(root, key)))
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return Problem(key, f"{missing[1]} is missing: add it")
    if text.startswith("Invalid enum value"):
        value = text.removeprefix("Invalid enum value ").strip("'")
        return Problem(key, suggest(f"{value!r} is not known", value, _choices_at(root, key)))
    text = re.sub(
        r"`(\w+)(?: \| \w+)*`", lambda m: " or ".join(map(_noun, m[0].strip("`").split(" | "))), text
    )
    if "matching regex" in text:
        text = "use letters, digits, '_', '.' and '-', starting with a letter or digit"
    return Problem(key, text[0].lower() + text[1:])


def _noun(kind: str) -> str:
    nouns = {
        "int": "a whole number",
        "float": "a number",
        "str": "text",
        "array": "a list",
        "object": "a mapping",
    }
    return nouns.get(kind, {"null": "nothing", "bool": "true or false"}.get(kind, kind))


def _key(path: str) -> Key:
    steps: list[str | int] = []
    for name, index in _STEP.findall(path):
        if name:
            steps.append(name)
        elif index:
            steps.append(int(index))
    return tuple(steps)


def _fields_at(root: Any, key: Key) -> list[str]:
    struct = _struct_in(_type_at(root, key))
    return [] if struct is None else [f.encode_name for f in msgspec.structs.fields(struct)]


def _choices_at(root: Any, key: Key) -> list[str]:
    kinds = [_type_at(root, key)]
    while kinds:
        kind = kinds.pop()
        if typing.get_origin(kind) is Literal:
            return [str(choice) for choice in typing.get_args(kind)]
        kinds += typing.get_args(kind)
    return []


def _type_at(root: Any, key: Key) -> Any:
    """The declared type of the value at `key` in a `root`."""
    kind: Any = root
    for step in key:
        if isinstance(step, int):
            kind = next((a for a in typing.get_args(kind) if a is not Ellipsis), None)
            continue
        struct = _struct_in(kind)
        if struct is None:
            return None
        kind = next((f.type for f in msgspec.structs.fields(struct) if f.encode_name == step), None)
    return kind


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    for candidate in (kind, *typing.get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _line(document: CommentedMap, key: Key) -> int:
    """The line, from 1, of `key` or of the nearest thing above it that is there."""
    node: Any = document
    line = node.lc.line if node.lc.line is not None else 0
    for step in key:
        try:
            if isinstance(node, CommentedMap) and isinstance(step, str):
                line = node.lc.key(step)[0]
                node = node[step]
            elif isinstance(node, CommentedSeq) and isinstance(step, int):
                line = node.lc.item(step)[0]
                node = node[step]
            else:
                break
        except (KeyError, IndexError, TypeError):
            break
    return int(line) + 1
