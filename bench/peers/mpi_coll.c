// Collectives by blocking calls: the time of one, of doubles that are added up where
// something is. A loop without a clock in it, as IMB does: all ranks begin together,
// and nothing keeps them together but the collective itself. The root of those that
// have one goes round, so that no rank runs ahead of the others.
//
//     mpi_coll [-c kinds] [-s sizes] [-t seconds] [-b batch] [-p provider]
//
// -c lists barrier, bcast, reduce, allreduce, reduce-scatter, scan, exscan, gather,
// scatter, allgather, alltoall, gatherv, scatterv, allgatherv, alltoallv. Sizes are
// bytes of the vector; of reduce-scatter and the last eight of each rank's block, of the
// v kinds on average.
#include "mpi_common.h"

static double *src, *dst;
static int count;            // doubles
static int turn;             // the root of the next
static int uneven;           // blocks differ in length
static int *counts, *starts; // of the blocks of this rank

static void next_turn(void) {
    if (++turn == size) turn = 0;
}

static void run_barrier(long n) {
    for (long i = 0; i < n; i++) MPI_Barrier(MPI_COMM_WORLD);
}

static void run_bcast(long n) {
    for (long i = 0; i < n; i++, next_turn()) MPI_Bcast(dst, count, MPI_DOUBLE, turn, MPI_COMM_WORLD);
}

static void run_reduce(long n) {
    for (long i = 0; i < n; i++, next_turn()) MPI_Reduce(src, dst, count, MPI_DOUBLE, MPI_SUM, turn, MPI_COMM_WORLD);
}

