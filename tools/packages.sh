#!/bin/sh
# Installs what the tests need of a Debian system, as far as it is missing: sh tools/packages.sh
# Without root it says what is missing; the tests that need it are then skipped with that reason (under CI they fail).
set -eu

PATH=$PATH:/usr/sbin:/sbin
missing=""

need() {
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}

need cc gcc
need curl curl
need mkfs.ext4 e2fsprogs
need mkfs.xfs xfsprogs
need mount mount
need node nodejs
need spin spin
need strace strace
need redis-server redis-server
need mariadbd mariadb-server
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -e /usr/include/stdlib.h ] || missing="$missing libc6-dev"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "some tests need what this system does not have; install:$missing" >&2
    exit 0
fi

echo "installing$missing"
# The tests start servers of their own; the packages' services and clusters stay down.
mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
