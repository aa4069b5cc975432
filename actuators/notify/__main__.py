"""Runs the notifier, for benches and tests. The argument is `NotifySettings` as JSON."""

from __future__ import annotations

from actuators.notify.service import main
from actuators.notify.settings import NotifySettings
from schemas.settings_argument import run_service

if __name__ == "__main__":
    run_service("notify", NotifySettings, main)
