"""Settings of a stream worker: checked and described."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streams.runtime.settings import StreamSettings

S = 1_000_000_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kafka", {"bootstrap": "localhost"}),
        ("window_ms", 0),
        ("stages", []),
        ("stages", ["paint"]),
        ("solve", {"slew_max_ppb": 500}),
        ("surprise", 1),
    ],
)
def test_a_wrong_setting_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        StreamSettings.model_validate({key: value})
    assert key in str(refused.value)


def test_every_setting_has_a_description_with_its_unit() -> None:
    for model in (StreamSettings, StreamSettings.model_fields["solve"].annotation):
        assert model is not None
        assert all(field.description for field in model.model_fields.values())
