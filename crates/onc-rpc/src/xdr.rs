//! External data representation (RFC 4506), as far as heads of messages need it.
//!
//! ```
//! use weft_onc_rpc::xdr::{Reader, Writer};
//! let bytes = Writer::new().u32(7).opaque(b"abcde").into_bytes();
//! assert_eq!(bytes, b"\0\0\0\x07\0\0\0\x05abcde\0\0\0");
//! let mut reader = Reader::new(&bytes);
//! assert_eq!(reader.u32(), Ok(7));
//! assert_eq!(reader.opaque(5), Ok(&b"abcde"[..]));
//! ```

/// Why bytes are not what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum XdrError {
    /// They end too early: there may be more to come.
    #[error("the message ends too early")]
    Short,
    /// A length is greater than may be, or a value is none of those that there are.
    #[error("the message has a value that cannot be")]
    Wrong,
}

/// Zeros behind so many bytes.
pub const fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// Takes values from the front of bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the front.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    /// How many bytes were taken.
    pub fn position(&self) -> usize {
        self.at
    }

    /// What was not taken.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], XdrError> {
        let taken = self.rest().get(..bytes).ok_or(XdrError::Short)?;
        self.at += bytes;
        Ok(taken)
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        let word = self.take(4)?;
        Ok(u32::from_be_bytes(word.try_into().expect("four bytes")))
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`XdrError::Wrong`] where it is neither 0 nor 1, else [`XdrError::Short`].
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(XdrError::Wrong),
        }
    }

    /// An unsigned hyper integer.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from(self.u32()?) << 32 | u64::from(self.u32()?))
    }

    /// Opaque data of a known length.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn fixed(&mut self, bytes: usize) -> Result<&'a [u8], XdrError> {
        let data = self.take(bytes)?;
        self.take(padding(bytes))?;
        Ok(data)
    }

    /// Opaque data of a length that the program knows.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub fn array<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], XdrError> {
        self.fixed(BYTES)?.try_into().map_err(|_| XdrError::Short)
    }

    /// A value that may be missing.
    ///
    /// # Errors
    /// Those of `bool` and `read`.
    pub fn option<T, E: From<XdrError>>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Opaque data or a string, of at most `bytes_max`.
    ///
    /// # Errors
    /// [`XdrError::Wrong`] where it is longer, else [`XdrError::Short`].
    pub fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8], XdrError> {
        let bytes = self.u32()? as usize;
        if bytes > bytes_max {
            return Err(XdrError::Wrong);
        }
        self.fixed(bytes)
    }
}

/// Puts values one behind the other.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Without bytes.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// With room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer { bytes: Vec::with_capacity(bytes) }
    }

    /// An unsigned integer.
    pub fn u32(mut self, value: u32) -> Writer {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A boolean.
    pub fn bool(self, value: bool) -> Writer {
        self.u32(value.into())
    }

    /// An unsigned hyper integer.
    pub fn u64(mut self, value: u64) -> Writer {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Opaque data of a length that the other side knows.
    pub fn fixed(mut self, data: &[u8]) -> Writer {
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len() + padding(data.len()), 0);
        self
    }

    /// Opaque data or a string, with its length.
    pub fn opaque(self, data: &[u8]) -> Writer {
        self.u32(data.len() as u32).fixed(data)
    }

    /// A value that may be missing.
    pub fn option<T>(self, value: Option<T>, write: impl FnOnce(Writer, T) -> Writer) -> Writer {
        let writer = self.bool(value.is_some());
        match value {
            Some(value) => write(writer, value),
            None => writer,
        }
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]

        #[test]
        fn what_is_written_is_read(number: u32, long: u64, fixed: [u8; 6], data: Vec<u8>, some: Option<u32>) {
            let writer = Writer::with_capacity(40).u32(number).u64(long).fixed(&fixed).fixed(&fixed);
            let writer = writer.option(some, Writer::u32);
            let bytes = writer.opaque(&data).into_bytes();
            prop_assert_eq!(bytes.len() % 4, 0);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.u32(), Ok(number));
            prop_assert_eq!(reader.u64(), Ok(long));
            prop_assert_eq!(reader.fixed(6), Ok(&fixed[..]));
            prop_assert_eq!(reader.array(), Ok(fixed));
            prop_assert_eq!(reader.option(Reader::u32), Ok(some));
            prop_assert_eq!(reader.opaque(data.len()), Ok(&data[..]));
            prop_assert_eq!(reader.position(), bytes.len());
        }
    }

    #[test]
    fn lengths_are_checked_first() {
        assert_eq!(Reader::new(b"\xff\xff\xff\xff").opaque(400), Err(XdrError::Wrong));
        assert_eq!(Reader::new(b"\0\0\0\x05abcd").opaque(400), Err(XdrError::Short));
        assert_eq!(Reader::new(b"\0\0\0\x05abcde").opaque(400), Err(XdrError::Short), "without its padding");
        assert_eq!(Reader::new(b"\0\0\0").u32(), Err(XdrError::Short));
        assert_eq!(Reader::new(b"\0\0\0\x01").bool(), Ok(true));
        assert_eq!(Reader::new(b"\0\0\0\x02").bool(), Err(XdrError::Wrong));
        assert_eq!((padding(0), padding(1), padding(4), padding(7)), (0, 3, 0, 1));
    }
}
