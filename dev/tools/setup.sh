#!/bin/sh
# Find a Python, give it to dev/tools/setup.py in a .venv, with what is wanted of it. Nothing here needs more than a POSIX shell.
set -eu
cd "$(dirname "$0")/../.."

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if ! { [ -x .venv/bin/python ] && new_enough .venv/bin/python; }; then
    found=
    for candidate in python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            found=$candidate
            break
        fi
    done
    if [ -z "$found" ]; then
        echo "Python 3.11 or newer is needed: install it (Debian and Ubuntu: apt-get install python3 python3-venv, macOS: brew install python@3.13) and run this again." >&2
        exit 1
    fi
    if ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "Python's venv module is needed: install it (Debian and Ubuntu: apt-get install python3-venv) and run this again." >&2
        exit 1
    fi
    "$found" -m venv --clear .venv
fi
exec .venv/bin/python -B dev/tools/setup.py "$@"
