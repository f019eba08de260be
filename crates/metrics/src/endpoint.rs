//! The HTTP endpoint of a process: it answers GET requests, with a thread for each connection, of which there are few.
//!
//! A peer that connects has a few seconds to ask and to take the answer, and gets one answer. While as many are
//! connected as are served at once, each new one takes the place of the oldest that is silent: see `visitors.rs`.

use crate::visitors::{Visit, Visitors};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest head of a request that is read.
pub const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Time of one connection.
const CONNECTION_TIME: Duration = Duration::from_secs(3);
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A GET request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The path that is asked for.
    pub path: String,
    /// What follows the path behind `?`; empty if there is nothing.
    pub query: String,
    /// The header `Host`; `None` unless there is exactly one.
    pub host: Option<String>,
    /// The header `Authorization`; `None` unless there is exactly one.
    pub authorization: Option<String>,
}

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The status of the reply: its code and its words.
    pub status: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Further lines of the head, each with its end.
    pub head: &'static str,
    /// What is in it.
    pub text: String,
}

/// An endpoint that listens, until it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The status of a document that was asked for.
pub const OK: &str = "200 OK";

impl Document {
    /// A text for people.
    pub fn plain(status: &'static str, text: impl Into<String>) -> Document {
        Document { status, kind: "text/plain", head: "", text: text.into() }
    }
}

