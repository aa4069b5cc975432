"""Thresholds: possible values."""

from __future__ import annotations

from dataclasses import asdict

from streams.diagnosis.rules import DiagnosisRules


def test_shares_are_shares_and_factors_are_above_one() -> None:
    for name, value in asdict(DiagnosisRules()).items():
        if name.endswith("_share") or name == "min_confidence":
            assert 0 < value < 1, name
        if name.endswith(("_times", "_ratio")):
            assert value > 1, name
