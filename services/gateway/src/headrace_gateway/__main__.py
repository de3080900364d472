"""``python -m headrace_gateway``."""

from __future__ import annotations

import sys

from headrace_gateway.app import main

if __name__ == "__main__":
    sys.exit(main())
