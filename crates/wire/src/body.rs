//! Bodies of messages between builds of different versions: how the protocol grows.
//!
//! ```text
//!   version 1 sends   │ a │ b │            a newer receiver reads c as its default
//!   version 2 sends   │ a │ b │ c │        an older receiver skips what follows b
//! ```
//!
//! A sender always sends the newest form that it knows, and its version is in the header. So servers and clients of two
//! neighbouring releases serve each other, and a cluster is upgraded one server at a time. The rules for a new version:
//!
//! * A new field is the last one of a request or reply, and its type is [`Added`]. The messages inside of messages do not
//!   grow. An old receiver must be able to do without the field; what it may not ignore is a new operation.
//! * A new operation, status, flag or role goes only to a peer that speaks the version which it came with
//!   ([`HelloReply::version`](crate::messages::HelloReply::version)).
//! * A proof covers the bytes of the greeting as they were sent, so that a greeting may grow, too.
//!
//! With the feature `next`, which only tests use, this crate is the release after this one: it speaks one version more, and
//! every body has one more field.

use crate::claims::Vetting;
use crate::codec::{DecodeError, Reader, Wire, Writer};
use crate::header::Header;
use crate::versions::VERSIONS;

/// A field that came with a later version than its message. A sender of before leaves it out; then it has its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Added<T>(pub T);

impl<T: Wire + Default> Wire for Added<T> {
    const BYTES_MIN: usize = 0;

    fn put(&self, out: &mut Writer) {
        self.0.put(out);
    }

    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.remaining() == 0 { Ok(Added::default()) } else { T::get(input).map(Added) }
    }

    fn sample(seed: &mut u64) -> Self {
        Added(T::sample(seed))
    }

    const VETTED: bool = T::VETTED;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        self.0.vet(vetting);
    }
}

/// What the release after this one has at the end of every body.
#[cfg(feature = "next")]
const NEXT_FIELD: Added<u64> = Added(0x7478_656e_7478_656e);

/// The body of a message.
pub fn encode<T: Wire>(message: &T) -> Vec<u8> {
    let mut out = Writer::new();
    message.put(&mut out);
    finish(out)
}

/// The body of a message whose fields are written.
pub fn finish(fields: Writer) -> Vec<u8> {
    #[cfg(feature = "next")]
    let fields = {
        let mut fields = fields;
        NEXT_FIELD.put(&mut fields);
        fields
    };
    fields.into_bytes()
}

/// Reads the body of a message with this header.
///
/// # Errors
/// The bytes are no such message. Bytes behind the last field are an error unless the sender speaks a newer version than
/// this build.
pub fn decode<T: Wire>(header: &Header, body: &[u8]) -> Result<T, DecodeError> {
    decode_of_version(header.version, body)
}

/// As [`decode`], from a sender of which only the newest version that it speaks is known.
///
/// # Errors
/// As [`decode`].
pub fn decode_of_version<T: Wire>(version: u8, body: &[u8]) -> Result<T, DecodeError> {
    let mut input = Reader::new(body);
    let message = T::get(&mut input)?;
    #[cfg(feature = "next")]
    if !matches!(Added::<u64>::get(&mut input)?, NEXT_FIELD | Added(0)) {
        return Err(DecodeError::Value("the field of the next release"));
    }
    if version <= VERSIONS.1 {
        input.finish()?;
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::message! {
        /// As it was.
        pub struct Old {
            /// A field.
            pub a: u16,
        }

        /// As it is.
        pub struct New {
            /// A field.
            pub a: u16,
            /// A later one.
            pub b: Added<u32>,
        }
    }

    #[test]
    fn an_older_peer_skips_what_is_new_and_a_newer_one_does_without_it() {
        let new = New { a: 7, b: Added(9) };
        let newer = VERSIONS.1 + 1;
        assert_eq!(decode_of_version::<Old>(newer, &new.to_bytes()), Ok(Old { a: 7 }));
        assert_eq!(New::from_bytes(&Old { a: 7 }.to_bytes()), Ok(New { a: 7, b: Added(0) }));
        assert_eq!(New::from_bytes(&new.to_bytes()), Ok(new));
    }

    #[test]
    fn a_peer_of_the_same_version_sends_what_this_build_knows_and_nothing_more() {
        let bytes = New { a: 7, b: Added(9) }.to_bytes();
        assert_eq!(decode_of_version::<Old>(VERSIONS.1, &bytes), Err(DecodeError::Trailing(4)));
        assert_eq!(decode_of_version::<New>(VERSIONS.1 + 1, &bytes[..4]), Err(DecodeError::Truncated));
    }

    #[test]
    fn bodies_that_have_grown_are_decoded_or_refused() {
        let right = [New { a: 7, b: Added(9) }.to_bytes(), Old { a: 7 }.to_bytes()];
        weft_test_fuzz::run("grown-bodies", &right, |bytes| {
            let skipped = decode_of_version::<Old>(VERSIONS.1 + 1, bytes);
            assert_eq!(skipped.is_ok(), bytes.len() >= 2);
            if let Ok(new) = decode_of_version::<New>(VERSIONS.1, bytes) {
                assert_eq!(New::from_bytes(&new.to_bytes()), Ok(new));
            }
        });
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let old = Old { a: 7 };
        assert_eq!(decode_of_version::<Old>(VERSIONS.1, &encode(&old)), Ok(old));
    }
}
