// The limits of the machine: two processes that hand messages to each other with nothing
// in between. What a library takes more is its own. Three ways:
//
//     line        the payload goes through the cache lines that carry the flag: written there
//                 by the sender, and every byte of it loaded by the receiver
//     memcpy      the payload lies in shared memory: the receiver copies it once
//     process_vm  the payload lies in memory of the sender's own: process_vm_readv, once
//
//     limit [-d lat|bw] [-s sizes] [-t seconds] [-b batch] [-w window] [-c cpu,cpu]
//
// lat is half a round trip; line is for messages up to 4 KiB. bw has windows of messages of
// which each has memory of its own, acknowledged when the receiver has all of them.
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer.h"

enum { LINE = 64, IN_FLAG_LINE = LINE - sizeof(uint64_t), MOST_LINE = 4096, MAX_WINDOW = 1024 };

// A message in lines: its first bytes share the line of the flag.
struct lines {
    _Alignas(2 * LINE) _Atomic uint64_t seq; // alone in its pair of lines, which the prefetcher takes
    unsigned char first[IN_FLAG_LINE];
    unsigned char rest[MOST_LINE];
};

// What both processes map: messages there and back.
static struct shared {
    struct lines way[2];
    _Atomic int end;
} *shared;

enum way { BY_LINE, BY_MEMCPY, BY_PROCESS_VM, WAYS };
static const char *const ways[] = {"line", "memcpy", "process_vm"};

static enum way way;
static int side, is_bw; // side 0 measures
static pid_t other;
static size_t bytes, stride, window;
static unsigned char *out[2], *in; // out of each side: BY_MEMCPY both see both, else each its own
static uint64_t seq;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void hand_over(uint64_t n) {
    struct lines *l = &shared->way[side];
    if (way == BY_LINE) {
        size_t first = bytes < IN_FLAG_LINE ? bytes : IN_FLAG_LINE;
        memcpy(l->rest, out[side] + first, bytes - first);
        memcpy(l->first, out[side], first);
    }
    atomic_store_explicit(&l->seq, n, memory_order_release);
}

static unsigned char value(int sender, size_t i) { return (unsigned char)(i * 131 + i / 251 + (size_t)sender * 97 + 1); }

// Looks at the messages that have come last.
static void check_received(void) {
    for (size_t i = 0; i < window; i++)
        for (size_t k = 0; k < bytes; k++)
            if (in[i * stride + k] != value(1 - side, i * stride + k)) fail("wrong byte", ways[way]);
}

// A process whose other is gone must not spin on. The follower ends when it is told to, if
// what it has received is right.
static inline void wait_for(uint64_t n) {
    struct lines *l = &shared->way[1 - side];
    for (uint64_t spins = 1; atomic_load_explicit(&l->seq, memory_order_acquire) != n; spins++) {
        relax();
        if (spins % (1 << 20)) continue;
        if (side == 1 && getppid() != other) _exit(2);
        if (side == 1 && atomic_load(&shared->end)) {
            check_received();
            _exit(0);
        }
        if (side == 0 && waitpid(other, NULL, WNOHANG)) fail("the other process ended", ways[way]);
    }
}

static inline void fetch(void) {
    struct lines *l = &shared->way[1 - side];
    if (way == BY_LINE) {
        size_t first = bytes < IN_FLAG_LINE ? bytes : IN_FLAG_LINE;
        memcpy(in, l->first, first);
        memcpy(in + first, l->rest, bytes - first);
        return;
    }
    for (size_t i = 0; i < window; i++) {
        unsigned char *from = out[1 - side] + i * stride, *to = in + i * stride;
        if (way == BY_MEMCPY) {
            memcpy(to, from, bytes);
            continue;
        }
        struct iovec local = {to, bytes}, remote = {from, bytes};
        if (process_vm_readv(other, &local, 1, &remote, 1, 0) != (ssize_t)bytes) fail("process_vm_readv", strerror(errno));
    }
}

static void lead(long n) {
    for (long i = 0; i < n; i++, seq += 2) {
        hand_over(seq + 1);
        wait_for(seq + 2);
        if (!is_bw) fetch();
    }
}

static void follow(void) {
    for (;; seq += 2) {
        wait_for(seq + 1);
        fetch();
        hand_over(seq + 2);
    }
}

