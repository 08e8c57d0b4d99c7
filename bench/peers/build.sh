#!/bin/sh
# Builds the peer programs: line with the C compiler, the MPI programs with each
# MPI's wrapper that is installed. Says on standard error what could not be built
# for want of it; fails only where something that is there does not compile.
#
#     build.sh [directory]        default: build beside this script
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/build}
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

found() { command -v "$1" >/dev/null 2>&1; }

cc=
for c in "${CC:-}" cc gcc clang; do
    if [ -n "$c" ] && found "$c"; then cc=$c && break; fi
done
if [ -n "$cc" ]; then
    build "$cc" line.c line
    if echo '#include <zmq.h>' | "$cc" -E - >/dev/null 2>&1; then
        build "$cc" zmq_fanout.c zmq -lzmq
    else
        echo "not installed: libzmq (no zmq.h)" >&2
    fi
else
    echo "not installed: a C compiler (cc): no line, no MPI programs" >&2
    exit 0
fi

for mpi in openmpi mpich; do
    if found "mpicc.$mpi"; then # Debian's names, where several MPIs live side by side
        wrapper=mpicc.$mpi
    elif found mpicc && mpicc -show 2>/dev/null | grep -q "$mpi"; then
        wrapper=mpicc
    else
        echo "not installed: $mpi (no mpicc.$mpi)" >&2
        continue
    fi
    build "$wrapper" mpi_pingpong.c "pingpong.$mpi"
    build "$wrapper" mpi_bw.c "bw.$mpi"
    build "$wrapper" mpi_channel.c "channel.$mpi"
    build "$wrapper" mpi_halo.c "halo.$mpi"
    build "$wrapper" mpi_ring.c "ring.$mpi"
    build "$wrapper" mpi_coll.c "coll.$mpi"
    build "$wrapper" mpi_qmp.c "qmp.$mpi"
    build "$wrapper" mpi_fanout.c "fanout.$mpi"
done
