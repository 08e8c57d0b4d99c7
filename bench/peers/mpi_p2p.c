// Messages of MPI from rank to rank: latency, bandwidth and rate between two, and a ring
// of more. Persistent requests, initialised once and started again and again; with -n
// each message is a request of its own: MPI_Send and MPI_Recv to and fro, windows of
// MPI_Isend and MPI_Irecv, as bench impi does. The clock is read around batches.
//
//     mpi_p2p [-d lat|bw|bibw|rate|ring] [-s sizes] [-t seconds] [-b batch] [-w window] [-n | -m] [-p provider]
//
// Latency is half a round trip, of a ring a hop. Windows are those of the OSU benchmarks:
// started at once, waited for, and acknowledged by the receiver when it has all of them, so
// that the last byte counts. At most 64 MiB are outstanding. All messages of a window use
// one buffer on either side; with -m each has memory of its own, as bench channel does: a
// request that is active owns what it receives into. MB/s is 10^6 bytes a second, of both
// directions together with bibw.
#include "mpi_common.h"

enum { GUARD = 64, LINE = 64 };

static MPI_Request sreq[MAX_WINDOW], rreq[MAX_WINDOW], ack_req;
static unsigned char *sbuf, *rbuf;
static size_t stride; // of the messages of a window; 0: they share one buffer
static int bytes, left, right, window, is_persistent;
static char ack;

// The message goes out before the next receive is started, which is still well before the
// answer can arrive: nothing that can be done later is in the way.
static void pass_persistent(long n) {
    if (rank == 0)
        for (long i = 0; i < n; i++) {
            MPI_Start(&sreq[0]);
            MPI_Start(&rreq[0]);
            MPI_Wait(&sreq[0], MPI_STATUS_IGNORE);
            MPI_Wait(&rreq[0], MPI_STATUS_IGNORE);
        }
    else {
        MPI_Start(&rreq[0]);
        for (long i = 0; i < n; i++) {
            MPI_Wait(&rreq[0], MPI_STATUS_IGNORE);
            MPI_Start(&sreq[0]);
            if (i + 1 < n) MPI_Start(&rreq[0]);
            MPI_Wait(&sreq[0], MPI_STATUS_IGNORE);
        }
    }
}

static void pass_blocking(long n) {
    for (long i = 0; i < n; i++) {
        if (rank == 0) MPI_Send(sbuf, bytes, MPI_BYTE, right, TAG, MPI_COMM_WORLD);
        MPI_Recv(rbuf, bytes, MPI_BYTE, left, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank != 0) MPI_Send(sbuf, bytes, MPI_BYTE, right, TAG, MPI_COMM_WORLD);
    }
}

static void start_receives(void) {
    if (is_persistent)
        MPI_Startall(window, rreq);
    else
        for (int i = 0; i < window; i++) MPI_Irecv(rbuf + (size_t)i * stride, bytes, MPI_BYTE, left, TAG, MPI_COMM_WORLD, &rreq[i]);
}

static void start_sends(void) {
    if (is_persistent)
        MPI_Startall(window, sreq);
    else
        for (int i = 0; i < window; i++) MPI_Isend(sbuf + (size_t)i * stride, bytes, MPI_BYTE, right, TAG, MPI_COMM_WORLD, &sreq[i]);
}

static void acknowledge(void) {
    if (is_persistent) {
        MPI_Start(&ack_req);
        MPI_Wait(&ack_req, MPI_STATUS_IGNORE);
    } else if (rank == 0)
        MPI_Recv(&ack, 1, MPI_BYTE, right, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&ack, 1, MPI_BYTE, left, CONTROL_TAG, MPI_COMM_WORLD);
}

static void one_way(long windows) {
    for (long w = 0; w < windows; w++) {
        if (rank == 0) {
            start_sends();
            MPI_Waitall(window, sreq, MPI_STATUSES_IGNORE);
        } else {
            start_receives();
            MPI_Waitall(window, rreq, MPI_STATUSES_IGNORE);
        }
        acknowledge();
    }
}

