// A peer that knows nothing of this library: plain libibverbs, by its own headers.
//
//     cc -O2 -Wall -Wextra -o interop interop.c -libverbs
//     interop DEVICE GID-INDEX
//
// It prints where it is, "endpoint" and NUMBERS, obeys commands on standard input,
// one a line, and answers each with "ok" or with what is wrong:
//
//     peer NUMBERS             connect
//     fill OFFSET LEN SEED     write a pattern into the memory that the peer reaches
//     check OFFSET LEN SEED    look for it there
//     recv LEN SEED IMM        take a SEND; with IMM, SEND_WITH_IMM
//     recv-write LEN IMM       take an RDMA_WRITE_WITH_IMM
//     send LEN SEED IMM        SEND; with IMM, SEND_WITH_IMM
//     write OFFSET LEN SEED IMM    RDMA_WRITE; with IMM, RDMA_WRITE_WITH_IMM
//     read OFFSET LEN SEED     RDMA_READ, and look for the pattern
//     add OFFSET VALUE OLD     ATOMIC_FETCH_AND_ADD, which must return OLD
//     swap OFFSET CMP NEW OLD  ATOMIC_CMP_AND_SWP, likewise
//
// and, for what goes wrong:
//
//     limits RECEIVES TIMEOUT RETRIES RNR    how to connect, before that
//     ready                    post another receive
//     key VALUE                take this for the key of the peer's memory
//     expect STATUS            what the next request must complete with
//     flushed                  see a receive end without a message
//     error                    put the QP into the error state
//
// NUMBERS are the QP's number, PSN, LID and MTU code, the memory's address and key,
// and the GID, all hexadecimal. IMM is 0 where there is none.
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <infiniband/verbs.h>

enum { port = 1, size = 1 << 20, most_receives = 16, bound = 30 };

static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *near_mr, *far_mr; // what is sent and received; what the peer reaches
static uint8_t *near, *far;
static uint64_t remote_addr;
static uint32_t remote_key;
static int gid_index;
static uint32_t receives = most_receives, timeout = 16, retries = 7, rnr_retries = 7;
static uint32_t expected = IBV_WC_SUCCESS;

#define FAIL(...)                                                                                                      \
	do {                                                                                                           \
		printf(__VA_ARGS__);                                                                                   \
		putchar('\n');                                                                                         \
		return -1;                                                                                             \
	} while (0)

