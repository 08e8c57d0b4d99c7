// Messages of MPI that have to be matched, as bench impi has them.
//
//     mpi_match [-c patterns] [-s sizes] [-w window] [-t seconds] [-b batch] [-p provider]
//
// -c lists unexpected and posted: a window of messages from rank 0 to rank 1, each with a tag
// and memory of its own. Unexpected: rank 0 starts all sends, and then sends a note, which rank
// 1 waits for before it receives them, in order. Posted: rank 1 posts all receives, and then
// sends a note, which rank 0 waits for before it sends, the last tag first. Either ends with a
// note of rank 1; the figure is the time of all that, of one message. And anysource: half a
// round trip by MPI_Send, and MPI_Recv from MPI_ANY_SOURCE.
#include "mpi_figures.h"

enum { FIRST_TAG = 100, GUARD = 64 };

static unsigned char *buffer;
static MPI_Request requests[MAX_WINDOW];
static int bytes, other, window, posted;
static size_t stride;

static void tell(void) { MPI_Send(NULL, 0, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD); }
static void hear(void) { MPI_Recv(NULL, 0, MPI_BYTE, other, CONTROL_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }

static void send_all(void) {
    if (posted) hear();
    for (int i = 0; i < window; i++) {
        int k = posted ? window - 1 - i : i;
        MPI_Isend(buffer + (size_t)k * stride, bytes, MPI_BYTE, other, FIRST_TAG + k, MPI_COMM_WORLD, &requests[i]);
    }
    if (!posted) tell();
    MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    hear();
}

static void receive_all(void) {
    if (!posted) hear();
    for (int i = 0; i < window; i++) MPI_Irecv(buffer + (size_t)i * stride, bytes, MPI_BYTE, other, FIRST_TAG + i, MPI_COMM_WORLD, &requests[i]);
    if (posted) tell();
    MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    tell();
}

static void run_window(long n) {
    for (long i = 0; i < n; i++)
        if (rank == 0)
            send_all();
        else
            receive_all();
}

// The second message of the buffer is received into.
static void run_any(long n) {
    for (long i = 0; i < n; i++) {
        if (rank == 0) MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
        MPI_Recv(buffer + stride, bytes, MPI_BYTE, MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank != 0) MPI_Send(buffer, bytes, MPI_BYTE, other, TAG, MPI_COMM_WORLD);
    }
}

static void check_received(int any) {
    if (any)
        check(buffer + stride, bytes, other);
    else if (rank == 1)
        for (int i = 0; i < window; i++) check(buffer + (size_t)i * stride, bytes, other + i);
}

static void prepare(int any) {
    spoil(buffer, (size_t)window * stride);
    if (any)
        fill(buffer, bytes, rank);
    else if (rank == 0)
        for (int i = 0; i < window; i++) fill(buffer + (size_t)i * stride, bytes, rank + i);
}

static void measure(const struct options *o, const char *pattern, double *samples) {
    int any = !strcmp(pattern, "anysource");
    void (*run)(long) = any ? run_any : run_window;
    window = any ? 2 : (int)o->window;
    stride = ((size_t)bytes + GUARD - 1) / GUARD * GUARD + GUARD;
    buffer = must_alloc((size_t)window * stride);
    prepare(any);
    run(1);
    check_received(any);
    struct plan p = plan_of(run, o);
    prepare(any);
    begin();
    for (long b = 0; b < p.batches; b++) {
        double t0 = now_ns();
        run(p.batch);
        samples[b] = (now_ns() - t0) / (double)p.batch / (double)window; // of any source both ways
    }
    check_received(any);
    free(buffer);
    if (rank == 0)
        print_result((struct result){.pattern = pattern, .suite = "impi", .layer = "mpi", .provider = o->provider, .peer = PEER, .op = any ? "send/recv" : "isend/irecv",
                                     .unit = "ns", .version = mpi_version(), .bytes = bytes, .batch = p.batch, .window = any ? 0 : window, .samples = samples, .count = p.batches});
}

int main(int argc, char **argv) {
    start_mpi(&argc, &argv, 2, 2);
    struct options o = parse_options(argc, argv, "match");
    double *samples = must_alloc(MAX_SAMPLES * sizeof *samples);
    other = 1 - rank;
    const char *list = o.kinds;
    char pattern[32];
    while (next_word(&list, pattern)) {
        posted = !strcmp(pattern, "posted");
        if (!posted && strcmp(pattern, "unexpected") && strcmp(pattern, "anysource")) fail("neither unexpected, posted nor anysource", pattern);
        for (int k = 0; k < o.nsizes; k++) {
            bytes = (int)o.sizes[k];
            measure(&o, pattern, samples);
        }
    }
    end_mpi();
    return 0;
}
