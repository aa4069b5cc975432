"""The C code under the address and undefined-behaviour sanitizers, fed with what nobody vouches for.

The fuzzers stand on the C files alone, so that a build takes seconds. The extension modules
whole, Cython's glue included, run that way by hand: configure with -DFABRICTIME_SANITIZE=ON, then run the
tests with ASAN_OPTIONS=detect_leaks=0 and libasan.so and libubsan.so (gcc -print-file-name=…) in LD_PRELOAD.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
CORE = (
    "decode.c",
    "encode.c",
    "window.c",
    "fit.c",
    "margin.c",
    "reduce.c",
    "mesh.c",
    "mesh_start.c",
    "mesh_solve.c",
    "mesh_sigma.c",
)


@pytest.mark.slow("compiles with sanitizers")
@pytest.mark.parametrize(
    ("fuzzer", "package", "sources"),
    [
        ("fuzz.c", "core", CORE),
        ("fuzz_losses.c", "core", ("losses.c",)),
        ("fuzz_queues.c", "core", ("queues.c",)),
    ],
)
def test_no_sanitizer_reports_an_error(fuzzer, package, sources, tmp_path):
    gcc = shutil.which(os.environ.get("CC", "gcc"))
    if gcc is None:
        pytest.skip("no C compiler")
    for library in ("libasan.so", "libubsan.so"):
        asked = [gcc, f"-print-file-name={library}"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            pytest.skip(f"the compiler has no {library}")
    program = tmp_path / "fuzz"
    built = subprocess.run(
        [
            gcc,
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            f"-I{NATIVE / package}",
            Path(__file__).with_name(fuzzer),
            *(NATIVE / package / name for name in sources),
            "-lm",
            "-o",
            program,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr[-6000:]
    assert ran.stdout == "clean\n"
