//! `weft://HOST:PORT/PATH?option=value`: where a cluster is.

use std::fmt;

use crate::Transport;
use crate::rdma::RdmaOptions;

/// Port of the first server where a URL has none.
pub const PORT_DEFAULT: u16 = 7400;

/// The address of any server of a cluster, a path in its file system, and how to connect.
///
/// | option | meaning |
/// | --- | --- |
/// | `transport=auto`, `tcp`, `shm`, `rdma` | see [`Transport`] |
/// | `socket=PATH` | Unix socket of that server, to be tried before its TCP address |
/// | `key-file=PATH` | a key file, see [`crate::key_files`] |
/// | `timeout-ms=MS` | see [`crate::ConnectOptions::retry_timeout_ms`] |
/// | `hard=on` | operations wait for ever: see [`crate::ConnectOptions::hard`] |
/// | `background=on` | nobody waits for what is moved: see [`crate::ConnectOptions::background`] |
/// | `rdma-NAME=VALUE` | how RDMA is used: see [`RdmaOptions`] |
///
/// ```
/// use weft_client::{Transport, Url};
/// let url = Url::parse("weft://[::1]:7411/data/a.bin?transport=tcp")?;
/// assert_eq!((url.host(), url.port(), url.path()), ("::1", 7411, "/data/a.bin"));
/// assert_eq!(url.transport(), Some(Transport::Tcp));
/// assert_eq!(url.to_string(), "weft://[::1]:7411/data/a.bin?transport=tcp");
/// # Ok::<(), weft_client::UrlError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    path: String,
    transport: Option<Transport>,
    socket: Option<String>,
    key_file: Option<String>,
    background: bool,
    timeout_ms: Option<u64>,
    hard: bool,
    /// Names without their `rdma-`, and values that were checked.
    rdma: Vec<(String, String)>,
}

/// Why a text is not the URL of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the URL of a cluster: {reason}; it must look like weft://HOST:PORT/PATH")]
pub struct UrlError {
    text: String,
    reason: String,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`UrlError`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        Url::read(text).map_err(|reason| UrlError { text: text.to_string(), reason })
    }

    fn read(text: &str) -> Result<Url, String> {
        let rest = text.strip_prefix("weft://").ok_or("it does not begin with weft://")?;
        let (rest, query) = match rest.rsplit_once('?') {
            Some((front, query)) if query.split('&').all(|option| option.contains('=')) => (front, query),
            _ => (rest, ""),
        };
        let (server, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let (host, port) = read_server(server)?;
        let mut url = Url {
            host,
            port,
            path: path.to_string(),
            transport: None,
            socket: None,
            key_file: None,
            background: false,
            timeout_ms: None,
            hard: false,
            rdma: Vec::new(),
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("transport", value)) => url.transport = Some(value.parse()?),
                Some(("socket", value)) if !value.is_empty() => url.socket = Some(value.to_string()),
                Some(("key-file", value)) if !value.is_empty() => url.key_file = Some(value.to_string()),
                Some(("background", value)) => url.background = read_switch("background", value)?,
                Some(("hard", value)) => url.hard = read_switch("hard", value)?,
                Some(("timeout-ms", value)) => {
                    let number = value.parse().ok().filter(|number| *number > 0);
                    url.timeout_ms =
                        Some(number.ok_or(format!("timeout-ms: `{value}` is no number of milliseconds"))?);
                }
                Some((name, value)) if name.starts_with("rdma-") => {
                    let name = &name["rdma-".len()..];
                    RdmaOptions::default().set(name, value)?;
                    url.rdma.push((name.to_string(), value.to_string()));
                }
                _ => {
                    return Err(format!(
                        "unknown option `{option}` (there are transport, socket, key-file, background, timeout-ms, hard, rdma-…)"
                    ));
                }
            }
        }
        Ok(url)
    }

    /// Host name or address, an IPv6 one without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path, beginning with a slash.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same cluster, another path.
    pub fn with_path(&self, path: &str) -> Url {
        Url { path: format!("/{}", path.trim_start_matches('/')), ..self.clone() }
    }

    /// The transport asked for.
    pub fn transport(&self) -> Option<Transport> {
        self.transport
    }

    /// The Unix socket asked for.
    pub fn socket(&self) -> Option<&str> {
        self.socket.as_deref()
    }

    /// The key file asked for.
    pub fn key_file(&self) -> Option<&str> {
        self.key_file.as_deref()
    }

    /// Whether nobody waits for what is moved.
    pub fn background(&self) -> bool {
        self.background
    }

    /// How long one operation may wait, if it says so, in milliseconds.
    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout_ms
    }

    /// Whether operations wait for ever.
    pub fn hard(&self) -> bool {
        self.hard
    }

    /// The options of RDMA, by their names in [`RdmaOptions`].
    pub fn rdma(&self) -> impl Iterator<Item = (&str, &str)> {
        self.rdma.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// `HOST:PORT`, as keys are filed and servers dialled.
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

fn read_switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{name}: `{value}` is neither on nor off")),
    }
}

