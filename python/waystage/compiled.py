"""Shipped C sources, compiled on first use and kept in the user's cache.

Arrives: sources, a compiler with its flags.
Leaves: the path of the product, keyed by its inputs; the product, written atomically.
Must not know: what is compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TIMEOUT_S = 120


class CompileError(RuntimeError):
    """The compiler failed; `said` is its output, `status` its exit status."""

    def __init__(self, said: str, status: int) -> None:
        super().__init__(said)
        self.said, self.status = said, status


def kept_at(folder: str, name: str, sources: Mapping[str, bytes], *made_by: str, suffix: str = "") -> Path:
    """The product's path in the cache, which depends on each source and on `made_by`."""
    digest = hashlib.sha256()
    for file, text in sorted(sources.items()):
        digest.update(f"{file} {len(text)}\n".encode() + text)
    digest.update(" ".join(made_by).encode())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "waystage" / folder / f"{name}-{digest.hexdigest()[:16]}{suffix}"


def compile_into(
    product: Path, command: Sequence[str], sources: Mapping[str, bytes], libraries: Sequence[str] = ()
) -> None:
    """Compile every .c file of `sources` by `command`, a compiler and its flags, into `product`.

    Raises CompileError, OSError and subprocess.TimeoutExpired.
    """
    work = product.with_name(f".{product.name}.{os.getpid()}")
    work.mkdir(parents=True)
    try:
        for file, text in sources.items():
            (work / file).write_bytes(text)
        done = subprocess.run(
            [*command, "-o", "product", *sorted(f for f in sources if f.endswith(".c")), *libraries],
            cwd=work,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise CompileError(done.stderr, done.returncode)
        os.replace(work / "product", product)  # atomically, also beside another build
    finally:
        shutil.rmtree(work, ignore_errors=True)


def preloaded_library(
    what: str,
    name: str,
    compiler: str,
    flags: Sequence[str],
    sources: Mapping[str, bytes],
    *,
    version_flag: str,
    failed: Callable[[str], Exception],
) -> Path:
    """The shared library `name` of the `what`, from the cache or compiled now. Raises `failed(message)`.

    The output of `compiler version_flag` is part of what it was made from: an upgraded compiler compiles it again.
    """
    try:
        said = subprocess.run(
            [compiler, version_flag], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failed(f"{compiler} cannot be run: {error}") from None
    library = kept_at(what, name, sources, *flags, os.path.realpath(compiler), said, suffix=".so")
    if not library.exists():
        try:
            compile_into(library, (compiler, *flags), sources, ("-ldl", "-lpthread"))
        except CompileError as error:
            line = next((line for line in error.said.splitlines() if "error" in line), error.said[:200])
            raise failed(f"{compiler} could not compile the {what}: {line.strip()}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise failed(f"the {what} cannot be compiled in {library.parent}: {error}") from None
    return library


def component_folder(component: Path, name: str, *, failed: type[Exception]) -> Path:
    """A folder with a link of this name to `component`, for `mca_base_component_path`. Raises `failed`.

    Open MPI finds a component by the name of its file, so each build has a folder with one link.
    """
    folder = component.with_suffix(".d")
    link = folder / name
    try:
        folder.mkdir(exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(component)
    except FileExistsError:
        pass  # another build made it
    except OSError as error:
        raise failed(f"{link} cannot be made: {error.strerror}") from None
    return folder
