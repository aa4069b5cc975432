"""The site builds without a broken link, and the README leads to what exists."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_relative_link_leads_to_a_file():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


def test_every_file_that_a_page_names_exists():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"`([a-z_]+/[\w./]+\.(?:py|c|h|pyx|toml|md|avsc))`", page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name} does not exist"


def test_site_builds_with_strict_links(tmp_path):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        tmp_path / "site",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (tmp_path / "site" / "index.html").exists()


def test_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150, f"README.md has {len(lines)} lines, expected 150 at most"
