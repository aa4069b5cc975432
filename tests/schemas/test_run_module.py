"""Programs of ours run no code of the working directory, of PYTHONPATH or of the user's site."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.run_module import module_command, script_command

ROOT = Path(__file__).parents[2]
PRODUCT = ("schemas", "native", "producers", "streams", "actuators", "fabrictime")
MODULES = [
    "fabrictime.runtime.service",
    "fabrictime.testbed.processes.fork_server",
    "fabrictime.testbed.jobs.mpi_rank",
    "fabrictime.log",
    "fabrictime",
    "streams",
    "actuators",
    "producers.audit.gpu.nvml",
    "producers.audit.load.stream",
    "producers.audit.storage.volume",
    "producers.audit.load.traffic",
]


@pytest.fixture
def foreign(tmp_path):
    """Make a folder with a file for each standard module, and return it with its trace file."""
    trace = tmp_path / "trace"
    code = f"open({str(trace)!r}, 'a').write(__name__ + '\\n')\nraise SystemExit('foreign code')\n"
    folder = tmp_path / "foreign"
    folder.mkdir()
    for name in sys.stdlib_module_names:
        (folder / f"{name}.py").write_text(code)
    return folder, trace


@pytest.mark.parametrize("module", MODULES)
def test_no_foreign_module_is_run(module, foreign, tmp_path):
    folder, trace = foreign
    site_folder = (
        tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    site_folder.parent.mkdir(parents=True)
    site_folder.symlink_to(folder)
    env = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONUSERBASE": str(tmp_path),
        "PYTHONSTARTUP": str(folder),
    }
    command = module_command(module, "--help")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert not trace.exists(), trace.read_text()
    assert "No module named" not in done.stderr
    assert "foreign code" not in done.stderr


def test_the_arguments_reach_the_module_and_its_exit_code_the_caller(tmp_path):
    done = subprocess.run(
        module_command("fabrictime", "nonsense"), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr
    without = subprocess.run(module_command("fabrictime")[:-1], capture_output=True, text=True)
    assert without.returncode == 1
    assert without.stderr == "run_module: no module; expected the name of a module and its arguments\n"


def test_a_script_runs_isolated_with_the_interpreter_that_the_settings_name(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.flags.isolated, sys.argv[1:])")
    command = script_command(str(script), "a", "b", python=sys.executable)
    assert subprocess.check_output(command, text=True) == "1 ['a', 'b']\n"


def test_every_python_of_the_product_starts_isolated():
    pattern = re.compile(r"""sys\.executable\b(?!\s*,\s*"-I")""")
    allowed = {
        "schemas/run_module.py",
        "producers/probe/rdma/devices.py",
    }  # the second only names the interpreter
    starts = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        if "bench" not in path.parts and str(path.relative_to(ROOT)) not in allowed
        for match in pattern.finditer(path.read_text())
    ]
    assert starts == []
