"""Declarations of the backend checks."""

from __future__ import annotations

from producers.audit.backend import CHECKS
from schemas.records import AuditCategory


def test_every_check_has_its_category_a_remedy_and_a_limit() -> None:
    for check in CHECKS:
        assert check.category is AuditCategory.BACKEND
        assert check.check_id.startswith("backend.")
        assert "\n" not in check.remedy
        assert 0 < check.limit_s <= 120
    assert len({check.check_id for check in CHECKS}) == len(CHECKS)
