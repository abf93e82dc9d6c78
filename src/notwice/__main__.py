"""``python -m notwice``."""

import sys

from notwice.cli import main

if __name__ == "__main__":
    sys.exit(main())
