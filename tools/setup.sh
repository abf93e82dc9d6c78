#!/bin/sh
# Makes .venv and installs notwice into it with one extra: sh tools/setup.sh all|server
set -eu

extra=$1
cd "$(dirname "$0")/.."

usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in "${PYTHON:-python3}" python3 python3.11 python3.12 python3.13 python3.14; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

install_python() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "notwice needs Python 3.11 or later with its venv module: install python3 and python3-venv first." >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 python3-venv
}

if ! usable .venv/bin/python; then
    python=$(find_python) || { install_python; python=$(find_python); } || {
        echo "notwice needs Python 3.11 or later, and this system's packages offer an older one." >&2
        exit 1
    }
    "$python" -m venv --clear .venv
fi

pip() {
    .venv/bin/python -m pip --disable-pip-version-check -qq "$@"
}

echo "installing notwice[$extra] into .venv"
# The build backend comes first, so that it too is held by constraints.txt.
pip install --constraint constraints.txt hatchling
pip install --constraint constraints.txt --no-build-isolation --editable ".[$extra]"

touch .venv/server.stamp
if [ "$extra" = all ]; then
    sh tools/packages.sh
    .venv/bin/pyright --version >/dev/null
    touch .venv/all.stamp
fi