static void die(const char *what) {
	fprintf(stderr, "interop: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint8_t pattern(size_t i, unsigned seed) { return (uint8_t)(seed * 31 + i * 7 + (i >> 8)); }

static void fill(uint8_t *b, size_t len, unsigned seed) {
	for (size_t i = 0; i < len; i++) {
		b[i] = pattern(i, seed);
	}
}

static int check(const uint8_t *b, size_t len, unsigned seed) {
	for (size_t i = 0; i < len; i++) {
		if (b[i] != pattern(i, seed)) {
			FAIL("byte %zu of %zu is %#x, must be %#x", i, len, b[i], pattern(i, seed));
		}
	}
	return 0;
}

static int post_recv(void) {
	struct ibv_sge sge = {(uintptr_t)near, size, near_mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

// completion waits for one, which must be of this operation, or of the expected status.
static int completion(struct ibv_wc *wc, enum ibv_wc_opcode opcode) {
	time_t until = time(NULL) + bound;
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0) {
		if (time(NULL) > until) {
			FAIL("no completion within %d s", bound);
		}
	}
	if (n < 0) {
		FAIL("ibv_poll_cq: %d", n);
	}
	enum ibv_wc_status want = expected;
	expected = IBV_WC_SUCCESS;
	if (wc->status != want) {
		FAIL("completion: %s, must be %s", ibv_wc_status_str(wc->status), ibv_wc_status_str(want));
	}
	if (want != IBV_WC_SUCCESS) {
		return 0;
	}
	if (wc->opcode != opcode) {
		FAIL("completion of opcode %d, must be %d", wc->opcode, opcode);
	}
	return 0;
}

static int take(enum ibv_wc_opcode opcode, uint32_t len, uint32_t imm) {
	struct ibv_wc wc;
	if (completion(&wc, opcode)) {
		return -1;
	}
	if (wc.byte_len != len) {
		FAIL("%u bytes, must be %u", wc.byte_len, len);
	}
	if (!(wc.wc_flags & IBV_WC_WITH_IMM) != !imm) {
		FAIL("flags %#x, immediate data must be %#x", wc.wc_flags, imm);
	}
	if (imm && ntohl(wc.imm_data) != imm) {
		FAIL("immediate data %#x, must be %#x", ntohl(wc.imm_data), imm);
	}
	return 0;
}

static int post(struct ibv_send_wr *wr, uint32_t len, enum ibv_wc_opcode done) {
	struct ibv_sge sge = {(uintptr_t)near, len, near_mr->lkey};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	wr->sg_list = &sge;
	wr->num_sge = 1;
	wr->send_flags = IBV_SEND_SIGNALED;
	int err = ibv_post_send(qp, wr, &bad);
	if (err) {
		FAIL("ibv_post_send: %s", strerror(err));
	}
	return completion(&wc, done);
}

static int give(enum ibv_wr_opcode opcode, enum ibv_wc_opcode done, uint64_t offset, uint32_t len, uint32_t imm) {
	struct ibv_send_wr wr = {.opcode = opcode, .imm_data = htonl(imm), .wr.rdma = {remote_addr + offset, remote_key}};
	return post(&wr, len, done);
}

static int atomic(enum ibv_wr_opcode opcode, enum ibv_wc_opcode done, uint64_t offset, uint64_t compare_add, uint64_t swap, uint64_t old) {
	struct ibv_send_wr wr = {.opcode = opcode, .wr.atomic = {remote_addr + offset, compare_add, swap, remote_key}};
	uint64_t got;
	int executed = expected == IBV_WC_SUCCESS;
	if (post(&wr, sizeof got, done)) {
		return -1;
	}
	if (!executed) {
		return 0;
	}
	memcpy(&got, near, sizeof got);
	if (got != old) {
		FAIL("atomic returned %#" PRIx64 ", must be %#" PRIx64, got, old);
	}
	return 0;
}

static void make(const char *device) {
	struct ibv_device **list = ibv_get_device_list(NULL), **d = list;
	if (!list) {
		die("ibv_get_device_list");
	}
	while (*d && strcmp(ibv_get_device_name(*d), device)) {
		d++;
	}
	errno = ENODEV;
	struct ibv_context *ctx = *d ? ibv_open_device(*d) : NULL;
	if (!ctx) {
		die(device);
	}
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	if (!pd || !cq) {
		die("ibv_alloc_pd, ibv_create_cq");
	}
	near = calloc(1, size);
	far = calloc(1, size);
	near_mr = ibv_reg_mr(pd, near, size, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_device_attr dev;
	int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if ((errno = ibv_query_device(ctx, &dev))) {
		die("ibv_query_device");
	}
	if (dev.atomic_cap != IBV_ATOMIC_NONE) {
		access |= IBV_ACCESS_REMOTE_ATOMIC;
	}
	far_mr = ibv_reg_mr(pd, far, size, IBV_ACCESS_LOCAL_WRITE | access);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16, .max_recv_wr = most_receives, .max_send_sge = 1, .max_recv_sge = 1},
	};
	qp = ibv_create_qp(pd, &init);
	if (!near_mr || !far_mr || !qp) {
		die("ibv_reg_mr, ibv_create_qp");
	}
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = port, .qp_access_flags = access,
	};
	if ((errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))) {
		die("ibv_modify_qp to INIT");
	}
	struct ibv_port_attr p;
	union ibv_gid gid;
	if (ibv_query_port(ctx, port, &p) || ibv_query_gid(ctx, port, gid_index, &gid)) {
		die("ibv_query_port, ibv_query_gid");
	}
	printf("endpoint %x %x %x %x %" PRIx64 " %x ", qp->qp_num, 0x123456, p.lid, p.active_mtu, (uint64_t)(uintptr_t)far, far_mr->rkey);
	for (int i = 0; i < 16; i++) {
		printf("%02x", gid.raw[i]);
	}
	putchar('\n');
}

