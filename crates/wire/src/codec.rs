//! Encoding of message bodies: fields in order, little-endian, without padding. A variable part is a 32-bit
//! count and its elements. There are no tags. [`body`](crate::body) has the rules by which
//! messages grow.
//!
//! ```
//! use weft_wire::{Wire, Writer, Reader};
//! let mut out = Writer::new();
//! (7u16).put(&mut out);
//! b"ab".to_vec().put(&mut out);
//! assert_eq!(out.as_bytes(), [7, 0, 2, 0, 0, 0, b'a', b'b']);
//! let mut input = Reader::new(out.as_bytes());
//! assert_eq!(u16::get(&mut input), Ok(7));
//! ```

use crate::claims::Vetting;

/// Why a body could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body ends in the middle of a field.
    #[error("a message ends in the middle of a field")]
    Truncated,
    /// There are bytes after the last field.
    #[error("{0} extra bytes at the end of a message")]
    Trailing(usize),
    /// A count is larger than the remaining bytes can hold, or than its limit.
    #[error("a count of {0} is more than the message can hold")]
    Count(u64),
    /// A field has an invalid value.
    #[error("invalid value in a message: {0}")]
    Value(&'static str),
}

/// Space for the longest reply without lists: an open, with the attributes of the file and of its directory.
const BODY_BYTES_USUAL: usize = 320;

/// Writes an encoding.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Writer {
        Writer { bytes: Vec::with_capacity(BODY_BYTES_USUAL) }
    }
    /// Appends raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// Appends an unsigned LEB128 integer.
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
    /// The bytes written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The bytes written, owned.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads an encoding. Never reads past its end.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }
    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
    /// Reads the next `count` bytes.
    pub fn raw(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }
    /// Reads an unsigned LEB128 integer of at most 64 bits, in its shortest form.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.raw(1)?[0];
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(DecodeError::Value("an integer is not in its shortest form"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value("an integer has more than 64 bits"))
    }
    /// Reads a 32-bit count of elements that take at least `element_bytes` each.
    pub fn count(&mut self, element_bytes: usize) -> Result<usize, DecodeError> {
        let count = u32::get(self)? as usize;
        if count.saturating_mul(element_bytes.max(1)) > self.remaining() {
            return Err(DecodeError::Count(count as u64));
        }
        Ok(count)
    }
    /// Ends the reading: no bytes may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

/// A value with an encoding.
pub trait Wire: Sized {
    /// The least number of bytes of any value. It limits counts before allocation.
    const BYTES_MIN: usize;
    /// Appends the encoding.
    fn put(&self, out: &mut Writer);
    /// Reads one value.
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError>;
    /// A fixed value for golden bytes, different at each step of `seed`.
    fn sample(seed: &mut u64) -> Self;

    /// Whether a value may contain a caller or a capability.
    const VETTED: bool = false;
    /// Passes every caller and every capability in the value to `vetting`.
    fn vet(&mut self, _vetting: &mut dyn Vetting) {}

    /// Appends the encodings of all values in order.
    fn put_all(all: &[Self], out: &mut Writer) {
        for value in all {
            value.put(out);
        }
    }
    /// Reads `count` values. Allocates no more in advance than the message has bytes.
    fn get_all(count: usize, input: &mut Reader<'_>) -> Result<Vec<Self>, DecodeError> {
        let room = input.remaining() / size_of::<Self>().max(1);
        let mut all = Vec::with_capacity(count.min(room));
        for _ in 0..count {
            all.push(Self::get(input)?);
        }
        Ok(all)
    }

    /// The whole encoding.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.put(&mut out);
        out.into_bytes()
    }
    // Fuzzed by bodies: messages/mod.rs
    /// Reads a value that takes all of `bytes`.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let value = Self::get(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Wire for $type {
            const BYTES_MIN: usize = size_of::<$type>();
            fn put(&self, out: &mut Writer) {
                out.raw(&self.to_le_bytes());
            }
            fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let bytes = input.raw(size_of::<$type>())?;
                Ok(<$type>::from_le_bytes(bytes.try_into().expect("as many bytes as asked for")))
            }
            fn sample(seed: &mut u64) -> Self {
                *seed += 1;
                *seed as $type
            }
        }
    )* };
}
integers!(u16, u32, u64, i64);

