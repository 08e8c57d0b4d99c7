// Ping-pong, allreduce and halo on CPUs that are shared: each exchange is timed, up to
// 4,000,000 of them as far as the time allows. SLUICE_BENCH_LOAD says what shares the CPUs,
// and which processes compute beside the ranks: the share of a CPU that these get meanwhile
// is a figure, too.
//
//     mpi_shared [-c kinds] [-s sizes] [-t seconds] [-p provider]
//
// -c lists lat, allreduce and halo. A halo is of all axes, into one buffer for each face.
#include "mpi_figures.h"
#include "mpi_lattice.h"

enum { EXCHANGES = 4000000, FIRST = 16, CHUNK = 1 << 17, FACES = 8, NEIGHBOURS = 256 };
static const double short_chunk = 50e6; // ns

static MPI_Request req[2 * FACES];
static unsigned char *out, *in, *into[4][2];
static int bytes, other;

// Each waits for all that it has started.
static void once_lat(void) {
    if (rank == 0) {
        MPI_Startall(2, req);
        MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
        return;
    }
    MPI_Start(&req[1]);
    MPI_Wait(&req[1], MPI_STATUS_IGNORE);
    MPI_Start(&req[0]);
    MPI_Wait(&req[0], MPI_STATUS_IGNORE);
}

static void once_allreduce(void) { MPI_Allreduce(out, in, bytes / (int)sizeof(double), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); }

static void once_halo(void) {
    MPI_Startall(2 * FACES, req);
    MPI_Waitall(2 * FACES, req, MPI_STATUSES_IGNORE);
}

static void declare_lat(void) {
    out = must_alloc((size_t)bytes + 1);
    in = must_alloc((size_t)bytes + 1);
    fill(out, bytes, rank);
    MPI_Send_init(out, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[0]);
    MPI_Recv_init(in, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &req[1]);
}

static void declare_allreduce(void) {
    out = must_alloc((size_t)bytes);
    in = must_alloc((size_t)bytes);
    for (long i = 0; i < bytes / (long)sizeof(double); i++) ((double *)out)[i] = (double)(i % 1000 + rank);
}

static void declare_halo(void) {
    int left = (rank + size - 1) % size, right = (rank + 1) % size, n = 0;
    bytes = FACES * FACE;
    out = must_alloc(FIELD);
    fill(out, FIELD, rank);
    for (int axis = 0, block = SITE; axis < 4; axis++, block *= SIDE) {
        MPI_Datatype type;
        MPI_Type_vector(FACE / block, block, SIDE * block, MPI_BYTE, &type);
        MPI_Type_commit(&type);
        for (int up = 0; up < 2; up++) {
            into[axis][up] = must_alloc(FACE);
            MPI_Recv_init(into[axis][up], FACE, MPI_BYTE, up ? left : right, 2 * axis + up, MPI_COMM_WORLD, &req[n++]);
        }
        for (int up = 0; up < 2; up++)
            MPI_Send_init(out + offset_in_field(axis, up ? SIDE - 1 : 0, 0), 1, type, up ? right : left, 2 * axis + up, MPI_COMM_WORLD, &req[n++]);
        MPI_Type_free(&type); // requests keep it
    }
}

static void check_lat(void) { check(in, bytes, other); }

static void check_allreduce(void) {
    for (long i = 0; i < bytes / (long)sizeof(double); i++)
        if (((double *)in)[i] != (double)size * (double)(i % 1000) + size * (size - 1) / 2.0) fail("a sum is wrong", "allreduce");
}

static void check_halo(void) { check_faces(into, 0, 0, 3, FACE); }

static const struct kind {
    const char *name, *op;
    void (*declare)(void), (*once)(void), (*check)(void);
    int requests;
    double parts; // of an exchange that are a figure: halves of a round trip
} kinds[] = {
    {"lat", "persistent", declare_lat, once_lat, check_lat, 2, 2},
    {"allreduce", "called", declare_allreduce, once_allreduce, check_allreduce, 0, 1},
    {"halo", "vector", declare_halo, once_halo, check_halo, 2 * FACES, 1},
};

