"""Services with their settings as JSON on the command line."""

from __future__ import annotations

import pytest

from schemas.settings_argument import run_service
from schemas.strict_model import StrictModel


class Settings(StrictModel):
    """Settings of a service."""

    port: int = 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 1),
        (['{"port": 7}'], 7),
        (['{"port": "many"}'], "service: port: Input should be a valid integer"),
        (['{"other": 1}'], "service: other: Extra inputs are not permitted"),
        (["no json"], "service: settings: Invalid JSON"),
    ],
)
def test_settings_reach_the_service_or_end_it_with_one_line(
    arguments: list[str], code: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["service", *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_service("service", Settings, lambda settings: settings.port)
    if isinstance(code, int):
        assert stopped.value.code == code
    else:
        text = str(stopped.value.code)
        assert text.startswith(code)
        assert "\n" not in text
