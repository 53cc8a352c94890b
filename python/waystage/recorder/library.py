"""The library that is preloaded into programs, compiled on first use.

Arrives: a C compiler.
Leaves: the path of the library, from the cache or compiled now.
Must not know: what the library does.

It is compiled on the machine because it interposes this machine's C library.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from waystage._native import shim_sources
from waystage.compiled import preloaded_library
from waystage.recorder.errors import CompilerMissing, RecorderError

FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-fno-delete-null-pointer-checks",
)
"""A wrapped call may receive arguments that its declaration forbids, and must fail as it would have."""


def build(cc: str | None = None) -> Path:
    """The library, compiled by `cc` or by the machine's compiler. Raises RecorderError."""
    named = cc or os.environ.get("CC") or "cc"
    compiler = shutil.which(named)
    if compiler is None:
        raise CompilerMissing(f"there is no C compiler {named}: install gcc, or name another with --cc")
    sources = {name: text.encode() for name, text in shim_sources("posix")}
    return preloaded_library(
        "recorder",
        "libwaystage-catalog",
        compiler,
        FLAGS,
        sources,
        version_flag="--version",
        failed=RecorderError,
    )