impl Wire for u8 {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Writer) {
        out.raw(&[*self]);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(input.raw(1)?[0])
    }
    fn put_all(all: &[u8], out: &mut Writer) {
        out.raw(all);
    }
    fn get_all(count: usize, input: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
        Ok(input.raw(count)?.to_vec())
    }
    fn sample(seed: &mut u64) -> Self {
        *seed += 1;
        *seed as u8
    }
}

impl Wire for bool {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Writer) {
        out.raw(&[u8::from(*self)]);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::get(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value("a boolean is neither 0 nor 1")),
        }
    }
    fn sample(_seed: &mut u64) -> Self {
        true
    }
}

impl<const N: usize> Wire for [u8; N] {
    const BYTES_MIN: usize = N;
    fn put(&self, out: &mut Writer) {
        out.raw(self);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(input.raw(N)?.try_into().expect("as many bytes as asked for"))
    }
    fn sample(seed: &mut u64) -> Self {
        *seed += 1;
        [*seed as u8; N]
    }
}

impl<T: Wire> Wire for Vec<T> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Writer) {
        (self.len() as u32).put(out);
        T::put_all(self, out);
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = input.count(T::BYTES_MIN)?;
        T::get_all(count, input)
    }
    fn sample(seed: &mut u64) -> Self {
        vec![T::sample(seed), T::sample(seed)]
    }
    const VETTED: bool = T::VETTED;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        if T::VETTED {
            self.iter_mut().for_each(|value| value.vet(vetting));
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Writer) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(if bool::get(input)? { Some(T::get(input)?) } else { None })
    }
    fn sample(seed: &mut u64) -> Self {
        Some(T::sample(seed))
    }
    const VETTED: bool = T::VETTED;
    fn vet(&mut self, vetting: &mut dyn Vetting) {
        if let Some(value) = self {
            value.vet(vetting);
        }
    }
}

impl Wire for String {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Writer) {
        (self.len() as u32).put(out);
        out.raw(self.as_bytes());
    }
    fn get(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::from_utf8(Vec::get(input)?).map_err(|_| DecodeError::Value("a text is not UTF-8"))
    }
    fn sample(seed: &mut u64) -> Self {
        *seed += 1;
        format!("text {seed}")
    }
}

/// Declares message structs together with their encoding: the fields in order.
#[macro_export]
#[doc(hidden)]
macro_rules! message {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* pub $field:ident: $type:ty,)* })*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        impl $crate::Wire for $name {
            const BYTES_MIN: usize = 0 $(+ <$type as $crate::Wire>::BYTES_MIN)*;
            #[allow(unused_variables)]
            fn put(&self, out: &mut $crate::Writer) {
                $($crate::Wire::put(&self.$field, out);)*
            }
            #[allow(unused_variables)]
            fn get(input: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                $(let $field = <$type as $crate::Wire>::get(input)?;)*
                Ok($name { $($field),* })
            }
            #[allow(unused_variables)]
            fn sample(seed: &mut u64) -> Self {
                $(let $field = <$type as $crate::Wire>::sample(seed);)*
                $name { $($field),* }
            }
            const VETTED: bool = false $(|| <$type as $crate::Wire>::VETTED)*;
            #[allow(unused_variables)]
            fn vet(&mut self, vetting: &mut dyn $crate::Vetting) {
                $($crate::Wire::vet(&mut self.$field, vetting);)*
            }
        }
    )* };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_huge_count_allocates_nothing() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(Vec::<u64>::from_bytes(&bytes), Err(DecodeError::Count(u32::MAX.into())));
    }

    #[test]
    fn what_stands_behind_the_end_is_refused() {
        assert_eq!(u16::from_bytes(&[1, 2, 3]), Err(DecodeError::Trailing(1)));
        assert_eq!(u16::from_bytes(&[1]), Err(DecodeError::Truncated));
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn varints_survive(value: u64) {
            let mut out = Writer::new();
            out.varint(value);
            prop_assert_eq!(Reader::new(out.as_bytes()).varint(), Ok(value));
        }

        #[test]
        fn varints_have_one_form(bytes in proptest::collection::vec(any::<u8>(), 1..12)) {
            let mut input = Reader::new(&bytes);
            if let Ok(value) = input.varint() {
                let mut out = Writer::new();
                out.varint(value);
                prop_assert_eq!(out.as_bytes(), &bytes[..bytes.len() - input.remaining()]);
            }
        }
    }
}
