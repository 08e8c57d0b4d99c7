// Collectives by blocking calls: the time of one, of doubles that are added up where
// something is. A loop without a clock in it, as IMB does: all ranks begin together,
// and nothing keeps them together but the collective itself. The root of those that
// have one goes round, so that no rank runs ahead of the others.
//
//     mpi_coll [-c kinds] [-s sizes] [-t seconds] [-b batch] [-p provider]
//
// -c lists barrier, bcast, reduce, allreduce, reduce-scatter, scan, exscan, gather,
// scatter, allgather, alltoall. Sizes are bytes of the vector; of reduce-scatter and
// the last four of each rank's block.
#include "mpi_common.h"

static double *src, *dst;
static int count; // doubles
static int turn;  // the root of the next

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
};

// Small integers: their sums are exact, in whatever order.
static double value(int sender, long i) { return (double)((i * 131 + i / 251 + sender * 97 + 1) % 1021); }

static double sum_of(int from, int to, long i) {
    double s = 0;
    for (int r = from; r < to; r++) s += value(r, i);
    return s;
}

// What element i of dst must be after a collective with this root, or after several.
static double expected(const char *name, int root, long i) {
    long block = i / count, at = i % count; // there is an element: count is not 0
    if (!strcmp(name, "bcast")) return value(root, i);
    if (!strcmp(name, "reduce-scatter")) return sum_of(0, size, (long)rank * count + i);
    if (!strcmp(name, "scan")) return sum_of(0, rank + 1, i);
    if (!strcmp(name, "exscan")) return sum_of(0, rank, i);
    if (!strcmp(name, "gather") || !strcmp(name, "allgather")) return value((int)block, at);
    if (!strcmp(name, "scatter")) return value(root, (long)rank * count + i);
    if (!strcmp(name, "alltoall")) return value((int)block, (long)rank * count + at);
    return sum_of(0, size, i);
}

static void prepare(const struct kind *k, long n) {
    if (!strcmp(k->name, "bcast") && rank == turn)
        for (long i = 0; i < n; i++) dst[i] = value(rank, i);
    else
        spoil((unsigned char *)dst, (size_t)n * sizeof *dst);
}

// Looks at the results of one collective with this root.
static void check_one(const struct kind *k, int root, long n) {
    int at_root = !strcmp(k->name, "reduce") || !strcmp(k->name, "gather");
    if ((at_root && rank != root) || (!strcmp(k->name, "exscan") && rank == 0)) return;
    for (long i = 0; i < n; i++)
        if (dst[i] != expected(k->name, root, i)) {
            fprintf(stderr, "rank %d: element %ld of %ld of %s is %g, must be %g\n", rank, i, n, k->name, dst[i], expected(k->name, root, i));
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void measure(const struct options *o, const struct kind *k, long bytes, double *samples) {
    count = (int)(bytes / (long)sizeof(double));
    long srcs = (long)count * (k->srcs ? 1 : size), dsts = (long)count * (k->dsts ? 1 : size);
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
    int last = !strcmp(k->name, "scatter") ? (int)((runs - 1) % size) : !strcmp(k->name, "bcast") ? 0 : rank;
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
