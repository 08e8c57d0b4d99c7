//go:build linux && cgo

#include "shim.h"

#include <errno.h>
#include <string.h>

// The functions of libibverbs, by the versions of their symbols that the
// structures of abi.h belong to.
#define FUNCTIONS(F)                                                                                          \
	F(void **, get_device_list, (int *))                                                                  \
	F(void, free_device_list, (void **))                                                                  \
	F(const char *, get_device_name, (void *))                                                            \
	F(struct sl_context *, open_device, (void *))                                                         \
	F(int, close_device, (struct sl_context *))                                                           \
	F(int, query_device, (struct sl_context *, struct sl_device_attr *))                                  \
	F(int, query_port, (struct sl_context *, uint8_t, struct sl_port_attr *))                             \
	F(int, query_gid, (struct sl_context *, uint8_t, int, struct sl_gid *))                               \
	F(int, get_async_event, (struct sl_context *, struct sl_async_event *))                               \
	F(void, ack_async_event, (struct sl_async_event *))                                                   \
	F(struct sl_pd *, alloc_pd, (struct sl_context *))                                                    \
	F(int, dealloc_pd, (struct sl_pd *))                                                                  \
	F(struct sl_mr *, reg_mr, (struct sl_pd *, void *, size_t, int))                                      \
	F(int, dereg_mr, (struct sl_mr *))                                                                    \
	F(int, get_cq_event, (struct sl_comp_channel *, struct sl_cq **, void **))                            \
	F(void, ack_cq_events, (struct sl_cq *, unsigned))                                                    \
	F(struct sl_cq *, create_cq, (struct sl_context *, int, void *, struct sl_comp_channel *, int))       \
	F(int, destroy_cq, (struct sl_cq *))                                                                  \
	F(struct sl_srq *, create_srq, (struct sl_pd *, struct sl_srq_init_attr *))                           \
	F(int, modify_srq, (struct sl_srq *, struct sl_srq_attr *, int))                                      \
	F(int, query_srq, (struct sl_srq *, struct sl_srq_attr *))                                            \
	F(int, destroy_srq, (struct sl_srq *))                                                                \
	F(struct sl_qp *, create_qp, (struct sl_pd *, struct sl_qp_init_attr *))                              \
	F(int, modify_qp, (struct sl_qp *, struct sl_qp_attr *, int))                                         \
	F(int, query_qp, (struct sl_qp *, struct sl_qp_attr *, int, struct sl_qp_init_attr *))                \
	F(int, destroy_qp, (struct sl_qp *))

#define DECLARE(result, name, args) static result(*name) args;
FUNCTIONS(DECLARE)

// These came with other versions.
static struct sl_comp_channel *(*create_comp_channel)(struct sl_context *);
static int (*destroy_comp_channel)(struct sl_comp_channel *);
static struct sl_mr *(*reg_mr_iova2)(struct sl_pd *, void *, size_t, uint64_t, unsigned); // may be missing

// The flags of enum ibv_access_flags that a device may do without, and others.
enum { access_optional = 0x3ff << 20, qpt_rc = 2, srq_limit_mask = 2, wr_fetch_and_add = 6 };

#define SYMBOL(result, name, args) {"ibv_" #name, "IBVERBS_1.1", (void **)&name, 0},
const struct sl_symbol sl_symbols[] = {
	FUNCTIONS(SYMBOL)
	{"ibv_create_comp_channel", "IBVERBS_1.0", (void **)&create_comp_channel, 0},
	{"ibv_destroy_comp_channel", "IBVERBS_1.0", (void **)&destroy_comp_channel, 0},
	{"ibv_reg_mr_iova2", "IBVERBS_1.8", (void **)&reg_mr_iova2, 1},
};
const size_t sl_symbol_count = sizeof sl_symbols / sizeof *sl_symbols;

// made returns the object that a function of libibverbs has created, or the error number.
static uintptr_t made(void *p, int *err) {
	*err = p ? 0 : errno ? errno : EIO;
	return (uintptr_t)p;
}

// number returns the error number of a function that returns it, or that returns -1 and sets
// errno.
static int number(int result) { return result == -1 ? (errno ? errno : EIO) : result < 0 ? -result : result; }

uintptr_t sl_get_device_list(int *num, int *err) {
	errno = 0;
	return made(get_device_list(num), err);
}

void sl_free_device_list(uintptr_t list) { free_device_list((void **)list); }

const char *sl_get_device_name(uintptr_t list, int i) { return get_device_name(((void **)list)[i]); }

uintptr_t sl_open_device(uintptr_t list, int i, int *err) {
	errno = 0;
	return made(open_device(((void **)list)[i]), err);
}

