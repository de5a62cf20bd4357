#!/bin/sh
# Unpacks a Debian source package and prints the directory it lies in.
#
#     install/debian-source.sh PACKAGE DIRECTORY
#
# The machine's own package lists stay as they are: the source list, and the index that belongs to it, are kept beside
# the sources. A package that is there already is not fetched again.
set -eu

fail() {
    echo "debian-source.sh: $*" >&2
    exit 1
}

[ $# -eq 2 ] || fail "usage: debian-source.sh PACKAGE DIRECTORY"
package=$1
mkdir -p "$2"
shelf=$(cd "$2" && pwd)

# A finished unpacking leaves this file, which names the directory; half a one does not.
done_file=$shelf/$package.unpacked
if [ -d "$(cat "$done_file" 2>/dev/null)" ]; then
    cat "$done_file"
    exit 0
fi

command -v dpkg-source >/dev/null || fail "dpkg-dev is not installed: run install/packages.sh as root"
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$release" ] || fail "/etc/os-release does not name a release: this needs Debian"

index=$shelf/.index
mkdir -p "$index/lists/partial" "$index/archives/partial"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
key=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$key] $mirror $release main" >"$index/sources.list"

apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$index/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$index/lists" -o Dir::Cache="$index" -o APT::Sandbox::User= "$@" >&2
}

[ -n "$(find "$index/lists" -name '*_Sources*' -print -quit)" ] || apt update ||
    fail "no index of source packages from $mirror (is there a network? set DEBIAN_MIRROR for another mirror)"

work=$shelf/.unpacking-$package
rm -rf "$work"
mkdir "$work"
(cd "$work" && apt source "$package") || fail "apt-get could not fetch the source of $package from $mirror"
unpacked=$(find "$work" -mindepth 1 -maxdepth 1 -type d)
[ -n "$unpacked" ] || fail "the source package $package unpacked to no directory"
rm -rf "${shelf:?}/${unpacked##*/}"
mv "$unpacked" "$shelf/"
rm -rf "$work"
echo "$shelf/${unpacked##*/}" >"$done_file"
cat "$done_file"
