"""The pages that are made from the code are current, and the README names what exists."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_topics_page_is_current():
    made = _load(ROOT / "tools" / "topics_doc.py").page()
    assert (ROOT / "docs" / "topics.md").read_text() == made, "run python tools/topics_doc.py"


def test_every_relative_link_of_the_pages_leads_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target} does not exist"
