"""The stub of the native module says what the module has: every name, base class, signature and attribute, both ways."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waystage import _native

STUB = Path(_native.__file__).with_name("_native.pyi")
SLOTS = {"__iter__", "__next__", "__len__", "__bytes__", "__enter__", "__exit__", "__eq__", "__hash__"}
"""Special methods that a stub declares; the others are Python's own."""

MOST_ARGUMENTS = 8
"""More are an option class in `waystage.native_options`."""

Parameter = tuple[str, str, object]
"""Name, kind, and default: the value, `...` where Python cannot spell it, or `required`."""


def declared_parameters(function: ast.FunctionDef) -> list[Parameter]:
    arguments = function.args
    positional = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    both = [(a, "positional", d) for a, d in zip(positional, defaults, strict=True)]
    both += [(a, "keyword", d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    skipped = (
        0 if any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list) else 1
    )
    both = [each for each in both if each[0].arg not in ("self", "cls")[: 2 * skipped]]
    return [(a.arg, kind, "required" if d is None else _value(d)) for a, kind, d in both]


def _value(default: ast.expr) -> object:
    try:
        value = ast.literal_eval(default)
    except ValueError:
        value = eval(compile(ast.Expression(default), "stub", "eval"))  # such as 1 << 19
    return list(value) if isinstance(value, tuple) else value


def real_parameters(of: Any) -> list[Parameter]:
    parameters = [p for p in inspect.signature(of).parameters.values() if p.name not in ("self", "cls")]
    return [
        (
            p.name,
            "keyword" if p.kind is p.KEYWORD_ONLY else "positional",
            "required" if p.default is p.empty else p.default,
        )
        for p in parameters
    ]


def differing_parameters(stub: list[Parameter], real: list[Parameter]) -> bool:
    if [p[:2] for p in stub] != [p[:2] for p in real]:
        return True
    # `...` stands for a default that Rust computes: the stub may spell it out.
    return any(s[2] != r[2] for s, r in zip(stub, real, strict=True) if r[2] is not ... or s[2] == "required")


def differences_of_class(node: ast.ClassDef, real: type) -> Iterator[str]:
    bases = [ast.unparse(base) for base in node.bases] or ["object"]
    if bases != [base.__name__ for base in real.__bases__]:
        yield f"bases {bases}, module {[base.__name__ for base in real.__bases__]}"
    functions = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
    fields = {
        f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
    }
    have = {name for name in vars(real) if name in SLOTS or not name.startswith("__")}
    takes = "__new__" in vars(real) and not issubclass(real, BaseException)
    have |= {"__new__"} if takes else set()
    yield from (f"{name}: only in the module" for name in sorted(have - set(functions) - fields))
    yield from (f"{name}: only in the stub" for name in sorted(set(functions) - have))
    if fields and not issubclass(real, BaseException):
        yield f"{sorted(fields)}: attributes of instances are properties here"
    for name in sorted(have & set(functions) - SLOTS):
        function = functions[name]
        decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
        found = real if name == "__new__" else vars(real)[name]
        if ("property" in decorators) != inspect.isgetsetdescriptor(found):
            yield f"{name}: a property on one side only"
        elif ("staticmethod" in decorators) != isinstance(found, staticmethod):
            yield f"{name}: a static method on one side only"
        elif "property" not in decorators:
            stub, module = declared_parameters(function), real_parameters(found)
            if differing_parameters(stub, module):
                yield f"{name}: takes {stub}, module {module}"


def differences(stub: str, module: Any) -> list[str]:
    """What the text of a stub and a module do not agree on, a sentence each."""
    found = []
    declared: dict[str, ast.stmt] = {}
    for node in ast.parse(stub).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            declared[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared[node.target.id] = node
    # Types that exist for the type checker alone are marked by an underscore.
    declared = {name: node for name, node in declared.items() if name == "__version__" or name[0] != "_"}
    have = {name for name in vars(module) if name == "__version__" or name[0] != "_"}
    found += [f"{name}: only in the module" for name in sorted(have - set(declared))]
    found += [f"{name}: only in the stub" for name in sorted(set(declared) - have)]
    for name in sorted(have & set(declared)):
        node, real = declared[name], getattr(module, name)
        if isinstance(node, ast.ClassDef) != isinstance(real, type):
            found.append(f"{name}: a class on one side only")
        elif isinstance(node, ast.ClassDef):
            found += [f"{name}.{difference}" for difference in differences_of_class(node, real)]
        elif isinstance(node, ast.FunctionDef):
            parameters, module_parameters = declared_parameters(node), real_parameters(real)
            if differing_parameters(parameters, module_parameters):
                found.append(f"{name}: takes {parameters}, module {module_parameters}")
    return found


def test_the_stub_and_the_module_agree() -> None:
    assert differences(STUB.read_text(encoding="utf-8"), _native) == []


def test_no_function_takes_a_long_list_of_arguments() -> None:
    functions = [n for n in ast.walk(ast.parse(STUB.read_text("utf-8"))) if isinstance(n, ast.FunctionDef)]
    counts = {function.name: len(declared_parameters(function)) for function in functions}
    assert {name: count for name, count in counts.items() if count > MOST_ARGUMENTS} == {}


def test_each_kind_of_disagreement_is_named() -> None:
    text = STUB.read_text(encoding="utf-8")
    for old, new, named in (
        ("class NameList:", "class NamesList:", "NameList: only in the module"),
        ("def drain(self) -> None:", "def drains(self) -> None:", "drains: only in the stub"),
        ("def exchange_paths(one: Path,", "def exchange_paths(first: Path,", "exchange_paths: takes"),
        ("payload_bytes: int = 64", "payload_bytes: int = 65", "LossMeter.__new__: takes"),
        ("class DedupPartError(DedupError)", "class DedupPartError(RuntimeError)", "DedupPartError.bases"),
    ):
        assert old in text
        found = differences(text.replace(old, new, 1), _native)
        assert any(named in difference for difference in found), (named, found)
