#!/usr/bin/env bash
# tar: packs and unpacks a tree with everything that a file system can hold.
#
#     tar.sh DIR [FILES]
. "$(dirname "$0")/workbench.sh"
require tar rsync python3 setfacl setfattr mkfifo truncate
FILES=${2:-2000}
open_workbench "$@"

tree=$LOCAL/tree
python3 "$PROGRAMS/tree.py" make "$tree" --files "$FILES" --seed 3
mkfifo "$tree/fifo"
truncate -s 1G "$tree/sparse"
printf 'in the middle' | dd of="$tree/sparse" bs=1 seek=300000000 conv=notrunc status=none
setfattr -n user.stripe -v "of a zebra" "$tree/sparse"
setfacl -m u:12345:rwx,g:54321:r "$tree/sparse"
mkdir "$tree/shared"
setfacl -m d:u:12345:rwx "$tree/shared"
chmod 2775 "$tree/shared"
chmod 1777 "$tree/fifo"
if [ "$(id -u)" -eq 0 ]; then
    mknod "$tree/null" c 1 3
    cp "$(type -P true)" "$tree/setuid"
    chown 12345:54321 "$tree/setuid"
    chmod 4755 "$tree/setuid"
fi

options=(--xattrs --acls --sparse --format=posix --numeric-owner)
quietly tar -C "$LOCAL" "${options[@]}" -cf "$LOCAL/in.tar" tree
quietly tar -C "$WORK" "${options[@]}" -xpf "$LOCAL/in.tar"
quietly tar -C "$WORK" "${options[@]}" --compare -f "$LOCAL/in.tar"
same_trees "$tree" "$WORK/tree"
used=$(stat -c %b "$WORK/tree/sparse")
[ "$used" -le 2048 ] || fail "a file of 13 bytes in 1 GiB of hole takes $used blocks of 512 bytes"

# Out again, from there, and packed by another walk.
quietly tar -C "$WORK" "${options[@]}" -czf "$WORK/out.tar.gz" tree
quietly mkdir "$LOCAL/back"
quietly tar -C "$LOCAL/back" "${options[@]}" -xpzf "$WORK/out.tar.gz"
same_trees "$tree" "$LOCAL/back/tree"

report "$(tar -tf "$LOCAL/in.tar" | wc -l) entries in and out again: links, holes, devices, ACLs and attributes kept"
