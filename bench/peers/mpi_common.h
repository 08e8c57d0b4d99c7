// What the MPI programs share: options, and which MPI this is.
#ifndef SLUICE_BENCH_MPI_COMMON_H
#define SLUICE_BENCH_MPI_COMMON_H

#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include "peer.h"

#if defined(OPEN_MPI)
#define PEER "openmpi"
#elif defined(MPICH)
#define PEER "mpich"
#else
#define PEER "mpi"
#endif

enum { TAG = 1, CONTROL_TAG = 2, MAX_WINDOW = 1024 };

struct options {
    long sizes[MAX_SIZES];
    int nsizes;
    double seconds; // measured, per size
    long batch;     // 0: derived
    long window;
    int persistent, own; // requests; memory of each message
    const char *pattern, *provider;
    const char *axes; // of mpi_halo
    int strided, by_hand;
    const char *kinds; // of mpi_coll
};

static int rank, size; // rank 0 measures and prints

static inline struct options parse_options(int argc, char **argv, const char *pattern) {
    struct options o = {.seconds = 0.2, .window = 64, .persistent = 1, .pattern = pattern, .provider = "shm", .axes = "xyzta", .kinds = "allreduce"};
    o.nsizes = parse_sizes("8", o.sizes);
    int c;
    while ((c = getopt(argc, argv, "s:t:b:w:p:d:a:c:nmrk")) != -1) switch (c) {
        case 's': o.nsizes = parse_sizes(optarg, o.sizes); break;
        case 'a': o.axes = optarg; break;
        case 'c': o.kinds = optarg; break;
        case 'r': o.strided = 1; break;
        case 'k': o.by_hand = 1; break;
        case 't': o.seconds = parse_seconds(optarg); break;
        case 'b': o.batch = parse_only_number(optarg, 1, 1 << 20); break;
        case 'w': o.window = parse_only_number(optarg, 1, MAX_WINDOW); break;
        case 'p': o.provider = optarg; break;
        case 'd': o.pattern = optarg; break;
        case 'n': o.persistent = 0; break;
        case 'm': o.own = 1; break;
        default: exit(2);
        }
    return o;
}

static inline const char *mpi_version(void) {
    static char v[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    MPI_Get_library_version(v, &n);
    for (char *c = v; *c; c++)
        if (*c == ',' || *c == '\n' || *c == '\t') {
            // "Open MPI v4.1.4, package: …" or "MPICH Version:\t4.0.2\n…"
            if (*c == '\t') {
                *c = ' ';
                continue;
            }
            *c = 0;
            break;
        }
    return v;
}

// Refuses another number of ranks than least to most; most 0 is no bound.
static inline void start_mpi(int *argc, char ***argv, int least, int most) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size < least || (most && size > most)) {
        if (rank == 0) fprintf(stderr, "this needs %s%d ranks, not %d\n", most ? "" : "at least ", least, size);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

static inline void leave(int signal) {
    (void)signal;
    _exit(0);
}

// MPICH 4.0.2 over UCX's TCP at times never returns from MPI_Finalize. All results
// are out by then: after some seconds, that is the end.
static inline void end_mpi(void) {
    signal(SIGALRM, leave);
    alarm(3);
    MPI_Finalize();
}

// Every byte depends on its sender and its position.
static inline unsigned char pattern_byte(int sender, long i) { return (unsigned char)(i * 131 + i / 251 + sender * 97 + 1); }

static inline void fill(unsigned char *b, long n, int sender) {
    for (long i = 0; i < n; i++) b[i] = pattern_byte(sender, i);
}

static inline void check(const unsigned char *b, long n, int sender) {
    for (long i = 0; i < n; i++)
        if (b[i] != pattern_byte(sender, i)) {
            fprintf(stderr, "rank %d: byte %ld of %ld is wrong\n", rank, i, n);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

// What a buffer holds before the messages that are timed: they, too, must arrive.
static inline void spoil(unsigned char *b, size_t n) { memset(b, 0xee, n); }

// Rank 0 decides by its clock when there was enough of something; both know.
static inline double agree(double v) {
    MPI_Bcast(&v, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return v;
}

// Warms up and says how long to measure. The caller spoils what it receives into,
// and calls begin.
static inline struct plan plan_of(void (*run)(long), const struct options *o) {
    struct warming w = start_warming();
    double t0;
    do {
        t0 = now_ns();
        run(w.n);
    } while (go_on_warming(&w, agree(now_ns() - t0)));
    return make_plan(w.best, o->seconds, o->batch);
}

// All ranks begin together.
static inline void begin(void) { MPI_Barrier(MPI_COMM_WORLD); }

#endif
