// Channels of MPI between two ranks: persistent requests that are initialised once
// and started again and again. First latency (half a round trip) of some sizes,
// then bandwidth of others, by windows of requests that are started at once,
// waited for, and answered by the receiver when it has all of them. Unlike in
// mpi_bw each message of a window has memory of its own: a request that is active
// owns what it receives into.
//
//     mpi_channel [-l sizes] [-s sizes] [-t seconds] [-b batch] [-w window] [-p provider]
//
// -l are the sizes of latency, -s those of bandwidth. A window of large messages
// is smaller: 64 MiB at most are outstanding.
#include "mpi_common.h"

enum { GUARD = 64, LINE = 64 };

static MPI_Request sreq[MAX_WINDOW], rreq[MAX_WINDOW], ack_req;
static int window, other;

static void pingpong(long n) {
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

static void windows(long n) {
    for (long w = 0; w < n; w++)
        if (rank == 0) {
            MPI_Startall(window, sreq);
            MPI_Waitall(window, sreq, MPI_STATUSES_IGNORE);
            MPI_Start(&ack_req);
            MPI_Wait(&ack_req, MPI_STATUS_IGNORE);
        } else {
            MPI_Startall(window, rreq);
            MPI_Waitall(window, rreq, MPI_STATUSES_IGNORE);
            MPI_Start(&ack_req);
            MPI_Wait(&ack_req, MPI_STATUS_IGNORE);
        }
}

static void check_window(const unsigned char *rbuf, size_t stride, long bytes, int is_lat) {
    if (is_lat || rank == 1)
        for (int i = 0; i < window; i++) check(rbuf + (size_t)i * stride, bytes, other + i);
}

static void measure(const struct options *o, const char *pattern, long bytes, double *samples) {
    int is_lat = !strcmp(pattern, "lat");
    void (*run)(long) = is_lat ? pingpong : windows;
    size_t stride = ((size_t)bytes + GUARD + LINE - 1) / LINE * LINE;
    long fit = bytes > 0 ? (64L << 20) / bytes : o->window;
    window = is_lat ? 1 : (int)(fit < 1 ? 1 : fit < o->window ? fit : o->window);
    unsigned char *sbuf = must_alloc((size_t)window * stride), *rbuf = must_alloc((size_t)window * stride);
    for (int i = 0; i < window; i++) {
        fill(sbuf + (size_t)i * stride, bytes, rank + i);
        MPI_Send_init(sbuf + (size_t)i * stride, (int)bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sreq[i]);
        MPI_Recv_init(rbuf + (size_t)i * stride, (int)bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &rreq[i]);
    }
    run(1);
    check_window(rbuf, stride, bytes, is_lat);
    struct plan p = plan_of(run, o);
    spoil(rbuf, (size_t)window * stride);
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        double each = (now_ns() - t0) / (double)p.batch;
        samples[b] = is_lat ? each / 2 : (double)window * (double)bytes * 1e3 / each;
    }
    check_window(rbuf, stride, bytes, is_lat);
    for (int i = 0; i < window; i++) {
        MPI_Request_free(&sreq[i]);
        MPI_Request_free(&rreq[i]);
    }
    free(sbuf);
    free(rbuf);
    if (rank == 0)
        print_result((struct result){.pattern = pattern, .suite = "channel", .layer = "mpi", .provider = o->provider, .peer = PEER,
                                     .op = "persistent", .unit = is_lat ? "ns" : "MB/s", .version = mpi_version(), .bytes = bytes,
                                     .batch = p.batch, .window = is_lat ? 0 : window, .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    other = 1 - rank;
    char ack = 0;
    if (rank == 0)
        MPI_Recv_init(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, &ack_req);
    else
        MPI_Send_init(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, &ack_req);
    for (int k = 0; k < o.nlat; k++) measure(&o, "lat", o.lat[k], samples);
    for (int k = 0; k < o.nsizes; k++) measure(&o, "bw", o.sizes[k], samples);
    MPI_Request_free(&ack_req);
    end_mpi();
    return 0;
}
