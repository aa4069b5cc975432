"""`python -m fabrictime.log '{"directory": …}'`: the log alone, for benches and tests.

In: LogSettings as JSON.
"""

from __future__ import annotations

import logging
import sys

from pydantic import ValidationError

from fabrictime.log.server import main
from fabrictime.log.settings import LogSettings

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = LogSettings.model_validate_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"fabrictime.log: {'.'.join(map(str, first['loc'])) or 'settings'}: {first['msg']}")
    sys.exit(main(settings))
