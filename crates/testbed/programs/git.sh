#!/usr/bin/env bash
# git: a repository of a real source tree with a few hundred commits, branches and merges; cloned, packed and checked.
#
#     git.sh DIR [COMMITS]
#
# Git maps its packs, writes each object under a temporary name and links or renames it into place, and takes its locks
# by exclusive create. It notices any byte that changes.
. "$(dirname "$0")/workbench.sh"
require git rsync
COMMITS=${2:-300}
open_workbench "$@"

SOURCE=$(real_tree sed)
export HOME=$LOCAL GIT_CONFIG_NOSYSTEM=1 GIT_PAGER=cat
git config --global user.name Zebra
git config --global user.email zebra@example.org
git config --global init.defaultBranch main
git config --global advice.detachedHead false
git config --global gc.auto 0
git config --global core.fsync all

# One commit: a file changes, one appears, and now and then one moves or goes, or a branch is merged.
commit() {
    local number=$1 file=${files[$(($1 * 7919 % ${#files[@]}))]}
    if [ -f "$file" ]; then
        echo "/* change $number */" >>"$file"
        [ $((number % 13)) -ne 0 ] || git mv "$file" "$file.moved$number"
    fi
    mkdir -p "notes/$((number % 10))"
    seq "$number" $((number + 300)) >"notes/$((number % 10))/note-$number"
    [ $((number % 17)) -ne 0 ] || git rm -q -f "notes/$(((number - 10) % 10))/note-$((number - 10))"
    git add -A
    git commit -q -m "Change $number"
    if [ $((number % 50)) -eq 0 ]; then
        git checkout -q -b "side-$number" HEAD~5
        echo "$number" >"side-$number"
        git add -A
        git commit -q -m "Aside $number"
        git checkout -q main
        git merge -q -m "Merge $number" "side-$number"
    fi
}

mkdir "$WORK/origin"
cd "$WORK/origin"
quietly git init
quietly cp -a "$SOURCE/." .
git add -A
git commit -q -m "Import"
mapfile -t files < <(git ls-files '*.c' '*.h')
for number in $(seq "$COMMITS"); do
    commit "$number" >>"$LOG" 2>&1 || fail "commit $number"
done
[ -z "$(git status --porcelain)" ] || fail "git status shows changes after the last commit"
quietly git fsck --full --strict

cd "$WORK"
quietly git clone -q origin linked                        # hard links to the objects
quietly git clone -q "file://$WORK/origin" packed         # through a pack
quietly git clone -q "file://$WORK/origin" "$LOCAL/far"   # what arrives elsewhere
head=$(git -C origin rev-parse HEAD)
for clone in linked packed "$LOCAL/far"; do
    [ "$(git -C "$clone" rev-parse HEAD)" = "$head" ] || fail "$clone has another head"
    [ -z "$(git -C "$clone" status --porcelain)" ] || fail "$clone is not clean"
    quietly git -C "$clone" fsck --full --strict
done
quietly diff -r --exclude=.git packed "$LOCAL/far"

quietly git -C origin gc --prune=now
quietly git -C linked repack -a -d -f
for clone in origin linked; do
    quietly git -C "$clone" fsck --full --strict
done
quietly git -C packed checkout -q HEAD~$((COMMITS / 2))
quietly git -C packed checkout -q main
quietly git -C packed worktree add -q ../second HEAD~10
[ -z "$(git -C packed status --porcelain)" ] || fail "not clean after checking out an old commit and back"

report "$(git -C origin rev-list --all --count) commits, $(git -C origin ls-files | wc -l) files," \
    "3 clones, gc, repack, fsck --full --strict clean"
