//! `nfs://HOST[:PORT]/PATH[?OPTION=VALUE[&…]]`

use crate::error::{Error, ErrorKind, Failure};
use crate::rdma::{RdmaDesign, RdmaMemory};

/// What carries calls of NFS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// RDMA. MOUNT is asked over TCP, unless it is served at the same place.
    Rdma,
}

/// A place on an NFS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsUrl {
    /// Name or address, without the brackets of IPv6.
    pub host: String,
    /// Port of NFS; without one, the portmapper knows, or over RDMA it is 20049.
    pub port: Option<u16>,
    /// Port of MOUNT. Without one it is that of NFS if the server has both there, else the portmapper knows.
    pub mount_port: Option<u16>,
    /// What carries calls of NFS.
    pub transport: Transport,
    /// Who moves data of replies over RDMA.
    pub rdma_design: RdmaDesign,
    /// How memory becomes known to the adapter over RDMA.
    pub rdma_memory: RdmaMemory,
    /// From the root of the server, with an export in front. Begins with a slash and has none at its end.
    pub path: String,
}

impl NfsUrl {
    /// Reads a URL. In its path `%3F` stands for `?`, `%25` for `%`, and so on.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<NfsUrl, Error> {
        let wrong = |why: &str| {
            let detail = format!(
                "{why}; write nfs://HOST[:PORT]/PATH[?mountport=PORT&transport=rdma&rdma-memory=HOW&rdma-design=WHICH]"
            );
            Failure::new(ErrorKind::Invalid, detail).of(format!("`{text}`"), "")
        };
        let rest = text.strip_prefix("nfs://").ok_or_else(|| wrong("it does not begin with nfs://"))?;
        let (place, words) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
        let (host, port) = host_and_port(host).ok_or_else(|| wrong("its host or port cannot be one"))?;
        let mut options = Options::default();
        for word in words.split('&').filter(|word| !word.is_empty()) {
            options.set(word).ok_or_else(|| wrong(&format!("it has `{word}`")))?;
        }
        let path = unescaped(path)
            .ok_or_else(|| wrong("its path is not UTF-8, or a % is not followed by two digits"))?;
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") || path.contains('\0') {
            return Err(wrong("its path has `..` or a zero byte"));
        }
        let Options { mount_port, transport, rdma_design, rdma_memory } = options;
        let path = format!("/{}", parts.join("/"));
        Ok(NfsUrl { host: host.into(), port, mount_port, transport, rdma_design, rdma_memory, path })
    }
}

/// What is behind the question mark.
#[derive(Default)]
struct Options {
    mount_port: Option<u16>,
    transport: Transport,
    rdma_design: RdmaDesign,
    rdma_memory: RdmaMemory,
}

impl Options {
    /// Takes one; `None` if there is no such option.
    fn set(&mut self, word: &str) -> Option<()> {
        match word.split_once('=')? {
            ("mountport", port) => self.mount_port = Some(port_from(port)?),
            ("transport", "tcp") => self.transport = Transport::Tcp,
            ("transport", "rdma") => self.transport = Transport::Rdma,
            ("rdma-design", name) => self.rdma_design = RdmaDesign::of(name)?,
            ("rdma-memory", name) => self.rdma_memory = RdmaMemory::of(name)?,
            _ => return None,
        }
        Some(())
    }
}

fn port_from(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => Some(port_from(port)?),
        None if rest.is_empty() => None,
        None => return None,
    };
    (!host.is_empty()).then_some((host, port))
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.as_bytes().split(|byte| *byte == b'%');
    bytes.extend(parts.next()?);
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_digits = digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| is_digits)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, Option<u16>, Option<u16>, String) {
        let NfsUrl { host, port, mount_port, path, .. } = NfsUrl::parse(text).unwrap();
        (host, port, mount_port, path)
    }

    #[test]
    fn urls_name_host_ports_and_path() {
        assert_eq!(parsed("nfs://nas/export/a"), ("nas".into(), None, None, "/export/a".into()));
        assert_eq!(parsed("nfs://nas"), ("nas".into(), None, None, "/".into()));
        assert_eq!(
            parsed("nfs://[fe80::1]:2050//a/./b/?mountport=2051"),
            ("fe80::1".into(), Some(2050), Some(2051), "/a/b".into())
        );
        assert_eq!(parsed("nfs://h:1/what%3F%20%25").3, "/what? %");
    }

    #[test]
    fn urls_name_the_transport() {
        let of = |text: &str| {
            let url = NfsUrl::parse(text).unwrap();
            (url.transport, url.rdma_memory)
        };
        assert_eq!(of("nfs://h/"), (Transport::Tcp, RdmaMemory::Cached));
        assert_eq!(of("nfs://h/?transport=rdma"), (Transport::Rdma, RdmaMemory::Cached));
        for (memory, name) in RdmaMemory::ALL {
            let text = format!("nfs://h/x?transport=rdma&rdma-memory={name}&mountport=1");
            assert_eq!(of(&text), (Transport::Rdma, memory));
        }
        assert_eq!(NfsUrl::parse("nfs://h/").unwrap().rdma_design, RdmaDesign::ReadWrite);
        for (design, name) in RdmaDesign::ALL {
            let text = format!("nfs://h/x?transport=rdma&rdma-design={name}");
            assert_eq!((NfsUrl::parse(&text).unwrap().rdma_design, design.name()), (design, name));
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "weft://h/",
            "nfs:///x",
            "nfs://h:0/",
            "nfs://h:99999/",
            "nfs://h:x/",
            "nfs://[::1/",
            "nfs://[::1]x/",
            "nfs://h/?mountport=",
            "nfs://h/?proto=udp",
            "nfs://h/?transport=udp",
            "nfs://h/?rdma-memory=much",
            "nfs://h/?rdma-design=write-write",
            "nfs://h/a/../b",
            "nfs://h/%",
            "nfs://h/%zz",
            "nfs://h/%00",
            "nfs://h/%ff",
        ] {
            let error = NfsUrl::parse(text).unwrap_err();
            assert!(error.to_string().contains("nfs://HOST"), "{text}: {error}");
        }
    }

    #[test]
    fn any_text_is_read_or_refused() {
        let right = [b"nfs://[::1]:2049/a/b%20c?mountport=5".to_vec(), b"nfs://nas/export".to_vec()];
        weft_test_fuzz::run("nfs-url", &right, |bytes| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = NfsUrl::parse(text);
            }
        });
    }
}
