#!/bin/sh
# Runs a peer program as its users would run it for speed: one process per core, bound;
# with more processes than cores, bound to none. One line of JSON per result on standard
# output.
#
#     run.sh limit|zmq [options]
#     run.sh openmpi|mpich shm|tcp NAME [options]     for mpi_NAME.c, with RANKS processes (default 2)
#
# The options are those of the program. What is not installed is said on standard
# error, with exit status 3. BUILD is the directory of the programs; UNBOUND=1 binds none.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/build}

usage() {
    echo "$1; usage: run.sh limit|zmq [options] | openmpi|mpich shm|tcp NAME [options]" >&2
    exit 2
}

# Ends with status 3 where build.sh has not made a file.
must_be() { # file what
    if [ ! -e "$1" ]; then
        echo "not installed: $2 when build.sh ran" >&2
        exit 3
    fi
}

case ${1:-} in
limit | zmq)
    program=$1
    shift
    must_be "$build/$program" "$program: not what it needs"
    exec "$build/$program" "$@"
    ;;
openmpi | mpich) [ $# -ge 3 ] || usage "too few arguments" ;;
*) usage "peer ${1:-}" ;;
esac

mpi=$1 transport=$2 program=$3 ranks=${RANKS:-2}
shift 3
case $transport in shm | tcp) ;; *) usage "transport $transport" ;; esac
[ -e "$here/mpi_$program.c" ] || usage "program $program"
must_be "$build/launcher.$mpi" "$mpi: no mpicc or launcher of it"
launcher=$(cat "$build/launcher.$mpi")
set -- "$build/$program.$mpi" -p "$transport" "$@"
bind=core
if [ -n "${UNBOUND:-}" ] || [ "$(getconf _NPROCESSORS_ONLN)" -lt "$ranks" ]; then bind=none; fi
case $mpi in
openmpi)
    if [ "$transport" = tcp ]; then
        # All ranks are here. Open MPI 5 gives up on addresses of other networks.
        export OMPI_MCA_btl=tcp,self OMPI_MCA_pml=ob1 OMPI_MCA_btl_tcp_if_include=lo
    fi
    # More ranks than cores are refused without.
    if [ $bind = none ]; then set -- --oversubscribe "$@"; fi
    if [ "$(id -u)" = 0 ]; then set -- --allow-run-as-root "$@"; fi
    exec "$launcher" -n "$ranks" --bind-to $bind "$@"
    ;;
mpich)
    # MPICH 5 has been seen not to start some programs in a root directory; with all of
    # /proc, /sys and /dev there, shared memory included (enter.sh), it has not failed since.
    # MPICH keeps ranks of a host off shared memory when told that they are on
    # different nodes; its network is then ch4:ofi or ch4:ucx over TCP.
    if [ "$transport" = tcp ]; then
        export MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp UCX_TLS=tcp,self
    fi
    exec "$launcher" -n "$ranks" -bind-to $bind "$@"
    ;;
esac
