"""The bench of security attacks real services; nothing unauthorised is accepted."""

import pytest

from fabrictime.bench.operate import security


@pytest.mark.slow("starts a log, a page and an actuator, and attacks them 600 times")
def test_nothing_unauthorised_is_accepted() -> None:
    lines: list[str] = []
    figures = security.measure(lines.append, quick=True)
    accepted = figures["unauthorised_accepted"]
    assert isinstance(accepted, security.Figure)
    assert accepted.value == 0, lines
    assert figures["unauthorised_attempts"] >= 200


def test_a_secret_in_an_output_is_an_error(tmp_path) -> None:
    security.new_key(tmp_path / "signing.key")
    output = tmp_path / "web.out"
    output.write_text("user acter logged in")
    security._find_secrets(tmp_path)
    output.write_text(f"request of {security.TOKENS['act']}")
    with pytest.raises(RuntimeError, match=r"web\.out: contains a secret"):
        security._find_secrets(tmp_path)
