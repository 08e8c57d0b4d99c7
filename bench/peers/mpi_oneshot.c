// Messages each of which is a request of its own: half a round trip. By MPI_Isend, MPI_Irecv
// and MPI_Wait (isend), or declared and thrown away: MPI_Send_init, MPI_Start, MPI_Wait and
// MPI_Request_free (init); or as isend in blocks of 64 bytes with gaps of the same length, by an
// MPI_Type_vector (vector). Two buffers take turns, each way.
//
//     mpi_oneshot [-c kinds] [-s sizes] [-t seconds] [-b batch] [-p provider]
//
// -c lists isend, init and vector.
#include "mpi_figures.h"

enum { BLOCK = 64 }; // as in bench, for sizes that are multiples of it

static unsigned char *out[2], *in[2];
static int bytes, other, declared, turn;
static int count, gap; // of the elements of a message; what lies between the blocks
static MPI_Datatype type;

static void message(unsigned char *b, int sends) {
    MPI_Request r;
    if (declared) {
        if (sends)
            MPI_Send_init(b, count, type, other, TAG, MPI_COMM_WORLD, &r);
        else
            MPI_Recv_init(b, count, type, other, TAG, MPI_COMM_WORLD, &r);
        MPI_Start(&r);
    } else if (sends)
        MPI_Isend(b, count, type, other, TAG, MPI_COMM_WORLD, &r);
    else
        MPI_Irecv(b, count, type, other, TAG, MPI_COMM_WORLD, &r);
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

// Copies between the blocks of b and contiguous memory: a message has the same bytes in any layout.
static void repack(unsigned char *b, unsigned char *packed, int unpack) {
    for (int at = 0; at < bytes; at += BLOCK) {
        size_t n = bytes - at < BLOCK ? (size_t)(bytes - at) : BLOCK;
        unsigned char *block = b + at + at / BLOCK * gap;
        memcpy(unpack ? block : packed + at, unpack ? packed + at : block, n);
    }
}

static void check_in(unsigned char *packed) {
    for (int i = 0; i < 2; i++) {
        repack(in[i], packed, 0);
        check(packed, bytes, other + 2 * i);
    }
}

static void measure(const struct options *o, const char *op, double *samples) {
    int blocks = !strcmp(op, "vector") && bytes % BLOCK == 0;
    count = blocks ? 1 : bytes;
    gap = blocks ? BLOCK : 0;
    type = MPI_BYTE;
    if (blocks) {
        MPI_Type_vector(bytes / BLOCK, BLOCK, BLOCK + gap, MPI_BYTE, &type);
        MPI_Type_commit(&type);
    }
    size_t span = (size_t)(blocks ? 2 * bytes : bytes);
    unsigned char *packed = must_alloc((size_t)bytes + 1);
    for (int i = 0; i < 2; i++) {
        out[i] = must_alloc(span + 1);
        in[i] = must_alloc(span + 1);
        fill(packed, bytes, rank + 2 * i);
        repack(out[i], packed, 1);
    }
    turn = 0;
    run(2);
    check_in(packed);
    struct plan p = plan_of(run, o);
    for (int i = 0; i < 2; i++) spoil(in[i], span);
    turn = 0;
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        samples[b] = (now_ns() - t0) / (double)p.batch / 2;
    }
    check_in(packed);
    for (int i = 0; i < 2; i++) {
        free(in[i]);
        free(out[i]);
    }
    free(packed);
    if (blocks) MPI_Type_free(&type);
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
        if (!declared && strcmp(op, "isend") && strcmp(op, "vector")) fail("none of isend, init and vector", op);
        for (int k = 0; k < o.nsizes; k++) {
            bytes = (int)o.sizes[k];
            measure(&o, op, samples);
        }
    }
    end_mpi();
    return 0;
}
