"""The site builds without a broken link, and the README leads to what exists."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config import load_config
from mkdocs.structure.files import Files

from fabrictime.state.action_text import OUTCOMES
from fabrictime.web.tabs.base import PAGES
from fabrictime.web.tabs.pipeline.health import State
from schemas import records
from tools import docs_pictures

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


def test_states_of_the_page_are_in_the_glossary():
    glossary = set(re.findall(r"[A-Z][A-Z_]+", (ROOT / "docs" / "glossary.md").read_text()))
    states = [records.LinkState, records.ClockSync, records.ActMode, records.Severity, records.AlertState]
    shown = {*itertools.chain.from_iterable(states), *OUTCOMES, *State.__members__}
    assert sorted(shown - glossary) == []


def test_a_picture_of_a_tab_takes_the_place_of_its_mark(tmp_path, monkeypatch):
    (tmp_path / "now.png").write_bytes(b"png")
    monkeypatch.setattr(docs_pictures, "PICTURES", tmp_path)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    config.plugins._current_plugin = "docs_pictures"  # MkDocs sets it around each hook
    files = docs_pictures.on_files(Files([]), config)
    page = docs_pictures.on_page_markdown("<!-- picture: now --> <!-- picture: jobs -->", files)
    assert page == "![The tab Now](pictures/now.png) "


def test_all_tabs_have_a_place_for_their_picture():
    marks = re.findall(r"<!-- picture: (\w+) -->", (ROOT / "docs" / "read-this-page.md").read_text())
    assert sorted(f"/{mark}" for mark in marks) == sorted(PAGES)


def test_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150, f"README.md has {len(lines)} lines, expected 150 at most"
