"""Hook of MkDocs: puts pictures of the tabs in place of `<!-- picture: TAB -->`.

`make docs` takes the pictures with `tools/page_pictures.py` into build/pictures. Without pictures the text
remains unchanged.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

PICTURES: Final = Path(__file__).resolve().parent.parent / "build" / "pictures"
_MARK: Final = re.compile(r"<!-- picture: (\w+) -->")


def on_files(files: Files, config: Any) -> Files:
    """Add the pictures to the files of the site."""
    for picture in sorted(PICTURES.glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, files: Files, **_: Any) -> str:
    """Return a page's Markdown with pictures in place of the markers."""

    def picture(mark: re.Match[str]) -> str:
        source = f"pictures/{mark[1]}.png"
        return f"![The tab {mark[1].title()}]({source})" if files.get_file_from_path(source) else ""

    return _MARK.sub(picture, markdown)