int sl_close_device(uintptr_t context) { return number(close_device((struct sl_context *)context)); }

int sl_async_fd(uintptr_t context) { return ((struct sl_context *)context)->async_fd; }

int sl_query_device(uintptr_t context, struct sl_device_attr_ex *attr) {
	struct sl_context *c = (struct sl_context *)context;
	memset(attr, 0, sizeof *attr);
	if (c->abi_compat == (void *)UINTPTR_MAX) {
		// Old drivers write all the fields that they know, whatever length is passed.
		union {
			struct sl_device_attr_ex known;
			char room[4096];
		} all = {0};
		const size_t before = offsetof(struct sl_verbs_context, context);
		struct sl_verbs_context *v = (struct sl_verbs_context *)((char *)c - before);
		const uint32_t input = 0;
		if (v->sz >= sizeof *v && v->query_device_ex && v->query_device_ex(c, &input, &all.known, sizeof all.known) == 0) {
			*attr = all.known;
			return 0;
		}
	}
	return number(query_device(c, &attr->orig_attr));
}

int sl_query_port(uintptr_t context, int port, struct sl_port_attr *attr) {
	memset(attr, 0, sizeof *attr);
	return number(query_port((struct sl_context *)context, port, attr));
}

int sl_query_gid(uintptr_t context, int port, int index, struct sl_gid *gid) {
	errno = 0;
	return number(query_gid((struct sl_context *)context, port, index, gid));
}

enum { event_qp_fatal = 1, event_path_mig_err = 7, event_device_fatal = 8, event_last_wqe = 16, event_srq_err = 14, event_srq_limit = 15 };

int sl_get_async_event(uintptr_t context, struct sl_async_event *event, uintptr_t *object, int *port, int *type) {
	struct sl_async_event e;
	errno = 0;
	int err = number(get_async_event((struct sl_context *)context, &e));
	if (err) {
		return err;
	}
	*event = e;
	*type = e.event_type;
	*port = 0;
	*object = 0;
	if (e.event_type <= event_path_mig_err || e.event_type == event_last_wqe || e.event_type == event_srq_err || e.event_type == event_srq_limit) {
		*object = (uintptr_t)e.element.object;
	} else if (e.event_type != event_device_fatal) {
		*port = e.element.port_num;
	}
	return 0;
}

void sl_ack_async_event(struct sl_async_event *event) { ack_async_event(event); }

uintptr_t sl_alloc_pd(uintptr_t context, int *err) {
	errno = 0;
	return made(alloc_pd((struct sl_context *)context), err);
}

int sl_dealloc_pd(uintptr_t pd) { return number(dealloc_pd((struct sl_pd *)pd)); }

uintptr_t sl_reg_mr(uintptr_t pd, uintptr_t addr, size_t length, unsigned access, uint32_t *lkey, uint32_t *rkey, int *err) {
	struct sl_mr *mr;
	errno = 0;
	if (!(access & access_optional)) {
		mr = reg_mr((struct sl_pd *)pd, (void *)addr, length, access);
	} else if (reg_mr_iova2) {
		mr = reg_mr_iova2((struct sl_pd *)pd, (void *)addr, length, addr, access);
	} else { // what is optional may be left out
		mr = reg_mr((struct sl_pd *)pd, (void *)addr, length, access & ~access_optional);
	}
	if (mr) {
		*lkey = mr->lkey;
		*rkey = mr->rkey;
	}
	return made(mr, err);
}

int sl_dereg_mr(uintptr_t mr) { return number(dereg_mr((struct sl_mr *)mr)); }

uintptr_t sl_create_comp_channel(uintptr_t context, int *fd, int *err) {
	errno = 0;
	struct sl_comp_channel *ch = create_comp_channel((struct sl_context *)context);
	if (ch) {
		*fd = ch->fd;
	}
	return made(ch, err);
}

int sl_destroy_comp_channel(uintptr_t channel) { return number(destroy_comp_channel((struct sl_comp_channel *)channel)); }

int sl_get_cq_event(uintptr_t channel, uintptr_t *cq) {
	struct sl_cq *from;
	void *cq_context;
	errno = 0;
	int err = number(get_cq_event((struct sl_comp_channel *)channel, &from, &cq_context));
	if (!err) {
		*cq = (uintptr_t)from;
		ack_cq_events(from, 1);
	}
	return err;
}

uintptr_t sl_create_cq(uintptr_t context, int cqe, uintptr_t channel, unsigned turn, int *err) {
	int vectors = ((struct sl_context *)context)->num_comp_vectors;
	errno = 0;
	return made(create_cq((struct sl_context *)context, cqe, NULL, (struct sl_comp_channel *)channel, vectors > 1 ? turn % vectors : 0), err);
}

