//! What of a call and its reply is inline, and what is in chunks (RFC 8166, 3.3 to 3.5; RFC 8267, 5). Pure.

use weft_onc_rpc::xdr::padding;

use super::memory::RdmaDesign;

/// Bytes of a header with empty lists.
pub(super) const HEADER_BYTES: usize = 28;
/// Bytes that a chunk of one segment adds to it, in any list.
const CHUNK_BYTES: usize = 24;

/// Longest messages, headers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inline {
    /// To the server.
    pub send_bytes: usize,
    /// From it.
    pub receive_bytes: usize,
}

/// A call in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Head and arguments.
    pub head: usize,
    /// Data of a WRITE behind them.
    pub payload: usize,
    /// Room for data of a READ.
    pub sink: usize,
    /// The reply at most, without these.
    pub reply_max: usize,
}

/// Which chunks a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// The data of a WRITE, for the server to read.
    pub payload_chunk: bool,
    /// The call itself, for the server to read.
    pub long_call: bool,
    /// Room for the data of a READ, for the server to write.
    pub sink_chunk: bool,
    /// Room for the whole reply, for the server to write.
    pub reply_chunk: bool,
    /// Room for the data of a READ, for this side to read them into.
    pub sink_local: bool,
}

/// `segments`: how many a chunk of the caller's memory may have.
pub(super) fn plan(sizes: &Sizes, inline: &Inline, segments: usize, design: RdmaDesign) -> Plan {
    let with_padding = |bytes: usize| bytes + padding(bytes);
    let chunk_bytes = CHUNK_BYTES * segments.max(1);
    let reply_inline = HEADER_BYTES + sizes.reply_max + with_padding(sizes.sink);
    let is_long = reply_inline > inline.receive_bytes;
    let offers = is_long && design == RdmaDesign::ReadWrite;
    let sink_local = is_long && sizes.sink > 0 && design == RdmaDesign::ReadRead;
    let sink_chunk = offers && sizes.sink > 0;
    // A reply whose data are in a chunk has its head inline, and says in its header how much was written.
    let reply_chunk = offers && sizes.sink == 0;
    let header =
        HEADER_BYTES + chunk_bytes * usize::from(sink_chunk) + CHUNK_BYTES * usize::from(reply_chunk);
    let payload_chunk =
        sizes.payload > 0 && header + sizes.head + with_padding(sizes.payload) > inline.send_bytes;
    let header = header + chunk_bytes * usize::from(payload_chunk);
    let long_call = header + sizes.head > inline.send_bytes;
    Plan { payload_chunk, long_call, sink_chunk, reply_chunk, sink_local }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INLINE: Inline = Inline { send_bytes: 1024, receive_bytes: 1024 };
    const SMALL: Sizes = Sizes { head: 200, payload: 0, sink: 0, reply_max: 300 };

    fn of(sizes: Sizes) -> Plan {
        plan(&sizes, &INLINE, 1, RdmaDesign::ReadWrite)
    }

    #[test]
    fn what_fits_a_message_has_no_chunks() {
        assert_eq!(of(SMALL), Plan::default());
        assert_eq!(of(Sizes { payload: 796, ..SMALL }), Plan::default(), "all 1024 bytes");
        assert_eq!(of(Sizes { sink: 696, ..SMALL }), Plan::default());
    }

    #[test]
    fn data_that_do_not_fit_are_in_chunks() {
        let payload = Plan { payload_chunk: true, ..Plan::default() };
        assert_eq!(of(Sizes { payload: 797, ..SMALL }), payload, "its padding does not fit");
        let sink = Plan { sink_chunk: true, ..Plan::default() };
        assert_eq!(of(Sizes { sink: 697, ..SMALL }), sink);
        let reply = Plan { reply_chunk: true, ..Plan::default() };
        assert_eq!(of(Sizes { reply_max: 997, ..SMALL }), reply);
    }

    #[test]
    fn where_the_server_exposes_replies_no_room_is_offered_for_them() {
        let of = |sizes: Sizes| plan(&sizes, &INLINE, 1, RdmaDesign::ReadRead);
        assert_eq!(of(Sizes { sink: 696, ..SMALL }), Plan::default());
        assert_eq!(of(Sizes { sink: 697, ..SMALL }), Plan { sink_local: true, ..Plan::default() });
        assert_eq!(of(Sizes { reply_max: 997, ..SMALL }), Plan::default());
        let payload = Plan { payload_chunk: true, ..Plan::default() };
        assert_eq!(of(Sizes { payload: 797, ..SMALL }), payload, "WRITE is the same in both designs");
    }

    #[test]
    fn a_head_that_does_not_fit_is_a_long_call() {
        let long = Plan { long_call: true, ..Plan::default() };
        assert_eq!(of(Sizes { head: 996, ..SMALL }), Plan::default());
        assert_eq!(of(Sizes { head: 1000, ..SMALL }), long);
        let both = Plan { long_call: true, payload_chunk: true, ..Plan::default() };
        assert_eq!(of(Sizes { head: 996, payload: 4, ..SMALL }), both, "the list of the chunk takes room");
    }
}
