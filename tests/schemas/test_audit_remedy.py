"""What to do if a check fails, declared above the check's function."""

from __future__ import annotations

import pytest

from schemas.audit_remedy import Remedied, remedy
from schemas.records import AuditAction


@pytest.mark.parametrize("action", AuditAction)
def test_every_action_has_a_decorator(action: AuditAction) -> None:
    assert getattr(remedy, action.lower())("Replace it")(len) == Remedied(len, action, "Replace it")
    assert remedy(action, "Replace it")(len) == Remedied(len, action, "Replace it")
