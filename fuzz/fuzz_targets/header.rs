//! Any 64 bytes are either refused or a header that is written back the same.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_wire::Header;

fuzz_target!(|bytes: [u8; weft_wire::HEADER_BYTES]| {
    let mut bytes = bytes;
    // Without a right checksum nothing else would ever be reached.
    bytes[..4].copy_from_slice(&weft_wire::MAGIC);
    let sum = weft_wire::header_checksum(&bytes);
    bytes[60..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
});
