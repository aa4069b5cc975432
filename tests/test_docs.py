"""Generated pages are current, the site builds without a broken link, and the README leads to what exists."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_topics_page_is_current():
    made = _load(ROOT / "tools" / "topics_doc.py").page()
    assert (ROOT / "docs" / "topics.md").read_text() == made, "run python tools/topics_doc.py"


@pytest.mark.parametrize("name", ["docs/commands.md", "docs/thresholds.md", "docs/fabrictime.toml"])
def test_reference_page_is_current(name):
    made = _load(ROOT / "tools" / "reference_docs.py").pages()[name]
    assert (ROOT / name).read_text() == made, "run python tools/reference_docs.py"


def test_every_relative_link_leads_to_a_file():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"


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
