#!/bin/sh
# Builds the peer programs: limit and zmq with the C compiler, each mpi_NAME.c as
# NAME.MPI with the wrapper of each MPI that is installed. Prints what it finds, a line of
# a name and a version each, and on standard error what is missing; fails only where
# something that is there does not compile.
#
#     build.sh [NAME ...]        these alone: limit, zmq, ucx, libfabric, perftest, or NAME of mpi_NAME.c
#
# BUILD is the directory of the programs (default build, beside this script).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${BUILD:-$here/build}
wanted=$*
mkdir -p "$out"
# MPI_STATUSES_IGNORE is a pointer that must not be followed; gcc takes it for an array
# that is too short.
flags='-std=gnu11 -O2 -Wall -Wextra -Wno-stringop-overflow'

# program in $out from one source, unless it is newer than all sources
build() { # compiler source program [library]
    if [ -x "$out/$3" ] && [ -z "$(find "$here" -maxdepth 1 \( -name '*.[ch]' -o -name build.sh \) -newer "$out/$3")" ]; then
        return
    fi
    # Made beside and moved into place: a second builder never sees half a file.
    # shellcheck disable=SC2086
    "$1" $flags -o "$out/$3.$$" "$here/$2" ${4:-}
    mv "$out/$3.$$" "$out/$3"
}

wants() {
    case " ${wanted:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
}

has() { command -v "$1" >/dev/null 2>&1; }

# A tool that needs no building: its version is what follows a pattern in its output.
tool() { # name, pattern, program, command that tells
    if ! has "$3"; then
        echo "not installed: $1 (no $3)" >&2
        return
    fi
    echo "$1 $($4 2>/dev/null | sed -n "s/.*$2 *\([0-9][0-9.]*\).*/\1/p" | head -1)"
}

! wants ucx || tool ucx '[Vv]ersion[:=]*' ucx_perftest 'ucx_info -v'
! wants libfabric || tool libfabric 'libfabric:' fi_pingpong 'fi_info --version'
! wants perftest || tool perftest 'Version:' ib_write_lat 'ib_write_lat --version'

programs=
for source in "$here"/mpi_*.c; do
    name=$(basename "$source" .c)
    if wants "${name#mpi_}"; then programs="$programs ${name#mpi_}"; fi
done
if [ -z "$programs" ] && ! wants limit && ! wants zmq; then exit 0; fi

cc=
for c in "${CC:-}" cc gcc clang; do
    if [ -n "$c" ] && has "$c"; then cc=$c && break; fi
done
if [ -z "$cc" ]; then
    echo "not installed: a C compiler (cc): no limit, no MPI programs" >&2
    exit 0
fi
if wants limit && [ "$(uname)" = Linux ]; then
    build "$cc" limit.c limit
    echo "limit 1"
fi
if ! wants zmq; then
    :
elif echo '#include <zmq.h>' | "$cc" -E - >/dev/null 2>&1; then
    build "$cc" zmq_fanout.c zmq -lzmq
    echo "libzmq $(printf '#include <zmq.h>\nZMQ_VERSION_MAJOR ZMQ_VERSION_MINOR' | "$cc" -E -P - | tail -1 | tr ' ' .)"
else
    echo "not installed: libzmq (no zmq.h)" >&2
fi

for mpi in ${programs:+openmpi mpich}; do
    case $mpi in
    openmpi) launchers='mpirun.openmpi mpirun' words='Open MPI' pattern='(Open MPI)' ;;
    mpich) launchers='mpiexec.mpich mpiexec' words=HYDRA pattern='Version:' ;;
    esac
    wrapper=mpicc.$mpi launcher= # Debian's names, where several MPIs live side by side
    has "$wrapper" || ! mpicc -show 2>/dev/null | grep -q "$mpi" || wrapper=mpicc
    for l in $launchers; do
        if has "$l" && "$l" --version 2>&1 | grep -q "$words"; then launcher=$l && break; fi
    done
    if ! has "$wrapper" || [ -z "$launcher" ]; then
        echo "not installed: $mpi (no $wrapper, or no launcher)" >&2
        continue
    fi
    for name in $programs; do build "$wrapper" "mpi_$name.c" "$name.$mpi"; done
    echo "$launcher" >"$out/launcher.$mpi"
    tool "$mpi" "$pattern" "$launcher" "$launcher --version"
done
