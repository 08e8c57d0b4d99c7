#!/bin/sh
# Makes a root directory with the peers of another suite of this machine's
# distribution: Open MPI, MPICH, UCX and libfabric, with a compiler. The packages
# come from where this machine's own come from. What is there already is not made
# again, and a run that was interrupted is continued. Prints the directory, for
# bench compare --peers. Needs root, and mmdebstrap or debootstrap.
#
#     root.sh SUITE               for example trixie, sid
#
# The directory is SUITE in $SLUICE_PEERS_CACHE (default ~/.cache/sluice-peers). It takes
# about 1 GB. Nothing stays mounted: to remove it, rm -r.
set -eu
[ $# = 1 ] || { echo "usage: root.sh SUITE" >&2 && exit 2; }
suite=$1
case $suite in *[!a-z0-9.-]* | '' | -* | .*) echo "suite $suite: want a name like trixie" >&2 && exit 2 ;; esac
cache=${SLUICE_PEERS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-peers}
root=$cache/$suite
packages='gcc libc6-dev openmpi-bin libopenmpi-dev mpich libmpich-dev ucx-utils libfabric-bin'

# Its last line is written when all is there.
done=$root/.complete
if [ -e "$done" ] && [ "$(cat "$done")" = "$packages" ]; then
    echo "$root"
    exit
fi
[ "$(id -u)" = 0 ] || { echo "root.sh: only root can unpack packages of a distribution" >&2 && exit 1; }
mkdir -p "$cache"
exec 9>"$root.lock"
flock 9 # another that makes the same root

# The archive of this machine's own release.
. /etc/os-release
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk -v r="${VERSION_CODENAME:-}" '$1 == r && $2 == "main" { print $3; exit }')
[ -n "$mirror" ] || { echo "root.sh: apt knows no archive of ${VERSION_CODENAME:-this release}" >&2 && exit 1; }

# A base, which is made in one go: its parts are of no use.
if [ ! -e "$root/etc/os-release" ]; then
    rm -rf "$root.part"
    if command -v mmdebstrap >/dev/null 2>&1; then
        mmdebstrap --quiet --mode=root --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' "$suite" "$root.part" "$mirror" >&2
    elif command -v debootstrap >/dev/null 2>&1; then
        debootstrap --variant=minbase "$suite" "$root.part" "$mirror" >&2
    else
        echo "root.sh: install mmdebstrap or debootstrap" >&2
        exit 1
    fi
    rm -rf "$root"
    mv "$root.part" "$root"
fi

# How this machine reaches archives, and one whose Release file has expired is good enough.
{
    apt-config dump Acquire::http Acquire::https | sed '/""/d'
    echo 'Acquire::Check-Valid-Until "false";'
    echo 'APT::Install-Recommends "false";'
} >"$root/etc/apt/apt.conf.d/99peers"
# No manuals, and no translations.
printf 'path-exclude=/usr/share/%s/*\n' doc man locale info >"$root/etc/dpkg/dpkg.cfg.d/99peers"
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true

# In namespaces of its own: nothing stays mounted, whatever becomes of it.
unshare --mount sh -c '
    set -eu
    root=$1
    shift
    for d in proc sys dev; do mount --rbind /$d "$root/$d"; done
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    chroot "$root" dpkg --configure -a
    chroot "$root" apt-get -q update
    chroot "$root" apt-get -q -y --fix-broken install "$@"
    chroot "$root" apt-get -q clean' sh "$root" $packages >&2
rm -rf "$root"/var/lib/apt/lists/*
echo "$packages" >"$done"
echo "$root"
