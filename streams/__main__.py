"""Runs one stream worker, for benches and tests. The argument is `StreamSettings` as JSON."""

from __future__ import annotations

from schemas.settings_argument import run_service
from streams.app import main
from streams.runtime.settings import StreamSettings

if __name__ == "__main__":
    run_service("streams", StreamSettings, main)
