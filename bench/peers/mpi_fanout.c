// Chunks a second from one supplier to workers that ask for them, with MPI: a worker
// sends an empty request and receives a chunk, as many master–worker programs do. With a
// window of more than 1 a worker keeps so many requests outstanding, and their receives
// posted; the supplier then sends by MPI_Isend. Rank 0 supplies and measures: batches of
// chunks, that many a second.
//
//     mpi_fanout [-s sizes] [-t seconds] [-b batch] [-w window] [-p provider]
#include "mpi_common.h"

enum { TAG_END = 0, TAG_DATA = 1, TAG_REQUEST = 2, SENDS = 64 };

static unsigned char *sbuf;
static int bytes, window;
static MPI_Request sends[SENDS];
static long sent;

static void supply(long n) {
    for (long i = 0; i < n; i++) {
        MPI_Status st;
        MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, TAG_REQUEST, MPI_COMM_WORLD, &st);
        if (window == 1) {
            MPI_Send(sbuf, bytes, MPI_BYTE, st.MPI_SOURCE, TAG_DATA, MPI_COMM_WORLD);
            continue;
        }
        MPI_Request *r = &sends[sent++ % SENDS];
        MPI_Wait(r, MPI_STATUS_IGNORE);
        MPI_Isend(sbuf, bytes, MPI_BYTE, st.MPI_SOURCE, TAG_DATA, MPI_COMM_WORLD, r);
    }
}

// Each request is answered by an end, so that nothing is left for the next size.
static void end_workers(void) {
    for (int i = 0; i < (size - 1) * window; i++) {
        MPI_Status st;
        MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, TAG_REQUEST, MPI_COMM_WORLD, &st);
        MPI_Send(NULL, 0, MPI_BYTE, st.MPI_SOURCE, TAG_END, MPI_COMM_WORLD);
    }
    MPI_Waitall(SENDS, sends, MPI_STATUSES_IGNORE);
}

static void work(void) {
    unsigned char *buf[MAX_WINDOW];
    MPI_Request recvs[MAX_WINDOW];
    MPI_Status st;
    for (int i = 0; i < window; i++) {
        buf[i] = must_alloc((size_t)bytes + 1);
        spoil(buf[i], (size_t)bytes);
        if (window > 1) MPI_Irecv(buf[i], bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &recvs[i]);
        MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_REQUEST, MPI_COMM_WORLD);
    }
    int ends = 0;
    for (long n = 0; ends < window; n++) {
        int k = (int)(n % window);
        if (window > 1)
            MPI_Wait(&recvs[k], &st);
        else
            MPI_Recv(buf[k], bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
        if (st.MPI_TAG == TAG_END) {
            ends++;
            continue;
        }
        if (n < window) check(buf[k], bytes, 0);
        if (window > 1) MPI_Irecv(buf[k], bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &recvs[k]);
        MPI_Send(NULL, 0, MPI_BYTE, 0, TAG_REQUEST, MPI_COMM_WORLD);
    }
    for (int i = 0; i < window; i++) free(buf[i]);
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 0);
    struct options o = parse_options(argc, argv, "fanout");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    window = (int)o.window;
    for (int k = 0; k < SENDS; k++) sends[k] = MPI_REQUEST_NULL;
    for (int k = 0; k < o.nsizes; k++) {
        bytes = (int)o.sizes[k];
        begin();
        if (rank != 0) {
            work();
            continue;
        }
        sbuf = must_alloc((size_t)bytes + 1);
        fill(sbuf, bytes, 0);
        struct fanout_warming w = {.n = 1};
        double t0;
        do {
            t0 = now_ns();
            supply(w.n);
        } while (go_on_fanout(&w, now_ns() - t0));
        long per = o.batch ? o.batch : fanout_batch(w.each, (long)(size - 1) * window), b = 0;
        double start = now_ns();
        do {
            t0 = now_ns();
            supply(per);
            samples[b++] = (double)per / (now_ns() - t0) * 1e9;
        } while (!fanout_enough(b, now_ns() - start, o.seconds));
        end_workers();
        free(sbuf);
        print_result((struct result){.pattern = "fanout", .suite = "fanout", .layer = "mpi", .provider = o.provider, .peer = PEER,
                                     .op = "request/chunk", .unit = "chunks/s", .version = mpi_version(), .ranks = size,
                                     .bytes = bytes, .batch = per, .window = window, .samples = samples, .count = b});
    }
    end_mpi();
    return 0;
}