impl Endpoint {
    /// Listens at `HOST:PORT`, and answers requests of `/metrics` with what `page` says. Everybody who reaches the port may read it,
    /// by any name of the host.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn start(
        address: &str,
        page: impl Fn() -> String + Send + Sync + 'static,
    ) -> std::io::Result<Endpoint> {
        Endpoint::serve(address, move |request| match request.path.as_str() {
            "/metrics" => Some(Document { status: OK, kind: METRICS_TYPE, head: "", text: page() }),
            "/" => Some(Document::plain(OK, "The metrics are at /metrics.\n")),
            _ => None,
        })
    }

    /// Listens at `HOST:PORT`, and answers requests with the document that `find` has for them.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn serve(
        address: &str,
        find: impl Fn(&Request) -> Option<Document> + Send + Sync + 'static,
    ) -> std::io::Result<Endpoint> {
        let resolved: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
        let listener = TcpListener::bind(&resolved[..])?;
        let address = listener.local_addr()?;
        let ends = Arc::new(AtomicBool::new(false));
        let asked = ends.clone();
        let (find, visitors) = (Arc::new(find), Arc::new(Visitors::default()));
        let serve = move || {
            while !asked.load(Ordering::Acquire) {
                let peer = match listener.accept() {
                    Ok((peer, _)) => peer,
                    // No descriptor is free, or the peer is gone already.
                    Err(_) => {
                        std::thread::sleep(Duration::from_millis(100));
                        continue;
                    }
                };
                if asked.load(Ordering::Acquire) {
                    return;
                }
                let (find, visit) = (find.clone(), visitors.enter(peer));
                // What goes wrong with one peer is its own.
                let one = move || drop(answer(&visit, &*find));
                // Where there is no thread for it, it is closed.
                let _ = std::thread::Builder::new().name("http".into()).spawn(one);
            }
        };
        let thread = std::thread::Builder::new().name("metrics".into()).spawn(serve)?;
        Ok(Endpoint { address, ends, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        // Wakes the thread.
        let woken = TcpStream::connect_timeout(&self.address, CONNECTION_TIME);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer(visit: &Visit, find: &impl Fn(&Request) -> Option<Document>) -> std::io::Result<()> {
    let mut peer = visit.stream();
    let until = Instant::now() + CONNECTION_TIME;
    let asked = read_head(&mut peer, until)?;
    visit.has_asked();
    let document = match asked {
        Asked::For(request) => find(&request)
            .unwrap_or_else(|| Document::plain("404 Not Found", "There is no such page here.\n")),
        Asked::OtherMethod => Document::plain("405 Method Not Allowed", "Only GET is served.\n"),
        Asked::Nonsense => Document::plain("400 Bad Request", "This is no HTTP request.\n"),
    };
    let head = format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n",
        document.status,
        document.kind,
        document.head,
        document.text.len()
    );
    write_all(&mut peer, head.as_bytes(), until)?;
    write_all(&mut peer, document.text.as_bytes(), until)?;
    peer.shutdown(std::net::Shutdown::Write)
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Asked {
    For(Request),
    OtherMethod,
    Nonsense,
}

fn left(until: Instant) -> std::io::Result<Option<Duration>> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
}

fn read_head(peer: &mut &TcpStream, until: Instant) -> std::io::Result<Asked> {
    let (mut head, mut bytes) = ([0; REQUEST_BYTES_MAX], 0);
    loop {
        if let Some(asked) = asked_by(&head[..bytes]) {
            return Ok(asked);
        }
        if bytes == head.len() {
            return Ok(Asked::Nonsense);
        }
        peer.set_read_timeout(left(until)?)?;
        match peer.read(&mut head[bytes..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => bytes += more,
        }
    }
}

/// What a head asks for; `None` if it is not whole.
fn asked_by(head: &[u8]) -> Option<Asked> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => None,
        Err(_) => Some(Asked::Nonsense),
        Ok(httparse::Status::Complete(_)) => {
            let target = request.path.unwrap_or("");
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            Some(match request.method {
                Some("GET") => Asked::For(Request {
                    path: path.to_owned(),
                    query: query.to_owned(),
                    host: the_header(request.headers, "host"),
                    authorization: the_header(request.headers, "authorization"),
                }),
                _ => Asked::OtherMethod,
            })
        }
    }
}

/// The value of a header that is there once.
fn the_header(headers: &[httparse::Header<'_>], name: &str) -> Option<String> {
    let mut values = headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
    let value = values.next().filter(|_| values.next().is_none())?.value;
    std::str::from_utf8(value).ok().map(|value| value.trim().to_owned())
}

fn write_all(peer: &mut &TcpStream, mut bytes: &[u8], until: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        peer.set_write_timeout(left(until)?)?;
        match peer.write(bytes)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::start("127.0.0.1:0", || "weft_up 1\n".to_owned()).unwrap()
    }

    fn ask(endpoint: &Endpoint, request: &str) -> String {
        let mut peer = TcpStream::connect(endpoint.address()).unwrap();
        peer.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        peer.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn the_page_is_served_and_nothing_else() {
        let endpoint = endpoint();
        for (request, status, body) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", "weft_up 1\n"),
            ("GET /metrics?name=x HTTP/1.0\r\n\r\n", "200 OK", "weft_up 1\n"),
            ("GET / HTTP/1.1\r\n\r\n", "200 OK", "/metrics"),
            ("GET /etc/passwd HTTP/1.1\r\n\r\n", "404", "no such page"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405", "Only GET"),
            ("\u{1}nonsense\r\n\r\n", "400", "no HTTP"),
        ] {
            let reply = ask(&endpoint, request);
            let (head, found) = reply.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(status) && head.contains("Connection: close"), "{request:?}: {reply}");
            assert!(found.contains(body), "{request:?}: {reply}");
            assert!(head.contains(&format!("Content-Length: {}", found.len())), "{reply}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(REQUEST_BYTES_MAX));
        let mut peer = TcpStream::connect(endpoint.address()).unwrap();
        let _ = peer.write_all(long.as_bytes());
        let mut reply = Vec::new();
        let _ = peer.read_to_end(&mut reply);
        assert!(reply.is_empty() || String::from_utf8_lossy(&reply).contains("400"));
    }

    /// Asks while `crowd` is connected, and returns how long the answer took.
    fn time_of_a_scrape(endpoint: &Endpoint, crowd: impl Fn(&mut TcpStream)) -> Duration {
        let connect = |_| {
            let mut peer = TcpStream::connect(endpoint.address()).unwrap();
            crowd(&mut peer);
            peer
        };
        let _crowd: Vec<TcpStream> = (0..300).map(connect).collect();
        let begin = Instant::now();
        assert!(ask(endpoint, "GET /metrics HTTP/1.1\r\n\r\n").contains("weft_up"));
        begin.elapsed()
    }

    #[test]
    fn peers_that_do_not_ask_delay_neither_others_nor_the_end() {
        let endpoint = endpoint();
        let time = time_of_a_scrape(&endpoint, |_| {});
        assert!(time < CONNECTION_TIME, "silent peers: {time:?}");
        let time = time_of_a_scrape(&endpoint, |peer| peer.write_all(b"GET /metr").unwrap());
        assert!(time < CONNECTION_TIME, "peers that begin to ask: {time:?}");
        let address = endpoint.address();
        drop(endpoint);
        Endpoint::start(&address.to_string(), String::new).unwrap();
    }

    #[test]
    fn an_address_that_is_taken_is_an_error() {
        let endpoint = endpoint();
        assert!(Endpoint::start(&endpoint.address().to_string(), String::new).is_err());
        assert!(Endpoint::start("nonsense", String::new).is_err());
    }

    #[test]
    fn a_request_has_its_query_and_the_headers_that_decide_who_may_see_a_page() {
        let of = |head: &str| match asked_by(head.as_bytes()) {
            Some(Asked::For(request)) => request,
            other => panic!("{head:?}: {other:?}"),
        };
        let request = of("GET /a?b=c?d HTTP/1.1\r\nhOsT:  x:80 \r\nAuthorization: Bearer y\r\n\r\n");
        let expected = ("/a", "b=c?d", Some("x:80"), Some("Bearer y"));
        let (host, authorization) = (request.host.as_deref(), request.authorization.as_deref());
        assert_eq!((request.path.as_str(), request.query.as_str(), host, authorization), expected);
        assert_eq!(of("GET / HTTP/1.0\r\n\r\n").host, None);
        assert_eq!(of("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").host, None, "which one counts?");
    }

    #[test]
    fn any_head_is_an_answer_or_the_beginning_of_one() {
        weft_test_fuzz::run("http_head", &[b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()], |bytes| {
            let _ = asked_by(bytes);
        });
    }
}
