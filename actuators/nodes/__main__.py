"""Runs the drain service, for benches and tests. The argument is `ActuatorSettings` as JSON."""

from __future__ import annotations

from actuators.nodes.service import main
from actuators.settings import ActuatorSettings
from schemas.settings_argument import run_service

if __name__ == "__main__":
    run_service("drains", ActuatorSettings, main)