int sl_destroy_cq(uintptr_t cq) { return number(destroy_cq((struct sl_cq *)cq)); }

uintptr_t sl_create_srq(uintptr_t pd, struct sl_srq_attr *attr, int *err) {
	struct sl_srq_init_attr init = {.attr = *attr};
	errno = 0;
	struct sl_srq *srq = create_srq((struct sl_pd *)pd, &init);
	*attr = init.attr;
	return made(srq, err);
}

int sl_modify_srq(uintptr_t srq, uint32_t limit) {
	struct sl_srq_attr attr = {.srq_limit = limit};
	return number(modify_srq((struct sl_srq *)srq, &attr, srq_limit_mask));
}

int sl_query_srq(uintptr_t srq, struct sl_srq_attr *attr) { return number(query_srq((struct sl_srq *)srq, attr)); }

int sl_destroy_srq(uintptr_t srq) { return number(destroy_srq((struct sl_srq *)srq)); }

uintptr_t sl_create_qp(uintptr_t pd, uintptr_t send_cq, uintptr_t recv_cq, uintptr_t srq, struct sl_qp_cap *cap, int sig_all, uint32_t *num, int *err) {
	struct sl_qp_init_attr init = {
		.send_cq = (struct sl_cq *)send_cq,
		.recv_cq = (struct sl_cq *)recv_cq,
		.srq = (struct sl_srq *)srq,
		.cap = *cap,
		.qp_type = qpt_rc,
		.sq_sig_all = sig_all,
	};
	errno = 0;
	struct sl_qp *qp = create_qp((struct sl_pd *)pd, &init);
	if (qp) {
		*cap = init.cap;
		*num = qp->qp_num;
	}
	return made(qp, err);
}

int sl_modify_qp(uintptr_t qp, struct sl_qp_attr *attr, int mask) { return number(modify_qp((struct sl_qp *)qp, attr, mask)); }

int sl_query_qp(uintptr_t qp, struct sl_qp_attr *attr) {
	struct sl_qp_init_attr init;
	const int all = (1 << 21) - 1;
	return number(query_qp((struct sl_qp *)qp, attr, all, &init));
}

int sl_destroy_qp(uintptr_t qp) { return number(destroy_qp((struct sl_qp *)qp)); }

// CHAIN links n work requests, calls post, and unlinks the last again. It sets posted to the
// number accepted and err to the error number of the next.
#define CHAIN(type, object, post)                                                          \
	type *first = (type *)wr, *bad = NULL;                                             \
	type *last = first + n - 1, *next = last->next;                                    \
	last->next = NULL;                                                                 \
	int err = post((object), first, &bad), posted = n;                                 \
	last->next = next;                                                                 \
	if (err) {                                                                         \
		err = number(err);                                                         \
		posted = bad ? bad - first : 0;                                            \
	}

void sl_post_send(uintptr_t sends, int n, int look) {
	struct sl_sends *s = (struct sl_sends *)sends;
	struct sl_send_wr *wr = s->chain;
	CHAIN(struct sl_send_wr, s->qp, s->qp->context->ops.post_send);
	s->posted = posted;
	s->err = err;
	if (look) {
		s->got = s->cq->context->ops.poll_cq(s->cq, batch, s->wcs);
	}
}

void sl_ring(uintptr_t qp) {
	struct sl_qp *q = (struct sl_qp *)qp;
	struct sl_send_wr refused = {.opcode = wr_fetch_and_add, .remote_addr = 1}, *bad;
	q->context->ops.post_send(q, &refused, &bad);
}

uint64_t sl_post_recv(uintptr_t qp, uintptr_t wr, int n) {
	struct sl_qp *q = (struct sl_qp *)qp;
	CHAIN(struct sl_recv_wr, q, q->context->ops.post_recv);
	return (uint64_t)err << 32 | (uint32_t)posted;
}

uint64_t sl_post_srq_recv(uintptr_t srq, uintptr_t wr, int n) {
	struct sl_srq *s = (struct sl_srq *)srq;
	CHAIN(struct sl_recv_wr, s, s->context->ops.post_srq_recv);
	return (uint64_t)err << 32 | (uint32_t)posted;
}

int sl_poll_cq(uintptr_t cq, int n, uintptr_t wc, int looks) {
	struct sl_cq *q = (struct sl_cq *)cq;
	int got;
	do {
		got = q->context->ops.poll_cq(q, n, (struct sl_wc *)wc);
	} while (got == 0 && --looks > 0);
	return got;
}

int sl_req_notify_cq(uintptr_t cq, int solicited_only) {
	struct sl_cq *q = (struct sl_cq *)cq;
	return number(q->context->ops.req_notify_cq(q, solicited_only));
}
