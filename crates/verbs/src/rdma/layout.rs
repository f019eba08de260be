//! Compares the bindings with the headers of rdma-core: a C program prints the offsets and sizes of its
//! compiler.

use super::bindings::*;
use crate::MemoryPiece;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// A field of a structure: its C name, the field in C, and its offset here.
type Place = (&'static str, String, usize);

macro_rules! places {
    ($($c:literal as $rust:ty { $($($field:ident).+),+ $(,)? })*) => {
        vec![$($((
            $c,
            [$(stringify!($field).trim_start_matches("r#")),+].join("."),
            offset_of!($rust, $($field).+),
        )),+),*]
    };
}

fn places() -> Vec<Place> {
    places! {
        "struct ibv_device" as ibv_device { node_type, transport_type, name }
        "struct ibv_context" as ibv_context {
            device, ops, ops.alloc_mw, ops.dealloc_mw, ops.poll_cq, ops.req_notify_cq, ops.post_srq_recv, ops.post_send,
            ops.post_recv, cmd_fd, async_fd, num_comp_vectors, abi_compat,
        }
        "struct ibv_device_attr" as ibv_device_attr {
            max_mr_size, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cqe, max_mr, max_qp_rd_atom,
            max_qp_init_rd_atom, max_mw, max_srq, max_srq_wr, phys_port_cnt,
        }
        "struct ibv_device_attr_ex" as ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps.general_caps,
        }
        "struct ibv_port_attr" as ibv_port_attr { state, link_layer, port_cap_flags2 }
        "struct ibv_async_event" as ibv_async_event { element.qp, element.port_num, event_type }
        "struct ibv_wc" as ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, dlid_path_bits,
        }
        "struct ibv_pd" as ibv_pd { context, handle }
        "struct ibv_mr" as ibv_mr { addr, length, handle, lkey, rkey }
        "struct ibv_mw" as ibv_mw { context, pd, rkey, handle, r#type }
        "struct ibv_sge" as ibv_sge { addr, length, lkey }
        "struct ibv_send_wr" as ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr.rdma.remote_addr, wr.rdma.rkey, qp_type,
            bind_mw.mw, bind_mw.rkey, bind_mw.bind_info.mr, bind_mw.bind_info.addr, bind_mw.bind_info.length,
            bind_mw.bind_info.mw_access_flags,
        }
        "struct ibv_recv_wr" as ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct ibv_srq_init_attr" as ibv_srq_init_attr { srq_context, attr.max_wr, attr.max_sge, attr.srq_limit }
        "struct ibv_srq" as ibv_srq { context }
        "struct ibv_qp_init_attr" as ibv_qp_init_attr {
            qp_context, send_cq, recv_cq, srq, cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
            cap.max_inline_data, qp_type, sq_sig_all,
        }
        "struct ibv_qp" as ibv_qp { context, pd, handle, qp_num }
        "struct ibv_comp_channel" as ibv_comp_channel { context, fd }
        "struct ibv_cq" as ibv_cq { context }
        "struct rdma_event_channel" as rdma_event_channel { fd }
        "struct rdma_cm_id" as rdma_cm_id {
            verbs, channel, context, qp, route.addr.src_storage, route.addr.dst_storage, ps, port_num,
        }
        "struct rdma_conn_param" as rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        "struct rdma_cm_event" as rdma_cm_event { id, listen_id, event, status, param.conn.private_data }
    }
}

/// Structures that are created here, not by the libraries. Their sizes must be equal.
fn sizes() -> Vec<(&'static str, usize)> {
    vec![
        ("struct ibv_device_attr", size_of::<ibv_device_attr>()),
        ("struct ibv_port_attr", size_of::<ibv_port_attr>()),
        ("struct ibv_async_event", size_of::<ibv_async_event>()),
        ("struct ibv_wc", size_of::<ibv_wc>()),
        ("struct ibv_sge", size_of::<ibv_sge>()),
        ("struct ibv_send_wr", size_of::<ibv_send_wr>()),
        ("struct ibv_recv_wr", size_of::<ibv_recv_wr>()),
        ("struct ibv_srq_init_attr", size_of::<ibv_srq_init_attr>()),
        ("struct ibv_qp_init_attr", size_of::<ibv_qp_init_attr>()),
        ("struct rdma_conn_param", size_of::<rdma_conn_param>()),
    ]
}

