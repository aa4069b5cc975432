"""Runs the drain service, for benches and tests: `python -m actuators.nodes '{"nodes": {...}}'`.

The argument is `ActuatorSettings` as JSON.
"""

from __future__ import annotations

import logging
import sys

from pydantic import ValidationError

from actuators.nodes.service import main
from actuators.settings import ActuatorSettings

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = ActuatorSettings.model_validate_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"drains: {'.'.join(map(str, first['loc'])) or 'settings'}: {first['msg']}")
    sys.exit(main(settings))
