"""The probe-schedule stage: what it plans and publishes as routes and clocks change."""

from __future__ import annotations
