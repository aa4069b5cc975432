"""Check of storage provisioning in Kubernetes: a small volume is claimed, bound and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from producers.audit.base import Checks, Fact, Finding, checked, failed
from producers.audit.host.base import VOLUME, Host, Missing
from schemas.audit_remedy import remedy

CLEAN_UP_S: Final = 45.0
"""Time allowed in addition to the limit, for requests and for the deletion of the claim."""
MAX_LIMIT_S: Final = 900.0
"""Largest `audit.volume_limit_s`."""
CHECKS: Final = Checks()


@CHECKS.error(
    "storage.provisioning",
    "Kubernetes provisions a volume",
    107,
    limit_s=2 * MAX_LIMIT_S + CLEAN_UP_S + 10.0,
    active=True,
)
@remedy.monitor("`kubectl describe pvc` and the log of the storage class's provisioner give the reason")
def _provisioning(host: Host) -> Iterator[Finding]:
    settings = host.settings
    if not settings.volume_namespace:
        raise Missing("audit.volume_namespace is not set")
    arguments = (settings.volume_namespace, settings.volume_class, str(settings.volume_limit_s))
    outcome = json.loads(host.load(2 * settings.volume_limit_s + CLEAN_UP_S, VOLUME, *arguments))
    if "missing" in outcome:
        raise Missing(str(outcome["missing"]))
    if outcome["bound_s"] is None:
        yield failed(f"a volume was not bound within {settings.volume_limit_s} s")
        return
    bound_s = float(outcome["bound_s"])
    finding = checked(0 <= bound_s <= settings.volume_limit_s, f"a volume was bound after {bound_s:.1f} s")
    yield replace(finding, fact=Fact("volume_bound_s", f"{bound_s:g}", bound_s))
