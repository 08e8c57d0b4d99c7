// The faces of a lattice exchanged with both neighbours on a ring of ranks, by
// persistent requests over MPI vector types: 16 sites along each of four axes, x
// fastest, 192 bytes each. Sent from the field itself, received into one contiguous
// buffer for each face, or with -r into a field, as the face was sent from. With -k
// no vector types: the program packs each face into a buffer and sends that, as
// many lattice codes do. One axis at a time, and all of them at once. MB/s are
// those that one rank sends.
//
//     mpi_halo [-a axes] [-r | -k] [-t seconds] [-b batch] [-p provider]
//
// -a names the axes, one letter each, a for all: xyzta.
#include "mpi_lattice.h"

enum { REQUESTS = 16 };

static MPI_Request req[REQUESTS];
static int requests;

// What is packed by hand before each start: count blocks, stride bytes apart.
static struct packing {
    const unsigned char *from;
    unsigned char *to;
    size_t block, stride;
    int count;
} packings[REQUESTS / 2];
static int packed;

static void pack(const struct packing *p) {
    for (int i = 0; i < p->count; i++) memcpy(p->to + (size_t)i * p->block, p->from + (size_t)i * p->stride, p->block);
}

static void run(long n) {
    for (long i = 0; i < n; i++) {
        for (int k = 0; k < packed; k++) pack(&packings[k]);
        MPI_Startall(requests, req);
        MPI_Waitall(requests, req, MPI_STATUSES_IGNORE);
    }
}

static void measure(const struct options *o, char name, double *samples) {
    const char *all = "xyzt", *found = strchr(all, name);
    int first = found ? (int)(found - all) : 0, last = found ? first : 3;
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    unsigned char *field = must_alloc(FIELD), *into[4][2] = {{0}};
    MPI_Datatype types[4];
    fill(field, FIELD, rank);
    requests = packed = 0;
    for (int axis = first; axis <= last; axis++) {
        int block = SITE;
        for (int a = 0; a < axis; a++) block *= SIDE;
        MPI_Type_vector(FACE / block, block, SIDE * block, MPI_BYTE, &types[axis]);
        MPI_Type_commit(&types[axis]);
        if (o->strided) into[axis][0] = into[axis][1] = must_alloc(FIELD);
        for (int up = 0; up < 2; up++) {
            int at = up ? SIDE - 1 : 0, from = up ? left : right, tag = 2 * axis + up;
            if (o->strided)
                MPI_Recv_init(into[axis][up] + at * block, 1, types[axis], from, tag, MPI_COMM_WORLD, &req[requests++]);
            else {
                into[axis][up] = must_alloc(FACE);
                MPI_Recv_init(into[axis][up], FACE, MPI_BYTE, from, tag, MPI_COMM_WORLD, &req[requests++]);
            }
        }
    }
    for (int axis = first; axis <= last; axis++)
        for (int up = 0; up < 2; up++) {
            unsigned char *from = field + offset_in_field(axis, up ? SIDE - 1 : 0, 0);
            int to = up ? right : left, tag = 2 * axis + up;
            size_t block = SITE;
            for (int a = 0; a < axis; a++) block *= SIDE;
            if (o->by_hand && block < FACE) { // a face that is one block needs no packing
                unsigned char *buffer = must_alloc(FACE);
                packings[packed++] = (struct packing){from, buffer, block, SIDE * block, (int)(FACE / block)};
                MPI_Send_init(buffer, FACE, MPI_BYTE, to, tag, MPI_COMM_WORLD, &req[requests++]);
            } else
                MPI_Send_init(from, 1, types[axis], to, tag, MPI_COMM_WORLD, &req[requests++]);
        }
    run(1);
    check_faces(into, o->strided, first, last, FACE);

    long bytes = 2L * FACE * (last - first + 1);
    struct plan p = plan_of(run, o);
    for (int axis = first; axis <= last; axis++)
        for (int up = 0; up < 2; up++) spoil(into[axis][up], o->strided ? FIELD : FACE);
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        samples[b] = (double)bytes * (double)p.batch * 1e3 / (now_ns() - t0);
    }
    check_faces(into, o->strided, first, last, FACE);
    for (int i = 0; i < requests; i++) MPI_Request_free(&req[i]);
    for (int i = 0; i < packed; i++) free(packings[i].to);
    for (int axis = first; axis <= last; axis++) {
        MPI_Type_free(&types[axis]);
        free(into[axis][0]);
        if (!o->strided) free(into[axis][1]);
    }
    free(field);
    char letter[2] = {name, 0};
    if (rank == 0)
        print_result((struct result){.pattern = "halo", .layer = "mpi", .provider = o->provider, .peer = PEER, .op = o->by_hand ? "packed by hand" : "vector",
                                     .axis = found ? letter : "all", .halo = o->strided ? "strided" : "packed", .ranks = size,
                                     .unit = "MB/s", .version = mpi_version(), .bytes = bytes, .batch = p.batch,
                                     .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 0);
    struct options o = parse_options(argc, argv, "halo");
    if (o.strided && o.by_hand) fail("-r or -k, not both", "halo");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    for (const char *a = o.axes; *a; a++) {
        if (!strchr("xyzta", *a)) fail("not axes of xyzta", o.axes);
        measure(&o, *a, samples);
    }
    end_mpi();
    return 0;
}
