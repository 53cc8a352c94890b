"""Check what scripts/dist built: `check_dist.py DIST VENV`, where the wheel is installed in VENV.

Prints the wheel's platform tag and the oldest glibc that its libraries need; fails where anything is missing.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

TOOLS = Path(__file__).parents[1] / ".build" / "dist-tools" / "bin"

IN_SOURCES = (
    "Cargo.lock",
    "LICENSE",
    "PKG-INFO",
    "crates/collective_client/Cargo.toml",
    "crates/py/Cargo.toml",
    "pyproject.toml",
    "python/waystage/data/third-party-notices.txt",
    "python/waystage/py.typed",
    "scripts/build_backend.py",
    "scripts/library",
    "shim/include/waystage_ring.h",
    "waystage._native.data/data/share/man/man1/waystage-copy.1",
    "waystage._native.data/data/share/man/man1/waystage.1",
)

IN_WHEEL = (
    "waystage/_native.abi3.so",
    "waystage/data/deploy/systemd/waystage-controller.service",
    "waystage/data/deploy/sysusers.d/waystage.conf",
    "waystage/data/docs/reference/units.md",
    "waystage/data/experiments/demo.yaml",
    "waystage/data/lib/libwaystage_io.so",
    "waystage/data/pfs/nurion.yaml",
    "waystage/data/shim/pml.c",
    "waystage/data/slurm/job_submit.lua",
    "waystage/data/third-party-notices.txt",
    "waystage/data/topologies/paper.graphml",
    "waystage/data/wan/wan-10ms.yaml",
    "waystage/worlds/lab/programs/alltoall.c",
)

USE = """
import ctypes, sys
from importlib.resources import files
from pathlib import Path
import waystage._native
from waystage import shipped

package = files("waystage")
assert "site-packages" in str(package), package
assert "ring.c" in [name for name, _ in waystage._native.shim_sources("posix")]
assert ctypes.CDLL(str(package / "data/lib/libwaystage_io.so")).ws_io_abi() == 1
assert shipped.namesake("experiments", Path("experiments/demo.yaml")), "no experiment"
print("the wheel of", waystage._native.__version__, "runs from", package)
"""


class Missing(Exception):
    """What was built lacks something."""


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: check_dist.py DIST VENV", file=sys.stderr)
        return 2
    dist, venv = Path(sys.argv[1]), Path(sys.argv[2])
    [sources], [wheel] = list(dist.glob("*.tar.gz")), list(dist.glob("*.whl"))
    try:
        check_sources(sources)
        check_wheel(wheel)
        check_recipe(dist / "spack/packages/waystage/package.py", sources)
        use(venv)
        say_tag(wheel)
    except Missing as error:
        print(f"waystage: {error}", file=sys.stderr)
        return 1
    return 0


def check_sources(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        _have(sources, IN_SOURCES, (name.partition("/")[2] for name in archive.getnames()))


def check_wheel(wheel: Path) -> None:
    """Files, and each page and experiment that a module of the wheel names."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        _have(wheel, IN_WHEEL, names)
        cited = {
            f"waystage/data/{path}"
            for name in names
            if name.startswith("waystage/") and name.endswith(".py")
            for path in cited_paths(archive.read(name).decode())
        }
        _have(wheel, cited, names)
        if not any(name.endswith(".data/data/share/man/man1/waystage.1") for name in names):
            raise Missing(f"{wheel.name} has no man pages")
        if b"Apache License" not in archive.read("waystage/data/third-party-notices.txt"):
            raise Missing(f"{wheel.name} has no licence of its crates")


def cited_paths(text: str) -> set[str]:
    """Pages and experiments of which `text` has the path."""
    return set(re.findall(r"\b(?:docs|experiments)/[\w./-]+\.(?:md|yaml)\b", text))


def check_recipe(recipe: Path, sources: Path) -> None:
    digest = hashlib.sha256(sources.read_bytes()).hexdigest()
    if f'sha256="{digest}"' not in recipe.read_text(encoding="utf-8"):
        raise Missing(f"{recipe} does not have the checksum of {sources.name}")


def use(venv: Path) -> None:
    """The installed command, module, library and man pages, away from the sources."""
    for command in (["waystage", "--version"], ["python", "-c", USE]):
        subprocess.run([venv.resolve() / "bin" / command[0], *command[1:]], cwd="/", check=True)
    if not (venv / "share/man/man1/waystage-copy.1").is_file():
        raise Missing("pip did not install the man pages")


def say_tag(wheel: Path) -> None:
    """The tag that the wheel has, and the one that auditwheel finds in its libraries."""
    tag = wheel.stem.rsplit("-", 1)[1]
    print(f"{wheel.name}: tagged {tag}")
    auditwheel = TOOLS / "auditwheel"
    if not auditwheel.exists():
        print("auditwheel could not be installed: what glibc the libraries need is not checked")
        return
    ran = subprocess.run(
        [TOOLS / "python", "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True
    )
    found = audited_tag(ran.stdout)
    print(f"auditwheel: the libraries satisfy {found}")
    if tag.startswith("manylinux") and not satisfies(found, tag):
        raise Missing(f"{wheel.name} is tagged {tag}, and its libraries satisfy {found} only")
    if not tag.startswith("manylinux_2_28"):
        print("not manylinux_2_28: that needs zig as the linker, which requirements-dist.lock brings")


def audited_tag(text: str) -> str:
    """The tag in auditwheel's sentences: `is consistent with the following platform tag: "TAG"`."""
    found = re.search(r'following\s+platform\s+tag:\s+"([\w.]+)"', text)
    if found is None:
        raise Missing(f"auditwheel says no tag: {text}")
    return found.group(1)


def satisfies(found: str, wanted: str) -> bool:
    """Whether libraries that need the glibc of `found` run where that of `wanted` is."""
    least, most = glibc(found), glibc(wanted)
    return least is not None and most is not None and least <= most


def glibc(tag: str) -> tuple[int, int] | None:
    """The version in a tag: manylinux_2_28_x86_64, or manylinux2014_x86_64, which is 2.17 (PEP 599); else None."""
    if re.match(r"manylinux2014_", tag):
        return 2, 17
    version = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    return (int(version.group(1)), int(version.group(2))) if version else None


def _have(where: Path, wanted: Iterable[str], names: Iterable[str]) -> None:
    lacking = sorted(set(wanted) - set(names))
    if lacking:
        raise Missing(f"{where.name} lacks {', '.join(lacking)}")


if __name__ == "__main__":
    sys.exit(main())