static void bind_to(int cpu) {
    cpu_set_t set;
    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("limit: sched_setaffinity");
}

static void *map(size_t n, int how) {
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) fail("mmap", strerror(errno));
    return p;
}

static void measure(size_t most, double seconds, long batch, const int cpu[2]) {
    size_t fit = bytes ? ((size_t)64 << 20) / bytes : most;
    window = is_bw ? (fit < 1 ? 1 : fit < most ? fit : most) : 1;
    stride = (bytes + 2 * LINE - 1) / LINE * LINE;
    size_t all = window * stride;
    shared = map(sizeof *shared, MAP_SHARED);
    for (int i = 0; i < 2; i++) out[i] = map(all, way == BY_MEMCPY ? MAP_SHARED : MAP_PRIVATE);
    in = map(all, MAP_PRIVATE);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < all; k++) out[i][k] = value(i, k);
    memset(in, 0xee, all);
    seq = 0;
    pid_t self = getpid();
    other = fork();
    if (other < 0) fail("fork", strerror(errno));
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); // where only descendants may be read
    if (other == 0) {
        side = 1;
        other = self;
        bind_to(cpu[1]);
        follow();
    }
    bind_to(cpu[0]);
    struct warming w = start_warming();
    double t0;
    do {
        t0 = now_ns();
        lead(w.n);
    } while (go_on_warming(&w, now_ns() - t0));
    struct plan p = make_plan(w.best, seconds, batch);
    double *samples = must_alloc((size_t)p.batches * sizeof *samples);
    memset(in, 0xee, all);
    for (long b = 0; b < p.batches; b++) {
        t0 = now_ns();
        lead(p.batch);
        double each = (now_ns() - t0) / (double)p.batch;
        samples[b] = is_bw ? (double)(window * bytes) * 1e3 / each : each / 2;
    }
    if (!is_bw) check_received();
    atomic_store(&shared->end, 1);
    int status;
    if (waitpid(other, &status, 0) < 0 || status) fail("the other process failed", ways[way]);
    print_result((struct result){.pattern = is_bw ? "bw" : "lat", .layer = "memory", .provider = "shm", .peer = "limit", .op = ways[way],
                                 .unit = is_bw ? "MB/s" : "ns", .version = "", .bytes = (long)bytes, .batch = p.batch,
                                 .window = is_bw ? (long)window : 0, .samples = samples, .count = p.batches});
    free(samples);
    munmap(shared, sizeof *shared);
    for (int i = 0; i < 2; i++) munmap(out[i], all);
    munmap(in, all);
}

// The first two CPUs of this process.
static void two_cpus(int cpu[2]) {
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set)) cpu[n++] = i;
    if (n < 2) fprintf(stderr, "limit: one CPU only: this measures the scheduler\n");
}

int main(int argc, char **argv) {
    double seconds = 0.2;
    long batch = 0, sizes[MAX_SIZES], most = 16;
    int cpu[2] = {-1, -1}, c, nsizes = parse_sizes("8,64,4k", sizes);
    two_cpus(cpu);
    while ((c = getopt(argc, argv, "d:s:t:b:w:c:")) != -1) switch (c) {
        case 'd':
            is_bw = !strcmp(optarg, "bw");
            if (!is_bw && strcmp(optarg, "lat")) fail("not lat or bw", optarg);
            break;
        case 's': nsizes = parse_sizes(optarg, sizes); break;
        case 't': seconds = parse_seconds(optarg); break;
        case 'b': batch = parse_only_number(optarg, 1, 1 << 20); break;
        case 'w': most = parse_only_number(optarg, 1, MAX_WINDOW); break;
        case 'c':
            if (sscanf(optarg, "%d,%d", &cpu[0], &cpu[1]) != 2) fail("not two CPUs", optarg);
            break;
        default: return 2;
        }
    for (int k = 0; k < nsizes; k++)
        for (way = 0; way < WAYS; way++) {
            bytes = (size_t)sizes[k];
            if (bytes == 0 || (way == BY_LINE && (is_bw || bytes > MOST_LINE))) continue;
            measure((size_t)most, seconds, batch, cpu);
        }
    return 0;
}
