//! Converts addresses from and to those of the connection manager.

use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Converts an address for the connection manager.
pub fn to_storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: all zeros are a valid value.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let start = &raw mut storage;
    match address {
        SocketAddr::V4(address) => {
            // SAFETY: the storage has space and alignment for every kind of address.
            let place = unsafe { &mut *start.cast::<libc::sockaddr_in>() };
            place.sin_family = libc::AF_INET as libc::sa_family_t;
            place.sin_port = address.port().to_be();
            place.sin_addr.s_addr = u32::from_ne_bytes(address.ip().octets());
        }
        SocketAddr::V6(address) => {
            // SAFETY: as above.
            let place = unsafe { &mut *start.cast::<libc::sockaddr_in6>() };
            place.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            place.sin6_port = address.port().to_be();
            place.sin6_flowinfo = address.flowinfo();
            place.sin6_addr.s6_addr = address.ip().octets();
            place.sin6_scope_id = address.scope_id();
        }
    }
    storage
}

/// Converts an address of the connection manager; 0.0.0.0:0 if it is of another kind.
pub fn from_storage(storage: &libc::sockaddr_storage) -> SocketAddr {
    let start = &raw const *storage;
    match storage.ss_family as i32 {
        libc::AF_INET6 => {
            // SAFETY: the family determines the type.
            let place = unsafe { &*start.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(place.sin6_addr.s6_addr);
            let (port, flow) = (u16::from_be(place.sin6_port), place.sin6_flowinfo);
            SocketAddr::V6(SocketAddrV6::new(ip, port, flow, place.sin6_scope_id))
        }
        libc::AF_INET => {
            // SAFETY: as above.
            let place = unsafe { &*start.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(place.sin_addr.s_addr.to_ne_bytes());
            SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(place.sin_port)))
        }
        _ => SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        for text in ["10.0.0.1:7000", "[fe80::1%3]:7001", "[2001:db8::7]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_storage(&to_storage(address)), address);
        }
    }
}
