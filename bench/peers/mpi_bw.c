// Bandwidth and message rate of MPI between two ranks, by windows of persistent
// requests (with -n: MPI_Isend and MPI_Irecv, which is what bench impi does), as the
// OSU benchmarks do: a window is started at once, waited for, and answered by the
// receiver when it has all of it, so that the last byte counts. All messages of a
// window use one buffer on either side.
//
//     mpi_bw [-d bw|bibw|rate] [-s sizes] [-t seconds] [-w window] [-n] [-p provider]
//
// A window of large messages is smaller: 64 MiB at most are outstanding.
// MB/s is 10^6 bytes a second; of both directions together with bibw.
#include "mpi_common.h"

static MPI_Request sreq[MAX_WINDOW], rreq[MAX_WINDOW];
static unsigned char *sbuf, *rbuf;
static int bytes, other, window, is_persistent;

static void start_receives(void) {
    if (is_persistent)
        MPI_Startall(window, rreq);
    else
        for (int i = 0; i < window; i++) MPI_Irecv(rbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &rreq[i]);
}

static void start_sends(void) {
    if (is_persistent)
        MPI_Startall(window, sreq);
    else
        for (int i = 0; i < window; i++) MPI_Isend(sbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sreq[i]);
}

static void uni(long windows) {
    char ack = 0;
    for (long w = 0; w < windows; w++)
        if (rank == 0) {
            start_sends();
            MPI_Waitall(window, sreq, MPI_STATUSES_IGNORE);
            MPI_Recv(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            start_receives();
            MPI_Waitall(window, rreq, MPI_STATUSES_IGNORE);
            MPI_Send(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD);
        }
}

static void bi(long windows) {
    char ack = 0;
    for (long w = 0; w < windows; w++) {
        start_receives();
        start_sends();
        MPI_Waitall(window, sreq, MPI_STATUSES_IGNORE);
        MPI_Waitall(window, rreq, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&ack, 1, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "bw");
    int both = !strcmp(o.pattern, "bibw"), rate = !strcmp(o.pattern, "rate");
    if (!both && !rate && strcmp(o.pattern, "bw")) fail("not bw, bibw or rate", o.pattern);
    void (*run)(long) = both ? bi : uni;
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    is_persistent = o.persistent;
    other = 1 - rank;
    for (int k = 0; k < o.nsizes; k++) {
        bytes = (int)o.sizes[k];
        long fit = bytes > 0 ? (64L << 20) / bytes : o.window;
        window = (int)(fit < 1 ? 1 : fit < o.window ? fit : o.window);
        sbuf = must_alloc((size_t)bytes + 1);
        rbuf = must_alloc((size_t)bytes + 1);
        fill(sbuf, bytes, rank);
        if (is_persistent)
            for (int i = 0; i < window; i++) {
                MPI_Send_init(sbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sreq[i]);
                MPI_Recv_init(rbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &rreq[i]);
            }
        run(1);
        if (both || rank == 1) check(rbuf, bytes, other);

        struct plan p = plan_of(run, &o);
        spoil(rbuf, (size_t)bytes);
        begin();
        double per_window = (double)window * (both ? 2 : 1) * (rate ? 1e9 : (double)bytes * 1e3);
        for (long b = 0; b < p.batches; b++) {
            double t0 = now_ns();
            run(p.batch);
            samples[b] = per_window * (double)p.batch / (now_ns() - t0);
        }
        if (both || rank == 1) check(rbuf, bytes, other);
        if (is_persistent)
            for (int i = 0; i < window; i++) {
                MPI_Request_free(&sreq[i]);
                MPI_Request_free(&rreq[i]);
            }
        free(sbuf);
        free(rbuf);
        if (rank == 0)
            print_result((struct result){.pattern = o.pattern, .suite = o.persistent ? NULL : "impi", .layer = "mpi", .provider = o.provider, .peer = PEER,
                                         .op = o.persistent ? "persistent" : "isend/irecv", .unit = rate ? "msg/s" : "MB/s",
                                         .version = mpi_version(), .bytes = bytes, .batch = p.batch, .window = window,
                                         .samples = samples, .count = p.batches});
    }
    end_mpi();
    return 0;
}
