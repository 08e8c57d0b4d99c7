// What QMP programs call, as the C library of QMP does it over MPI: sums in place by
// MPI_Allreduce, of one double through a second one, of several with MPI_IN_PLACE; and
// the faces of a lattice exchanged with both neighbours on a ring of ranks, by one
// multiple of strided sends and contiguous receives: persistent requests over vector
// types, MPI_Startall, MPI_Waitall. Tags tell the two directions apart.
//
//     mpi_qmp [-c kinds] [-s sizes] [-a axes] [-t seconds] [-b batch] [-p provider]
//
// -c lists halo and allreduce. Sizes are bytes of the doubles that are added up. -a names
// the axes, one letter each, a for all, and h for the half spinors of t that the Wilson
// operator sends, of 96 bytes a site and contiguous: xyztah. MB/s are those that one rank sends.
#include <float.h>

#include "mpi_lattice.h"

enum { REQUESTS = 16, CHANNEL_TAG = 11 };

// A multiple, and what it is made of.
static struct handle {
    MPI_Request requests[REQUESTS];
    int count;
} multiple;

static void start_handle(struct handle *h) { MPI_Startall(h->count, h->requests); }

static void wait_handle(struct handle *h) {
    MPI_Status *status = must_alloc((size_t)h->count * sizeof *status);
    MPI_Waitall(h->count, h->requests, status);
    free(status);
}

static double *x;
static int count; // doubles

static void sum_double(double *value) {
    double dest;
    if (MPI_Allreduce(value, &dest, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS) *value = dest;
}

static void run_sum(long n) {
    for (long i = 0; i < n; i++) sum_double(x);
}

static void run_sum_array(long n) {
    for (long i = 0; i < n; i++) MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void run_faces(long n) {
    for (long i = 0; i < n; i++) {
        start_handle(&multiple);
        wait_handle(&multiple);
    }
}

// Small integers: the first sum is exact, in whatever order.
static double value(int sender, long i) { return (double)((i * 131 + i / 251 + sender * 97 + 1) % 1021); }

static void give(void) {
    for (long i = 0; i < count; i++) x[i] = value(rank, i);
}

// After the first sum all have the same, and from then on each is that times their
// number: looked at where that only changes the exponent.
static void check_sums(long done) {
    int shift = 0;
    while (1 << shift < size) shift++;
    if (done > 1 && 1 << shift != size) return;
    double times = 1; // infinite in the end, as the sums are
    for (long k = (done - 1) * shift; k > 0 && times <= DBL_MAX; k--) times *= 2;
    for (long i = 0; i < count; i++) {
        double v = 0;
        for (int r = 0; r < size; r++) v += value(r, i);
        if (v > 0) v *= times;
        if (x[i] != v) {
            fprintf(stderr, "rank %d: element %ld of %d is %g after %ld sums, must be %g\n", rank, i, count, x[i], done, v);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void measure_sums(const struct options *o, long bytes, double *samples) {
    void (*run)(long) = bytes == (long)sizeof(double) ? run_sum : run_sum_array;
    count = (int)(bytes / (long)sizeof(double));
    x = must_alloc((size_t)bytes);
    give();
    begin();
    run(1);
    check_sums(1);
    struct plan p = plan_of(run, o);
    give();
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        samples[b] = (now_ns() - t0) / (double)p.batch;
    }
    check_sums(p.batch * p.batches);
    free(x);
    if (rank == 0)
        print_result((struct result){.pattern = "allreduce", .layer = "mpi", .suite = "qmp", .provider = o->provider, .peer = PEER,
                                     .op = run == run_sum ? "sum_double" : "sum_double_array", .ranks = size, .unit = "ns", .version = mpi_version(),
                                     .bytes = bytes, .batch = p.batch, .samples = samples, .count = p.batches});
}

static void measure_faces(const struct options *o, char name, double *samples) {
    const char *all = "xyzt", *found = strchr(all, name);
    int first = found ? (int)(found - all) : name == 'h' ? 3 : 0, last = found ? first : 3;
    int face = name == 'h' ? FACE / 2 : FACE;
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    unsigned char *field = must_alloc(FIELD), *into[4][2] = {{0}};
    MPI_Datatype types[4];
    fill(field, FIELD, rank);
    multiple.count = 0;
    for (int axis = first; axis <= last; axis++) {
        int block = SITE;
        for (int a = 0; a < axis; a++) block *= SIDE;
        if (block > face) block = face;
        MPI_Type_vector(face / block, block, SIDE * block, MPI_BYTE, &types[axis]);
        MPI_Type_commit(&types[axis]);
        for (int up = 0; up < 2; up++) {
            into[axis][up] = must_alloc(face);
            int tag = up ? CHANNEL_TAG + 1 : CHANNEL_TAG - 1;
            MPI_Send_init(field + offset_in_field(axis, up ? SIDE - 1 : 0, 0), 1, types[axis], up ? right : left, tag, MPI_COMM_WORLD,
                          &multiple.requests[multiple.count++]);
            MPI_Recv_init(into[axis][up], face, MPI_BYTE, up ? left : right, tag, MPI_COMM_WORLD, &multiple.requests[multiple.count++]);
        }
    }
    run_faces(1);
    check_faces(into, 0, first, last, face);

    long bytes = 2L * face * (last - first + 1);
    struct plan p = plan_of(run_faces, o);
    for (int axis = first; axis <= last; axis++)
        for (int up = 0; up < 2; up++) spoil(into[axis][up], face);
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run_faces(p.batch);
        samples[b] = (double)bytes * (double)p.batch * 1e3 / (now_ns() - t0);
    }
    check_faces(into, 0, first, last, face);
    for (int i = 0; i < multiple.count; i++) MPI_Request_free(&multiple.requests[i]);
    for (int axis = first; axis <= last; axis++) {
        MPI_Type_free(&types[axis]);
        free(into[axis][0]);
        free(into[axis][1]);
    }
    free(field);
    char letter[2] = {name, 0};
    if (rank == 0)
        print_result((struct result){.pattern = "halo", .layer = "mpi", .suite = "qmp", .provider = o->provider, .peer = PEER, .op = "vector",
                                     .axis = found ? letter : name == 'h' ? "half" : "all", .halo = "packed", .ranks = size, .unit = "MB/s", .version = mpi_version(),
                                     .bytes = bytes, .batch = p.batch, .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 1, 0);
    struct options o = parse_options(argc, argv, "qmp");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    for (const char *name = o.kinds; *name;) {
        size_t length = strcspn(name, ",");
        if (length == 4 && !strncmp(name, "halo", length)) {
            for (const char *a = o.axes; *a; a++) {
                if (!strchr("xyztah", *a)) fail("not axes of xyztah", o.axes);
                measure_faces(&o, *a, samples);
            }
        } else if (length == 9 && !strncmp(name, "allreduce", length)) {
            for (int s = 0; s < o.nsizes; s++) {
                if (o.sizes[s] < (long)sizeof(double) || o.sizes[s] % (long)sizeof(double)) fail("sizes must be of whole doubles", argv[0]);
                measure_sums(&o, o.sizes[s], samples);
            }
        } else
            fail("kinds are halo and allreduce", name);
        name += length + (name[length] == ',');
    }
    end_mpi();
    return 0;
}
