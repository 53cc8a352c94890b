"""Arrow without pandas, in the processes of commands.

Arrives: nothing.
Leaves: the first import of pyarrow imports no pandas.
Must not know: what a subcommand does.

pyarrow imports pandas, where it is installed, before it makes its first array, to know its series from other sequences.
That takes a third of a second, and no command has one. It looks once: `to_pandas` still imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ARROW, PANDAS = "pyarrow", "pandas"


def leave_pandas_out() -> None:
    """From now on, until pyarrow has been imported."""
    if ARROW not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Of sys.meta_path; without importlib.abc, which takes 10 ms to import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ARROW:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        spec = find_spec(ARROW)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _look_for_pandas(module)

            loader.exec_module = exec_module
        return spec


class _NoPandas:
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == PANDAS:
            raise ModuleNotFoundError(name=PANDAS)


def _look_for_pandas(arrow: ModuleType) -> None:
    """Let pyarrow look for pandas, and find none."""
    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        arrow.array([0])
    finally:
        sys.meta_path.remove(absent)
