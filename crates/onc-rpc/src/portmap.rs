//! Which port a program has: the port mapper of IPv4 (version 2, RFC 1833, 3) and rpcbind (version 4, RFC 1833, 2),
//! which alone knows addresses of IPv6.
//!
//! ```text
//!   version 2    program · version · 6                     ─► 2049
//!   version 4    program · version · "tcp6" · "" · ""      ─► "::1.8.1", an address of any family and a port of two bytes
//! ```

use crate::xdr::{Reader, Writer, XdrError};
use std::net::IpAddr;

/// Its program number.
pub const PROGRAM: u32 = 100_000;
/// Its version.
pub const VERSION: u32 = 2;
/// The version that knows IPv6.
pub const VERSION_4: u32 = 4;
/// Its port, on every host.
pub const PORT: u16 = 111;
/// Longest address that is read: one of IPv6 with its zone, and a port.
const ADDRESS_BYTES_MAX: usize = 128;
/// Registers a program.
pub const SET: u32 = 1;
/// Takes it back.
pub const UNSET: u32 = 2;
/// Asks for its port; in version 4 for its address.
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

    /// The same for version 4: at this port of an address of IPv6.
    pub fn write_at(&self, address: IpAddr, writer: Writer) -> Writer {
        let network = if self.protocol == UDP { "udp6" } else { "tcp6" };
        let [high, low] = self.port.to_be_bytes();
        let at = format!("{address}.{high}.{low}");
        let names = writer.u32(self.program).u32(self.version).opaque(network.as_bytes());
        names.opaque(at.as_bytes()).opaque(b"")
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

/// The results of [`GETPORT`] in version 4: `None` where the program is not registered.
///
/// # Errors
/// [`XdrError`].
pub fn decode_port_of_address(results: &[u8]) -> Result<Option<u16>, XdrError> {
    let address = Reader::new(results).opaque(ADDRESS_BYTES_MAX)?;
    if address.is_empty() {
        return Ok(None);
    }
    let mut parts = address.rsplitn(3, |byte| *byte == b'.');
    let mut byte = || std::str::from_utf8(parts.next()?).ok()?.parse::<u8>().ok();
    let (low, high) = (byte().ok_or(XdrError::Wrong)?, byte().ok_or(XdrError::Wrong)?);
    parts.next().filter(|host| !host.is_empty()).ok_or(XdrError::Wrong)?;
    Ok(Some(u16::from_be_bytes([high, low])).filter(|port| *port != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_4_has_names_and_addresses() {
        let mapping = Mapping { program: 100_003, version: 3, protocol: TCP, port: 2049 };
        let bytes = mapping.write_at("::1".parse().unwrap(), Writer::new()).into_bytes();
        assert_eq!(bytes, b"\0\x01\x86\xa3\0\0\0\x03\0\0\0\x04tcp6\0\0\0\x07::1.8.1\0\0\0\0\0");
        let udp = Mapping { protocol: UDP, ..mapping }.write_at("::".parse().unwrap(), Writer::new());
        assert_eq!(udp.into_bytes()[12..16], *b"udp6");
        let decode = |text: &str| decode_port_of_address(&Writer::new().opaque(text.as_bytes()).into_bytes());
        assert_eq!(decode("fe80::1%eth0.8.1"), Ok(Some(2049)));
        assert_eq!(decode("127.0.0.1.255.255"), Ok(Some(65535)));
        assert_eq!((decode(""), decode("::.0.0")), (Ok(None), Ok(None)));
        for wrong in ["::", "::1.256.1", "::1.1.-1", ".8.1", "8.1", "::1.8.1 ", &"1".repeat(200)] {
            assert_eq!(decode(wrong), Err(XdrError::Wrong), "{wrong}");
        }
        assert_eq!(decode_port_of_address(b"\0\0\0\x07::1"), Err(XdrError::Short));
    }

    #[test]
    fn any_bytes_are_an_address_or_refused() {
        let seeds = ["::1.8.1", "192.0.2.7.255.255", ""];
        let seeds = seeds.map(|text| Writer::new().opaque(text.as_bytes()).into_bytes());
        weft_test_fuzz::run("onc-address", &seeds, |bytes| {
            if let Ok(port) = decode_port_of_address(bytes) {
                assert_ne!(port, Some(0));
            }
        });
    }

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
