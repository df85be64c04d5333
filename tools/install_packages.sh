#!/bin/sh
# Installs what is missing of the Debian packages that a use needs: install_packages.sh build|check
# Needs root, or sudo; touches neither the network nor the package lists when nothing is missing.
set -eu
use=${1:?usage: install_packages.sh build|check}
list=$(dirname "$0")/debian-packages.txt

if ! command -v dpkg-query >/dev/null; then
    echo "install_packages.sh: not a Debian system: install the packages that $list names yourself" >&2
    exit 0
fi
missing=
for package in $(awk -v use="$use" '$1 == "build" || $1 == use { print $2 }' "$list"); do
    state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing Debian packages:$missing"
as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
        echo "install_packages.sh: need root, or sudo, to install:$missing" >&2
        exit 1
    }
    as_root="sudo"
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
