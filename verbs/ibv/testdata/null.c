// A libibverbs without RDMA, for tests: its devices execute work requests between
// the queue pairs of one process at once, when they are posted. What is asked of it
// is held against the rules that hardware has, and it fails where it is told to: by
// environment variables from the beginning, by struct control as it runs, whose
// address is in the firmware version.
//
//	NULL_DEVICES     how many; 1 without
//	NULL_LIST_ERRNO  why there is no list of devices
//	NULL_IB          InfiniBand: two ports, the first of which is down; the LID of
//	                 the second is this number. The subnet of null1 is another.
//	NULL_NO_EX       there is no query_device_ex
//	NULL_ODP         what RC may do with on-demand paging
//	NULL_INLINE      bytes that may be sent inline; 64 without
#define _GNU_SOURCE
#include "../abi.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	max_wr = 1 << 14,
	max_sge = 4,
	max_objects = 1 << 16,
	states_reset = 0, states_init, states_rtr, states_rts, states_sqd, states_sqe, states_err,
	flag_signaled = 2, flag_solicited = 4, flag_inline = 8,
	op_write = 0, op_write_imm, op_send, op_send_imm, op_read, op_cas, op_add,
	wc_loc_len = 1, wc_loc_prot = 4, wc_flush = 5, wc_rem_inv_req = 9, wc_rem_access = 10, wc_rnr = 13,
	wc_recv = 128, wc_recv_imm = 129, wc_with_imm = 2,
	event_cq_err = 0, event_srq_limit = 15, event_last_wqe = 16,
	access_local_write = 1, access_remote_write = 2, access_remote_read = 4, access_remote_atomic = 8, access_on_demand = 64,
};

// What the test sees and sets.
struct control {
	uint32_t posts_left;  // work requests that are taken before post_errno
	uint32_t post_errno;
	uint32_t fail_in;     // the n-th send from now fails with fail_status; 0: none
	uint32_t fail_status;
	uint32_t reg_errno;
	uint32_t dereg_errno;
	uint32_t poll_errno;
	uint32_t async_errno;
	uint32_t reg_access;  // of the region that was registered last
	uint32_t reg_call;    // with 1: ibv_reg_mr, 2: ibv_reg_mr_iova2
	uint32_t last_cq;     // handle of the one that was made last
	uint32_t last_srq;
	uint32_t async_fd;    // events are written here: type and number of the object, 4 bytes each
	uint32_t live;        // objects
	uint32_t longest;     // chain posted
	uint32_t asked_err;   // how often a queue pair was asked to go to ERR
	uint32_t late;        // completions are not to be seen yet
	uint32_t polls;
};

static struct control control = {.posts_left = UINT32_MAX};

static int lock; // of everything; it costs the same with threads and without

static void enter(void) {
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {
		sched_yield();
	}
}

