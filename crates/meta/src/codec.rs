//! Compact binary values: little-endian integers, length-prefixed bytes, a version in the first byte. Keys, which
//! must sort, are big-endian and live in `keys`.

use crate::EngineError;

/// A value with an encoding.
pub(crate) trait Encode {
    /// Appends it.
    fn encode_to(&self, out: &mut Writer);

    /// It alone.
    #[cfg(test)]
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.encode_to(&mut out);
        out.bytes
    }
}

/// Appends fields to a value.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn with_version(version: u8, capacity_bytes: usize) -> Writer {
        let mut bytes = Vec::with_capacity(capacity_bytes);
        bytes.push(version);
        Writer { bytes }
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes with a 16-bit length before them; callers bound them well below 64 KiB.
    pub fn short_bytes(&mut self, value: &[u8]) {
        debug_assert!(value.len() <= u16::MAX as usize);
        self.u16(value.len() as u16);
        self.bytes.extend_from_slice(value);
    }
}

/// Takes fields off a value; every error names the key the value is stored under.
pub(crate) struct Reader<'a> {
    key: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts to decode `value`, which must carry the given version.
    pub fn with_version(key: &'a [u8], value: &'a [u8], version: u8) -> Result<Reader<'a>, EngineError> {
        let mut reader = Reader { key, rest: value };
        match reader.u8("version")? {
            found if found == version => Ok(reader),
            _ => Err(reader.damaged("version")),
        }
    }

    /// Starts to decode `value` of whatever version.
    pub fn with_any_version(key: &'a [u8], value: &'a [u8]) -> Result<(u8, Reader<'a>), EngineError> {
        let mut reader = Reader { key, rest: value };
        Ok((reader.u8("version")?, reader))
    }

    pub fn damaged(&self, field: &'static str) -> EngineError {
        EngineError::Decode { key: crate::keys::readable(self.key), field }
    }

    pub fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], EngineError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or_else(|| self.damaged(field))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], EngineError> {
        let taken = self.take(N, field)?;
        taken.try_into().map_err(|_| self.damaged(field))
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, EngineError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, EngineError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, EngineError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, EngineError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub fn i64(&mut self, field: &'static str) -> Result<i64, EngineError> {
        Ok(i64::from_le_bytes(self.array(field)?))
    }

    pub fn short_bytes(&mut self, field: &'static str) -> Result<&'a [u8], EngineError> {
        let bytes = usize::from(self.u16(field)?);
        self.take(bytes, field)
    }

    /// All that is left.
    pub fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Fails if anything is left.
    pub fn end(self) -> Result<(), EngineError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.damaged("end")) }
    }
}
