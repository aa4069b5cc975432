"""Runs one stream worker, for benches and tests: `python -m streams '{"stages": ["map"]}'`.

The argument is `StreamSettings` as JSON.
"""

from __future__ import annotations

import logging
import sys

from pydantic import ValidationError

from streams.app import main
from streams.runtime.settings import StreamSettings

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = StreamSettings.model_validate_json(sys.argv[1] if len(sys.argv) > 1 else "{}")
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"streams: {'.'.join(map(str, first['loc'])) or 'settings'}: {first['msg']}")
    sys.exit(main(settings))
