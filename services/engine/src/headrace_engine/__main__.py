"""``python -m headrace_engine``."""

from __future__ import annotations

import sys

from headrace_engine.app import main

if __name__ == "__main__":
    sys.exit(main())
