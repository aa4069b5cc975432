"""Names of links as people read them."""

from __future__ import annotations


def arrow(link: str) -> str:
    """Return a link as `leaf1:swp3 → spine2:swp1`, and a cable with an arrow in both directions."""
    return link.replace("<>", " ⇄ ") if "<>" in link else link.replace(">", " → ")
