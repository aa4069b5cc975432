"""Build the dashboards, and the extension modules beside their sources; put the checkout on Python's path.

`make` runs it with the environment's own Python. It rebuilds only changed files. A wheel is built by
scikit-build-core instead (`pip wheel .`), from the same CMakeLists.txt.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / f"dev-{sys.implementation.cache_tag}"
SCRIPT = """#!{python} -I
import sys

from fabrictime.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""


def main() -> int:
    """Configure the build if it is new, compile changed sources, and link the command. Returns the exit code.

    With `--verbose`, print each step of the compiler as it begins.
    """
    is_verbose = "--verbose" in sys.argv[1:]
    BUILD.mkdir(parents=True, exist_ok=True)
    bin_dir = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"}
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (BUILD / "build.ninja").exists() or _has_new_mpi(env["PATH"]):
            print("fabrictime: configuring native/", flush=True)
            _run([str(bin_dir / "cmake"), "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja",
                  "-DFABRICTIME_IN_PLACE=ON", f"-DPython_EXECUTABLE={sys.executable}"], env)  # fmt: skip
        _run([str(bin_dir / "cmake"), "--build", str(BUILD)], env, is_verbose=is_verbose)
        if sys.prefix != sys.base_prefix and Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
            _link(bin_dir)
    return 0


def _has_new_mpi(path: str) -> bool:
    """Return whether an MPI was installed after the build was configured, so that its profiler is missing."""
    profiler = ROOT / "native/mpi/libfabrictime-mpi.so"
    return shutil.which("mpicc", path=path) is not None and not profiler.exists()


def _run(command: list[str], env: dict[str, str], *, is_verbose: bool = False) -> None:
    output = None if is_verbose else subprocess.PIPE
    done = subprocess.run(command, env=env, check=False, stdout=output, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout or ''}\nfabrictime: {' '.join(command)} ended with {done.returncode}")


def _link(bin_dir: Path) -> None:
    """Make `import fabrictime` and the `fabrictime` command of this environment use this checkout."""
    files = {
        Path(sysconfig.get_path("purelib")) / "fabrictime-checkout.pth": f"{ROOT}\n{ROOT}/clients/python\n",
        bin_dir / "fabrictime": SCRIPT.format(python=sys.executable),
    }
    for path, text in files.items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    (bin_dir / "fabrictime").chmod(0o755)


if __name__ == "__main__":
    sys.exit(main())