/// Constants of the interface.
fn numbers() -> Vec<(&'static str, u64)> {
    macro_rules! numbers {
        ($($name:ident)*) => { vec![$((stringify!($name), $name as u64)),*] };
    }
    numbers! {
        IBV_TRANSPORT_IWARP IBV_LINK_LAYER_ETHERNET IBV_DEVICE_MEM_WINDOW_TYPE_2A IBV_DEVICE_MEM_WINDOW_TYPE_2B
        IBV_ODP_SUPPORT IBV_ODP_SUPPORT_SEND IBV_ODP_SUPPORT_RECV IBV_ODP_SUPPORT_WRITE IBV_ODP_SUPPORT_READ
        IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_MW_BIND IBV_ACCESS_ON_DEMAND
        IBV_MW_TYPE_2 IBV_QPT_RC IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_RDMA_READ
        IBV_WR_LOCAL_INV IBV_WR_BIND_MW IBV_WR_SEND_WITH_INV IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_INLINE
        IBV_WC_SUCCESS IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_ACCESS_ERR
        IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_WITH_INV IBV_FORK_UNNEEDED
        IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED IBV_EVENT_DEVICE_FATAL IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR
        IBV_EVENT_QP_LAST_WQE_REACHED RDMA_PS_TCP RDMA_OPTION_ID RDMA_OPTION_ID_TOS RDMA_OPTION_ID_ACK_TIMEOUT
        RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_CONNECT_REQUEST
        RDMA_CM_EVENT_CONNECT_ERROR RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED
        RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_ADDR_CHANGE
    }
}

/// Lines of C that print each value, and the expected value.
fn program() -> (String, Vec<(String, u64)>) {
    let mut lines = Vec::new();
    for (structure, field, offset) in places() {
        lines.push((format!("offsetof({structure}, {field})"), offset as u64));
    }
    for (structure, bytes) in sizes() {
        lines.push((format!("sizeof({structure})"), bytes as u64));
    }
    for (name, number) in numbers() {
        lines.push((name.to_string(), number));
    }
    let end = "offsetof(struct verbs_context, context) - offsetof(struct verbs_context, query_device_ex)";
    lines.push((end.to_string(), offset_of!(verbs_context_end, context) as u64));
    let prints: String = lines
        .iter()
        .map(|(text, _)| format!("    printf(\"%llu\\n\", (unsigned long long)({text}));\n"))
        .collect();
    let includes = ["<stddef.h>", "<stdio.h>", "<infiniband/verbs.h>", "<rdma/rdma_cma.h>"]
        .map(|name| format!("#include {name}\n"))
        .concat();
    (format!("{includes}int main(void) {{\n{prints}    return 0;\n}}\n"), lines)
}

#[test]
fn memory_pieces_are_scatter_gather_elements() {
    assert_eq!(size_of::<MemoryPiece>(), size_of::<ibv_sge>());
    assert_eq!(offset_of!(MemoryPiece, address), offset_of!(ibv_sge, addr));
    assert_eq!(offset_of!(MemoryPiece, bytes), offset_of!(ibv_sge, length));
    assert_eq!(offset_of!(MemoryPiece, local_key), offset_of!(ibv_sge, lkey));
}

#[test]
#[ignore = "needs the headers of libibverbs and librdmacm; the tests in guests run it"]
fn bindings_are_as_in_the_headers() {
    let dir = std::env::temp_dir().join(format!("weft-verbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
    let (text, expected) = program();
    std::fs::write(&source, text).expect("a source is written");
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output().expect("cc can be run");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&binary).output().expect("the program can be run");
    std::fs::remove_dir_all(&dir).expect("the temporary directory goes");
    let said = String::from_utf8(said.stdout).expect("numbers");
    let found: Vec<u64> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(found.len(), expected.len());
    let wrong: Vec<_> = expected.iter().zip(found).filter(|((_, here), there)| here != there).collect();
    assert!(wrong.is_empty(), "expression, here, in the headers: {wrong:#?}");
}
