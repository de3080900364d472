#!/bin/sh
# Prints a Python interpreter. usage: find_python.sh [3.11|3.12|3.13]
# Without a version: $PYTHON if set, else the first of 3.11, 3.12, 3.13 that works.
# A pyenv shim of a version that is not selected exists but fails, so each is tried.
works() {
    "$1" -c "import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] not in '$2'.split())" \
        >/dev/null 2>&1
}
wanted=${1:-"3.11 3.12 3.13"}
if [ -z "$1" ] && [ -n "$PYTHON" ]; then
    if works "$PYTHON" "$wanted"; then echo "$PYTHON"; exit 0; fi
    echo "$PYTHON is not a Python 3.11, 3.12 or 3.13 with venv" >&2; exit 1
fi
for version in $wanted; do
    for found in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python python3 python; do
        if works "$found" "$version"; then command -v "$found"; exit 0; fi
    done
done
[ -n "$1" ] || echo "Headrace needs Python 3.11, 3.12 or 3.13 with the venv module (Debian: python3-venv)" >&2
exit 1
