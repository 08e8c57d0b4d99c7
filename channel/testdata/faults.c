// The libibverbs without RDMA of verbs/ibv, which fails where wire-ups may:
//
//	FAULT_CREATE_QP  the device that has no room for a queue pair
//	FAULT_SLOW       the device whose queue pairs take 200 ms to connect
//	FAULT_APART      what is sent to another device than one's own is lost
#define ibv_create_qp null_create_qp
#define ibv_modify_qp null_modify_qp
#include "../../verbs/ibv/testdata/null.c"
#undef ibv_create_qp
#undef ibv_modify_qp

static const char *name_of(struct sl_context *c) { return of(c)->device->name; }

static int is(const char *variable, struct sl_context *c) {
	const char *s = getenv(variable);
	return s && !strcmp(s, name_of(c));
}

struct sl_qp *ibv_create_qp(struct sl_pd *pd, struct sl_qp_init_attr *init) {
	if (is("FAULT_CREATE_QP", pd->context)) {
		errno = ENOMEM;
		return NULL;
	}
	return null_create_qp(pd, init);
}

int ibv_modify_qp(struct sl_qp *qp, struct sl_qp_attr *a, int mask) {
	if (mask & 1 && a->qp_state == states_rtr) {
		if (is("FAULT_SLOW", qp->context)) {
			usleep(200000);
		}
		enter();
		const struct qp *peer = a->dest_qp_num < max_objects ? table[a->dest_qp_num] : NULL;
		leave();
		if (getenv("FAULT_APART") && peer && strcmp(name_of(peer->q.context), name_of(qp->context))) {
			a->dest_qp_num = max_objects - 1; // does not exist
		}
	}
	return null_modify_qp(qp, a, mask);
}
