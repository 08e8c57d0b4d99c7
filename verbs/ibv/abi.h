// The part of libibverbs' stable ABI (libibverbs.so.1) that this package uses,
// declared here so that it builds with any C compiler and no RDMA headers.
// Names are those of <infiniband/verbs.h> with sl_ for ibv_. testdata/abi.c
// compares every size and offset with that header.
#ifndef SLUICE_IBV_ABI_H
#define SLUICE_IBV_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct sl_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct sl_odp_caps {
	uint64_t general_caps;
	uint32_t rc_odp_caps;
	uint32_t uc_odp_caps;
	uint32_t ud_odp_caps;
};

// The beginning of struct ibv_device_attr_ex; its length is passed along.
struct sl_device_attr_ex {
	struct sl_device_attr orig_attr;
	uint32_t comp_mask;
	struct sl_odp_caps odp_caps;
};

struct sl_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct sl_gid {
	uint8_t raw[16];
};

struct sl_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct sl_send_wr {
	uint64_t wr_id;
	struct sl_send_wr *next;
	struct sl_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_data; // network order
	uint64_t remote_addr;
	union {
		uint32_t rkey; // RDMA
		uint64_t compare_add; // atomics
	} u;
	uint64_t swap;
	uint32_t atomic_rkey;
	uint64_t unused[7];
};

struct sl_recv_wr {
	uint64_t wr_id;
	struct sl_recv_wr *next;
	struct sl_sge *sg_list;
	int num_sge;
};

struct sl_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // network order
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct sl_context;
struct sl_cq;
struct sl_qp;
struct sl_srq;

struct sl_context_ops {
	void *before_poll_cq[11];
	int (*poll_cq)(struct sl_cq *, int, struct sl_wc *);
	int (*req_notify_cq)(struct sl_cq *, int);
	void *before_post_srq_recv[7];
	int (*post_srq_recv)(struct sl_srq *, struct sl_recv_wr *, struct sl_recv_wr **);
	void *before_post_send[4];
	int (*post_send)(struct sl_qp *, struct sl_send_wr *, struct sl_send_wr **);
	int (*post_recv)(struct sl_qp *, struct sl_recv_wr *, struct sl_recv_wr **);
	void *behind_post_recv[5];
};

// The beginnings of the objects that libibverbs creates.

struct sl_context {
	void *device;
	struct sl_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat; // all ones: it lies in a verbs_context
};

// The end of struct verbs_context, which grows at its beginning; sz is the length
// of all of it.
struct sl_verbs_context {
	int (*query_device_ex)(struct sl_context *, const uint32_t *, struct sl_device_attr_ex *, size_t);
	void *before_sz[11];
	size_t sz;
	struct sl_context context;
};

struct sl_pd {
	struct sl_context *context;
	uint32_t handle;
};

struct sl_mr {
	struct sl_context *context;
	struct sl_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct sl_comp_channel {
	struct sl_context *context;
	int fd;
	int refcnt;
};

struct sl_cq {
	struct sl_context *context;
	struct sl_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
};

struct sl_srq {
	struct sl_context *context;
	void *srq_context;
	struct sl_pd *pd;
	uint32_t handle;
};

struct sl_qp {
	struct sl_context *context;
	void *qp_context;
	struct sl_pd *pd;
	struct sl_cq *send_cq;
	struct sl_cq *recv_cq;
	struct sl_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
};

struct sl_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct sl_qp_init_attr {
	void *qp_context;
	struct sl_cq *send_cq;
	struct sl_cq *recv_cq;
	struct sl_srq *srq;
	struct sl_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct sl_global_route {
	struct sl_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint64_t align[0]; // of union ibv_gid
};

struct sl_ah_attr {
	struct sl_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct sl_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct sl_qp_cap cap;
	struct sl_ah_attr ah_attr;
	struct sl_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct sl_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct sl_srq_init_attr {
	void *srq_context;
	struct sl_srq_attr attr;
};

struct sl_async_event {
	union {
		void *object;
		int port_num;
	} element;
	int event_type;
};

#endif
