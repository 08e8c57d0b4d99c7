// What the peer programs share: a clock, samples and their percentiles, the
// list of sizes, and the one line of JSON that each result becomes. The fields
// are those of the results of the bench itself.
#ifndef SLUICE_BENCH_PEER_H
#define SLUICE_BENCH_PEER_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_SIZES = 64, MAX_SAMPLES = 1 << 20 };

// A batch is as many iterations as fit into BATCH_NS, at most BATCH_MAX: long
// enough for the clock (tens of ns) not to show, short enough to leave a
// distribution.
#define BATCH_NS 200e3
#define BATCH_MAX 1000

static inline double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fail(const char *what, const char *arg) {
    fprintf(stderr, "%s: %s\n", what, arg);
    exit(2);
}

// A number with an optional k or M (binary) behind it, within lo..hi.
static inline long parse_number(const char *s, char **end, long lo, long hi) {
    errno = 0;
    long v = strtol(s, end, 10);
    int shift = 0;
    if (**end == 'k' || **end == 'K') shift = 10;
    if (**end == 'm' || **end == 'M') shift = 20;
    if (shift) (*end)++;
    if (*end == s || errno || v < 0 || v > (hi >> shift)) fail("not a number in range", s);
    v <<= shift;
    if (v < lo) fail("not a number in range", s);
    return v;
}

static inline long parse_only_number(const char *s, long lo, long hi) {
    char *end;
    long v = parse_number(s, &end, lo, hi);
    if (*end) fail("not a number", s);
    return v;
}

static inline double parse_seconds(const char *s) {
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !(v > 0 && v <= 3600)) fail("not a number of seconds", s);
    return v;
}

// "8,64k,1M" into sizes; returns how many.
static inline int parse_sizes(const char *s, long sizes[MAX_SIZES]) {
    int n = 0;
    for (;;) {
        char *end;
        if (n == MAX_SIZES) fail("too many sizes", s);
        sizes[n++] = parse_number(s, &end, 0, 1L << 30);
        if (!*end) return n;
        if (*end != ',') fail("not a list of sizes", s);
        s = end + 1;
    }
}

// How long a measurement is: iterations of a batch, number of batches.
struct plan {
    long batch;
    long batches;
};

// Fan-outs to more workers than there are CPUs run in the turns that the scheduler gives:
// a batch has to be long enough to hold many of these. It has all chunks that may be on
// their way FANOUT_LAPS times at least: those are handed out in a moment.
#define FANOUT_BATCH_NS 10e6
enum { FANOUT_LAPS = 4 };

static inline long fanout_batch(double iteration_ns, long outstanding) {
    long n = (long)(FANOUT_BATCH_NS / iteration_ns), least = FANOUT_LAPS * outstanding;
    return n > least ? n : least;
}

// They take the seconds asked for and FANOUT_BATCHES batches at least, and the batch in which
// so many times the seconds are over at most.
enum { FANOUT_MOST = 4, FANOUT_BATCHES = 10 };

// After b batches in so many ns: is it enough?
static inline int fanout_enough(long b, double ns, double seconds) {
    return (ns >= seconds * 1e9 && b >= FANOUT_BATCHES) || ns >= FANOUT_MOST * seconds * 1e9 || b == MAX_SAMPLES;
}

// batch 0 asks for one that is derived from the time of an iteration.
static inline struct plan make_plan(double iteration_ns, double seconds, long batch) {
    struct plan p;
    double b = BATCH_NS / iteration_ns;
    p.batch = batch > 0 ? batch : b < 1 ? 1 : b > BATCH_MAX ? BATCH_MAX : (long)b;
    double n = seconds * 1e9 / (iteration_ns * (double)p.batch);
    p.batches = n < 10 ? 10 : n > MAX_SAMPLES ? MAX_SAMPLES : (long)n;
    return p;
}

// Warming up: once, once more, then four times as many iterations each time until
// that takes about WARM_NS. best is what one takes, by the best mean of these
// runs, for one that was interrupted must not be taken for a slow operation.
#define WARM_NS 5e6
struct warming {
    long n, runs;
    double best;
};

