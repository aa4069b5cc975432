"""`python -m fabrictime.log '{"directory": …}'` runs the log alone, with LogSettings as JSON, for benches and
tests.
"""

from __future__ import annotations

from fabrictime.log.server import main
from fabrictime.log.settings import LogSettings
from schemas.settings_argument import run_service

if __name__ == "__main__":
    run_service("fabrictime.log", LogSettings, main)
