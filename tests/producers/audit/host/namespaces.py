"""Named network namespaces for tests."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def named_namespaces(*names: str) -> Iterator[None]:
    """Make network namespaces, and remove them afterwards; skip the test where this user may not."""
    from pyroute2 import netns

    with warnings.catch_warnings():  # where it is refused, pyroute2 leaves the sockets of its child open
        warnings.simplefilter("ignore", ResourceWarning)
        refusal = _refusal(*names)
        if refusal:
            gc.collect()
    if refusal:
        pytest.skip(f"no network namespaces here: {refusal}")
    try:
        yield
    finally:
        for name in names:
            netns.remove(name)


def _refusal(*names: str) -> str:
    from pyroute2 import netns

    try:
        for name in names:
            netns.create(name)
    except OSError as error:
        return str(error)
    return ""
