#!/bin/sh
# Says in one sentence what this host lacks for the set-up, before any long step.
# Usage: check_host.sh PYTHON
set -u
python=$1

refuse() {
    echo "make: $*" >&2
    exit 1
}

"$python" -c '' 2>/dev/null ||
    refuse "Python 3.10 to 3.13 is needed and '$python' does not run;" \
        "install Python or name one: make PYTHON=/path/to/python3 ..."
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    refuse "Python 3.10 to 3.13 is needed and '$python' is" \
        "$("$python" --version 2>&1); name another: make PYTHON=/path/to/python3 ..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    refuse "'$python' cannot make virtual environments;" \
        "install its venv module (Debian, Ubuntu: apt install python3-venv)"
"${CXX:-c++}" --version >/dev/null 2>&1 ||
    refuse "no C++ compiler ('${CXX:-c++}' does not run), and mmcv's operators are" \
        "compiled here; install one (Debian, Ubuntu: apt install g++)"
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
test -e "$headers/Python.h" ||
    refuse "no Python headers ($headers/Python.h), and mmcv's operators are compiled" \
        "against them; install them (Debian, Ubuntu: apt install python3-dev)"
