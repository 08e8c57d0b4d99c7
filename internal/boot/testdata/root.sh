#!/bin/sh
# Runs a command of the launchers in a root directory that bench/peers/root.sh has made, or in /, on host nodeA. A
# program lies there as /tmp/program, and /tmp/rsh reaches host nodeB. Needs root. Usage:
#
#     root.sh ROOT PROGRAM command [argument]...
#
# The hosts have network and host name spaces of their own. What is mounted or written is in name spaces,
# too: the root directory stays as it is, and all of it ends with the command or with this script.
set -eu

if [ "${1:-}" != --inside ]; then
    exec unshare --net --pid --mount --mount-proc --uts --ipc --fork --kill-child=KILL -- "$0" --inside "$@"
fi
root=$2 program=$3
shift 3

ip link set lo up
mount -t tmpfs hosts /run
mkdir /run/netns /run/tmp
cp "$program" /run/tmp/program # before its folder may be covered
chmod 1777 /run/tmp
ip netns add b
ip link add va type veth peer name vb netns b
ip addr add 198.51.100.11/24 dev va
ip link set va up
ip -n b addr add 198.51.100.12/24 dev vb
ip -n b link set vb up
ip -n b link set lo up
hostname nodeA

for d in proc dev sys; do mount --rbind /$d "$root/$d"; done
mount --bind /run/tmp "$root/tmp"
mount --rbind /run "$root/run"
printf '127.0.0.1 localhost\n198.51.100.11 nodeA\n198.51.100.12 nodeB\n' >/run/hosts
touch "$root/etc/hosts"
mount --bind /run/hosts "$root/etc/hosts"
cat >"$root/tmp/rsh" <<'RSH'
#!/bin/sh
host=$1
shift
exec nsenter --net=/run/netns/b unshare --uts sh -c "hostname $host; exec sh -c '$*'"
RSH
chmod +x "$root/tmp/rsh"
exec chroot "$root" env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
