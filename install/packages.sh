#!/bin/sh
# Installs the Debian packages that Dazzle is built, tested and measured with.
#
#     install/packages.sh [build] [test] [bench]        (default: build test)
#
# Needs root. Installs only what is missing, so a second run takes a moment, and starts no service.
set -eu

# What the compiler and the daemon need: `fuse3` brings fusermount3, by which a user without root mounts.
BUILD="build-essential pkg-config ca-certificates fuse3"

# What the program tests run on the mounted file system. `libacl1-dev` is what pjdfstest links with; `dpkg-dev` unpacks
# the source package that c-build compiles.
TEST="git fio rsync sqlite3 postgresql attr acl libacl1-dev dpkg-dev python3 tar e2fsprogs util-linux openssl faketime"

# What the comparison measures against: libfuse's own passthrough example, and MooseFS.
BENCH="git fuse3 libfuse3-dev liburing-dev python3 moosefs-master moosefs-chunkserver moosefs-client"

fail() {
    echo "packages.sh: $*" >&2
    exit 1
}

# The arguments which are not installed, one a line.
missing() {
    for package in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || echo "$package"
    done
}

# Installing a server package would start the server; this keeps it from doing so, unless the machine has a rule already.
forbid_starting_services() {
    POLICY=/usr/sbin/policy-rc.d
    if [ ! -e "$POLICY" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod 755 "$POLICY"
        trap 'rm -f "$POLICY"' EXIT
        trap 'exit 1' HUP INT TERM
    fi
}

command -v apt-get >/dev/null || fail "this needs Debian's apt-get; on another system install by hand: $BUILD $TEST"

wanted=""
for group in "${@:-build test}"; do
    for name in $group; do
        case "$name" in
            build) wanted="$wanted $BUILD" ;;
            test) wanted="$wanted $TEST" ;;
            bench) wanted="$wanted $BENCH" ;;
            *) fail "unknown group '$name': give any of build, test, bench" ;;
        esac
    done
done

# shellcheck disable=SC2086  # a list of words
absent=$(missing $wanted | sort -u | xargs)
if [ -z "$absent" ]; then
    echo "packages: all installed"
    exit 0
fi

[ "$(id -u)" -eq 0 ] || fail "must be root to install: $absent; run it with sudo"

forbid_starting_services
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || fail "apt-get update failed: is there a network, and are /etc/apt's sources right?"
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $absent >/dev/null ||
    fail "apt-get could not install: $absent"
echo "packages: installed $absent"
