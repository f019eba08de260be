//! Sizes of buffers that both ends agree on, and of those of a link.

use weft_wire::limits::MESSAGE_DATA_BYTES_MAX;

use super::envelope::MESSAGE_BYTES;

/// Receives of a client's link: one for the reply of each request under way, and some for credits.
pub(super) const CLIENT_RECEIVES: u16 = 32;
/// Send slots of a client's link.
pub(super) const CLIENT_SENDS: u16 = 8;
/// Fast RDMA buffers of a client's link.
pub(super) const CLIENT_FAST_BUFFERS: u16 = 4;
/// In a Fast RDMA buffer, the part that holds envelope, header and body.
pub(super) const FAST_HEAD_BYTES: usize = MESSAGE_BYTES;
/// In a Fast RDMA buffer, the part that holds data.
pub(super) const FAST_DATA_BYTES: usize = MESSAGE_DATA_BYTES_MAX;
/// Size of a Fast RDMA buffer.
pub(super) const FAST_BYTES: usize = FAST_HEAD_BYTES + FAST_DATA_BYTES;
