#!/bin/sh
# Runs a command in a root directory that root.sh has made, in a mount namespace of its
# own: with the processes, shared memory, CPUs and network of this machine, DIR at /mnt,
# and a /tmp that is gone afterwards. Without root's rights, in a user namespace.
#
#     enter.sh ROOT DIR COMMAND [argument ...]
set -eu
user=
[ "$(id -u)" = 0 ] || user=--map-root-user
unset TMPDIR
exec unshare --mount $user sh -c '
    set -eu
    root=$1 dir=$2
    shift 2
    for d in proc sys dev; do mount --rbind /$d "$root/$d"; done
    mount --bind "$dir" "$root/mnt"
    mount -t tmpfs tmp "$root/tmp"
    cd /
    exec chroot "$root" "$@"' sh "$@"
