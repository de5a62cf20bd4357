#!/usr/bin/env bash
# c-build: configures and compiles a real C project outside its source tree.
#
#     c-build.sh DIR [DEBIAN-SOURCE-PACKAGE]
#
# Configure writes and runs thousands of small files; make trusts modification times to the nanosecond: a second make
# must find nothing to do, and one after a touch must find just that.
. "$(dirname "$0")/workbench.sh"
require make cc rsync
PACKAGE=${2:-sed}
open_workbench "$@"

SOURCE=$(real_tree "$PACKAGE")
quietly cp -a "$SOURCE" "$WORK/source"
same_trees "$SOURCE" "$WORK/source"
mkdir "$WORK/build"
cd "$WORK/build" || fail "no directory to build in"
export CFLAGS="-O1" FORCE_UNSAFE_CONFIGURE=1
quietly ../source/configure --disable-nls --prefix="$WORK/installed"
quietly make -j2
# The objects, each with its time to the nanosecond: what changes between two of these was compiled again.
objects() {
    find . -name '*.o' -printf '%T@ %p\n' | sort -k2
}

first=$(objects)
quietly make
[ "$(objects)" = "$first" ] || fail "a second make compiles again, though nothing changed: times are not kept"
touched=$(find ../source -name "$PACKAGE.c" -print -quit)
if [ -n "$touched" ]; then
    touch "$touched"
    quietly make
    again=$(comm -13 <(sort <<<"$first") <(objects | sort) | wc -l)
    [ "$again" -eq 1 ] || fail "make compiled $again objects after one source was touched"
fi
quietly make install
if [ -x "$WORK/installed/bin/sed" ]; then
    [ "$(echo a stripe | "$WORK/installed/bin/sed" s/stripe/zebra/)" = "a zebra" ] || fail "the built sed does not work"
fi
[ -n "$(find "$WORK/installed/bin" -type f -print -quit)" ] || fail "nothing was installed"

report "configured, built and installed ${SOURCE##*/} out of tree: $(find . -name '*.o' | wc -l) objects," \
    "$(find "$WORK/source" -type f | wc -l) source files"
