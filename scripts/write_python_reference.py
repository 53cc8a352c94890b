"""Write docs/reference/python.md from docstrings; `--check` only compares."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import generated_page

PACKAGE = Path(__file__).parents[1] / "python" / "waystage"
PAGE = PACKAGE.parents[1] / "docs" / "reference" / "python.md"

HEAD = """# Python

Generated from docstrings by `make docs`; do not edit. How-tos show each in use:
[copies](../how-to/copy.md#from-python), [catalogs](../how-to/catalog.md), [loading](../how-to/loader.md),
[coupling of applications](../how-to/couple-applications.md), [files of a server](../how-to/copy-over-distance.md).
An error is one sentence: what is wrong, where, and how to fix it. What this page does not name may change with any
version.
"""

CLASSES = (
    ("waystage.copy", "cli/calling.py"),
    ("waystage.CopyResult", "cli/calling.py"),
    ("waystage.CopyFailed", "cli/calling.py"),
    ("waystage.CopyIncomplete", "cli/calling.py"),
    ("waystage.Catalog", "catalog/frames.py"),
    ("waystage.catalog.Selection", "catalog/frames.py"),
    ("waystage.catalog.Entry", "catalog/check.py"),
    ("waystage.Loader", "loader/loader.py"),
    ("waystage.loader.torch.WaystageDataset", "loader/torch.py"),
    ("waystage.filesystems.FarFileSystem", "filesystems/far.py"),
    ("waystage.filesystems.CatalogFileSystem", "filesystems/catalogued.py"),
)

LINE = 100


def sections() -> Iterator[str]:
    for name, file in CLASSES:
        kind = name.rpartition(".")[2]
        tree = ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
        named = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
        found = next(node for node in named if node.name == kind)
        if isinstance(found, ast.FunctionDef):
            yield f"\n## {name}\n\n```python\n{_signature(kind, found, method=False)}\n```\n\n{_docstring(found)}\n"
            continue
        yield f"\n## {name}\n\n{_docstring(found)}\n{_fields(found)}"
        for node in found.body:
            if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None:
                continue
            called = kind if node.name == "__init__" else node.name
            if called == kind or not called.startswith("_") or called in ("__len__", "__iter__"):
                yield f"\n```python\n{_signature(called, node)}\n```\n\n{_docstring(node)}\n"


def _fields(found: ast.ClassDef) -> str:
    """The fields of a class that only has such, with the sentences below them."""
    lines = []
    for node, after in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            about = after.value if isinstance(after, ast.Expr) else None
            text = inspect.cleandoc(str(about.value)) if isinstance(about, ast.Constant) else ""
            lines.append(
                f"- `{ast.unparse(node.target)}: {ast.unparse(node.annotation)}`"
                + (f": {text}" if text else "")
            )
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _signature(name: str, node: ast.FunctionDef, *, method: bool = True) -> str:
    """On one line, or one line a parameter where that is long."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    returns = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    if "property" in marks:
        return f"{name}{returns}"
    held = node.args
    if method and "staticmethod" not in marks:
        (held.posonlyargs or held.args).pop(0)
    line = f"{name}({ast.unparse(held)}){returns}"
    if len(line) <= LINE:
        return line
    first = len(held.args) - len(held.defaults)
    lines = [
        _parameter(one, held.defaults[place - first] if place >= first else None)
        for place, one in enumerate(held.args)
    ]
    if held.kwonlyargs:
        lines.append("*")
    lines += [_parameter(*pair) for pair in zip(held.kwonlyargs, held.kw_defaults, strict=True)]
    lines += [f"**{ast.unparse(held.kwarg)}"] if held.kwarg is not None else []
    return f"{name}(\n" + "".join(f"    {text},\n" for text in lines) + f"){returns}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + ("" if default is None else f" = {ast.unparse(default)}")


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    text = ast.get_docstring(node)
    assert text is not None, f"{node.name} has no docstring"
    return inspect.cleandoc(text)


if __name__ == "__main__":
    sys.exit(generated_page.write(PAGE, HEAD + "".join(sections()), __doc__))
