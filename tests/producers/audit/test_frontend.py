"""Declarations of the frontend checks."""

from __future__ import annotations

from producers.audit.frontend import CHECKS
from schemas.records import AuditCategory


def test_every_check_has_its_category_a_remedy_and_a_limit() -> None:
    for check in CHECKS:
        assert check.category is AuditCategory.FRONTEND
        assert check.check_id.startswith("frontend.")
        assert "\n" not in check.remedy
        assert 0 < check.limit_s <= 120
    assert len({check.check_id for check in CHECKS}) == len(CHECKS)
