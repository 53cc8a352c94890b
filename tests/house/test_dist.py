"""What `make dist` packs: sources that build, a wheel with all that the code names, a tag that its libraries satisfy."""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, get_args

import pytest

from harness import Waystage
from waystage import shipped

REPOSITORY = Path(__file__).parents[2]
GENERATED = ("third-party-notices.txt", "/man1/", "PKG-INFO")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of scripts/."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "scripts"))
    return importlib.import_module


@pytest.mark.timeout(360)
def test_the_sources_hold_all_that_a_build_needs(script: Any, tmp_path: Path) -> None:
    check = script("check_dist")
    clone = tmp_path / "clone"
    cloned = subprocess.run(
        ["git", "clone", "--quiet", "--shared", str(REPOSITORY), str(clone)], capture_output=True, check=False
    )
    if cloned.returncode != 0:
        pytest.skip("not a git checkout: which files are the project's is unknown")
    for name in check.IN_SOURCES:
        if any(part in name for part in GENERATED[:2]):
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_text("written by scripts/dist\n", encoding="ascii")
    subprocess.run(
        [Path(sys.executable).parent / "maturin", "sdist", "--out", str(tmp_path / "dist")],
        cwd=clone,
        check=True,
        timeout=300,
    )
    [sources] = (tmp_path / "dist").glob("*.tar.gz")
    check.check_sources(sources)
    with tarfile.open(sources) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=clone, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert set(tracked) - packed <= {".gitignore", ".dockerignore", ".ci/run"}


def test_sources_are_not_packed_without_the_man_pages(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = script("build_backend")
    monkeypatch.setattr(backend, "MAN_PAGES", tmp_path / "man1")
    with pytest.raises(SystemExit, match="make dist"):
        backend.build_sdist(str(tmp_path))


def test_the_build_backend_is_found_and_offers_every_hook_of_maturin(script: Any) -> None:
    import maturin

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    system = project["build-system"]
    backend = script("build_backend")
    assert (system["build-backend"], system["backend-path"]) == ("build_backend", ["scripts"])
    hooks = {name for name in vars(maturin) if re.match(r"build_|get_requires_|prepare_", name)}
    assert hooks and hooks <= set(backend.__all__) <= set(vars(backend))
    included = [entry["path"] for entry in project["tool"]["maturin"]["include"]]
    assert set(backend.SHIPPED) == set(get_args(shipped.Folder))
    for name in backend.SHIPPED:
        assert f"python/waystage/data/{name}/**/*" in included and (REPOSITORY / name).is_dir()


def test_a_wheel_without_a_page_that_its_code_names_is_refused(script: Any, tmp_path: Path) -> None:
    check = script("check_dist")
    wheel = tmp_path / "waystage-0.1.0-cp311-abi3-linux_x86_64.whl"
    names = dict.fromkeys(check.IN_WHEEL, b"Apache License")
    names["waystage-0.1.0.data/data/share/man/man1/waystage.1"] = b""
    names["waystage/units.py"] = b'"""See docs/reference/units.md and experiments/demo.yaml."""'

    def write(left_out: str = "") -> None:
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in names.items():
                if name != left_out:
                    archive.writestr(name, data)

    write()
    check.check_wheel(wheel)
    for name in names:
        if name != "waystage/units.py":
            write(left_out=name)
            with pytest.raises((check.Missing, KeyError), match=re.escape(Path(name).name) + "|man pages"):
                check.check_wheel(wheel)


def test_every_page_that_the_code_names_is_there(script: Any) -> None:
    check = script("check_dist")
    cited = {
        path
        for module in (REPOSITORY / "python").rglob("*.py")
        for path in check.cited_paths(module.read_text(encoding="utf-8"))
    }
    assert len(cited) > 20
    assert sorted(path for path in cited if not (REPOSITORY / path).is_file()) == []


@pytest.mark.parametrize(
    ("found", "wanted", "whether"),
    [
        ("manylinux_2_28_x86_64", "manylinux_2_28_x86_64", True),
        ("manylinux2014_x86_64", "manylinux_2_28_x86_64", True),
        ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", False),
        ("manylinux_2_5_x86_64", "manylinux_2_28_x86_64", True),
        ("linux_x86_64", "manylinux_2_28_x86_64", False),
    ],
)
def test_a_tag_is_satisfied_by_an_older_glibc(script: Any, found: str, wanted: str, whether: bool) -> None:
    check = script("check_dist")
    said = f'x.whl is consistent\nwith the following\nplatform tag: "{found}".\nThe wheel references ...'
    assert check.satisfies(check.audited_tag(said), wanted) is whether


def test_the_recipe_gets_the_checksum_of_the_sources(script: Any, tmp_path: Path) -> None:
    check = script("check_dist")
    dist = (REPOSITORY / "scripts/dist").read_text(encoding="utf-8")
    [expression] = re.findall(r'^sed -i "(.*)" dist/spack', dist, re.MULTILINE)
    sources, recipe = tmp_path / "waystage-0.1.0.tar.gz", tmp_path / "package.py"
    sources.write_bytes(b"sources")
    recipe.write_bytes((REPOSITORY / "deploy/spack/packages/waystage/package.py").read_bytes())
    with pytest.raises(check.Missing, match="checksum"):
        check.check_recipe(recipe, sources)
    digest = hashlib.sha256(b"sources").hexdigest()
    command = f'sum="{digest}  x"; sed -i "{expression}" "{recipe}"'
    subprocess.run(["bash", "-c", command], check=True)
    check.check_recipe(recipe, sources)
    compile(recipe.read_text(encoding="utf-8"), str(recipe), "exec")


def test_a_missing_experiment_is_named_where_the_installation_has_it(waystage: Waystage) -> None:
    ran = waystage("run", "experiments/demo.yaml", "--on", "sim")
    assert ran.code == 3 and str(REPOSITORY / "experiments/demo.yaml") in ran.err
    assert "this installation" not in waystage("run", "experiments/none.yaml", "--on", "sim").err
