//! Finds the adapter that is measured.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use weft_verbs::{Endpoint, Fabric, RdmaCore, RdmaDevice, TrafficClass};

/// Time limit to resolve an address to an adapter.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// An adapter of this host, and an address that leads to it.
pub struct Adapter {
    /// RDMA on this host.
    pub fabric: RdmaCore,
    /// The adapter, opened.
    pub device: Arc<RdmaDevice>,
    /// An address of this host on the adapter.
    pub address: IpAddr,
}

/// Finds the first adapter that has an address of this host.
pub fn first() -> Result<Adapter, String> {
    let fabric = RdmaCore::load().map_err(|error| error.to_string())?;
    let names = fabric.device_names().map_err(|error| error.to_string())?;
    if names.is_empty() {
        return Err("this host has no RDMA adapter".into());
    }
    let mut reason = "this host has no address but its loopback".to_string();
    for address in own_addresses() {
        match fabric.resolve(SocketAddr::new(address, 1), TrafficClass::default(), RESOLVE_TIMEOUT) {
            Ok(endpoint) => return Ok(Adapter { device: endpoint.device(), fabric, address }),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(format!("no address of this host leads to {}: {reason}", names.join(", ")))
}

/// Addresses of this host's interfaces that other hosts could use, IPv4 first.
fn own_addresses() -> Vec<IpAddr> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the kernel writes its result to a live pointer.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: the list is valid, and ends with a null pointer, until it is freed below; an address is as long
    // as its family says.
    unsafe {
        while let Some(interface) = at.as_ref() {
            found.extend(address_of(interface.ifa_addr));
            at = interface.ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found.retain(|address| !address.is_loopback());
    found.sort_by_key(IpAddr::is_ipv6);
    found
}

/// An address, unless it is of another family or link-local.
///
/// # Safety
/// `address` is null, or an address as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    match unsafe { i32::from(address.as_ref()?.sa_family) } {
        libc::AF_INET => {
            // SAFETY: the address is of this family.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the address is of this family.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            let address = Ipv6Addr::from(address.sin6_addr.s6_addr);
            (!address.is_unicast_link_local()).then_some(IpAddr::V6(address))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_found_or_the_reason_told() {
        match first() {
            Ok(adapter) => assert!(!adapter.address.is_loopback()),
            Err(reason) => assert!(reason.len() > 10, "{reason}"),
        }
    }

    #[test]
    fn other_links_and_the_loopback_are_left_out() {
        assert!(own_addresses().iter().all(|address| !address.is_loopback()));
        // SAFETY: a null pointer is allowed.
        assert_eq!(unsafe { address_of(std::ptr::null()) }, None);
    }
}