static void both_ways(long windows) {
    for (long w = 0; w < windows; w++) {
        start_receives();
        start_sends();
        MPI_Waitall(window, sreq, MPI_STATUSES_IGNORE);
        MPI_Waitall(window, rreq, MPI_STATUSES_IGNORE);
        acknowledge();
    }
}

// The messages of a window differ where each has memory of its own.
static void check_received(void) {
    for (int i = 0; i < (stride ? window : 1); i++) check(rbuf + (size_t)i * stride, bytes, left + i);
}

static void measure(const struct options *o, long n, double *samples) {
    int both = !strcmp(o->pattern, "bibw"), rate = !strcmp(o->pattern, "rate"), ring = !strcmp(o->pattern, "ring");
    int passes = ring || !strcmp(o->pattern, "lat"), receives = passes || both || rank == 1;
    void (*run)(long) = !passes ? (both ? both_ways : one_way) : o->persistent ? pass_persistent : pass_blocking;
    bytes = (int)n;
    long fit = bytes > 0 ? (64L << 20) / bytes : o->window;
    window = passes ? 1 : (int)(fit < 1 ? 1 : fit < o->window ? fit : o->window);
    size_t span = ((size_t)bytes + GUARD + LINE - 1) / LINE * LINE;
    stride = o->own ? span : 0;
    size_t all = o->own ? (size_t)window * span : span;
    sbuf = must_alloc(all);
    rbuf = must_alloc(all);
    for (int i = 0; i < window; i++) {
        if (i == 0 || stride) fill(sbuf + (size_t)i * stride, bytes, rank + i);
        if (!is_persistent) continue;
        MPI_Send_init(sbuf + (size_t)i * stride, bytes, MPI_BYTE, right, TAG, MPI_COMM_WORLD, &sreq[i]);
        MPI_Recv_init(rbuf + (size_t)i * stride, bytes, MPI_BYTE, left, TAG, MPI_COMM_WORLD, &rreq[i]);
    }
    run(1);
    if (receives) check_received();
    struct plan p = plan_of(run, o);
    spoil(rbuf, all);
    begin();
    double in_window = (double)window * (both ? 2 : 1) * (rate ? 1e9 : (double)bytes * 1e3);
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        double each = (now_ns() - t0) / (double)p.batch;
        samples[b] = passes ? each / size : in_window / each;
    }
    if (receives) check_received();
    if (is_persistent)
        for (int i = 0; i < window; i++) {
            MPI_Request_free(&sreq[i]);
            MPI_Request_free(&rreq[i]);
        }
    free(sbuf);
    free(rbuf);
    if (rank == 0)
        print_result((struct result){.pattern = o->pattern, .suite = !o->persistent ? "impi" : o->own ? "channel" : NULL, .layer = "mpi",
                                     .provider = o->provider, .peer = PEER,
                                     .op = o->persistent ? "persistent" : passes ? "send/recv" : "isend/irecv",
                                     .ranks = ring ? size : 0, .unit = passes ? "ns" : rate ? "msg/s" : "MB/s", .version = mpi_version(),
                                     .bytes = bytes, .batch = p.batch, .window = passes ? 0 : window, .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 0);
    struct options o = parse_options(argc, argv, "lat");
    static const char *const patterns[] = {"lat", "bw", "bibw", "rate", "ring"};
    int known = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) known |= !strcmp(o.pattern, patterns[i]);
    if (!known || (size != 2 && strcmp(o.pattern, "ring"))) fail("no pattern, or not of so many ranks", o.pattern);
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    is_persistent = o.persistent;
    left = (rank + size - 1) % size;
    right = (rank + 1) % size;
    if (rank == 0)
        MPI_Recv_init(&ack, 1, MPI_BYTE, right, CONTROL_TAG, MPI_COMM_WORLD, &ack_req);
    else
        MPI_Send_init(&ack, 1, MPI_BYTE, left, CONTROL_TAG, MPI_COMM_WORLD, &ack_req);
    for (int k = 0; k < o.nsizes; k++) measure(&o, o.sizes[k], samples);
    MPI_Request_free(&ack_req);
    end_mpi();
    return 0;
}
