// Half round trip of MPI between two ranks: persistent requests (MPI_Send_init,
// MPI_Recv_init, then Start and Wait), or with -n MPI_Send and MPI_Recv, which is what
// bench impi does. The clock is read around batches of iterations; -b 1 reads it in each.
//
//     mpi_pingpong [-s sizes] [-t seconds] [-b batch] [-n] [-p provider]
#include "mpi_common.h"

static MPI_Request sreq, rreq;
static unsigned char *sbuf, *rbuf;
static int bytes, other;

// The message goes out before the next receive is started, which is still well
// before the answer can arrive: nothing that can be done later is in the way.
static void persistent(long n) {
    if (rank == 0)
        for (long i = 0; i < n; i++) {
            MPI_Start(&sreq);
            MPI_Start(&rreq);
            MPI_Wait(&sreq, MPI_STATUS_IGNORE);
            MPI_Wait(&rreq, MPI_STATUS_IGNORE);
        }
    else {
        MPI_Start(&rreq);
        for (long i = 0; i < n; i++) {
            MPI_Wait(&rreq, MPI_STATUS_IGNORE);
            MPI_Start(&sreq);
            if (i + 1 < n) MPI_Start(&rreq);
            MPI_Wait(&sreq, MPI_STATUS_IGNORE);
        }
    }
}

static void plain(long n) {
    for (long i = 0; i < n; i++)
        if (rank == 0) {
            MPI_Send(sbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
            MPI_Recv(rbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(rbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(sbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        }
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "lat");
    void (*run)(long) = o.persistent ? persistent : plain;
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    other = 1 - rank;
    for (int k = 0; k < o.nsizes; k++) {
        bytes = (int)o.sizes[k];
        sbuf = must_alloc((size_t)bytes + 1);
        rbuf = must_alloc((size_t)bytes + 1);
        fill(sbuf, bytes, rank);
        MPI_Send_init(sbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &sreq);
        MPI_Recv_init(rbuf, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &rreq);
        run(1);
        check(rbuf, bytes, other);

        struct plan p = plan_of(run, &o);
        spoil(rbuf, (size_t)bytes);
        begin();
        for (long b = 0; b < p.batches; b++) {
            double t0 = now_ns();
            run(p.batch);
            samples[b] = (now_ns() - t0) / (double)p.batch / 2;
        }
        check(rbuf, bytes, other);
        MPI_Request_free(&sreq);
        MPI_Request_free(&rreq);
        free(sbuf);
        free(rbuf);
        if (rank == 0)
            print_result((struct result){.pattern = "lat", .suite = o.persistent ? NULL : "impi", .layer = "mpi", .provider = o.provider, .peer = PEER,
                                         .op = o.persistent ? "persistent" : "send/recv", .unit = "ns", .version = mpi_version(),
                                         .bytes = bytes, .batch = p.batch, .samples = samples, .count = p.batches});
    }
    end_mpi();
    return 0;
}
