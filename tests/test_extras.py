"""The agent and the command line need only the base dependencies; the rest are extras."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def closure(lines: list[str]) -> set[str]:
    """Return the names of the distributions that these requirements install, with their own requirements."""
    names: set[str] = set()
    waiting = [(Requirement(line), "") for line in lines]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (requirement.marker and not requirement.marker.evaluate({"extra": extra})) or name in names:
            continue
        names.add(name)
        try:
            own = [Requirement(line) for line in requires(name) or ()]
        except PackageNotFoundError:
            continue
        waiting += [(one, more) for one in own for more in ("", *requirement.extras)]
    return names


AGENT = closure(PROJECT["dependencies"])


@cache
def others() -> set[str]:
    """Return the modules in this environment that an installation of the agent alone lacks."""
    return {
        module
        for module, names in packages_distributions().items()
        if not AGENT & set(map(canonicalize_name, names)) and not (ROOT / module).exists()
    }


BLOCKED = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without_server(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that finds no package but those of the agent."""
    script = BLOCKED.format(others=others()) + code
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_module_of_the_agent_is_importable_without_the_server() -> None:
    packages = {"producers", "actuators", "fabrictime/runtime", "fabrictime/commands"}
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if path.name not in ("__main__.py", "__init__.py")
    )
    done = without_server(
        "import importlib\n"
        f"for name in {modules!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(name, error.name)\n"
    )
    assert done.returncode == 0, done.stderr
    optional = {"pyverbs", "torch", "pynvml"}
    missing = [line for line in done.stdout.splitlines() if line.split()[1].partition(".")[0] not in optional]
    assert missing == []


def test_the_agent_does_without_packages_that_only_others_need() -> None:
    """Typer carried Click along once; a command that imports it then failed on every host."""
    assert {"chdb", "nicegui", "faust", "aiohttp", "click", "pytest"} <= others()
    assert not {"typer", "rich", "numpy", "confluent_kafka", "pydantic_core", "_cffi_backend"} & others()


@pytest.mark.parametrize("arguments", [["--help"], ["audit", "--help"], ["service", "prober", "--help"]])
def test_the_command_line_works_without_the_server(arguments: list[str]) -> None:
    done = without_server(
        f"sys.argv[1:] = {arguments!r}\nfrom fabrictime.commands.cli import main\nsys.exit(main())"
    )
    assert done.returncode == 0, done.stderr


def test_a_command_of_the_server_names_the_extra(tmp_path: Path) -> None:
    arguments = ["up", "--fleet", "none", "--dir", str(tmp_path)]
    done = without_server(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        f"importlib.util.find_spec = lambda name: None if name in {others()!r} else find(name)\n"
        f"sys.argv[1:] = {arguments!r}\nfrom fabrictime.commands.cli import main\nsys.exit(main())"
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("'fabrictime[server]', with the folder DIST of the wheels")


def test_the_base_dependencies_stay_few() -> None:
    names = {line.split(">")[0].split("=")[0] for line in PROJECT["dependencies"]}
    wanted = (
        "confluent-kafka cryptography fastavro jinja2 numpy prometheus-client psutil pydantic pyroute2 pyyaml"
        " rich sdnotify typer"
    )
    assert names == set(wanted.split())
