"""An interpreter of its own with more packages, as the distribution's Python is that has pyverbs."""

import sys
import venv
from pathlib import Path


def interpreter(folder: Path, packages: Path) -> str:
    """Make an environment in `folder` whose Python finds the packages of another folder; return its path."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "more.pth").write_text(f"{packages}\n")
    return str(folder / "bin" / "python")
