"""An embedded log with data topics of two partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fabrictime.bench._pipeline import embedded_log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_log(tmp_path_factory.mktemp("log"), 2) as bootstrap:
        yield bootstrap
