// What posting and polling costs in C: the loop of BenchmarkPost over the same
// library. Usage: loop library depth; it prints nanoseconds for a work request,
// the median of many rounds.
#define _GNU_SOURCE
#include "../abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { rounds = 501, posts = 6400, max_depth = 64 };

static void *find(void *lib, const char *name) {
	void *f = dlvsym(lib, name, "IBVERBS_1.1");
	if (!f) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return f;
}

static void must(int ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "%s failed\n", what);
		exit(1);
	}
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int less(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : *(double *)a > *(double *)b; }

int main(int argc, char **argv) {
	must(argc == 3, "usage: loop library depth");
	void *lib = dlopen(argv[1], RTLD_NOW);
	must(lib != NULL, "dlopen");
	const int depth = atoi(argv[2]);
	must(depth > 0 && depth <= max_depth, "depth");
	int num;
	void **list = ((void **(*)(int *))find(lib, "ibv_get_device_list"))(&num);
	struct sl_context *c = ((struct sl_context * (*)(void *)) find(lib, "ibv_open_device"))(list[0]);
	struct sl_pd *pd = ((struct sl_pd * (*)(struct sl_context *)) find(lib, "ibv_alloc_pd"))(c);
	struct sl_cq *cq = ((struct sl_cq * (*)(struct sl_context *, int, void *, void *, int)) find(lib, "ibv_create_cq"))(c, 1024, NULL, NULL, 0);
	struct sl_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {256, 256, 1, 1, 0}, .qp_type = 2};
	struct sl_qp *qp = ((struct sl_qp * (*)(struct sl_pd *, struct sl_qp_init_attr *)) find(lib, "ibv_create_qp"))(pd, &init);
	int (*modify)(struct sl_qp *, struct sl_qp_attr *, int) = find(lib, "ibv_modify_qp");
	for (int state = 1; state <= 3; state++) {
		struct sl_qp_attr a = {.qp_state = state, .dest_qp_num = qp->qp_num};
		must(modify(qp, &a, 1 | 1 << 20) == 0, "ibv_modify_qp");
	}
	static uint64_t mem[2];
	struct sl_mr *mr = ((struct sl_mr * (*)(struct sl_pd *, void *, size_t, int)) find(lib, "ibv_reg_mr"))(pd, mem, sizeof mem, 7);
	static struct sl_send_wr wrs[max_depth];
	static struct sl_sge sges[max_depth];
	static struct sl_wc wcs[max_depth];
	for (int i = 0; i < depth; i++) {
		sges[i] = (struct sl_sge){(uintptr_t)mem, 8, mr->lkey};
		wrs[i] = (struct sl_send_wr){.next = i + 1 < depth ? &wrs[i + 1] : NULL, .sg_list = &sges[i], .num_sge = 1, .send_flags = 2, .remote_addr = (uintptr_t)&mem[1], .u.rkey = mr->rkey};
	}
	static double took[rounds];
	for (int r = 0; r < rounds; r++) {
		const double start = now();
		for (int i = 0; i < posts / depth; i++) {
			struct sl_send_wr *bad;
			must(qp->context->ops.post_send(qp, wrs, &bad) == 0, "ibv_post_send");
			for (int got = 0; got < depth;) {
				const int n = cq->context->ops.poll_cq(cq, depth, wcs);
				must(n > 0 && wcs[0].status == 0, "ibv_poll_cq");
				got += n;
			}
		}
		took[r] = (now() - start) / (posts / depth * depth);
	}
	qsort(took, rounds, sizeof *took, less);
	printf("%.2f\n", took[rounds / 2]);
	return 0;
}
