"""Prints what members of the workspace ask of package indexes. usage: dependencies.py PYPROJECT..."""

import sys
import tomllib
from pathlib import Path

asked = {
    line
    for file in sys.argv[1:]
    for line in tomllib.loads(Path(file).read_text())["project"]["dependencies"]
    if not line.startswith("headrace-")
}
print("\n".join(sorted(asked)))
