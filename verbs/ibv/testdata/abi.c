// Compares abi.h with the distribution's header. Compiling is the test.
#include <infiniband/verbs.h>

#include "../abi.h"

#define SIZE(t) _Static_assert(sizeof(struct sl_##t) == sizeof(struct ibv_##t), "size of " #t)
#define AT2(t, a, b)                                                                                        \
	_Static_assert(offsetof(struct sl_##t, a) == offsetof(struct ibv_##t, b), "offset of " #t "." #a);  \
	_Static_assert(sizeof(((struct sl_##t *)0)->a) == sizeof(((struct ibv_##t *)0)->b), "size of " #t "." #a)
#define AT(t, a) AT2(t, a, a)

SIZE(device_attr);
AT(device_attr, fw_ver);
AT(device_attr, node_guid);
AT(device_attr, sys_image_guid);
AT(device_attr, max_mr_size);
AT(device_attr, page_size_cap);
AT(device_attr, vendor_id);
AT(device_attr, vendor_part_id);
AT(device_attr, hw_ver);
AT(device_attr, max_qp);
AT(device_attr, max_qp_wr);
AT(device_attr, device_cap_flags);
AT(device_attr, max_sge);
AT(device_attr, max_sge_rd);
AT(device_attr, max_cq);
AT(device_attr, max_cqe);
AT(device_attr, max_mr);
AT(device_attr, max_pd);
AT(device_attr, max_qp_rd_atom);
AT(device_attr, max_qp_init_rd_atom);
AT(device_attr, atomic_cap);
AT(device_attr, max_srq);
AT(device_attr, max_srq_wr);
AT(device_attr, max_srq_sge);
AT(device_attr, max_pkeys);
AT(device_attr, local_ca_ack_delay);
AT(device_attr, phys_port_cnt);

AT(device_attr_ex, orig_attr);
AT(device_attr_ex, comp_mask);
AT(device_attr_ex, odp_caps);
SIZE(odp_caps);
AT(odp_caps, general_caps);
AT2(odp_caps, rc_odp_caps, per_transport_caps.rc_odp_caps);
AT2(odp_caps, uc_odp_caps, per_transport_caps.uc_odp_caps);
AT2(odp_caps, ud_odp_caps, per_transport_caps.ud_odp_caps);
_Static_assert(sizeof(struct sl_device_attr_ex) <= sizeof(struct ibv_device_attr_ex), "beginning of device_attr_ex");

SIZE(port_attr);
AT(port_attr, state);
AT(port_attr, max_mtu);
AT(port_attr, active_mtu);
AT(port_attr, gid_tbl_len);
AT(port_attr, max_msg_sz);
AT(port_attr, pkey_tbl_len);
AT(port_attr, lid);
AT(port_attr, link_layer);
AT(port_attr, flags);
AT(port_attr, port_cap_flags2);

_Static_assert(sizeof(struct sl_gid) == sizeof(union ibv_gid), "size of gid");

SIZE(sge);
AT(sge, addr);
AT(sge, length);
AT(sge, lkey);

SIZE(send_wr);
AT(send_wr, wr_id);
AT(send_wr, next);
AT(send_wr, sg_list);
AT(send_wr, num_sge);
AT(send_wr, opcode);
AT(send_wr, send_flags);
AT(send_wr, imm_data);
AT2(send_wr, remote_addr, wr.rdma.remote_addr);
AT2(send_wr, remote_addr, wr.atomic.remote_addr);
AT2(send_wr, u.rkey, wr.rdma.rkey);
AT2(send_wr, u.compare_add, wr.atomic.compare_add);
AT2(send_wr, swap, wr.atomic.swap);
AT2(send_wr, atomic_rkey, wr.atomic.rkey);

SIZE(recv_wr);
AT(recv_wr, wr_id);
AT(recv_wr, next);
AT(recv_wr, sg_list);
AT(recv_wr, num_sge);

SIZE(wc);
AT(wc, wr_id);
AT(wc, status);
AT(wc, opcode);
AT(wc, vendor_err);
AT(wc, byte_len);
AT(wc, imm_data);
AT(wc, qp_num);
AT(wc, src_qp);
AT(wc, wc_flags);
AT(wc, pkey_index);
AT(wc, slid);
AT(wc, sl);
AT(wc, dlid_path_bits);

SIZE(context_ops);
AT(context_ops, poll_cq);
AT(context_ops, req_notify_cq);
AT(context_ops, post_srq_recv);
AT(context_ops, post_send);
AT(context_ops, post_recv);

SIZE(context);
AT(context, device);
AT(context, ops);
AT(context, cmd_fd);
AT(context, async_fd);
AT(context, num_comp_vectors);
AT(context, abi_compat);

#define BEHIND_QUERY(a)                                                                                        \
	_Static_assert(offsetof(struct sl_verbs_context, a) ==                                                 \
			       offsetof(struct verbs_context, a) - offsetof(struct verbs_context, query_device_ex), \
		       "offset of verbs_context." #a)
BEHIND_QUERY(query_device_ex);
BEHIND_QUERY(sz);
BEHIND_QUERY(context);
_Static_assert(sizeof(struct ibv_query_device_ex_input) == sizeof(uint32_t), "input of query_device_ex");

SIZE(pd);
AT(pd, context);
AT(pd, handle);

SIZE(mr);
AT(mr, context);
AT(mr, pd);
AT(mr, addr);
AT(mr, length);
AT(mr, handle);
AT(mr, lkey);
AT(mr, rkey);

SIZE(comp_channel);
AT(comp_channel, context);
AT(comp_channel, fd);

AT(cq, context);
AT(cq, channel);
AT(cq, cq_context);
AT(cq, handle);
AT(cq, cqe);

AT(srq, context);
AT(srq, srq_context);
AT(srq, pd);
AT(srq, handle);

AT(qp, context);
AT(qp, qp_context);
AT(qp, pd);
AT(qp, send_cq);
AT(qp, recv_cq);
AT(qp, srq);
AT(qp, handle);
AT(qp, qp_num);
AT(qp, state);
AT(qp, qp_type);

SIZE(qp_cap);
AT(qp_cap, max_send_wr);
AT(qp_cap, max_recv_wr);
AT(qp_cap, max_send_sge);
AT(qp_cap, max_recv_sge);
AT(qp_cap, max_inline_data);

SIZE(qp_init_attr);
AT(qp_init_attr, qp_context);
AT(qp_init_attr, send_cq);
AT(qp_init_attr, recv_cq);
AT(qp_init_attr, srq);
AT(qp_init_attr, cap);
AT(qp_init_attr, qp_type);
AT(qp_init_attr, sq_sig_all);

SIZE(global_route);
AT(global_route, dgid);
AT(global_route, flow_label);
AT(global_route, sgid_index);
AT(global_route, hop_limit);
AT(global_route, traffic_class);

SIZE(ah_attr);
AT(ah_attr, grh);
AT(ah_attr, dlid);
AT(ah_attr, sl);
AT(ah_attr, src_path_bits);
AT(ah_attr, static_rate);
AT(ah_attr, is_global);
AT(ah_attr, port_num);

SIZE(qp_attr);
AT(qp_attr, qp_state);
AT(qp_attr, cur_qp_state);
AT(qp_attr, path_mtu);
AT(qp_attr, rq_psn);
AT(qp_attr, sq_psn);
AT(qp_attr, dest_qp_num);
AT(qp_attr, qp_access_flags);
AT(qp_attr, cap);
AT(qp_attr, ah_attr);
AT(qp_attr, pkey_index);
AT(qp_attr, en_sqd_async_notify);
AT(qp_attr, sq_draining);
AT(qp_attr, max_rd_atomic);
AT(qp_attr, max_dest_rd_atomic);
AT(qp_attr, min_rnr_timer);
AT(qp_attr, port_num);
AT(qp_attr, timeout);
AT(qp_attr, retry_cnt);
AT(qp_attr, rnr_retry);
AT(qp_attr, rate_limit);

SIZE(srq_attr);
AT(srq_attr, max_wr);
AT(srq_attr, max_sge);
AT(srq_attr, srq_limit);

SIZE(srq_init_attr);
AT(srq_init_attr, srq_context);
AT(srq_init_attr, attr);

SIZE(async_event);
AT2(async_event, element.object, element.cq);
AT2(async_event, element.object, element.qp);
AT2(async_event, element.object, element.srq);
AT2(async_event, element.port_num, element.port_num);
AT(async_event, event_type);

_Static_assert(IBV_QPT_RC == 2, "QP type");
_Static_assert(IBV_ACCESS_ON_DEMAND == 1 << 6 && IBV_ACCESS_RELAXED_ORDERING == 1 << 20, "access flags");
_Static_assert(IBV_SRQ_LIMIT == 2, "SRQ attribute mask");
_Static_assert(IBV_QP_CAP == 1 << 19 && IBV_QP_DEST_QPN == 1 << 20 && IBV_QP_AV == 1 << 7, "QP attribute masks");
_Static_assert(IBV_ODP_SUPPORT == 1, "ODP");
_Static_assert(IBV_ODP_SUPPORT_SEND == 1 && IBV_ODP_SUPPORT_RECV == 2 && IBV_ODP_SUPPORT_WRITE == 4 &&
		       IBV_ODP_SUPPORT_READ == 8 && IBV_ODP_SUPPORT_ATOMIC == 16, "ODP of a transport");
