// A message round a ring of ranks, each of which receives it from the left and
// sends to the right, by persistent requests: the time of one hop. Meant for more
// ranks than CPUs as well.
//
//     mpi_ring [-s sizes] [-t seconds] [-b batch] [-p provider]
#include "mpi_common.h"

static MPI_Request sreq, rreq;

static void run(long n) {
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

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 0);
    struct options o = parse_options(argc, argv, "ring");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int k = 0; k < o.nsizes; k++) {
        int bytes = (int)o.sizes[k];
        unsigned char *sbuf = must_alloc((size_t)bytes + 1), *rbuf = must_alloc((size_t)bytes + 1);
        fill(sbuf, bytes, rank);
        MPI_Send_init(sbuf, bytes, MPI_BYTE, right, TAG, MPI_COMM_WORLD, &sreq);
        MPI_Recv_init(rbuf, bytes, MPI_BYTE, left, TAG, MPI_COMM_WORLD, &rreq);
        run(1);
        check(rbuf, bytes, left);
        struct plan p = plan_of(run, &o);
        spoil(rbuf, (size_t)bytes);
        begin();
        for (long b = 0; b < p.batches; b++) {
            double t0 = now_ns();
            run(p.batch);
            samples[b] = (now_ns() - t0) / (double)p.batch / size;
        }
        check(rbuf, bytes, left);
        MPI_Request_free(&sreq);
        MPI_Request_free(&rreq);
        free(sbuf);
        free(rbuf);
        if (rank == 0)
            print_result((struct result){.pattern = "ring", .layer = "mpi", .provider = o.provider, .peer = PEER, .op = "persistent",
                                         .ranks = size, .unit = "ns", .version = mpi_version(), .bytes = bytes, .batch = p.batch,
                                         .samples = samples, .count = p.batches});
    }
    end_mpi();
    return 0;
}
