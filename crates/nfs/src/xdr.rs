//! External data representation (RFC 4506), as far as arguments and the results of MOUNT need it.

/// Why bytes are not what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XdrError {
    /// They end too early.
    Short,
    /// A length is greater than may be, or a value is none of those that there are.
    Wrong,
}

/// Zeros behind so many bytes.
const fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// Takes values from the front of bytes.
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// What was not taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], XdrError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(XdrError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, XdrError> {
        let word = self.take(4)?;
        Ok(u32::from_be_bytes(word.try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Opaque data of a known length.
    pub(crate) fn fixed(&mut self, bytes: usize) -> Result<&'a [u8], XdrError> {
        let data = self.take(bytes)?;
        self.take(padding(bytes))?;
        Ok(data)
    }

    /// Opaque data or a string, of at most `bytes_max`.
    pub(crate) fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], XdrError> {
        let bytes = self.u32()? as usize;
        if bytes > bytes_max {
            return Err(XdrError::Wrong);
        }
        self.fixed(bytes)
    }
}

/// Puts values one behind the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    pub(crate) fn u32(mut self, value: u32) -> Writer {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Opaque data or a string, with its length.
    pub(crate) fn opaque(self, data: &[u8]) -> Writer {
        let mut this = self.u32(data.len() as u32);
        this.bytes.extend_from_slice(data);
        this.bytes.resize(this.bytes.len() + padding(data.len()), 0);
        this
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let bytes = Writer::new().u32(7).opaque(b"abcde").into_bytes();
        assert_eq!(bytes, b"\0\0\0\x07\0\0\0\x05abcde\0\0\0");
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u32(), reader.opaque(5)), (Ok(7), Ok(&b"abcde"[..])));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn lengths_are_checked_first() {
        assert_eq!(Reader::new(b"\xff\xff\xff\xff").opaque(400), Err(XdrError::Wrong));
        assert_eq!(Reader::new(b"\0\0\0\x05abcd").opaque(400), Err(XdrError::Short));
        assert_eq!(Reader::new(b"\0\0\0").u32(), Err(XdrError::Short));
    }
}
