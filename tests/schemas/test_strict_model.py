"""Base of the models of files: unknown keys and changes are refused, figures have two limits."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from schemas.strict_model import StrictModel, quantity


class Example(StrictModel):
    paths: int = quantity(4, (1, 64), "paths probed to each peer")


def test_unknown_keys_and_changes_are_refused() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Example.model_validate({"path": 4})
    with pytest.raises(ValidationError, match="frozen_instance"):
        Example().paths = 5


@pytest.mark.parametrize(("paths", "is_right"), [(0, False), (1, True), (64, True), (65, False)])
def test_both_limits_are_included(paths: int, is_right: bool) -> None:
    if is_right:
        assert Example(paths=paths).paths == paths
    else:
        with pytest.raises(ValidationError):
            Example(paths=paths)
    assert Example.model_fields["paths"].description == "paths probed to each peer"