static void leave(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

static long env(const char *name, long otherwise) {
	const char *s = getenv(name);
	return s ? strtol(s, NULL, 0) : otherwise;
}

struct device {
	char name[16];
	int index;
};

struct context {
	struct sl_verbs_context v;
	struct device *device;
	int async_write;
};

struct mr {
	struct sl_mr m;
	unsigned access;
};

struct channel {
	struct sl_comp_channel c;
	int write;
};

struct cqe {
	struct sl_wc wc;
	uint32_t done; // work requests of its queue by then
};

struct cq {
	struct sl_cq q;
	struct cqe *ring;
	uint32_t head, tail; // made, taken
	int users, armed, overrun;
	unsigned unacked;
};

struct receive {
	uint64_t id;
	int num;
	struct sl_sge sges[max_sge];
};

struct receives {
	struct receive *ring;
	uint32_t size, mask, head, tail; // posted, executed
	uint32_t freed;                  // of a queue pair: polled
};

struct srq {
	struct sl_srq q;
	struct receives r;
	uint32_t limit;
	int users;
};

struct qp {
	struct sl_qp q;
	struct sl_qp_cap cap;
	struct sl_qp_attr attr;
	struct receives r;
	int sig_all, last_wqe;
	uint32_t head, freed; // sends posted, polled
};

struct pd {
	struct sl_pd p;
	int users;
};

// Objects by number; no number is given twice.
static void *table[max_objects];
static uint32_t numbers = 0x10;

static uint32_t number(void *o) {
	if (numbers == max_objects) {
		fputs("null: too many objects\n", stderr);
		abort();
	}
	control.live++;
	table[numbers] = o;
	return numbers++;
}

static void forget(uint32_t n) {
	control.live--;
	table[n] = NULL;
}

static struct device devices[16];

// Once: another thread may be reading them.
__attribute__((constructor)) static void name_devices(void) {
	for (int i = 0; i < 16; i++) {
		devices[i].index = i;
		snprintf(devices[i].name, sizeof devices[i].name, "null%d", i);
	}
}

void **ibv_get_device_list(int *num) {
	if ((errno = env("NULL_LIST_ERRNO", 0))) {
		return NULL;
	}
	*num = env("NULL_DEVICES", 1);
	void **list = calloc(*num + 1, sizeof *list);
	for (int i = 0; i < *num; i++) {
		list[i] = &devices[i];
	}
	return list;
}

void ibv_free_device_list(void **list) { free(list); }

const char *ibv_get_device_name(void *d) { return ((struct device *)d)->name; }

static void event(struct sl_context *c, uint32_t type, uint32_t num) {
	const uint32_t e[2] = {type, num};
	if (write(((struct context *)((char *)c - offsetof(struct sl_verbs_context, context)))->async_write, e, sizeof e) != sizeof e) {
		abort();
	}
}

static int query(struct sl_context *c, struct sl_device_attr *a) {
	memset(a, 0, sizeof *a);
	snprintf(a->fw_ver, sizeof a->fw_ver, "%#lx", (unsigned long)&control);
	a->max_mr_size = 1ul << 40;
	a->max_qp = a->max_cq = a->max_mr = a->max_pd = a->max_srq = 1 << 14;
	a->max_qp_wr = a->max_srq_wr = max_wr;
	a->max_sge = a->max_sge_rd = a->max_srq_sge = max_sge;
	a->max_cqe = 1 << 16;
	a->max_qp_rd_atom = a->max_qp_init_rd_atom = 16;
	a->atomic_cap = 1;
	a->max_pkeys = 8;
	a->phys_port_cnt = getenv("NULL_IB") ? 2 : 1;
	return 0;
}

static int query_ex(struct sl_context *c, const uint32_t *input, struct sl_device_attr_ex *a, size_t size) {
	if (*input || size != sizeof *a) {
		return EINVAL;
	}
	memset(a, 0, sizeof *a);
	const long rc = env("NULL_ODP", 0);
	a->odp_caps.general_caps = rc != 0;
	a->odp_caps.rc_odp_caps = rc;
	return query(c, &a->orig_attr);
}

int ibv_query_device(struct sl_context *c, struct sl_device_attr *a) { return query(c, a); }

static int post_send(struct sl_qp *, struct sl_send_wr *, struct sl_send_wr **);
static int post_recv(struct sl_qp *, struct sl_recv_wr *, struct sl_recv_wr **);
static int post_srq_recv(struct sl_srq *, struct sl_recv_wr *, struct sl_recv_wr **);
static int poll_cq(struct sl_cq *, int, struct sl_wc *);
static int req_notify_cq(struct sl_cq *, int);

struct sl_context *ibv_open_device(void *d) {
	struct context *c = calloc(1, sizeof *c);
	int fd[2];
	if (pipe2(fd, O_CLOEXEC) < 0) {
		free(c);
		return NULL;
	}
	c->device = d;
	c->async_write = fd[1];
	c->v.sz = sizeof c->v;
	c->v.query_device_ex = getenv("NULL_NO_EX") ? NULL : query_ex;
	c->v.context = (struct sl_context){
		.device = d,
		.ops = {.poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_srq_recv = post_srq_recv, .post_send = post_send, .post_recv = post_recv},
		.cmd_fd = -1,
		.async_fd = fd[0],
		.num_comp_vectors = 1,
		.abi_compat = (void *)UINTPTR_MAX,
	};
	enter();
	control.async_fd = fd[1];
	control.live++;
	leave();
	return &c->v.context;
}

static struct context *of(struct sl_context *c) {
	return (struct context *)((char *)c - offsetof(struct sl_verbs_context, context));
}

int ibv_close_device(struct sl_context *context) {
	struct context *c = of(context);
	close(context->async_fd);
	close(c->async_write);
	free(c);
	enter();
	control.live--;
	leave();
	return 0;
}

int ibv_query_port(struct sl_context *c, uint8_t port, struct sl_port_attr *a) {
	const long lid = env("NULL_IB", -1);
	if (port < 1 || port > (lid < 0 ? 1 : 2)) {
		return EINVAL;
	}
	memset(a, 0, sizeof *a);
	a->state = lid >= 0 && port == 1 ? 1 : 4;
	a->max_mtu = a->active_mtu = 5;
	a->gid_tbl_len = 4;
	a->max_msg_sz = 1 << 30;
	a->pkey_tbl_len = 8;
	a->link_layer = lid < 0 ? 2 : 1;
	a->lid = lid > 0 && port == 2 ? lid + of(c)->device->index : 0;
	return 0;
}

int ibv_query_gid(struct sl_context *c, uint8_t port, int index, struct sl_gid *gid) {
	static const struct sl_gid ethernet[4] = {
		{{0xfe, 0x80, [15] = 1}},
		{{0}},
		{{[10] = 0xff, 0xff, 10, 0, 0, 1}},
		{{[10] = 0xff, 0xff, 10, 0, 0, 2}},
	};
	if (index < 0 || index > 3) {
		errno = EINVAL;
		return -1;
	}
	if (!getenv("NULL_IB")) {
		*gid = ethernet[index];
		return 0;
	}
	memset(gid, 0, sizeof *gid);
	if (index < 2) {
		gid->raw[0] = 0xfe;
		gid->raw[1] = of(c)->device->index ? 0xc0 : 0x80;
		gid->raw[14] = port;
		gid->raw[15] = index + 1;
	}
	return 0;
}

int ibv_get_async_event(struct sl_context *c, struct sl_async_event *e) {
	uint32_t rec[2];
	for (;;) {
		if (control.async_errno) {
			errno = control.async_errno;
			return -1;
		}
		ssize_t n = read(c->async_fd, rec, sizeof rec);
		if (n != sizeof rec) {
			if (n >= 0) {
				errno = EIO;
			}
			return -1;
		}
		e->event_type = rec[0];
		if (rec[0] >= 8 && rec[0] <= 13 || rec[0] > 16) {
			e->element.port_num = rec[1];
			return 0;
		}
		enter();
		void *o = table[rec[1]];
		leave();
		if (o) {
			e->element.object = o;
			return 0;
		}
	}
}

void ibv_ack_async_event(struct sl_async_event *e) {}

struct sl_pd *ibv_alloc_pd(struct sl_context *c) {
	struct pd *p = calloc(1, sizeof *p);
	p->p.context = c;
	enter();
	p->p.handle = number(p);
	leave();
	return &p->p;
}

int ibv_dealloc_pd(struct sl_pd *pd) {
	struct pd *p = (struct pd *)pd;
	if (p->users) {
		return EBUSY;
	}
	enter();
	forget(p->p.handle);
	leave();
	free(p);
	return 0;
}

static struct sl_mr *reg(struct sl_pd *pd, void *addr, size_t length, unsigned access, int call) {
	enter();
	control.reg_access = access;
	control.reg_call = call;
	if ((errno = control.reg_errno)) {
		leave();
		return NULL;
	}
	struct mr *m = calloc(1, sizeof *m);
	m->m = (struct sl_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length};
	m->access = access;
	m->m.handle = m->m.lkey = m->m.rkey = number(m);
	((struct pd *)pd)->users++;
	leave();
	return &m->m;
}

struct sl_mr *ibv_reg_mr(struct sl_pd *pd, void *addr, size_t length, int access) { return reg(pd, addr, length, access, 1); }

struct sl_mr *ibv_reg_mr_iova2(struct sl_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access) {
	return reg(pd, addr, length, iova == (uintptr_t)addr ? access : 0, 2);
}

int ibv_dereg_mr(struct sl_mr *m) {
	enter();
	int err = control.dereg_errno;
	if (!err) {
		((struct pd *)m->pd)->users--;
		forget(m->handle);
		free(m);
	}
	leave();
	return err;
}

struct sl_comp_channel *ibv_create_comp_channel(struct sl_context *c) {
	int fd[2];
	if (pipe2(fd, O_CLOEXEC) < 0) {
		return NULL;
	}
	struct channel *ch = calloc(1, sizeof *ch);
	ch->c = (struct sl_comp_channel){.context = c, .fd = fd[0]};
	ch->write = fd[1];
	enter();
	control.live++;
	leave();
	return &ch->c;
}

int ibv_destroy_comp_channel(struct sl_comp_channel *c) {
	struct channel *ch = (struct channel *)c;
	if (c->refcnt) {
		return EBUSY;
	}
	close(c->fd);
	close(ch->write);
	free(ch);
	enter();
	control.live--;
	leave();
	return 0;
}

int ibv_get_cq_event(struct sl_comp_channel *ch, struct sl_cq **cq, void **cq_context) {
	for (;;) {
		uint32_t handle;
		ssize_t n = read(ch->fd, &handle, sizeof handle);
		if (n != sizeof handle) {
			return -1;
		}
		enter();
		struct cq *q = table[handle];
		if (q) {
			q->unacked++;
		}
		leave();
		if (q) {
			*cq = &q->q;
			*cq_context = q->q.cq_context;
			return 0;
		}
	}
}

void ibv_ack_cq_events(struct sl_cq *cq, unsigned n) {
	enter();
	((struct cq *)cq)->unacked -= n;
	leave();
}

struct sl_cq *ibv_create_cq(struct sl_context *c, int cqe, void *cq_context, struct sl_comp_channel *ch, int vector) {
	struct cq *q = calloc(1, sizeof *q);
	q->q = (struct sl_cq){.context = c, .channel = ch, .cq_context = cq_context, .cqe = cqe};
	q->ring = calloc(cqe, sizeof *q->ring);
	enter();
	if (ch) {
		ch->refcnt++;
	}
	control.last_cq = q->q.handle = number(q);
	leave();
	return &q->q;
}

int ibv_destroy_cq(struct sl_cq *cq) {
	struct cq *q = (struct cq *)cq;
	if (q->users) {
		return EBUSY;
	}
	enter();
	while (q->unacked) { // libibverbs waits as well
		leave();
		usleep(100);
		enter();
	}
	if (cq->channel) {
		cq->channel->refcnt--;
	}
	forget(cq->handle);
	leave();
	free(q->ring);
	free(q);
	return 0;
}

// The caller of all that follows holds the lock.

static void notify(struct cq *q) {
	q->armed = 0;
	if (q->q.channel && write(((struct channel *)q->q.channel)->write, &q->q.handle, sizeof q->q.handle) < 0) {
		abort();
	}
}

// complete returns the new entry of a queue, or NULL where there is no room.
static struct cqe *complete(struct cq *q, int failed, int solicited) {
	if (q->head - q->tail == (uint32_t)q->q.cqe) {
		if (!q->overrun) {
			q->overrun = 1;
			event(q->q.context, event_cq_err, q->q.handle);
		}
		return NULL;
	}
	if (q->armed && (q->armed == 1 || failed || solicited)) {
		notify(q);
	}
	return &q->ring[q->head++ % (uint32_t)q->q.cqe];
}

static void init_receives(struct receives *r, uint32_t size) {
	uint32_t n = 1;
	while (n < size) {
		n *= 2;
	}
	r->size = size;
	r->mask = n - 1;
	r->ring = calloc(n, sizeof *r->ring);
}

static struct receives *receives(struct qp *q) { return q->q.srq ? &((struct srq *)q->q.srq)->r : &q->r; }

// received completes the oldest receive of q.
static void received(struct qp *q, int status, uint32_t opcode, uint32_t len, const uint32_t *imm, int solicited) {
	struct receives *r = receives(q);
	struct receive *w = &r->ring[r->tail++ & r->mask];
	struct cqe *e = complete((struct cq *)q->q.recv_cq, status != 0, solicited);
	if (q->q.srq && r->head - r->tail < ((struct srq *)q->q.srq)->limit) {
		((struct srq *)q->q.srq)->limit = 0;
		event(q->q.context, event_srq_limit, q->q.srq->handle);
	}
	if (!e) {
		return;
	}
	memset(&e->wc, 0, sizeof e->wc);
	e->done = r->tail;
	e->wc = (struct sl_wc){.wr_id = w->id, .status = status, .opcode = status ? 0xdead : opcode, .byte_len = status ? 0xdead : len, .qp_num = q->q.qp_num, .vendor_err = status ? 0x77 : 0};
	if (imm) {
		e->wc.imm_data = *imm;
		e->wc.wc_flags = wc_with_imm;
	}
}

static void fail(struct qp *q) {
	if (q->q.state == states_err || q->q.state == states_reset) {
		return;
	}
	q->q.state = states_err;
	if (q->q.srq) {
		if (!q->last_wqe) {
			q->last_wqe = 1;
			event(q->q.context, event_last_wqe, q->q.handle);
		}
		return;
	}
	while (q->r.tail != q->r.head) {
		received(q, wc_flush, 0, 0, NULL, 0);
	}
}

static int inside(uint32_t key, struct sl_pd *pd, uint64_t addr, uint64_t len, unsigned access) {
	struct mr *m = key < max_objects ? table[key] : NULL;
	return m && m->m.lkey == key && m->m.pd == pd && (m->access & access) == access && addr >= (uintptr_t)m->m.addr && len <= m->m.length &&
	       addr - (uintptr_t)m->m.addr <= m->m.length - len;
}

// move copies between the elements of a list and memory.
static void move(struct sl_sge *g, int n, uint64_t addr, int to_list) {
	for (; n-- > 0; addr += g++->length) {
		if (to_list) {
			memcpy((void *)(uintptr_t)g->addr, (void *)(uintptr_t)addr, g->length);
		} else {
			memcpy((void *)(uintptr_t)addr, (void *)(uintptr_t)g->addr, g->length);
		}
	}
}

// deliver moves a message into the oldest receive of the peer.
static int deliver(struct qp *peer, struct sl_send_wr *w, uint64_t len) {
	struct receives *r = receives(peer);
	const uint32_t *imm = w->opcode == op_send_imm || w->opcode == op_write_imm ? &w->imm_data : NULL;
	if (r->head == r->tail) {
		return wc_rnr;
	}
	if (w->opcode == op_write_imm) {
		received(peer, 0, wc_recv_imm, len, imm, w->send_flags & flag_solicited);
		return 0;
	}
	struct receive *in = &r->ring[r->tail & r->mask];
	uint64_t room = 0;
	for (int i = 0; i < in->num; i++) {
		if (in->sges[i].length && !inside(in->sges[i].lkey, peer->q.pd, in->sges[i].addr, in->sges[i].length, access_local_write)) {
			received(peer, wc_loc_prot, 0, 0, NULL, 0);
			fail(peer);
			return wc_rem_inv_req;
		}
		room += in->sges[i].length;
	}
	if (room < len) {
		received(peer, wc_loc_len, 0, 0, NULL, 0);
		fail(peer);
		return wc_rem_inv_req;
	}
	char *all = malloc(len + 1);
	move(w->sg_list, w->num_sge, (uintptr_t)all, 0);
	uint64_t done = 0;
	for (int i = 0; i < in->num && done < len; i++) {
		const uint64_t n = in->sges[i].length < len - done ? in->sges[i].length : len - done;
		memcpy((void *)(uintptr_t)in->sges[i].addr, all + done, n);
		done += n;
	}
	free(all);
	received(peer, 0, wc_recv, len, imm, w->send_flags & flag_solicited);
	return 0;
}

// execute returns the status of a work request.
static int execute(struct qp *q, struct sl_send_wr *w, uint32_t *moved) {
	struct qp *peer = table[q->attr.dest_qp_num];
	if (!peer || peer->q.qp_num != q->attr.dest_qp_num || peer->q.state < states_rtr || peer->q.state == states_err) {
		peer = NULL; // moved nowhere
	}
	uint64_t len = 0;
	const unsigned local = w->opcode >= op_read ? access_local_write : 0;
	for (int i = 0; i < w->num_sge; i++) {
		struct sl_sge *g = &w->sg_list[i];
		if (!(w->send_flags & flag_inline) && g->length && !inside(g->lkey, q->q.pd, g->addr, g->length, local)) {
			return wc_loc_prot;
		}
		len += g->length;
	}
	*moved = len;
	if (!peer) {
		return 0;
	}
	if (w->opcode == op_send || w->opcode == op_send_imm) {
		return deliver(peer, w, len);
	}
	const int atomic = w->opcode >= op_cas;
	const unsigned access = atomic ? access_remote_atomic : w->opcode == op_read ? access_remote_read : access_remote_write;
	if ((len || w->opcode == op_read) && !inside(atomic ? w->atomic_rkey : w->u.rkey, peer->q.pd, w->remote_addr, len, access)) {
		fail(peer);
		return wc_rem_access;
	}
	if (atomic) {
		if (len != 8 || w->remote_addr % 8) {
			return wc_rem_inv_req;
		}
		uint64_t *at = (uint64_t *)(uintptr_t)w->remote_addr, old = *at;
		if (w->opcode == op_add) {
			*at += w->u.compare_add;
		} else if (old == w->u.compare_add) {
			*at = w->swap;
		}
		move(w->sg_list, w->num_sge, (uintptr_t)&old, 1);
		return 0;
	}
	move(w->sg_list, w->num_sge, w->remote_addr, w->opcode == op_read);
	return w->opcode == op_write_imm ? deliver(peer, w, len) : 0;
}

static int refuse(void) {
	if (control.posts_left == UINT32_MAX) {
		return 0;
	}
	if (control.posts_left == 0) {
		return control.post_errno;
	}
	control.posts_left--;
	return 0;
}

static int post_send(struct sl_qp *qp, struct sl_send_wr *w, struct sl_send_wr **bad) {
	static const uint32_t opcodes[] = {1, 1, 0, 0, 2, 3, 4};
	struct qp *q = (struct qp *)qp;
	uint32_t chain = 0;
	int err = 0;
	enter();
	for (; w; w = w->next, chain++) {
		if (qp->state < states_rts || w->num_sge > (int)q->cap.max_send_sge || (unsigned)w->opcode > op_add) {
			err = EINVAL;
			break;
		}
		if (w->send_flags & flag_inline) {
			uint32_t len = 0;
			for (int i = 0; i < w->num_sge; i++) {
				len += w->sg_list[i].length;
			}
			if (len > q->cap.max_inline_data || w->opcode >= op_read) {
				err = EINVAL;
				break;
			}
		}
		if ((err = q->head - q->freed == q->cap.max_send_wr ? ENOMEM : refuse())) {
			break;
		}
		q->head++;
		uint32_t moved = 0;
		int status = wc_flush;
		if (qp->state != states_err) {
			status = control.fail_in && --control.fail_in == 0 ? (int)control.fail_status : execute(q, w, &moved);
			if (status) {
				fail(q);
			}
		}
		if (status || q->sig_all || w->send_flags & flag_signaled) {
			struct cqe *e = complete((struct cq *)qp->send_cq, status != 0, 0);
			if (e) {
				e->done = q->head;
				e->wc = (struct sl_wc){.wr_id = w->wr_id, .status = status, .opcode = status ? 0xdead : opcodes[w->opcode], .byte_len = moved, .qp_num = qp->qp_num, .vendor_err = status ? 0x77 : 0};
			}
		}
	}
	if (chain > control.longest) {
		control.longest = chain;
	}
	leave();
	if (err) {
		*bad = w;
	}
	return err;
}

static int put(struct receives *r, uint32_t used, struct sl_recv_wr *w, uint32_t sges) {
	if (w->num_sge > (int)sges) {
		return EINVAL;
	}
	if (used == r->size) {
		return ENOMEM;
	}
	int err = refuse();
	if (!err) {
		struct receive *e = &r->ring[r->head++ & r->mask];
		e->id = w->wr_id;
		e->num = w->num_sge;
		memcpy(e->sges, w->sg_list, w->num_sge * sizeof *w->sg_list);
	}
	return err;
}

static int post_recv(struct sl_qp *qp, struct sl_recv_wr *w, struct sl_recv_wr **bad) {
	struct qp *q = (struct qp *)qp;
	int err = 0;
	enter();
	for (; w; w = w->next) {
		err = qp->state == states_reset || qp->srq ? EINVAL : put(&q->r, q->r.head - q->r.freed, w, q->cap.max_recv_sge);
		if (err) {
			break;
		}
		if (qp->state == states_err) {
			received(q, wc_flush, 0, 0, NULL, 0);
		}
	}
	leave();
	if (err) {
		*bad = w;
	}
	return err;
}

static int post_srq_recv(struct sl_srq *srq, struct sl_recv_wr *w, struct sl_recv_wr **bad) {
	struct srq *s = (struct srq *)srq;
	int err = 0;
	enter();
	for (; w; w = w->next) {
		if ((err = put(&s->r, s->r.head - s->r.tail, w, max_sge))) {
			break;
		}
	}
	leave();
	if (err) {
		*bad = w;
	}
	return err;
}

static int poll_cq(struct sl_cq *cq, int n, struct sl_wc *wc) {
	struct cq *q = (struct cq *)cq;
	int got = 0;
	enter();
	control.polls++;
	if (control.poll_errno) {
		got = -(int)control.poll_errno;
	} else if (!control.late) {
		for (; got < n && q->tail != q->head; got++) {
			struct cqe *e = &q->ring[q->tail++ % (uint32_t)cq->cqe];
			wc[got] = e->wc;
			struct qp *p = table[e->wc.qp_num];
			if (p && e->wc.wr_id >> 63) {
				p->r.freed = e->done;
			} else if (p) {
				p->freed = e->done;
			}
		}
	}
	leave();
	return got;
}

static int req_notify_cq(struct sl_cq *cq, int solicited_only) {
	struct cq *q = (struct cq *)cq;
	enter();
	if (q->armed != 1) {
		q->armed = 1 + (solicited_only != 0);
	}
	leave();
	return 0;
}

struct sl_srq *ibv_create_srq(struct sl_pd *pd, struct sl_srq_init_attr *init) {
	struct srq *s = calloc(1, sizeof *s);
	s->q = (struct sl_srq){.context = pd->context, .srq_context = init->srq_context, .pd = pd};
	init_receives(&s->r, init->attr.max_wr);
	enter();
	control.last_srq = s->q.handle = number(s);
	((struct pd *)pd)->users++;
	leave();
	return &s->q;
}

int ibv_modify_srq(struct sl_srq *srq, struct sl_srq_attr *a, int mask) {
	if (mask != 2) {
		return EINVAL;
	}
	enter();
	((struct srq *)srq)->limit = a->srq_limit;
	leave();
	return 0;
}

int ibv_query_srq(struct sl_srq *srq, struct sl_srq_attr *a) {
	struct srq *s = (struct srq *)srq;
	*a = (struct sl_srq_attr){.max_wr = s->r.size, .max_sge = max_sge, .srq_limit = s->limit};
	return 0;
}

int ibv_destroy_srq(struct sl_srq *srq) {
	struct srq *s = (struct srq *)srq;
	if (s->users) {
		return EBUSY;
	}
	enter();
	((struct pd *)srq->pd)->users--;
	forget(srq->handle);
	leave();
	free(s->r.ring);
	free(s);
	return 0;
}

struct sl_qp *ibv_create_qp(struct sl_pd *pd, struct sl_qp_init_attr *init) {
	if (init->qp_type != 2 || !init->send_cq || !init->recv_cq || init->cap.max_send_sge > max_sge || init->cap.max_recv_sge > max_sge ||
	    init->cap.max_inline_data > env("NULL_INLINE", 64)) {
		errno = EINVAL;
		return NULL;
	}
	struct qp *q = calloc(1, sizeof *q);
	q->q = (struct sl_qp){.context = pd->context, .qp_context = init->qp_context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq, .srq = init->srq, .qp_type = 2};
	q->cap = init->cap;
	q->sig_all = init->sq_sig_all;
	init_receives(&q->r, init->srq ? 0 : init->cap.max_recv_wr);
	enter();
	q->q.handle = q->q.qp_num = number(q);
	((struct pd *)pd)->users++;
	((struct cq *)init->send_cq)->users++;
	((struct cq *)init->recv_cq)->users++;
	if (init->srq) {
		((struct srq *)init->srq)->users++;
	}
	leave();
	return &q->q;
}

int ibv_modify_qp(struct sl_qp *qp, struct sl_qp_attr *a, int mask) {
	struct qp *q = (struct qp *)qp;
	struct sl_qp_attr *to = &q->attr;
	enter();
#define SET(bit, field)                  \
	if (mask & 1 << (bit)) {         \
		to->field = a->field;    \
	}
	SET(3, qp_access_flags);
	SET(4, pkey_index);
	SET(5, port_num);
	SET(7, ah_attr);
	SET(8, path_mtu);
	SET(9, timeout);
	SET(10, retry_cnt);
	SET(11, rnr_retry);
	SET(12, rq_psn);
	SET(13, max_rd_atomic);
	SET(15, min_rnr_timer);
	SET(16, sq_psn);
	SET(17, max_dest_rd_atomic);
	SET(20, dest_qp_num);
	if (mask & 1) {
		switch (a->qp_state) {
		case states_reset:
			q->r.tail = q->r.freed = q->r.head;
			q->freed = q->head;
			q->last_wqe = 0;
			memset(to, 0, sizeof *to);
			break;
		case states_err:
			control.asked_err++;
			fail(q);
		}
		qp->state = a->qp_state;
	}
	leave();
	return 0;
}

int ibv_query_qp(struct sl_qp *qp, struct sl_qp_attr *a, int mask, struct sl_qp_init_attr *init) {
	struct qp *q = (struct qp *)qp;
	enter();
	*a = q->attr;
	a->qp_state = a->cur_qp_state = qp->state;
	a->cap = q->cap;
	leave();
	memset(init, 0, sizeof *init);
	return 0;
}

int ibv_destroy_qp(struct sl_qp *qp) {
	struct qp *q = (struct qp *)qp;
	enter();
	forget(qp->qp_num);
	((struct pd *)qp->pd)->users--;
	((struct cq *)qp->send_cq)->users--;
	((struct cq *)qp->recv_cq)->users--;
	if (qp->srq) {
		((struct srq *)qp->srq)->users--;
	}
	leave();
	free(q->r.ring);
	free(q);
	return 0;
}
