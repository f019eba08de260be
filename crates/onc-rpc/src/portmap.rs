//! Which port a program has (the port mapper, RFC 1833, 3).

use crate::xdr::{Reader, Writer, XdrError};

/// Its program number.
pub const PROGRAM: u32 = 100_000;
/// Its version.
pub const VERSION: u32 = 2;
/// Its port, on every host.
pub const PORT: u16 = 111;
/// Registers a program.
pub const SET: u32 = 1;
/// Takes it back.
pub const UNSET: u32 = 2;
/// Asks for its port.
pub const GETPORT: u32 = 3;

/// TCP's number.
pub const TCP: u32 = 6;
/// UDP's number.
pub const UDP: u32 = 17;

/// A program's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Which program.
    pub program: u32,
    /// Of which version.
    pub version: u32,
    /// Over which protocol.
    pub protocol: u32,
    /// At which port; of no matter where it is asked for.
    pub port: u16,
}

impl Mapping {
    /// As arguments of [`SET`], [`UNSET`] and [`GETPORT`].
    pub fn write(&self, writer: Writer) -> Writer {
        writer.u32(self.program).u32(self.version).u32(self.protocol).u32(self.port.into())
    }
}

/// The results of [`GETPORT`]: `None` where the program is not registered.
///
/// # Errors
/// [`XdrError`].
// Not fuzzed: one word.
pub fn decode_port(results: &[u8]) -> Result<Option<u16>, XdrError> {
    let port = u16::try_from(Reader::new(results).u32()?).map_err(|_| XdrError::Wrong)?;
    Ok(Some(port).filter(|port| *port != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_four_words() {
        let mapping = Mapping { program: 100_003, version: 3, protocol: TCP, port: 2049 };
        let bytes = mapping.write(Writer::new()).into_bytes();
        assert_eq!(bytes, b"\0\x01\x86\xa3\0\0\0\x03\0\0\0\x06\0\0\x08\x01");
        assert_eq!(decode_port(b"\0\0\x08\x01"), Ok(Some(2049)));
        assert_eq!(decode_port(b"\0\0\0\0"), Ok(None));
        assert_eq!(decode_port(b"\0\x01\0\0"), Err(XdrError::Wrong));
    }
}
