// Chunks a second from one supplier to workers that ask for them, with libzmq: a ROUTER
// socket at the supplier, a DEALER at each worker, over ipc. A worker sends an empty
// request and receives a chunk, keeping as many requests outstanding as its window is.
// The chunk is not copied by the supplier (zmq_msg_init_data). The workers are processes
// of their own, which this one makes.
//
//     zmq_fanout [-s sizes] [-t seconds] [-b batch] [-w window] [-r ranks]
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "peer.h"

static unsigned char *sbuf;
static long bytes;
static void *router;
static char address[64];

static void must(int ok, const char *what) {
    if (!ok) fail(what, zmq_strerror(zmq_errno()));
}

static unsigned char pattern_byte(long i) { return (unsigned char)(i * 131 + i / 251 + 1); }

static void keep(void *data, void *hint) {
    (void)data;
    (void)hint;
}

// Receives a request and answers it by n bytes.
static void answer(long n) {
    zmq_msg_t peer, request, chunk;
    zmq_msg_init(&peer);
    zmq_msg_init(&request);
    must(zmq_msg_recv(&peer, router, 0) >= 0, "receive");
    must(zmq_msg_recv(&request, router, 0) == 0, "request");
    must(zmq_msg_send(&peer, router, ZMQ_SNDMORE) >= 0, "send");
    if (n >= 1024)
        zmq_msg_init_data(&chunk, sbuf, (size_t)n, keep, NULL);
    else {
        zmq_msg_init_size(&chunk, (size_t)n);
        memcpy(zmq_msg_data(&chunk), sbuf, (size_t)n);
    }
    must(zmq_msg_send(&chunk, router, 0) >= 0, "send");
    zmq_msg_close(&request);
}

static void supply(long n) {
    for (long i = 0; i < n; i++) answer(bytes);
}

static void work(long window) {
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    must(zmq_connect(dealer, address) == 0, "connect");
    for (long i = 0; i < window; i++) must(zmq_send(dealer, NULL, 0, 0) == 0, "send");
    long ends = 0;
    for (long n = 0; ends < window; n++) {
        zmq_msg_t chunk;
        zmq_msg_init(&chunk);
        must(zmq_msg_recv(&chunk, dealer, 0) >= 0, "receive");
        long got = (long)zmq_msg_size(&chunk);
        const unsigned char *b = zmq_msg_data(&chunk);
        if (got == 0)
            ends++;
        else {
            if (got != bytes) fail("a chunk has another length", "worker");
            for (long i = 0; n < window && i < got; i++)
                if (b[i] != pattern_byte(i)) fail("a byte is wrong", "worker");
            must(zmq_send(dealer, NULL, 0, 0) == 0, "send");
        }
        zmq_msg_close(&chunk);
    }
    zmq_close(dealer);
    zmq_ctx_term(context);
    exit(0);
}

// Workers of one size, which end with it.
static void start_workers(long ranks, long window) {
    pid_t parent = getpid();
    for (long r = 1; r < ranks; r++) {
        pid_t pid = fork();
        if (pid < 0) fail("fork", strerror(errno));
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) exit(1);
            work(window);
        }
    }
}

static void end_workers(long ranks, long window) {
    for (long i = 0; i < (ranks - 1) * window; i++) answer(0);
    for (long r = 1; r < ranks; r++) {
        int status;
        if (wait(&status) < 0 || status != 0) fail("a worker has failed", "wait");
    }
}

int main(int argc, char **argv) {
    long sizes[MAX_SIZES], window = 1, ranks = 3, batch = 0;
    int nsizes = parse_sizes("64", sizes), c;
    double seconds = 0.2;
    while ((c = getopt(argc, argv, "s:t:b:w:r:")) != -1) switch (c) {
        case 's': nsizes = parse_sizes(optarg, sizes); break;
        case 't': seconds = parse_seconds(optarg); break;
        case 'b': batch = parse_only_number(optarg, 1, 1 << 20); break;
        case 'w': window = parse_only_number(optarg, 1, 1024); break;
        case 'r': ranks = parse_only_number(optarg, 2, 256); break;
        default: return 2;
        }
    const char *tmp = getenv("TMPDIR");
    snprintf(address, sizeof address, "ipc://%s/sluice-zmq-%d", tmp && strlen(tmp) < 30 ? tmp : "/tmp", (int)getpid());
    long longest = 1;
    for (int k = 0; k < nsizes; k++)
        if (sizes[k] > longest) longest = sizes[k];
    sbuf = must_alloc((size_t)longest);
    for (long i = 0; i < longest; i++) sbuf[i] = pattern_byte(i);
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    char version[32];
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    snprintf(version, sizeof version, "libzmq %d.%d.%d", major, minor, patch);
    for (int k = 0; k < nsizes; k++) {
        bytes = sizes[k];
        start_workers(ranks, window);
        void *context = zmq_ctx_new(); // after the forks: it has threads
        router = zmq_socket(context, ZMQ_ROUTER);
        // Without it a chunk that cannot be sent is dropped, and its worker waits for ever.
        int mandatory = 1;
        must(zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory) == 0, "mandatory");
        must(zmq_bind(router, address) == 0, "bind");
        struct fanout_warming w = {.n = 1};
        double t0;
        do {
            t0 = now_ns();
            supply(w.n);
        } while (go_on_fanout(&w, now_ns() - t0));
        long per = batch ? batch : fanout_batch(w.each, (ranks - 1) * window), b = 0;
        double begin = now_ns();
        do {
            t0 = now_ns();
            supply(per);
            samples[b++] = (double)per / (now_ns() - t0) * 1e9;
        } while (!fanout_enough(b, now_ns() - begin, seconds));
        end_workers(ranks, window);
        zmq_close(router);
        zmq_ctx_term(context);
        print_result((struct result){.pattern = "fanout", .suite = "fanout", .layer = "zmq", .provider = "shm", .peer = "libzmq",
                                     .op = "request/chunk", .unit = "chunks/s", .version = version, .ranks = ranks,
                                     .bytes = bytes, .batch = per, .window = window, .samples = samples, .count = b});
    }
    return 0;
}
