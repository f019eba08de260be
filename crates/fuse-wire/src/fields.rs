//! Reads numbers and names from the front of bytes.

use thiserror::Error;

/// A request that is shorter than its operation needs, or a name without a terminating zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a request from the kernel is too short: {0} is missing")]
pub struct Malformed(pub &'static str);

/// The bytes that are not read yet.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed(what))?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Malformed> {
        Ok(u32::from_ne_bytes(self.bytes(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Malformed> {
        Ok(u64::from_ne_bytes(self.bytes(what)?))
    }

    /// Reads up to a zero byte. Returns the bytes before it.
    pub(crate) fn name(&mut self, what: &'static str) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed(what))?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(name)
    }

    /// Reads `length` bytes.
    pub(crate) fn data(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], Malformed> {
        let (data, rest) = self.0.split_at_checked(length).ok_or(Malformed(what))?;
        self.0 = rest;
        Ok(data)
    }
}
