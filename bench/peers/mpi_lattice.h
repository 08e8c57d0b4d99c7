// The lattice whose faces mpi_halo and mpi_qmp exchange: 16 sites along each of four
// axes, x fastest, 192 bytes each.
#ifndef SLUICE_BENCH_MPI_LATTICE_H
#define SLUICE_BENCH_MPI_LATTICE_H

#include "mpi_common.h"

enum { SIDE = 16, SITE = 192, FACE = SIDE * SIDE * SIDE * SITE, FIELD = SIDE * FACE };

// Where the block is that holds byte i of a face, in a field.
static inline size_t offset_in_field(int axis, int at, size_t i) {
    size_t block = SITE;
    for (int a = 0; a < axis; a++) block *= SIDE;
    return (size_t)at * block + i / block * SIDE * block + i % block;
}

// Faces differ from each other in their every byte's place in the field. The first bytes
// of each are looked at.
static inline void check_face(const unsigned char *into, int strided, int axis, int at, int sender, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        size_t from = offset_in_field(axis, at, i);
        if (into[strided ? from : i] != pattern_byte(sender, (long)from)) {
            fprintf(stderr, "rank %d: byte %zu of a face of axis %d is wrong\n", rank, i, axis);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static inline void check_faces(unsigned char *into[4][2], int strided, int first, int last, size_t bytes) {
    for (int axis = first; axis <= last; axis++)
        for (int up = 0; up < 2; up++)
            check_face(into[axis][up], strided, axis, up ? SIDE - 1 : 0, (rank + size + (up ? -1 : 1)) % size, bytes);
}

#endif
