#!/bin/sh
# Runs a peer program as its users would run it for speed: one process per core,
# bound, but for a ring, of RANKS processes (default 8), and for collectives and sums of more
# RANKS (default 2) than there are cores: these are bound to none. One line of JSON per
# result on standard output.
#
#     run.sh line|zmq [options]
#     run.sh openmpi|mpich shm|tcp pingpong|bw|channel|halo|ring|coll|qmp|fanout [options]
#     run.sh                      all that is installed, with a few sizes
#
# The options are those of the program. What is not installed is said on standard
# error, with exit status 3. BUILD is the directory of the programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/build}

missing() {
    echo "not installed: $*" >&2
    exit 3
}

found() { command -v "$1" >/dev/null 2>&1; }

# The launcher of one MPI: by Debian's name, else by asking mpiexec who it is.
launcher() { # mpi, words of its --version, names
    mpi=$1 words=$2
    shift 2
    for l in "$@"; do
        if found "$l"; then echo "$l" && return; fi
    done
    if found mpiexec && mpiexec --version 2>&1 | grep -qi "$words"; then echo mpiexec && return; fi
    missing "$mpi (none of $*)"
}

run_line() {
    [ -x "$build/line" ] || missing "line: no C compiler when build.sh ran"
    exec "$build/line" "$@"
}

run_zmq() {
    [ -x "$build/zmq" ] || missing "libzmq: no zmq.h when build.sh ran"
    exec "$build/zmq" "$@"
}

run_mpi() { # mpi transport program options
    mpi=$1 transport=$2 program=$3
    shift 3
    case $transport in shm | tcp) ;; *) echo "transport $transport: want shm or tcp" >&2 && exit 2 ;; esac
    [ -x "$build/$program.$mpi" ] || missing "$mpi: no mpicc of it when build.sh ran"
    set -- "$build/$program.$mpi" -p "$transport" "$@"
    ranks=2
    case $program in
    ring) ranks=${RANKS:-8} ;;
    fanout) ranks=${RANKS:-3} ;;
    coll | qmp) ranks=${RANKS:-2} ;;
    esac
    # More ranks than cores are refused without, bound or not.
    crowded=
    if [ "$program" = ring ] || [ "$(getconf _NPROCESSORS_ONLN)" -lt "$ranks" ]; then crowded=1; fi
    case $mpi in
    openmpi)
        l=$(launcher openmpi 'open mpi\|openrte\|prrte' mpirun.openmpi mpiexec.openmpi)
        if [ "$transport" = tcp ]; then set -- --mca btl tcp,self --mca pml ob1 "$@"; fi
        if [ "$(id -u)" = 0 ]; then set -- --allow-run-as-root "$@"; fi
        if [ -n "$crowded" ]; then set -- --oversubscribe --bind-to none "$@"; else set -- --bind-to core "$@"; fi
        exec "$l" -n "$ranks" "$@"
        ;;
    mpich)
        l=$(launcher mpich 'hydra' mpiexec.mpich mpiexec.hydra)
        # MPICH keeps ranks of a host off shared memory when told that they are
        # on different nodes; its network is then ch4:ofi or ch4:ucx over TCP.
        if [ "$transport" = tcp ]; then
            export MPIR_CVAR_NOLOCAL=1 FI_PROVIDER=tcp UCX_TLS=tcp,self
        fi
        if [ -n "$crowded" ]; then set -- -bind-to none "$@"; else set -- -bind-to core "$@"; fi
        exec "$l" -n "$ranks" "$@"
        ;;
    *) echo "MPI $mpi: want openmpi or mpich" >&2 && exit 2 ;;
    esac
}

case ${1:-} in
line)
    shift
    run_line "$@"
    ;;
zmq)
    shift
    run_zmq "$@"
    ;;
openmpi | mpich)
    [ $# -ge 3 ] || { echo "usage: run.sh $1 shm|tcp pingpong|bw|channel|halo|ring|coll|qmp|fanout [options]" >&2 && exit 2; }
    run_mpi "$@"
    ;;
'')
    "$here/build.sh" "$build"
    (run_line) || [ $? = 3 ]
    (run_zmq -s 64,4k,1M) || [ $? = 3 ]
    for mpi in openmpi mpich; do
        for transport in shm tcp; do
            (run_mpi $mpi $transport pingpong -s 0,8,64,1k,64k,1M) || [ $? = 3 ]
            (run_mpi $mpi $transport bw -s 8,1k,64k,1M,4M) || [ $? = 3 ]
            (run_mpi $mpi $transport channel -l 8,4k -s 64k,1M) || [ $? = 3 ]
            (run_mpi $mpi $transport halo) || [ $? = 3 ]
            (run_mpi $mpi $transport halo -k) || [ $? = 3 ]
            (run_mpi $mpi $transport ring) || [ $? = 3 ]
            (run_mpi $mpi $transport coll -c barrier,allreduce,bcast,reduce -s 8,1k,128k,8M) || [ $? = 3 ]
            (run_mpi $mpi $transport qmp -c halo,allreduce -s 8,1k,128k,8M) || [ $? = 3 ]
            (run_mpi $mpi $transport fanout -s 64,4k,1M) || [ $? = 3 ]
        done
    done
    ;;
*)
    echo "usage: run.sh [line|zmq | openmpi|mpich shm|tcp pingpong|bw|channel|halo|ring|coll|qmp|fanout] [options]" >&2
    exit 2
    ;;
esac
