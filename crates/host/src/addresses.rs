//! Addresses of this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of all interfaces but the loopback's and link-local ones of IPv6, which need an interface to be used.
pub fn own_addresses() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the kernel writes its result to a live pointer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the list is valid and ends with a null pointer until it is freed, and its addresses are null or as long
    // as their families say.
    unsafe {
        while let Some(interface) = at.as_ref() {
            found.extend(address_of(interface.ifa_addr));
            at = interface.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found.retain(|address| !address.is_loopback() && !is_link_local(address));
    found.sort();
    found.dedup();
    found
}

fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// `None` for an address of another family.
///
/// # Safety
/// `address` is null, or an address that is as long as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    match unsafe { i32::from(address.as_ref()?.sa_family) } {
        libc::AF_INET => {
            // SAFETY: the address is of this family.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address is of this family.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
