// What the MPI programs share whose patterns have several figures: one line of JSON for
// each, clocks of CPU time, and lists.
#ifndef SLUICE_BENCH_MPI_FIGURES_H
#define SLUICE_BENCH_MPI_FIGURES_H

#include "mpi_common.h"

// Prints a figure; samples are sorted.
static inline void print_figure(const struct options *o, const char *pattern, const char *op, const char *figure, const char *unit, long bytes,
                                double *samples, long count) {
    if (rank == 0)
        print_result((struct result){.pattern = pattern, .layer = "mpi", .provider = o->provider, .peer = PEER, .op = op, .figure = figure, .unit = unit,
                                     .version = mpi_version(), .bytes = bytes, .batch = 1, .ranks = size, .samples = samples, .count = count});
}

static inline void print_value(const struct options *o, const char *pattern, const char *op, const char *figure, const char *unit, long bytes, double v) {
    print_figure(o, pattern, op, figure, unit, bytes, &v, 1);
}

static inline double clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// CPU time of this process, all its threads.
static inline double own_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

static inline double median_of(double *v, long n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n ? (v[(n - 1) / 2] + v[n / 2]) / 2 : 0;
}

// Takes the next word of a list, or NULL.
static inline const char *next_word(const char **list, char word[32]) {
    if (!**list) return NULL;
    size_t n = strcspn(*list, ",");
    if (n == 0 || n >= 32) fail("not a list", *list);
    memcpy(word, *list, n);
    word[n] = 0;
    *list += n + ((*list)[n] == ',');
    return word;
}

#endif
