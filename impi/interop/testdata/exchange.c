/*
 * The part of MPI processes in an IMPI job that tests what implementations have to
 * say to each other. Every process of the job does the same, whatever it is made of,
 * so what is sent and how is a function of ranks alone.
 *
 *	exchange PHASE...
 *
 * Phases come in the order given, which has to be the same for all. Each that is
 * done prints a line; an error ends the job.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PACKET 65536 /* what LAM/MPI announces as its packet length */
#define MAXLEN (1 << 20)

static int me, size;
static unsigned char buf[MAXLEN + 16];

static void fail(const char *what, long got, long want)
{
	fprintf(stderr, "rank %d: %s: %ld, not %ld\n", me, what, got, want);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

static void equal(const char *what, long got, long want)
{
	if (got != want)
		fail(what, got, want);
}

/* byte is that at i of a message from a rank under a tag. */
static unsigned char byte(int rank, int tag, long i)
{
	return (unsigned char)(rank * 101 + tag * 37 + i * 7 + (i >> 8) * 13);
}

static void fill(int tag, long len)
{
	long i;

	for (i = 0; i < len; i++)
		buf[i] = byte(me, tag, i);
}

static void check(const char *what, int rank, int tag, long len)
{
	long i;

	for (i = 0; i < len; i++)
		if (buf[i] != byte(rank, tag, i)) {
			fprintf(stderr, "rank %d: %s from %d, tag %d, %ld bytes: byte %ld\n", me, what, rank, tag, len, i);
			fail(what, buf[i], byte(rank, tag, i));
		}
}

static void send(int to, int tag, int len)
{
	fill(tag, len);
	MPI_Send(buf, len, MPI_BYTE, to, tag, MPI_COMM_WORLD);
}

/* take checks all that the status says as well. */
static void take(const char *what, int from, int tag, int len)
{
	MPI_Status st;
	int n;

	memset(buf, 0xee, len + 1);
	MPI_Recv(buf, len + 1, MPI_BYTE, from, tag, MPI_COMM_WORLD, &st);
	MPI_Get_count(&st, MPI_BYTE, &n);
	equal(what, n, len);
	equal("source", st.MPI_SOURCE, from);
	equal("tag", st.MPI_TAG, tag);
	check(what, from, tag, len);
	equal("byte behind the message", buf[len], 0xee);
}

/* pairs calls f for all pairs that this process is in, lower rank first. */
static void pairs(void (*f)(int a, int b))
{
	int a, b;

	for (a = 0; a < size; a++)
		for (b = a + 1; b < size; b++)
			if (a == me || b == me)
				f(a, b);
}

/* both calls one of two functions, then the other, so that data goes both ways. */
static void both(int a, int b, void (*out)(int), void (*in)(int))
{
	if (me == a) {
		out(b);
		in(b);
	} else {
		in(a);
		out(a);
	}
}

static const int shorts[] = {0, 1, 7, 100, 1024, PACKET - 1, PACKET};
static const int longs[] = {PACKET + 1, 2 * PACKET, 2 * PACKET + 1, 3 * PACKET + 17, MAXLEN};
#define LEN(a) (int)(sizeof(a) / sizeof(a[0]))

static void short_out(int to)
{
	int i;

	for (i = 0; i < LEN(shorts); i++)
		send(to, 10 + i, shorts[i]);
}

static void short_in(int from)
{
	int i;

	for (i = 0; i < LEN(shorts); i++)
		take("short message", from, 10 + i, shorts[i]);
}

static void short_pair(int a, int b) { both(a, b, short_out, short_in); }

static void long_out(int to)
{
	int i;

	for (i = 0; i < LEN(longs); i++)
		send(to, 20 + i, longs[i]);
}

static void long_in(int from)
{
	int i;

	for (i = 0; i < LEN(longs); i++)
		take("long message", from, 20 + i, longs[i]);
}

static void long_pair(int a, int b) { both(a, b, long_out, long_in); }

/* Numbers of C, which LAM/MPI sends as they lie in memory. */
static void number_out(int to)
{
	int i[3] = {1, -2, 0x01020304};
	double d[2] = {1.5, -0.1};

	MPI_Send(i, 3, MPI_INT, to, 30, MPI_COMM_WORLD);
	MPI_Send(d, 2, MPI_DOUBLE, to, 31, MPI_COMM_WORLD);
}

static void number_in(int from)
{
	int i[3];
	double d[2];
	MPI_Status st;
	int n;

	MPI_Recv(i, 3, MPI_INT, from, 30, MPI_COMM_WORLD, &st);
	MPI_Get_count(&st, MPI_INT, &n);
	equal("ints", n, 3);
	equal("int", i[0], 1);
	equal("int", i[1], -2);
	equal("int", i[2], 0x01020304);
	MPI_Recv(d, 2, MPI_DOUBLE, from, 31, MPI_COMM_WORLD, &st);
	equal("double", d[0] == 1.5, 1);
	equal("double", d[1] == -0.1, 1);
}

static void number_pair(int a, int b) { both(a, b, number_out, number_in); }

/*
 * LAM/MPI tells its process of a SYNCACK under the tag with its bytes turned around, so
 * synchronous sends to other clients end only if that is the same tag.
 */
#define SYNC_TAG 0x00010100

static const int syncs[] = {0, 5, PACKET, PACKET + 1, 3 * PACKET};

static void sync_out(int to)
{
	int i;

	for (i = 0; i < LEN(syncs); i++) {
		fill(SYNC_TAG, syncs[i]);
		MPI_Ssend(buf, syncs[i], MPI_BYTE, to, SYNC_TAG, MPI_COMM_WORLD);
	}
}

static void sync_in(int from)
{
	int i;

	for (i = 0; i < LEN(syncs); i++)
		take("synchronous message", from, SYNC_TAG, syncs[i]);
}

static void sync_pair(int a, int b) { both(a, b, sync_out, sync_in); }

/* All but one send to it; it takes what comes, which is in order for each of them. */
static void wildcard(void)
{
	int root, i, n, next[64], k;
	MPI_Status st;

	for (root = 0; root < size; root++) {
		MPI_Barrier(MPI_COMM_WORLD);
		if (me != root) {
			for (i = 0; i < 3; i++)
				send(root, 50 + i, 10 * i + me);
			continue;
		}
		memset(next, 0, sizeof next);
		for (k = 0; k < 3 * (size - 1); k++) {
			MPI_Recv(buf, 100, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
			MPI_Get_count(&st, MPI_BYTE, &n);
			equal("tag of any", st.MPI_TAG, 50 + next[st.MPI_SOURCE]);
			equal("length of any", n, 10 * next[st.MPI_SOURCE] + st.MPI_SOURCE);
			check("message of any", st.MPI_SOURCE, st.MPI_TAG, n);
			next[st.MPI_SOURCE]++;
		}
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static void probe_out(int to)
{
	send(to, 60, 123);
	send(to, 61, 0);
}

static void probe_in(int from)
{
	MPI_Status st;
	int n, flag;

	MPI_Probe(from, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
	MPI_Get_count(&st, MPI_BYTE, &n);
	equal("tag probed", st.MPI_TAG, 60);
	equal("length probed", n, 123);
	take("probed message", from, 60, 123);
	do
		MPI_Iprobe(from, 61, MPI_COMM_WORLD, &flag, &st);
	while (!flag);
	equal("source probed", st.MPI_SOURCE, from);
	take("empty probed message", from, 61, 0);
}

static void probe_pair(int a, int b) { both(a, b, probe_out, probe_in); }

/*
 * The program that IMPI's flow control must handle: as many sends as may be in flight,
 * then a receive; the other sends synchronously first.
 */
#define HIWATER 20

static void flow_pair(int a, int b)
{
	static unsigned char out[HIWATER][8];
	MPI_Request req[HIWATER];
	int i, k;

	if (me == a) {
		for (i = 0; i < HIWATER; i++) {
			for (k = 0; k < 8; k++)
				out[i][k] = byte(me, 70 + i, k);
			MPI_Isend(out[i], 8, MPI_BYTE, b, 70 + i, MPI_COMM_WORLD, &req[i]);
		}
		take("synchronous answer", b, SYNC_TAG, 9);
		MPI_Waitall(HIWATER, req, MPI_STATUSES_IGNORE);
		return;
	}
	fill(SYNC_TAG, 9);
	MPI_Ssend(buf, 9, MPI_BYTE, a, SYNC_TAG, MPI_COMM_WORLD);
	for (i = 0; i < HIWATER; i++)
		take("one of many", a, 70 + i, 8);
}

/* Many more than may be in flight, one way, that no process waits for. */
static void flood_out(int to)
{
	int i;

	for (i = 0; i < 200; i++)
		send(to, 100 + i, i % 33);
}

static void flood_in(int from)
{
	int i;

	for (i = 0; i < 200; i++)
		take("one of two hundred", from, 100 + i, i % 33);
}

static void flood_pair(int a, int b) { both(a, b, flood_out, flood_in); }

/*
 * The last process, which is not one of C, sends two messages and asks for them back
 * before this one receives them. LAM/MPI never gives any back.
 */
static void cancel(void)
{
	int i;

	MPI_Barrier(MPI_COMM_WORLD);
	if (me == 0) {
		take("message after cancelled ones", size - 1, 82, 5);
		for (i = 0; i < 2; i++)
			take("message that was not given back", size - 1, 80 + i, 10);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* The others have to notice. */
static void die(void)
{
	MPI_Abort(MPI_COMM_WORLD, 3);
}

static void barrier(void)
{
	int i;

	for (i = 0; i < 5; i++)
		MPI_Barrier(MPI_COMM_WORLD);
}

/*
 * The context of collectives has none beside it for LAM/MPI's own word that a long
 * message is there: its processes take that for the message. So no message of a
 * broadcast is long; and because a receive takes two messages if there are two, the
 * next broadcast begins when all have done with this one.
 */
static void bcast(void)
{
	static const int lens[] = {0, 1, 1000, PACKET};
	int root, i;

	for (root = 0; root < size; root++)
		for (i = 0; i < LEN(lens); i++) {
			if (me == root)
				fill(i, lens[i]);
			else
				memset(buf, 0xee, lens[i]);
			MPI_Bcast(buf, lens[i], MPI_BYTE, root, MPI_COMM_WORLD);
			check("bcast", root, i, lens[i]);
			MPI_Barrier(MPI_COMM_WORLD);
		}
}

#define MANY 40000
static int vin[MANY], vout[MANY];

static void operands(int count)
{
	int i;

	for (i = 0; i < count; i++)
		vin[i] = me + i, vout[i] = -1;
}

static void reduced(const char *what, int count)
{
	int i;
	long sum = (long)size * (size - 1) / 2;

	for (i = 0; i < count; i++)
		equal(what, vout[i], sum + (long)size * i);
}

/*
 * A receive of LAM/MPI's that has met a short message may yet acknowledge a long one
 * behind it. Its daemon then waits until the process receives that, and the process
 * perhaps for another message, which the daemon does not get. So the next reduction
 * begins when all have done with this one.
 */
static void reduce(void)
{
	static const int counts[] = {1, 10, PACKET / 4, MANY};
	int root, c;

	for (root = 0; root < size; root++)
		for (c = 0; c < LEN(counts); c++) {
			operands(counts[c]);
			MPI_Reduce(vin, vout, counts[c], MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
			if (me == root)
				reduced("reduce", counts[c]);
			MPI_Barrier(MPI_COMM_WORLD);
		}
}

/* An operation that is not commutative: of maps x -> a*x + b, one after the other. */
struct map {
	unsigned a, b;
};

static struct map map_of(int rank, int i)
{
	struct map m = {2 * rank + 3 + i, 17 * rank + i};
	return m;
}

static void compose(void *in, void *inout, int *n, MPI_Datatype *type)
{
	struct map *p = in, *q = inout;
	int i;

	for (i = 0; i < *n; i++) {
		q[i].b = p[i].a * q[i].b + p[i].b;
		q[i].a *= p[i].a;
	}
}

#define MAPS 10

static void ordered(void)
{
	struct map in[MAPS], out[MAPS], want, m;
	MPI_Datatype type;
	MPI_Op op;
	int root, i, rank, one = 1;

	MPI_Type_contiguous(2, MPI_UNSIGNED, &type);
	MPI_Type_commit(&type);
	MPI_Op_create(compose, 0, &op);
	for (i = 0; i < MAPS; i++)
		in[i] = map_of(me, i);
	for (root = 0; root < size; root++) {
		MPI_Reduce(in, out, MAPS, type, op, root, MPI_COMM_WORLD);
		for (i = 0; i < MAPS && me == root; i++) {
			want = map_of(size - 1, i);
			for (rank = size - 2; rank >= 0; rank--) {
				m = map_of(rank, i);
				compose(&m, &want, &one, &type);
			}
			equal("factor", out[i].a, want.a);
			equal("summand", out[i].b, want.b);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Op_free(&op);
	MPI_Type_free(&type);
}

/* In it is a broadcast. */
static void allreduce(void)
{
	static const int counts[] = {1, 10, PACKET / 4};
	int c;
	double x = me == size / 2 ? 2.5 : -1.0 - me, y = 0;

	for (c = 0; c < LEN(counts); c++) {
		operands(counts[c]);
		MPI_Allreduce(vin, vout, counts[c], MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		reduced("allreduce", counts[c]);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Allreduce(&x, &y, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	equal("allreduce of doubles", y == 2.5, 1);
	MPI_Barrier(MPI_COMM_WORLD);
}

/*
 * Fan-out of chunks to workers that ask for them, as package fanout does it: an empty
 * request (2), answered by a chunk (1) or an empty end (0).
 */
enum { TAG_END, TAG_DATA, TAG_REQUEST, CHUNKS = 60 };

static const int chunk_lens[] = {1, 100, PACKET, PACKET + 1, 200000};

static void pull(int supplier)
{
	MPI_Status st;
	int n, i, count = 0;

	for (;;) {
		MPI_Send(NULL, 0, MPI_CHAR, supplier, TAG_REQUEST, MPI_COMM_WORLD);
		memset(buf, 0xee, sizeof buf);
		MPI_Recv(buf, sizeof buf, MPI_CHAR, supplier, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
		MPI_Get_count(&st, MPI_CHAR, &n);
		equal("supplier", st.MPI_SOURCE, supplier);
		if (n == 0)
			break;
		equal("tag of a chunk", st.MPI_TAG, TAG_DATA);
		for (i = 0; i < 5 && chunk_lens[i] != n; i++)
			;
		if (i == 5)
			fail("length of a chunk", n, 0);
		check("chunk", supplier, TAG_DATA, n);
		count++;
	}
	equal("tag of the end", st.MPI_TAG, TAG_END);
	printf("rank %d: %d chunks\n", me, count);
}

/* request returns the rank that asks for a chunk. */
static int request(void)
{
	MPI_Status st;
	int n;

	MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
	MPI_Recv(buf, 0, MPI_CHAR, st.MPI_SOURCE, st.MPI_TAG, MPI_COMM_WORLD, &st);
	MPI_Get_count(&st, MPI_CHAR, &n);
	equal("tag of a request", st.MPI_TAG, TAG_REQUEST);
	equal("length of a request", n, 0);
	return st.MPI_SOURCE;
}

static void give(void)
{
	int i, to;

	for (i = 0; i < CHUNKS; i++) {
		to = request();
		send(to, TAG_DATA, chunk_lens[i % 5]);
	}
	for (i = 1; i < size; i++)
		MPI_Send(NULL, 0, MPI_CHAR, request(), TAG_END, MPI_COMM_WORLD);
}

/* All messages to the supplier's rank are its: no other rank sends meanwhile. */
static void fan_out(int supplier)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (me == supplier)
		give();
	else
		pull(supplier);
	MPI_Barrier(MPI_COMM_WORLD);
}

static void fan_first(void) { fan_out(0); }
static void fan_last(void) { fan_out(size - 1); }

static void (*const alone[])(void) = {wildcard, cancel, die, barrier, bcast, reduce, ordered, allreduce, fan_first, fan_last};
static const char *const alone_names[] = {"wildcard", "cancel", "die", "barrier", "bcast", "reduce", "ordered", "allreduce", "fan-first", "fan-last"};
static void (*const paired[])(int, int) = {short_pair, long_pair, number_pair, sync_pair, probe_pair, flow_pair, flood_pair};
static const char *const paired_names[] = {"short", "long", "number", "sync", "probe", "flow", "flood"};

static void phase(const char *name)
{
	int i;

	for (i = 0; i < LEN(alone); i++)
		if (strcmp(name, alone_names[i]) == 0) {
			alone[i]();
			return;
		}
	for (i = 0; i < LEN(paired); i++)
		if (strcmp(name, paired_names[i]) == 0) {
			pairs(paired[i]);
			return;
		}
	fprintf(stderr, "no phase %s\n", name);
	MPI_Abort(MPI_COMM_WORLD, 2);
}

int main(int argc, char **argv)
{
	int i;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (i = 1; i < argc; i++) {
		phase(argv[i]);
		printf("rank %d of %d: %s\n", me, size, argv[i]);
		fflush(stdout);
	}
	MPI_Finalize();
	printf("rank %d of %d: finished\n", me, size);
	return 0;
}
