"""The client's wheel: built offline, pure, installed into a bare environment and used there."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PROGRAM = """
import sys, fabrictime_client as ft
clock = ft.Clock(sys.argv[1])
time_ns, bound_ns = clock.now()
assert ft.now().time_ns >= time_ns and bound_ns < 1000, bound_ns
assert clock.convert(time_ns, 'eth0').bound_ns < 1000
print(clock.state(), ft.__file__, sys.version_info[:2])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: building leaves nothing in the checkout
    shutil.copytree(made.PYTHON_CLIENT, source, ignore=shutil.ignore_patterns("__pycache__"))
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-q",
            "-w",
            folder,
            source,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.timeout(180)
def test_wheel_is_pure_typed_and_needs_nothing(wheel):
    assert wheel.name == "fabrictime_client-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "fabrictime_client/py.typed" in names
    assert {name.partition("/")[0] for name in names} == {
        "fabrictime_client",
        "fabrictime_client-0.1.0.dist-info",
    }
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    needed = [line for line in text.splitlines() if line.startswith("Requires-Dist")]
    assert needed
    assert all(line.endswith('; extra == "records"') for line in needed)
    packed = zipfile.ZipFile(wheel).read("fabrictime_client/released.jsonl").decode()
    assert packed == (Path(__file__).parents[2] / "schemas" / "released.jsonl").read_text()
    assert "Requires-Python: >=3.8" in text


@pytest.mark.timeout(180)
def test_wheel_works_in_a_bare_environment(wheel, made, page, tmp_path):
    target = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", target], check=True, capture_output=True)
    python = target / "bin" / "python"
    subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--disable-pip-version-check",
            wheel,
        ],
        check=True,
    )
    environment = {"PATH": os.environ["PATH"], "FABRICTIME_CLOCK": str(page.path)}
    page.write(made.content())  # all that took a while
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM, page.path],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"SYNCED {target}")


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_package_runs_on_other_pythons(made, page, version):
    """Older and newer interpreters, if this machine has them."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        pytest.skip("this one runs the other tests")
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"python{version} is not installed here")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(made.PYTHON_CLIENT),
        "HOME": str(Path.home()),
        "FABRICTIME_CLOCK": str(page.path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    usable = subprocess.run([python, "-c", ""], env=environment, capture_output=True, text=True, check=False)
    if usable.returncode:
        pytest.skip(f"{python} does not start: {usable.stderr.partition(chr(10))[0]}")
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM, page.path],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("SYNCED")
