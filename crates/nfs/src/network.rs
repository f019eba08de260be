//! Which clients a rule of an export is for.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// How many bits count; of an IPv4 address in its own 32. `None`: any address of either kind.
    prefix: Option<u32>,
}

/// A text that names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: write *, an address, or an address with its prefix, as in 10.1.0.0/16")]
pub struct NetworkError(String);

impl Network {
    /// Every address.
    pub const ANY: Network = Network { address: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), prefix: None };

    /// This address only.
    pub fn of_address(address: IpAddr) -> Network {
        let address = address.to_canonical();
        Network { address, prefix: Some(if address.is_ipv4() { 32 } else { 128 }) }
    }

    /// Whether an address belongs to it. IPv4 addresses within IPv6 count as what they are.
    pub fn has(&self, address: IpAddr) -> bool {
        let Some(prefix) = self.prefix else { return true };
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same_beginning(own.to_bits().into(), other.to_bits().into(), 32 - prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same_beginning(own.to_bits(), other.to_bits(), 128 - prefix)
            }
            _ => false,
        }
    }
}

fn same_beginning(one: u128, other: u128, ignored: u32) -> bool {
    ignored == 128 || one >> ignored == other >> ignored
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.to_string());
        if text == "*" {
            return Ok(Network::ANY);
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(most);
        if prefix > most {
            return Err(wrong());
        }
        Ok(Network { address, prefix: Some(prefix) })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.prefix {
            None => f.write_str("*"),
            Some(prefix) => write!(f, "{}/{prefix}", self.address),
        }
    }
}

/// Whether a peer's port is one that only root may use.
pub(crate) fn has_privileged_port(peer: SocketAddr) -> bool {
    peer.port() < 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().has(address.parse().unwrap())
    }

    #[test]
    fn networks_have_the_addresses_that_begin_like_them() {
        assert!(has("*", "10.0.0.1") && has("*", "::1") && has("0.0.0.0/0", "1.2.3.4") && has("::/0", "::1"));
        assert!(has("10.1.0.0/16", "10.1.255.9") && !has("10.1.0.0/16", "10.2.0.0"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.4"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(has("2001:db8::/32", "2001:db8:1::5") && !has("2001:db8::/32", "2001:db9::"));
        assert!(!has("0.0.0.0/0", "2001::1"));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "host", "10.0.0.0/33", "10.0.0.0/", "::/129", "/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn any_text_is_looked_at_without_a_panic() {
        let right = [&b"*"[..], b"10.1.0.0/16", b"2001:db8::1"].map(<[u8]>::to_vec);
        weft_test_fuzz::run("nfs-network", &right, |bytes| {
            if let Ok(network) = String::from_utf8_lossy(bytes).parse::<Network>() {
                assert_eq!(network.to_string().parse(), Ok(network));
            }
        });
    }
}