static inline struct warming start_warming(void) { return (struct warming){.n = 1, .best = 1e300}; }

// A run of w->n iterations took so long; says whether another is wanted.
static inline int go_on_warming(struct warming *w, double took) {
    double mean = (took < 1 ? 1 : took) / (double)w->n;
    if (mean < w->best) w->best = mean;
    if (++w->runs >= 3 && w->best * (double)w->n >= WARM_NS / 2) return 0;
    if (w->runs > 1) w->n *= 4;
    return 1;
}

// Warming up a fan-out: a send returns before its chunk has gone, and the first waits for
// workers to come. What one takes is known when twice as many take about as long each.
struct fanout_warming {
    long n;
    double each; // 0: nothing has been sent
};

// A run of w->n sends took so long; says whether another is wanted.
static inline int go_on_fanout(struct fanout_warming *w, double took) {
    double before = w->each;
    w->each = (took < 1 ? 1 : took) / (double)w->n;
    int steady = before > 0 && ((w->each < 2 * before && before < 2 * w->each) || took > FANOUT_MOST * WARM_NS);
    if (steady && took >= WARM_NS / 2) return 0;
    w->n *= 2;
    return 1;
}

struct result {
    const char *pattern, *layer, *provider, *peer, *op, *unit, *version;
    const char *suite, *axis, *halo; // NULL: has none
    const char *figure, *load;       // NULL: the figure of the pattern; nothing shares the CPUs
    long bytes, batch, window, ranks; // window, ranks 0: has none
    double *samples;           // sorted by print_result
    long count;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Nearest rank: the smallest sample that at least the fraction q does not exceed.
static inline double quantile(const double *sorted, long n, double q) {
    long i = (long)(q * (double)n + 0.9999999999) - 1;
    return sorted[i < 0 ? 0 : i >= n ? n - 1 : i];
}

// A string as JSON: version strings of libraries may hold anything.
static inline void print_string(const char *key, const char *s) {
    printf("\"%s\":\"", key);
    for (; *s && *s != '\n'; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s >= 0x20 && (unsigned char)*s < 0x7f)
            putchar(*s);
    printf("\",");
}

static inline void print_result(struct result r) {
    qsort(r.samples, (size_t)r.count, sizeof *r.samples, by_value);
    double sum = 0;
    for (long i = 0; i < r.count; i++) sum += r.samples[i];
    putchar('{');
    print_string("pattern", r.pattern);
    print_string("layer", r.layer);
    if (r.suite) print_string("suite", r.suite);
    if (r.axis) print_string("axis", r.axis);
    if (r.halo) print_string("halo", r.halo);
    if (r.figure) print_string("figure", r.figure);
    if (r.load) print_string("load", r.load);
    if (r.ranks) printf("\"ranks\":%ld,", r.ranks);
    print_string("provider", r.provider);
    print_string("peer", r.peer);
    print_string("op", r.op);
    if (*r.version) print_string("version", r.version);
    printf("\"mode\":\"%s\",\"batch\":%ld,", r.batch == 1 ? "each" : "batch", r.batch);
    if (r.window) printf("\"window\":%ld,", r.window);
    printf("\"bytes\":%ld,", r.bytes);
    print_string("unit", r.unit);
    printf("\"min\":%.3f,\"p50\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f,\"mean\":%.3f,\"samples\":%ld}\n",
           r.samples[0], quantile(r.samples, r.count, 0.5), quantile(r.samples, r.count, 0.99),
           quantile(r.samples, r.count, 0.999), r.samples[r.count - 1], sum / (double)r.count, r.count);
    fflush(stdout);
}

static inline void *must_alloc(size_t n) {
    void *p = aligned_alloc(4096, (n + 4095) & ~(size_t)4095);
    if (!p) fail("out of memory", "aligned_alloc");
    memset(p, 0, n);
    return p;
}

#endif