static int join(const char *line) {
	uint32_t num, psn, lid, mtu;
	char hex[33];
	if (sscanf(line, "peer %x %x %x %x %" SCNx64 " %x %32s", &num, &psn, &lid, &mtu, &remote_addr, &remote_key, hex) != 7 || strlen(hex) != 32) {
		FAIL("not understood: %s", line);
	}
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = num, .rq_psn = psn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.dlid = lid, .port_num = port, .is_global = 1, .grh = {.sgid_index = gid_index, .hop_limit = 64}},
	};
	for (int i = 0; i < 16; i++) {
		unsigned v;
		sscanf(hex + 2 * i, "%2x", &v);
		rtr.ah_attr.grh.dgid.raw[i] = v;
	}
	int err = ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err) {
		FAIL("ibv_modify_qp to RTR: %s", strerror(err));
	}
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .sq_psn = 0x123456, .timeout = timeout, .retry_cnt = retries, .rnr_retry = rnr_retries, .max_rd_atomic = 1};
	err = ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
	if (err) {
		FAIL("ibv_modify_qp to RTS: %s", strerror(err));
	}
	for (uint32_t i = 0; i < receives; i++) {
		if ((err = post_recv())) {
			FAIL("ibv_post_recv: %s", strerror(err));
		}
	}
	return 0;
}

static int obey(const char *line) {
	uint32_t offset, len, seed, imm;
	if (!strncmp(line, "peer ", 5)) {
		return join(line);
	}
	if (sscanf(line, "fill %x %x %x", &offset, &len, &seed) == 3) {
		fill(far + offset, len, seed);
		return 0;
	}
	if (sscanf(line, "check %x %x %x", &offset, &len, &seed) == 3) {
		return check(far + offset, len, seed);
	}
	if (sscanf(line, "recv %x %x %x", &len, &seed, &imm) == 3) {
		return take(IBV_WC_RECV, len, imm) || check(near, len, seed) || post_recv();
	}
	if (sscanf(line, "recv-write %x %x", &len, &imm) == 2) {
		return take(IBV_WC_RECV_RDMA_WITH_IMM, len, imm) || post_recv();
	}
	if (sscanf(line, "send %x %x %x", &len, &seed, &imm) == 3) {
		fill(near, len, seed);
		return give(imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, IBV_WC_SEND, 0, len, imm);
	}
	if (sscanf(line, "write %x %x %x %x", &offset, &len, &seed, &imm) == 4) {
		fill(near, len, seed);
		return give(imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, offset, len, imm);
	}
	if (sscanf(line, "read %x %x %x", &offset, &len, &seed) == 3) {
		int whole = expected == IBV_WC_SUCCESS;
		memset(near, 0, size);
		return give(IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, offset, len, 0) || (whole && check(near, len, seed));
	}
	if (sscanf(line, "limits %x %x %x %x", &receives, &timeout, &retries, &rnr_retries) == 4) {
		return receives <= most_receives ? 0 : -1;
	}
	if (!strcmp(line, "ready")) {
		return post_recv();
	}
	if (sscanf(line, "key %x", &remote_key) == 1 || sscanf(line, "expect %x", &expected) == 1) {
		return 0;
	}
	if (!strcmp(line, "flushed")) {
		struct ibv_wc wc;
		expected = IBV_WC_WR_FLUSH_ERR;
		return completion(&wc, IBV_WC_RECV);
	}
	if (!strcmp(line, "error")) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
		return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	}
	uint64_t compare_add, swap, old;
	if (sscanf(line, "add %x %" SCNx64 " %" SCNx64, &offset, &compare_add, &old) == 3) {
		return atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD, offset, compare_add, 0, old);
	}
	if (sscanf(line, "swap %x %" SCNx64 " %" SCNx64 " %" SCNx64, &offset, &compare_add, &swap, &old) == 4) {
		return atomic(IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP, offset, compare_add, swap, old);
	}
	FAIL("not understood: %s", line);
}

int main(int argc, char **argv) {
	char line[256];
	if (argc != 3) {
		fprintf(stderr, "usage: interop DEVICE GID-INDEX\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	gid_index = atoi(argv[2]);
	make(argv[1]);
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (obey(line)) {
			return 1;
		}
		puts("ok");
	}
	return 0;
}