fn read_server(server: &str) -> Result<(String, u16), String> {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("an IPv6 address has no closing bracket")?;
            match after {
                "" => (host, None),
                _ => (host, Some(after.strip_prefix(':').ok_or("there is text behind the bracket")?)),
            }
        }
        None => match server.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address must stand in brackets".to_string());
            }
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        },
    };
    if host.is_empty() {
        return Err("there is no server in it".to_string());
    }
    if host.contains(['[', ']']) {
        return Err("brackets belong around an IPv6 address".to_string());
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(port) => match port.parse() {
            Ok(number) if number > 0 => number,
            _ => return Err(format!("`{port}` is not a port")),
        },
    };
    Ok((host.to_string(), port))
}

impl std::str::FromStr for Url {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Url, UrlError> {
        Url::parse(text)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weft://{}{}", self.server(), self.path)?;
        let transport = self.transport.map(|transport| transport.to_string());
        let own = [("transport", &transport), ("socket", &self.socket), ("key-file", &self.key_file)];
        let own = own.iter().filter_map(|(name, value)| Some((name.to_string(), value.as_deref()?)));
        let background = self.background.then(|| ("background".to_string(), "on"));
        let timeout_ms = self.timeout_ms.map(|timeout_ms| timeout_ms.to_string());
        let timeout_ms = timeout_ms.as_deref().map(|timeout_ms| ("timeout-ms".to_string(), timeout_ms));
        let hard = self.hard.then(|| ("hard".to_string(), "on"));
        let rdma = self.rdma().map(|(name, value)| (format!("rdma-{name}"), value));
        for (at, (name, value)) in own.chain(background).chain(timeout_ms).chain(hard).chain(rdma).enumerate()
        {
            write!(f, "{}{name}={value}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_forms() {
        let url = Url::parse("weft://node1/").unwrap();
        assert_eq!((url.host(), url.port(), url.path()), ("node1", PORT_DEFAULT, "/"));
        assert_eq!(Url::parse("weft://node1").unwrap(), url);
        let url = Url::parse("weft://10.0.0.1:7000/a b/c?socket=/run/x&key-file=/k").unwrap();
        assert_eq!((url.server().as_str(), url.path()), ("10.0.0.1:7000", "/a b/c"));
        assert_eq!((url.socket(), url.key_file(), url.transport()), (Some("/run/x"), Some("/k"), None));
        assert_eq!(url.with_path("z").path(), "/z");
        let odd = Url::parse("weft://h:1/what?").unwrap();
        assert_eq!(odd.path(), "/what?", "a question mark without options belongs to the name");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("http://h/", "does not begin"),
            ("weft:///x", "no server"),
            ("weft://h:0/", "`0` is not a port"),
            ("weft://h:x/", "`x` is not a port"),
            ("weft://::1/", "brackets"),
            ("weft://[::1/", "closing bracket"),
            ("weft://[[l1]:7/", "around an IPv6 address"),
            ("weft://l]1/", "around an IPv6 address"),
            ("weft://h/?transport=pigeon", "pigeon"),
            ("weft://h/?colour=red", "unknown option"),
            ("weft://h/?rdma-colour=red", "no RDMA option `colour`"),
            ("weft://h/?background=later", "`later` is neither on nor off"),
            ("weft://h/?hard=perhaps", "`perhaps` is neither on nor off"),
            ("weft://h/?timeout-ms=soon", "`soon` is no number"),
            ("weft://h/?timeout-ms=0", "`0` is no number"),
            ("weft://h/?rdma-verify=perhaps", "`perhaps` is neither on nor off"),
        ] {
            let error = Url::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn a_url_survives_its_text(host in "[a-z][a-z0-9.-]{0,20}", port in 1u16.., path in "(/[a-zA-Z0-9_.%-]{1,8}){0,4}",
                                   shm in any::<bool>(), rdma in any::<bool>(), background in any::<bool>(), hard in any::<bool>(),
                                   timeout_ms in proptest::option::of(1u64..), socket in proptest::option::of("/[a-z/]{1,12}")) {
            let mut text = format!("weft://{host}:{port}{}", if path.is_empty() { "/" } else { &path });
            text += if shm { "?transport=shm" } else { "?transport=auto" };
            if let Some(socket) = &socket {
                text += &format!("&socket={socket}");
            }
            if background {
                text += "&background=on";
            }
            if let Some(timeout_ms) = timeout_ms {
                text += &format!("&timeout-ms={timeout_ms}");
            }
            if hard {
                text += "&hard=on";
            }
            if rdma {
                text += "&rdma-mechanism=fast&rdma-tos=0:1:2:3";
            }
            let url = Url::parse(&text).unwrap();
            prop_assert_eq!(url.to_string(), text);
        }

        #[test]
        fn noise_never_panics(text in "\\PC{0,40}") {
            let _ = Url::parse(&text);
            let _ = Url::parse(&format!("weft://{text}"));
        }
    }

    #[test]
    fn damaged_urls_are_refused_or_written_back_the_same() {
        let right = [
            "weft://10.0.0.1:7000/a b/c?socket=/run/x&key-file=/k",
            "weft://node1",
            "weft://[::1]:7/?transport=shm",
        ];
        weft_test_fuzz::run("url", &right.map(|text| text.as_bytes().to_vec()), |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Ok(url) = Url::parse(text) {
                assert_eq!(Url::parse(&url.to_string()).unwrap(), url);
            }
        });
    }
}
