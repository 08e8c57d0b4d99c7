// How much of a transfer goes on while both ranks compute: of a message from rank 0 to rank 1
// (MPI_Isend, MPI_Irecv), or of an MPI_Iallreduce. Its figures are those of bench overlap,
// which says what they are.
//
//     mpi_overlap [-c kinds] [-s sizes] [-t seconds] [-p provider]
//
// -c lists send and allreduce.
#include "mpi_figures.h"

enum { MOST = 500, LEAST = 10 };
static const double cpu_margin = 1.15; // cpuMargin of bench overlap

// Keeps the CPU busy for so many steps, each of which waits for the one before: that of
// Knuth's MMIX generator, as in the bench itself.
static volatile uint64_t computed;

__attribute__((noinline)) static void compute(long steps) {
    uint64_t x = computed;
    for (long i = 0; i < steps; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    computed = x;
}

static unsigned char *out, *in;
static MPI_Request req[2];
static int bytes, other, requests, sums;

static void start(void) {
    requests = 1;
    if (sums)
        MPI_Iallreduce(out, in, bytes / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &req[0]);
    else if (rank == 0)
        MPI_Isend(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[0]);
    else
        MPI_Irecv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[0]);
}

// One message each way; of a sum, it.
static void start_both(void) {
    if (sums) {
        start();
        return;
    }
    requests = 2;
    MPI_Irecv(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[0]);
    MPI_Isend(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[1]);
}

static void finish(void) { MPI_Waitall(requests, req, MPI_STATUSES_IGNORE); }

// Both ranks meet, by a message to and fro.
static void meet(void) {
    char c = 0;
    if (rank == 0) MPI_Send(&c, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD);
    MPI_Recv(&c, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank != 0) MPI_Send(&c, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD);
}

static double later_median(double *own, long n) {
    double both[MOST];
    MPI_Allreduce(own, both, (int)n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return median_of(both, n);
}

// The medians of n transfers with so many steps of computing, of the later rank.
static void repeat(long n, long steps, double *all, double *wait) {
    double alls[MOST], waits[MOST];
    for (long i = 0; i < n; i++) {
        meet();
        double t0 = now_ns();
        start();
        compute(steps);
        double t1 = now_ns();
        finish();
        double t2 = now_ns();
        alls[i] = t2 - t0;
        waits[i] = t2 - t1;
    }
    *all = later_median(alls, n);
    *wait = later_median(waits, n);
}

static double sum_of_both(double v) {
    MPI_Allreduce(MPI_IN_PLACE, &v, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return v;
}

// CPU time of a transfer where both ranks always have something to move.
static double while_moving(long n) {
    double began = own_cpu_ns();
    for (long i = 0; i < n; i++) {
        start_both();
        finish();
    }
    return sum_of_both(own_cpu_ns() - began) / (double)n / (sums ? 1 : 2);
}

static int is_over(void) {
    int over = 1;
    MPI_Testall(requests, req, &over, MPI_STATUSES_IGNORE);
    return over;
}

// CPU time of a transfer where both sleep, and look now and then.
static double while_asleep(long n, double alone) {
    double nap = alone < 100e3 ? 100e3 : alone;
    struct timespec t = {(time_t)(nap / 1e9), (long)nap % 1000000000};
    long naps = 0;
    double began = own_cpu_ns();
    for (long i = 0; i < n; i++) {
        start();
        do {
            nanosleep(&t, NULL);
            naps++;
        } while (!is_over());
    }
    double used = own_cpu_ns() - began;
    MPI_Barrier(MPI_COMM_WORLD);
    began = own_cpu_ns();
    for (long i = 0; i < naps; i++) {
        nanosleep(&t, NULL);
        is_over();
    }
    used -= own_cpu_ns() - began;
    return sum_of_both(used < 0 ? 0 : used) / (double)n;
}

static long steps_for(double ns) {
    double least = 1e300;
    for (int i = 0; i < 20; i++) {
        double t = now_ns();
        compute(100000);
        t = now_ns() - t;
        if (t < least) least = t;
    }
    return (long)(ns / least * 100000) + 1;
}

static double value(int sender, long i) { return (double)((sender + 1) * (i % 1000 + 1)); }

static void prepare(void) {
    if (sums)
        for (long i = 0; i < bytes / (long)sizeof(double); i++) ((double *)out)[i] = value(rank, i);
    else
        fill(out, bytes, rank);
    spoil(in, (size_t)bytes);
}

static void check_all(void) {
    if (!sums) {
        check(in, bytes, other);
        return;
    }
    for (long i = 0; i < bytes / (long)sizeof(double); i++)
        if (((double *)in)[i] != value(0, i) + value(1, i)) {
            fprintf(stderr, "rank %d: element %ld of the sum is wrong\n", rank, i);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static double least(double a, double b) { return a < b ? a : b; }

static void measure(const struct options *o, const char *op) {
    double alone, wait, all, alones[MOST];
    prepare();
    start_both();
    finish();
    check_all();
    spoil(in, (size_t)bytes);
    repeat(5, 0, &alone, &wait);
    long n = (long)(o->seconds * 1e9 / alone);
    n = n < LEAST ? LEAST : n > MOST ? MOST : n;
    repeat(n, 0, &alone, &wait);
    long steps = (long)agree((double)steps_for(alone));
    for (long i = 0; i < n; i++) {
        double t = now_ns();
        compute(steps);
        alones[i] = now_ns() - t;
    }
    double computing = later_median(alones, n);
    long works = n < 100 ? n : 100;
    double cpu = least(2 * alone, least(while_moving(works), while_asleep(works, alone)));
    repeat(n, steps, &all, &wait);
    check_all();
    double osu = 100 * (1 - (all - computing) / alone);
    print_value(o, "overlap", op, "alone", "ns", bytes, alone);
    print_value(o, "overlap", op, "cpu", "ns", bytes, cpu);
    print_value(o, "overlap", op, "wait", "%", bytes, 100 * wait / alone);
    print_value(o, "overlap", op, "total", "%", bytes, 100 * all / (computing + cpu_margin * cpu));
    print_value(o, "overlap", op, "osu", "%", bytes, osu < 0 ? 0 : osu);
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "overlap");
    const char *list = o.kinds;
    other = 1 - rank;
    char op[32];
    while (next_word(&list, op)) {
        if (strcmp(op, "send") && strcmp(op, "allreduce")) fail("neither send nor allreduce", op);
        sums = op[0] == 'a';
        for (int k = 0; k < o.nsizes; k++) {
            bytes = (int)o.sizes[k];
            if (bytes <= 0 || bytes % (int)sizeof(double)) fail("no whole doubles", op);
            out = must_alloc((size_t)bytes);
            in = must_alloc((size_t)bytes);
            measure(&o, op);
            free(out);
            free(in);
        }
    }
    end_mpi();
    return 0;
}
