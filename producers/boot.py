"""The id of the present boot of this machine."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
