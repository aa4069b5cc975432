"""Collects the files for a site without internet: wheels of the agent, and the list of container images."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any, Final

import yaml

from tools.release import tree
from tools.release.packages import AGENT
from tools.release.wheels import ROOT

COMPOSE: Final = ROOT / "docker-compose.yml"
DOCKERFILE: Final = ROOT / "Dockerfile"
SUMS: Final = "SHA256SUMS"
IMAGES: Final = "images.txt"


def images(compose: Path = COMPOSE, dockerfile: Path = DOCKERFILE) -> list[str]:
    """Return the images of the guide's services: those of the compose file, and the bases of our images."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(compose.read_text(encoding="utf-8"))["services"]
    names = {str(service["image"]) for service in services.values() if "build" not in service}
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        if line.startswith("FROM "):
            names.add(line.split()[1])
    return sorted(names)


def collect(wheel: Path, machine: str, folder: Path) -> Path:
    """Write the wheels for a processor, their checksums and the list of images; return the folder of wheels.

    At the site, `pip install --no-index --find-links FOLDER fabrictime` installs the agent.
    """
    target = folder / machine
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    tree.collect_wheels(target, AGENT, machine)
    shutil.copyfile(wheel, target / wheel.name)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(target.glob("*.whl"))
    ]
    (target / SUMS).write_text("".join(sums), encoding="utf-8")
    (folder / IMAGES).write_text("".join(f"{name}\n" for name in images()), encoding="utf-8")
    return target
