"""Run the command line: `python -m fabrictime`."""

import sys

from fabrictime.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
