//! Any bytes behind a header of the kernel's are a request or refused, in one piece and as they lie in a ring.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_fuse_wire::init::Offer;
use weft_fuse_wire::ring::{Arrived, HEADERS_BYTES};
use weft_fuse_wire::{Header, Request, split};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(header) = Header::decode(bytes) {
        let body = &bytes[Header::BYTES..];
        let (arguments, data) = split(header.opcode, body);
        if let Ok(Request::ForgetMany(forgets)) = Request::decode(&header, arguments, data) {
            assert!(forgets.count() <= body.len() / 16);
        }
        let _ = Offer::decode(body);
    }
    if let Some((headers, payload)) = bytes.split_first_chunk::<HEADERS_BYTES>()
        && let Ok(arrived) = Arrived::decode(headers)
    {
        let _ = Request::decode(&arrived.header, arrived.arguments, payload);
    }
});
