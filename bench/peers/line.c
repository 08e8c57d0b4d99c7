// The floor: two processes hand cache lines to and fro, nothing else. A line
// holds a sequence number and 8 bytes of payload, the least that a message of
// that size needs. Half a round trip is what the hardware charges for getting
// it from one core to the other and noticing it. Two forms:
//
//     each way   the message in a line of its direction, the answer in another:
//                what any message queue does
//     one line   the answer overwrites the message: no queue can do that, but it
//                saves fetching a second line for writing
//
//     line [-t seconds] [-b batch] [-c cpu,cpu]
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peer.h"

struct line {
    _Alignas(128) _Atomic uint64_t seq; // alone in its line, and in the pair that the prefetcher takes
    uint64_t payload;
};

// What both processes map. end is read rarely, and by nobody who is in a hurry.
struct shared {
    struct line there, back, end;
};

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint64_t wait_for(struct line *l, uint64_t seq) {
    while (atomic_load_explicit(&l->seq, memory_order_acquire) != seq) relax();
    return l->payload;
}

static inline void hand_over(struct line *l, uint64_t seq, uint64_t payload) {
    l->payload = payload;
    atomic_store_explicit(&l->seq, seq, memory_order_release);
}

// The first two CPUs of this process.
static void two_cpus(int cpu[2]) {
#ifdef __linux__
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set)) cpu[n++] = i;
    if (n < 2) fprintf(stderr, "line: one CPU only: this measures the scheduler\n");
#else
    (void)cpu;
#endif
}

static void bind_to(int cpu) {
#ifdef __linux__
    cpu_set_t set;
    if (cpu < 0) return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) perror("line: sched_setaffinity");
#else
    (void)cpu;
#endif
}

static void echo(struct line *in, struct line *out, _Atomic uint64_t *end, pid_t parent) {
    for (uint64_t i = 1;; i += 2) {
        uint64_t spins = 0;
        while (atomic_load_explicit(&in->seq, memory_order_acquire) != i) {
            relax();
            // A parent that was killed must not leave this process spinning.
            if (++spins % (1 << 20) == 0 && (atomic_load(end) || getppid() != parent)) _exit(0);
        }
        hand_over(out, i + 1, in->payload);
    }
}

static void measure(const char *op, int lines, double seconds, long batch, const int cpu[2]) {
    struct shared *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) fail("mmap", strerror(errno));
    struct line *out = &m->there, *in = lines == 1 ? out : &m->back;
    pid_t parent = getpid(), child = fork();
    if (child < 0) fail("fork", strerror(errno));
    if (child == 0) {
        bind_to(cpu[1]);
        echo(out, in, &m->end.seq, parent);
    }

    bind_to(cpu[0]);
    uint64_t seq = 0;
    struct warming w = start_warming();
    double t0;
    do {
        t0 = now_ns();
        for (long i = 0; i < w.n; i++) {
            hand_over(out, seq + 1, seq);
            if (wait_for(in, seq + 2) != seq) fail("wrong payload", "line");
            seq += 2;
        }
    } while (go_on_warming(&w, now_ns() - t0));
    struct plan p = make_plan(w.best, seconds, batch);
    double *samples = must_alloc((size_t)p.batches * sizeof *samples);
    for (long b = 0; b < p.batches; b++) {
        t0 = now_ns();
        for (long i = 0; i < p.batch; i++) {
            hand_over(out, seq + 1, seq);
            wait_for(in, seq + 2);
            seq += 2;
        }
        samples[b] = (now_ns() - t0) / (double)p.batch / 2;
    }
    atomic_store(&m->end.seq, 1);
    waitpid(child, NULL, 0);
    print_result((struct result){.pattern = "lat", .layer = "memory", .provider = "shm", .peer = "c-line", .op = op,
                                 .unit = "ns", .version = "", .bytes = 8, .batch = p.batch, .samples = samples, .count = p.batches});
    free(samples);
    munmap(m, sizeof *m);
}

int main(int argc, char **argv) {
    double seconds = 0.2;
    long batch = 0;
    int cpu[2] = {-1, -1}, c;
    two_cpus(cpu);
    while ((c = getopt(argc, argv, "t:b:c:")) != -1) switch (c) {
        case 't': seconds = parse_seconds(optarg); break;
        case 'b': batch = parse_only_number(optarg, 1, 1 << 20); break;
        case 'c':
            if (sscanf(optarg, "%d,%d", &cpu[0], &cpu[1]) != 2) fail("not two CPUs", optarg);
            break;
        default: return 2;
        }
    measure("each way", 2, seconds, batch, cpu);
    measure("one line", 1, seconds, batch, cpu);
    return 0;
}
