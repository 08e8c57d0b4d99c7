#ifndef SLUICE_IBV_SHIM_H
#define SLUICE_IBV_SHIM_H

#include "abi.h"

// Go passes and receives numbers; pointers to libibverbs' objects are uintptr_t in Go. No
// Go pointer is passed on the short path, so #cgo noescape would have no effect, and
// nocallback would cost 1 ns for nothing. Functions that return int return 0 or an error
// number.

enum {
	batch = 64, // work requests, or completions, of one call into C
	big_endian = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__,
};

// The functions of libibverbs that are looked up.
struct sl_symbol {
	const char *name, *version;
	void **to;
	int optional;
};
extern const struct sl_symbol sl_symbols[];
extern const size_t sl_symbol_count;

uintptr_t sl_get_device_list(int *num, int *err);
void sl_free_device_list(uintptr_t list);
const char *sl_get_device_name(uintptr_t list, int i);
uintptr_t sl_open_device(uintptr_t list, int i, int *err);
int sl_close_device(uintptr_t context);
int sl_async_fd(uintptr_t context);
int sl_query_device(uintptr_t context, struct sl_device_attr_ex *attr);
int sl_query_port(uintptr_t context, int port, struct sl_port_attr *attr);
int sl_query_gid(uintptr_t context, int port, int index, struct sl_gid *gid);
// sl_get_async_event returns an event, its object and its kind. The object is not destroyed
// before sl_ack_async_event.
int sl_get_async_event(uintptr_t context, struct sl_async_event *event, uintptr_t *object, int *port, int *type);
void sl_ack_async_event(struct sl_async_event *event);

uintptr_t sl_alloc_pd(uintptr_t context, int *err);
int sl_dealloc_pd(uintptr_t pd);
uintptr_t sl_reg_mr(uintptr_t pd, uintptr_t addr, size_t length, unsigned access, uint32_t *lkey, uint32_t *rkey, int *err);
int sl_dereg_mr(uintptr_t mr);

uintptr_t sl_create_comp_channel(uintptr_t context, int *fd, int *err);
int sl_destroy_comp_channel(uintptr_t channel);
int sl_get_cq_event(uintptr_t channel, uintptr_t *cq);
// sl_create_cq assigns the queues' interrupts to the CPUs in turn.
uintptr_t sl_create_cq(uintptr_t context, int cqe, uintptr_t channel, unsigned turn, int *err);
int sl_destroy_cq(uintptr_t cq);

uintptr_t sl_create_srq(uintptr_t pd, struct sl_srq_attr *attr, int *err);
int sl_modify_srq(uintptr_t srq, uint32_t limit);
int sl_query_srq(uintptr_t srq, struct sl_srq_attr *attr);
int sl_destroy_srq(uintptr_t srq);

uintptr_t sl_create_qp(uintptr_t pd, uintptr_t send_cq, uintptr_t recv_cq, uintptr_t srq, struct sl_qp_cap *cap, int sig_all, uint32_t *num, int *err);
int sl_modify_qp(uintptr_t qp, struct sl_qp_attr *attr, int mask);
int sl_query_qp(uintptr_t qp, struct sl_qp_attr *attr);
int sl_destroy_qp(uintptr_t qp);

// The short path.

// The arguments and results of posting sends: passing few arguments, and no result, is fast.
struct sl_sends {
	struct sl_qp *qp;
	struct sl_cq *cq;  // CQ of the sends
	struct sl_wc *wcs; // completions found there, at most batch
	int posted, err;   // number posted, and the error number of the next
	int got;           // result of ibv_poll_cq
	struct sl_send_wr chain[batch];
};
// sl_post_send posts the first n of the chain, then looks for completions if look is
// not 0.
void sl_post_send(uintptr_t sends, int n, int look);
// sl_ring makes soft-RoCE look at posted work, by posting a request that it refuses: an
// atomic operation without room for its result.
void sl_ring(uintptr_t qp);
// Posting receives takes a chain of n consecutive work requests, and returns how many were
// accepted, with the error number of the next above bit 32.
uint64_t sl_post_recv(uintptr_t qp, uintptr_t wr, int n);
uint64_t sl_post_srq_recv(uintptr_t srq, uintptr_t wr, int n);
// sl_poll_cq polls up to looks times for completions.
int sl_poll_cq(uintptr_t cq, int n, uintptr_t wc, int looks);
int sl_req_notify_cq(uintptr_t cq, int solicited_only);

#endif
