"""Runs the notifier, for benches and tests: `python -m actuators.notify '{"receivers": {}}'`.

The argument is `NotifySettings` as JSON.
"""

from __future__ import annotations

import logging
import sys

from pydantic import ValidationError

from actuators.notify.service import main
from actuators.notify.settings import NotifySettings

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = NotifySettings.model_validate_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"notify: {'.'.join(map(str, first['loc'])) or 'settings'}: {first['msg']}")
    sys.exit(main(settings))
