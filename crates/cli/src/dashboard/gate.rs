//! Who may see the page: whoever has its token, under a name that is this host's.
//!
//! ```text
//!   GET /?token=T          the page; its script takes the token from its own address
//!   GET /data.json         Authorization: Bearer T
//!   Host: 127.0.0.1, localhost, the name given by --listen; any other name: refused, whatever the token
//! ```
//!
//! A web site can give its own name the address of this host (DNS rebinding); a browser then lets its scripts read the page. But it
//! sends that name as `Host`. There is no cookie: a browser sends cookies to every port of a host, where another user may listen.

use anyhow::{Context, Result};
use std::net::{IpAddr, Ipv6Addr};
use weft_metrics::{Document, Request};
use weft_wire::security::same_proof;

/// Bytes of a token: 128 bits as hexadecimal digits.
const TOKEN_BYTES: usize = 32;
const FORBIDDEN: &str = "403 Forbidden";

/// See the module's header.
pub struct Gate {
    token: [u8; TOKEN_BYTES],
    /// The host that the operator has named; empty where it is an address.
    name: String,
}

impl Gate {
    /// With a new token, for an endpoint that listens at `HOST:PORT`. Without a host that can be reached, such as 0.0.0.0, the page
    /// has the name of this host.
    pub fn new(listen: &str) -> Result<Gate> {
        let token = u128::from_le_bytes(weft_host::random().context("no random numbers for a token")?);
        let token = format!("{token:032x}").into_bytes();
        let host = host_of(listen);
        let name = match address_of(host) {
            Some(address) if address.is_unspecified() => weft_host::name(),
            Some(_) => String::new(),
            None => host.to_owned(),
        };
        Ok(Gate { token: token.try_into().expect("32 digits"), name })
    }

    /// The URL of the page, if it listens at `address`.
    pub fn url(&self, address: std::net::SocketAddr) -> String {
        let token = String::from_utf8_lossy(&self.token);
        match self.name.as_str() {
            "" => format!("http://{address}/?token={token}"),
            name => format!("http://{name}:{}/?token={token}", address.port()),
        }
    }

    /// The reply to a request that may see nothing; `None` if it may see the page.
    pub fn refusal(&self, request: &Request) -> Option<Document> {
        let host = request.host.as_deref().map(host_of);
        if !host.is_some_and(|host| self.is_ours(host)) {
            let named = host.unwrap_or("no name");
            return Some(Document::plain(
                FORBIDDEN,
                format!(
                    "This page was asked for as {named:?}, which may be a name that a web site has made up for this host.\n\
                     Use the URL that weft dashboard has printed, or the address of the host instead of its name,\n\
                     or start it with --listen NAME:PORT, if it shall be reached by this name.\n"
                ),
            ));
        }
        if self.has_token(request) {
            return None;
        }
        Some(Document::plain(
            FORBIDDEN,
            "This page takes the token of the URL that weft dashboard has printed (http://…/?token=…).\n\
             Each start of weft dashboard makes a new one.\n",
        ))
    }

    fn is_ours(&self, host: &str) -> bool {
        let named = !self.name.is_empty() && host.eq_ignore_ascii_case(&self.name);
        named || host.eq_ignore_ascii_case("localhost") || address_of(host).is_some()
    }

    fn has_token(&self, request: &Request) -> bool {
        let shown = request.authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
        let asked = request.query.split('&').filter_map(|part| part.strip_prefix("token="));
        let mut given = shown.into_iter().chain(asked).filter_map(|token| token.as_bytes().try_into().ok());
        given.any(|token| same_proof(&token, &self.token))
    }
}

/// The host of `HOST:PORT`, or of `HOST`.
fn host_of(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) && !is_bare_ipv6(text) => host,
        _ => text,
    }
}

fn is_bare_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn address_of(host: &str) -> Option<IpAddr> {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(host: Option<&str>, query: &str, authorization: Option<&str>) -> Request {
        Request {
            path: "/data.json".into(),
            query: query.into(),
            host: host.map(str::to_owned),
            authorization: authorization.map(str::to_owned),
        }
    }

    #[test]
    fn addresses_and_the_name_that_the_operator_gave_are_let_in() {
        let gate = Gate::new("Node1.example:80").unwrap();
        let query = format!("token={}", String::from_utf8_lossy(&gate.token));
        let refused = |host| gate.refusal(&asking(host, &query, None)).is_some();
        for host in [
            "127.0.0.1:7480",
            "127.0.0.1",
            "10.1.2.3:80",
            "localhost:9000",
            "LOCALHOST",
            "[::1]:7480",
            "[fe80::1]",
            "node1.EXAMPLE:80",
            "node1.example",
        ] {
            assert!(!refused(Some(host)), "{host}");
        }
        for host in [
            "evil.example:7480",
            "127.0.0.1.evil.example",
            "localhost.evil.example:7480",
            "node1.example.evil.example",
            "node1",
            "127.0.0.1@evil.example",
            "evil.example:127.0.0.1",
            "[evil.example]:7480",
            "2130706433",
            ":7480",
            "",
        ] {
            assert!(refused(Some(host)), "{host}");
        }
        assert!(refused(None));
    }

    #[test]
    fn the_whole_token_is_wanted() {
        let gate = Gate::new("127.0.0.1:7480").unwrap();
        let token = String::from_utf8_lossy(&gate.token).into_owned();
        let refused = |query: &str, authorization: Option<&str>| {
            gate.refusal(&asking(Some("127.0.0.1"), query, authorization)).is_some()
        };
        assert!(!refused(&format!("token={token}"), None));
        assert!(!refused(&format!("a=b&token={token}"), None));
        assert!(!refused("", Some(&format!("Bearer {token}"))));
        for wrong in [&token[..31], &token.replace(&token[..1], "g"), &format!("{token}0"), ""] {
            assert!(refused(&format!("token={wrong}"), None), "{wrong}");
            assert!(refused("", Some(&format!("Bearer {wrong}"))), "{wrong}");
        }
        assert!(refused("", None) && refused(&token, Some(&token)));
    }

    #[test]
    fn the_url_has_a_name_under_which_it_can_be_opened() {
        let url = |listen: &str, address: &str| {
            let url = Gate::new(listen).unwrap().url(address.parse().unwrap());
            url.split("?token=").next().unwrap().to_owned()
        };
        assert_eq!(url("127.0.0.1:0", "127.0.0.1:81"), "http://127.0.0.1:81/");
        assert_eq!(url("[::1]:0", "[::1]:81"), "http://[::1]:81/");
        assert_eq!(url("node1:80", "10.0.0.1:80"), "http://node1:80/");
        assert_eq!(url("0.0.0.0:80", "0.0.0.0:80"), format!("http://{}:80/", weft_host::name()));
        assert_ne!(Gate::new("[::]:80").unwrap().name, "");
    }
}