static const char *load;
static clockid_t neighbours[NEIGHBOURS];
static int neighbour_count;

// "busy:PID,PID" or "quota". The clock of a process is that of clock_getcpuclockid(3).
static void read_load(void) {
    static char name[32];
    const char *all = getenv("SLUICE_BENCH_LOAD");
    if (!all) return;
    size_t n = strcspn(all, ":");
    if (n == 0 || n >= sizeof name) fail("SLUICE_BENCH_LOAD: no load", all);
    memcpy(name, all, n);
    load = name;
    for (const char *p = all + n; *p; p += strcspn(p, ",")) {
        char *end;
        long pid = strtol(++p, &end, 10);
        if (end == p || pid <= 0 || neighbour_count == NEIGHBOURS || clock_getcpuclockid((pid_t)pid, &neighbours[neighbour_count++]))
            fail("SLUICE_BENCH_LOAD: no process", p);
    }
}

static double neighbours_ns(void) {
    double sum = 0;
    for (int i = 0; i < neighbour_count; i++) sum += clock_ns(neighbours[i]);
    return sum;
}

static void measure(const struct options *o, const struct kind *k, double *samples) {
    k->declare();
    k->once();
    k->check();
    begin();
    long done = 0;
    double spent = 0, theirs = 0;
    for (long n = FIRST; done < EXCHANGES && spent < o->seconds * 1e9;) {
        double before = neighbours_ns(), began = now_ns(), last = began;
        for (long i = 0; i < n; i++) {
            k->once();
            double now = now_ns();
            samples[done + i] = (now - last) / k->parts;
            last = now;
        }
        theirs += neighbours_ns() - before;
        double took = agree(last - began);
        done += n;
        spent += took;
        if (took < short_chunk && n < CHUNK) n *= 2;
    }
    k->check();
    if (rank == 0) {
        qsort(samples, (size_t)done, sizeof *samples, by_value);
        double sum = 0;
        for (long i = 0; i < done; i++) sum += samples[i];
        int halo = !strcmp(k->name, "halo");
        const struct { const char *name, *unit; double v; } figures[] = {
            {"mean", "ns", sum / (double)done},
            {"p99", "ns", quantile(samples, done, 0.99)},
            {"neighbour", "%", 100 * theirs / (spent * neighbour_count)},
        };
        for (int i = 0; i < (neighbour_count ? 3 : 2); i++) {
            double v = figures[i].v;
            print_result((struct result){.pattern = k->name, .layer = "mpi", .provider = o->provider, .peer = PEER, .op = k->op, .figure = figures[i].name,
                                         .unit = figures[i].unit, .axis = halo ? "all" : NULL, .halo = halo ? "packed" : NULL, .ranks = size, .load = load,
                                         .version = mpi_version(), .bytes = bytes, .batch = 1, .samples = &v, .count = 1});
        }
    }
    for (int i = 0; i < k->requests; i++) MPI_Request_free(&req[i]);
    free(out);
    if (k->declare == declare_halo)
        for (int i = 0; i < FACES; i++) free(into[i / 2][i % 2]);
    else
        free(in);
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 0);
    struct options o = parse_options(argc, argv, "shared");
    read_load();
    double *samples = must_alloc((EXCHANGES + CHUNK) * sizeof *samples);
    memset(samples, 0, (EXCHANGES + CHUNK) * sizeof *samples); // so that no page comes to be while it is measured
    other = 1 - rank;
    const char *list = o.kinds;
    char name[32];
    while (next_word(&list, name)) {
        const struct kind *k = NULL;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(name, kinds[i].name)) k = &kinds[i];
        if (!k || (k->once == once_lat && size != 2)) fail("no kind, or not of so many ranks", name);
        for (int i = 0; i < (k->once == once_halo ? 1 : o.nsizes); i++) {
            bytes = (int)o.sizes[i];
            if (bytes <= 0 || bytes % (int)sizeof(double)) fail("no whole doubles", name);
            measure(&o, k, samples);
        }
    }
    end_mpi();
    return 0;
}
