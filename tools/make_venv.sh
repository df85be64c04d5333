#!/bin/sh
# A Python environment with the packages that a use needs: make_venv.sh DIR check
# Does nothing when DIR has them already; then no network is needed.
set -eu
venv=${1:?usage: make_venv.sh DIR check}
use=${2:?usage: make_venv.sh DIR check}
list=$(dirname "$0")/python-packages.txt
packages=$(awk -v use="$use" '$1 == use { print $2 }' "$list")
alone=$(awk -v use="$use" '$1 == use "-nodeps" { print $2 }' "$list")

have() {
    [ -x "$venv/bin/python" ] || return 1
    "$venv/bin/python" - "$@" <<'PY'
import sys
from importlib.metadata import PackageNotFoundError, version

for wanted in sys.argv[1:]:
    name, _, number = wanted.partition("==")
    try:
        if version(name) != number:
            sys.exit(1)
    except PackageNotFoundError:
        sys.exit(1)
PY
}

# shellcheck disable=SC2086
if have $packages $alone; then
    exit 0
fi
echo "installing Python packages in $venv: $(echo $packages $alone)"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install -q --disable-pip-version-check $packages
# shellcheck disable=SC2086
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps $alone
