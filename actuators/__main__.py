"""Runs the clock actuator of this host: `python -m actuators settings.json`.

The argument is the name of a JSON file, or JSON text. The JSON holds `ActuatorSettings`, and a list of
`HostSettings` under "hosts" if the actuator serves hosts other than this one.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from pydantic import ValidationError

from actuators.clock.service import main
from actuators.settings import ActuatorSettings, HostSettings
from schemas.settings_argument import first_error

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    argument = sys.argv[1] if len(sys.argv) > 1 else "{}"
    try:
        data = json.loads(
            argument if argument.lstrip().startswith("{") else Path(argument).read_text(encoding="utf-8")
        )
        listed = data.pop("hosts", None)
        hosts = None if listed is None else [HostSettings.model_validate(host) for host in listed]
        settings = ActuatorSettings.model_validate(data)
    except ValidationError as error:
        sys.exit(f"actuators: {first_error(error)}")
    except (OSError, ValueError, AttributeError) as error:
        sys.exit(f"actuators: {argument[:80]}: expected settings as JSON, or a file with them: {error}")
    sys.exit(main(settings, hosts))
