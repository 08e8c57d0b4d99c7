// Messages each of which is a request of its own: half a round trip. By MPI_Isend, MPI_Irecv
// and MPI_Wait (isend), or declared and thrown away: MPI_Send_init, MPI_Start, MPI_Wait and
// MPI_Request_free (init). Two buffers take turns, each way.
//
//     mpi_oneshot [-c kinds] [-s sizes] [-t seconds] [-b batch] [-p provider]
//
// -c lists isend and init.
#include "mpi_figures.h"

static unsigned char *out[2], *in[2];
static int bytes, other, declared, turn;

static void message(unsigned char *b, int sends) {
    MPI_Request r;
    if (declared) {
        if (sends)
            MPI_Send_init(b, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &r);
        else
            MPI_Recv_init(b, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &r);
        MPI_Start(&r);
    } else if (sends)
        MPI_Isend(b, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &r);
    else
        MPI_Irecv(b, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    if (declared) MPI_Request_free(&r);
}

static void run(long n) {
    for (long i = 0; i < n; i++, turn ^= 1) {
        if (rank == 0) message(out[turn], 1);
        message(in[turn], 0);
        if (rank != 0) message(out[turn], 1);
    }
}

static void measure(const struct options *o, const char *op, double *samples) {
    for (int i = 0; i < 2; i++) {
        out[i] = must_alloc((size_t)bytes + 1);
        in[i] = must_alloc((size_t)bytes + 1);
        fill(out[i], bytes, rank + 2 * i);
    }
    turn = 0;
    run(2);
    for (int i = 0; i < 2; i++) check(in[i], bytes, other + 2 * i);
    struct plan p = plan_of(run, o);
    for (int i = 0; i < 2; i++) spoil(in[i], (size_t)bytes);
    turn = 0;
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        samples[b] = (now_ns() - t0) / (double)p.batch / 2;
    }
    for (int i = 0; i < 2; i++) {
        check(in[i], bytes, other + 2 * i);
        free(in[i]);
        free(out[i]);
    }
    if (rank == 0)
        print_result((struct result){.pattern = "oneshot", .layer = "mpi", .provider = o->provider, .peer = PEER, .op = op, .unit = "ns",
                                     .version = mpi_version(), .bytes = bytes, .batch = p.batch, .ranks = size, .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "oneshot");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    other = 1 - rank;
    const char *list = strcmp(o.kinds, "allreduce") ? o.kinds : "isend,init"; // there is no such kind here
    char op[32];
    while (next_word(&list, op)) {
        declared = !strcmp(op, "init");
        if (!declared && strcmp(op, "isend")) fail("neither isend nor init", op);
        for (int k = 0; k < o.nsizes; k++) {
            bytes = (int)o.sizes[k];
            measure(&o, op, samples);
        }
    }
    end_mpi();
    return 0;
}
