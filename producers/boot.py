"""Reads the id of the machine's present boot."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """Return the random id that the kernel chose at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