static void run_allreduce(long n) {
    for (long i = 0; i < n; i++) MPI_Allreduce(src, dst, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void run_reduce_scatter(long n) {
    for (long i = 0; i < n; i++) MPI_Reduce_scatter_block(src, dst, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void run_scan(long n) {
    for (long i = 0; i < n; i++) MPI_Scan(src, dst, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void run_exscan(long n) {
    for (long i = 0; i < n; i++) MPI_Exscan(src, dst, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void run_gather(long n) {
    for (long i = 0; i < n; i++, next_turn()) MPI_Gather(src, count, MPI_DOUBLE, dst, count, MPI_DOUBLE, turn, MPI_COMM_WORLD);
}

static void run_scatter(long n) {
    for (long i = 0; i < n; i++, next_turn()) MPI_Scatter(src, count, MPI_DOUBLE, dst, count, MPI_DOUBLE, turn, MPI_COMM_WORLD);
}

static void run_allgather(long n) {
    for (long i = 0; i < n; i++) MPI_Allgather(src, count, MPI_DOUBLE, dst, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

static void run_alltoall(long n) {
    for (long i = 0; i < n; i++) MPI_Alltoall(src, count, MPI_DOUBLE, dst, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

static void run_gatherv(long n) {
    for (long i = 0; i < n; i++, next_turn())
        MPI_Gatherv(src, counts[rank], MPI_DOUBLE, dst, counts, starts, MPI_DOUBLE, turn, MPI_COMM_WORLD);
}

static void run_scatterv(long n) {
    for (long i = 0; i < n; i++, next_turn())
        MPI_Scatterv(src, counts, starts, MPI_DOUBLE, dst, counts[rank], MPI_DOUBLE, turn, MPI_COMM_WORLD);
}

static void run_allgatherv(long n) {
    for (long i = 0; i < n; i++) MPI_Allgatherv(src, counts[rank], MPI_DOUBLE, dst, counts, starts, MPI_DOUBLE, MPI_COMM_WORLD);
}

static void run_alltoallv(long n) {
    for (long i = 0; i < n; i++) MPI_Alltoallv(src, counts, starts, MPI_DOUBLE, dst, counts, starts, MPI_DOUBLE, MPI_COMM_WORLD);
}

static const struct kind {
    const char *name;
    void (*run)(long);
    int rooted, srcs, dsts; // blocks of the buffers; 0: as many as ranks
} kinds[] = {
    {"barrier", run_barrier, 0, 1, 1},        {"bcast", run_bcast, 1, 1, 1},
    {"reduce", run_reduce, 1, 1, 1},          {"allreduce", run_allreduce, 0, 1, 1},
    {"reduce-scatter", run_reduce_scatter, 0, 0, 1}, {"scan", run_scan, 0, 1, 1},
    {"exscan", run_exscan, 0, 1, 1},          {"gather", run_gather, 1, 1, 0},
    {"scatter", run_scatter, 1, 0, 1},        {"allgather", run_allgather, 0, 1, 0},
    {"alltoall", run_alltoall, 0, 0, 0},
    {"gatherv", run_gatherv, 1, 1, 0},        {"scatterv", run_scatterv, 1, 0, 1},
    {"allgatherv", run_allgatherv, 0, 1, 0},  {"alltoallv", run_alltoallv, 0, 0, 0},
};

// Whether a kind has this name, or its v kind.
static int is(const struct kind *k, const char *name) {
    size_t n = strlen(name);
    return !strncmp(k->name, name, n) && (!k->name[n] || !strcmp(k->name + n, "v"));
}

static long uneven_at(long i) { return i * count - i % size * (size - i % size) * (count / size); }

// Where block i in the memory of a rank begins, in doubles: as in bench (blockAt).
static long block_at(const struct kind *k, int of, long i) {
    if (!uneven) return i * count;
    if (!is(k, "alltoall")) of = 0;
    return uneven_at(of + i) - uneven_at(of);
}

// Small integers: their sums are exact, in whatever order.
static double value(int sender, long i) { return (double)((i * 131 + i / 251 + sender * 97 + 1) % 1021); }

static double sum_of(int from, int to, long i) {
    double s = 0;
    for (int r = from; r < to; r++) s += value(r, i);
    return s;
}

// What element i of dst must be after a collective with this root, or after several.
static double expected(const struct kind *k, int root, long i) {
    int block = 0; // where dst has several
    while (block + 1 < size && starts[block + 1] <= i) block++;
    long at = i - starts[block];
    if (is(k, "bcast")) return value(root, i);
    if (is(k, "reduce-scatter")) return sum_of(0, size, starts[rank] + i);
    if (is(k, "scan")) return sum_of(0, rank + 1, i);
    if (is(k, "exscan")) return sum_of(0, rank, i);
    if (is(k, "gather") || is(k, "allgather")) return value(block, at);
    if (is(k, "scatter")) return value(root, starts[rank] + i);
    if (is(k, "alltoall")) return value(block, block_at(k, block, rank) + at);
    return sum_of(0, size, i);
}

static void prepare(const struct kind *k, long n) {
    if (is(k, "bcast") && rank == turn)
        for (long i = 0; i < n; i++) dst[i] = value(rank, i);
    else
        spoil((unsigned char *)dst, (size_t)n * sizeof *dst);
}

// Looks at the results of one collective with this root.
static void check_one(const struct kind *k, int root, long n) {
    int at_root = is(k, "reduce") || is(k, "gather");
    if ((at_root && rank != root) || (is(k, "exscan") && rank == 0)) return;
    for (long i = 0; i < n; i++)
        if (dst[i] != expected(k, root, i)) {
            fprintf(stderr, "rank %d: element %ld of %ld of %s is %g, must be %g\n", rank, i, n, k->name, dst[i], expected(k, root, i));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void measure(const struct options *o, const struct kind *k, long bytes, double *samples) {
    count = (int)(bytes / (long)sizeof(double));
    uneven = k->name[strlen(k->name) - 1] == 'v';
    for (int i = 0; i < size; i++) {
        starts[i] = (int)block_at(k, rank, i);
        counts[i] = (int)block_at(k, rank, i + 1) - starts[i];
    }
    long all = (long)count * size, srcs = k->srcs ? counts[rank] : all, dsts = k->dsts ? counts[rank] : all;
    src = must_alloc((size_t)srcs * sizeof *src + 1);
    dst = must_alloc((size_t)dsts * sizeof *dst + 1);
    for (long i = 0; i < srcs; i++) src[i] = value(rank, i);
    turn = 0;
    for (int i = 0; i < (k->rooted ? size : 1); i++) {
        prepare(k, dsts);
        int of = turn;
        begin();
        k->run(1);
        check_one(k, of, dsts);
    }
    begin();
    struct plan p = plan_of(k->run, o);
    turn = 0;
    prepare(k, dsts);
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        k->run(p.batch);
        samples[b] = (now_ns() - t0) / (double)p.batch;
    }
    long runs = p.batch * p.batches;
    // A scatter leaves what the last root had, a broadcast what the first one had.
    int last = is(k, "scatter") ? (int)((runs - 1) % size) : is(k, "bcast") ? 0 : rank;
    if (!k->rooted || runs > rank) check_one(k, last, dsts);
    free(src);
    free(dst);
    if (rank == 0)
        print_result((struct result){.pattern = k->name, .layer = "mpi", .provider = o->provider, .peer = PEER, .op = "blocking",
                                     .ranks = size, .unit = "ns", .version = mpi_version(), .bytes = bytes, .batch = p.batch,
                                     .samples = samples, .count = p.batches});
}

static const struct kind *find_kind(const char *name, size_t length) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strlen(kinds[i].name) == length && !strncmp(kinds[i].name, name, length)) return &kinds[i];
    fail("no kind of collective", name);
    return NULL;
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 1, 0);
    struct options o = parse_options(argc, argv, "coll");
    for (int s = 0; s < o.nsizes; s++)
        if (o.sizes[s] % (long)sizeof(double)) fail("sizes must be of whole doubles", argv[0]);
    counts = must_alloc((size_t)size * sizeof *counts);
    starts = must_alloc((size_t)size * sizeof *starts);
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    for (const char *name = o.kinds; *name;) {
        size_t length = strcspn(name, ",");
        const struct kind *k = find_kind(name, length);
        if (k->run == run_barrier)
            measure(&o, k, 0, samples);
        else
            for (int s = 0; s < o.nsizes; s++) measure(&o, k, o.sizes[s], samples);
        name += length + (name[length] == ',');
    }
    end_mpi();
    return 0;
}
