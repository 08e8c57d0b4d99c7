#!/bin/sh
# Runs a command inside a Slurm cluster of three nodes, n1 to n3, all of them
# slurmds on this machine. Needs root, slurm-wlm and munge. Usage:
#
#     slurm.sh command [argument]...
#
# The cluster has network, process, mount and host name spaces of its own, and
# its files are in memory, in a /run and an /etc/hosts that no other process sees:
# nothing outside is touched, and all of it ends with the command or with this
# script, even by SIGKILL.
set -eu

if [ "${1:-}" != "--inside" ]; then
    exec unshare --net --pid --mount --mount-proc --uts --ipc --fork --kill-child=KILL -- "$0" --inside "$@"
fi
shift
trap 'exit 143' INT TERM HUP

dir=/run
mount -t tmpfs -o mode=755 slurm $dir
failed() {
    echo "slurm.sh: $*" >&2
    tail -n 20 $dir/*.log >&2 || true
    exit 1
}

hostname one
ip link set lo up
# Slurm does not listen on a host that has no address but loopback.
ip link add nodes type veth peer name other
for i in 1 2 3 4; do
    ip addr add 198.51.100.$i/24 dev nodes
done
ip link set nodes up
ip link set other up
cat >$dir/hosts <<EOF
127.0.0.1 localhost
198.51.100.4 one
198.51.100.1 n1
198.51.100.2 n2
198.51.100.3 n3
EOF
mount --bind $dir/hosts /etc/hosts

mkdir $dir/munge $dir/tmp $dir/state $dir/spool-n1 $dir/spool-n2 $dir/spool-n3
head -c 1024 /dev/urandom >$dir/munge/key
chmod 600 $dir/munge/key
chown -R munge:munge $dir/munge
runuser -u munge -- munged --key-file=$dir/munge/key --socket=$dir/munge/socket \
    --pid-file=$dir/munge/pid --log-file=$dir/munge/munged.log --seed-file=$dir/munge/seed ||
    failed "munged does not start"

memory=$(awk '/^MemTotal/ {print int($2 / 1024 / 4)}' /proc/meminfo)
cat >$dir/slurm.conf <<EOF
ClusterName=one
SlurmctldHost=one(198.51.100.4)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
TmpFS=$dir/tmp
SlurmctldPidFile=$dir/ctld.pid
SlurmdPidFile=$dir/d-%n.pid
SlurmctldLogFile=$dir/ctld.log
SlurmdLogFile=$dir/d-%n.log
MpiDefault=none
ReturnToService=2
NodeName=n[1-3] NodeHostname=one NodeAddr=198.51.100.[1-3] Port=[17001-17003] CPUs=2 RealMemory=$memory State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
EOF
export SLURM_CONF=$dir/slurm.conf
slurmctld || failed "slurmctld does not start"
# The plugin pmix makes a folder for each step in $dir/tmp: each node has its own.
for n in n1 n2 n3; do
    unshare --mount sh -c "mount -t tmpfs tmp $dir/tmp && exec slurmd -N $n" || failed "slurmd $n does not start"
done
tries=0
until [ "$(timeout 5 sinfo -h -o '%T %D' 2>/dev/null)" = "idle 3" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || failed "the nodes are not idle: $(timeout 5 sinfo -h 2>&1)"
    sleep 0.2
done
"$@" <&0 &
wait $!
