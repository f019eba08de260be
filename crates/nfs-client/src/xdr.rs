//! XDR (RFC 4506) as far as NFS needs it: a reader that never goes past its bytes, and a writer.

/// Bytes that are not what they should be: what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// What reading gives.
pub type Result<T> = std::result::Result<T, Malformed>;

/// Bytes with their padding to four (RFC 4506, 3).
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(4)
}

/// Reads values from the front of bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// What is left.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Malformed("it ends too early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Bytes whose number is known, without their padding.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(padded(N))?;
        taken[..N].try_into().map_err(|_| Malformed("it ends too early"))
    }

    /// An unsigned integer.
    pub fn u32(&mut self) -> Result<u32> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self) -> Result<u64> {
        self.fixed().map(u64::from_be_bytes)
    }

    /// A boolean.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a boolean is neither 0 nor 1")),
        }
    }

    /// Bytes behind their number, of which there are at most `bytes_max`.
    pub fn opaque(&mut self, bytes_max: usize) -> Result<&'a [u8]> {
        let count = self.u32()? as usize;
        if count > bytes_max {
            return Err(Malformed("bytes or a text are longer than allowed"));
        }
        Ok(&self.take(padded(count))?[..count])
    }

    /// A value that may be missing.
    pub fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// Appends values to bytes.
#[derive(Debug, Default)]
pub struct Writer {
    /// What was written.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// An unsigned integer.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_be_bytes());
    }

    /// Bytes whose number the reader knows.
    pub fn fixed(&mut self, value: &[u8]) {
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len() + padded(value.len()) - value.len(), 0);
    }

    /// Bytes behind their number.
    pub fn opaque(&mut self, value: &[u8]) {
        self.u32(value.len() as u32);
        self.fixed(value);
    }

    /// A value that may be missing.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.u32(value.is_some().into());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::default();
        writer.u32(7);
        writer.u64(1 << 40);
        writer.opaque(b"hello");
        writer.fixed(&[1, 2, 3]);
        writer.option(Some(5), |writer, value| writer.u32(value));
        writer.option(None::<u32>, Writer::u32);
        assert_eq!(writer.bytes[12..24], *b"\0\0\0\x05hello\0\0\0");
        let mut reader = Reader::new(&writer.bytes);
        assert_eq!(reader.u32(), Ok(7));
        assert_eq!(reader.u64(), Ok(1 << 40));
        assert_eq!(reader.opaque(5), Ok(&b"hello"[..]));
        assert_eq!(reader.fixed(), Ok([1, 2, 3]));
        assert_eq!(reader.option(Reader::u32), Ok(Some(5)));
        assert_eq!(reader.option(Reader::u32), Ok(None));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn lengths_are_checked_before_anything_is_taken() {
        assert!(Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5]).opaque(10).is_err(), "the padding is missing");
        assert!(Reader::new(&[0xff; 8]).opaque(usize::MAX).is_err());
        assert!(Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]).opaque(4).is_err());
        assert!(Reader::new(&[0, 0, 0, 2]).bool().is_err());
    }
}
