"""The library that is preloaded into programs, compiled when first used.

Arrives: a C compiler.
Leaves: the path of the library, from the cache or compiled now.
Must not know: what the library does.

It is compiled on the machine because it stands in front of this machine's C library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from waystage._native import shim_sources
from waystage.compiled import CompileError, compile_into, kept_at
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
"""A wrapped call may be given what its declaration forbids, and must fail as it would have."""

LIBRARIES = ("-ldl", "-lpthread")


def build(cc: str | None = None) -> Path:
    """The library, compiled by `cc` or by the machine's own compiler. Raises RecorderError."""
    compiler = shutil.which(cc or os.environ.get("CC") or "cc")
    if compiler is None:
        raise CompilerMissing(
            f"there is no C compiler {cc or os.environ.get('CC') or 'cc'}: install gcc, or name another with --cc"
        )
    sources = {name: text.encode() for name, text in shim_sources("posix")}
    library = kept_at("recorder", "libwaystage-catalog", sources, *FLAGS, _version(compiler), suffix=".so")
    if not library.exists():
        try:
            compile_into(library, (compiler, *FLAGS), sources, LIBRARIES)
        except CompileError as error:
            said = next((line for line in error.said.splitlines() if "error" in line), error.said[:200])
            raise RecorderError(f"{compiler} could not compile the recorder: {said.strip()}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RecorderError(f"the recorder cannot be compiled in {library.parent}: {error}") from None
    return library


def _version(compiler: str) -> str:
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderError(f"{compiler} cannot be run: {error}") from None
    return f"{os.path.realpath(compiler)}\n{done.stdout}"
