"""What deploy/ has for a site: units, users, containers and a recipe agree with the commands, the files and pyproject.toml."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest

from waystage.cli.main import group

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
RECIPES = sorted((DEPLOY / "spack/packages").glob("*/package.py"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MADE = "dist/waystage-*.whl"
"""What scripts/dist makes; all else that a container is made of is in the repository."""

SITE_USERS = {"root", "slurm"}
"""Accounts that are there before Waystage is."""


def name(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def settings(unit: Path) -> dict[str, str]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def test_there_is_something_to_test() -> None:
    assert len(UNITS) >= 4 and len(RECIPES) >= 3


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if "Failed to" in ran.stderr and unit.name not in ran.stderr:
        pytest.skip(f"systemd-analyze does not run here: {ran.stderr.strip()}")
    ours = [line for line in (ran.stdout + ran.stderr).splitlines() if "waystage" in line]
    assert (ran.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=name)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    words = shlex.split(settings(unit)["ExecStart"])
    assert words[:2] == ["/usr/bin/env", "waystage"]
    command: click.Command = group
    rest = words[2:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        below = command.get_command(click.Context(command), rest[0])
        assert below is not None, f"there is no command {rest[0]!r}"
        command, rest = below, rest[1:]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= options


def test_every_user_of_a_unit_is_made_by_sysusers_or_there_before() -> None:
    lines = (DEPLOY / "sysusers.d/waystage.conf").read_text(encoding="utf-8").splitlines()
    made = {line.split()[1] for line in lines if line.startswith("u ")}
    users = {settings(unit).get("User", "root") for unit in UNITS}
    assert made and users - SITE_USERS == made


def test_systemd_sysusers_makes_the_users(tmp_path: Path) -> None:
    program = shutil.which("systemd-sysusers")
    if program is None:
        pytest.skip("systemd-sysusers is not installed")
    ran = subprocess.run(
        [program, "--dry-run", f"--root={tmp_path}", str(DEPLOY / "sysusers.d/waystage.conf")],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if ran.returncode and "--dry-run" in ran.stderr:
        pytest.skip("this systemd-sysusers has no --dry-run")
    assert ran.returncode == 0, ran.stderr
    assert "Creating user 'waystage'" in ran.stdout + ran.stderr


def copied() -> Iterator[tuple[str, str]]:
    """File of deploy/container, and each path in the repository that it copies."""
    for line in (DEPLOY / "container/Dockerfile").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:1] == ["COPY"]:
            yield from (("Dockerfile", word) for word in words[1:-1])
    text = (DEPLOY / "container/waystage.def").read_text(encoding="utf-8")
    [files] = re.findall(r"^%files\n((?:[ \t].*\n|\n)+)", text, re.MULTILINE)
    yield from (("waystage.def", line.split()[0]) for line in files.splitlines() if line.strip())


def test_what_a_container_copies_is_there_or_made_by_dist() -> None:
    found = list(copied())
    assert {place for place, path in found if path == MADE} == {"Dockerfile", "waystage.def"}
    missing = [(place, path) for place, path in found if path != MADE and not (REPOSITORY / path).is_file()]
    assert missing == []
    dist = (REPOSITORY / "scripts/dist").read_text(encoding="utf-8")
    assert re.search(r"\bdist/waystage-\*\.whl", dist), "scripts/dist makes no such wheel"


def test_docker_sees_what_it_copies_and_nothing_else() -> None:
    lines = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    shown = {rule.removeprefix("!") for rule in rules[1:]}
    wanted = {path for place, path in copied() if place == "Dockerfile"}
    assert wanted == shown


def test_both_containers_install_the_same_packages() -> None:
    found = []
    for file in ("Dockerfile", "waystage.def"):
        text = (DEPLOY / "container" / file).read_text(encoding="utf-8").replace("\\\n", " ")
        [line] = re.findall(r"apt-get install (.*?)(?:&&|\n)", text)
        found.append({word for word in line.split() if not word.startswith("-")})
    assert found[0] == found[1] and "python3" in found[0]


def test_the_shell_of_a_container_is_sound() -> None:
    shellcheck = shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    text = (DEPLOY / "container/waystage.def").read_text(encoding="utf-8")
    parts = re.findall(r"^%(?:post|test|runscript)\n((?:[ \t].*\n|\n)+)", text, re.MULTILINE)
    assert len(parts) == 3
    for part in parts:
        ran = subprocess.run(
            [shellcheck, "--shell=sh", "-"],
            input=part,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout


def test_hadolint_finds_nothing_wrong_with_the_dockerfile() -> None:
    hadolint = Path(sysconfig.get_path("scripts"), "hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: it comes with the extra dev")
    ran = subprocess.run(
        [str(hadolint), str(DEPLOY / "container/Dockerfile")],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


def calls(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
            yield node


def text_of(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value


def spec(requirement: str) -> str:
    """`ruamel.yaml>=0.18,<1` -> `py-ruamel-yaml@0.18:0`, as Spack writes it."""
    parts = re.fullmatch(r"([\w.-]+)>=([\d.]+)(?:,<(\d+))?", requirement)
    assert parts is not None, f"of a form that is not foreseen here: {requirement}"
    package, least, below = parts.groups()
    most = "" if below is None else str(int(below) - 1)
    return f"py-{re.sub(r'[-_.]+', '-', package).lower()}@{least}:{most}"


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_is_python_and_its_folder_its_class(recipe: Path) -> None:
    [found] = [
        node for node in ast.parse(recipe.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    assert found.name == "".join(part.title() for part in recipe.parent.name.split("_"))
    tree = ast.parse(recipe.read_text(encoding="utf-8"))
    assert list(calls(tree, "version")) and list(calls(tree, "license"))


def test_the_recipe_needs_what_the_wheel_needs() -> None:
    tree = ast.parse((DEPLOY / "spack/packages/waystage/package.py").read_text(encoding="utf-8"))
    needed = {text_of(call.args[0]) for call in calls(tree, "depends_on")}
    extras = {
        group: {spec(each) for each in wanted}
        for group, wanted in PROJECT["optional-dependencies"].items()
        if group in ("nodes", "frames", "fsspec", "torch")
    }
    variants = {text_of(call.args[0]) for call in calls(tree, "variant")}
    assert set(extras) < variants
    wheel = {spec(each) for each in PROJECT["dependencies"]}.union(*extras.values())
    cargo = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]
    built = {
        f"rust@{cargo['rust-version']}:",
        f"python@{PROJECT['requires-python'].removeprefix('>=')}:",
        "py-maturin@1.7:1",
        "c",
        "cxx",
        "openmpi",
    }
    assert needed == wheel | built
    assert [text_of(call.args[0]) for call in calls(tree, "version")] == [cargo["version"]]


def test_the_recipe_installs_files_that_are_there() -> None:
    tree = ast.parse((DEPLOY / "spack/packages/waystage/package.py").read_text(encoding="utf-8"))
    folders = [text_of(call.args[0]) for call in calls(tree, "install_tree")]
    assert folders and all((REPOSITORY / folder).is_dir() for folder in folders)
    assert {"deploy/systemd", "deploy/sysusers.d"} <= set(folders)


def test_the_recipes_of_dependencies_suit_the_lock() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    for recipe in RECIPES:
        if recipe.parent.name.startswith("py_"):
            tree = ast.parse(recipe.read_text(encoding="utf-8"))
            package = recipe.parent.name.removeprefix("py_").replace("_", "-")
            [version] = [text_of(call.args[0]) for call in calls(tree, "version")]
            assert f"\n{package}=={version} " in lock


def test_every_file_of_deploy_that_a_page_names_is_there() -> None:
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    named = {
        found
        for page in pages
        if "decisions" not in page.parts
        for found in re.findall(r"(?<![\w/])deploy/[\w./*-]+[\w*]", page.read_text(encoding="utf-8"))
    }
    files = [str(path.relative_to(REPOSITORY)) for path in DEPLOY.rglob("*")]
    assert named and [path for path in named if not any(fnmatch(file, path) for file in files)] == []
