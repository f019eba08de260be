//! The handshake on a new connection: versions, then each side proves to the other that it knows the key.

use std::time::{Duration, Instant};

use weft_log::trace::current_or_fresh;
use weft_transport::{Bulk, Completion, Link, LinkError};
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{ErrorDetail, HelloRequest, ProveReply, ProveRequest, peer_role};
use weft_wire::security::{Key, client_proof, same_proof, server_proof};
use weft_wire::{Header, Request, Status, VERSIONS, body};

use crate::deadline::{self, LOOK_EVERY};
use crate::error::{Error, ErrorKind};
use crate::wait::{PollSet, Waker};

/// What this program shows and says of itself to every server.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// `None`: over Unix sockets the kernel tells servers who this process is.
    pub key: Option<IssuedKey>,
    pub host: String,
    pub program: String,
    pub boot_id: [u8; 16],
}

impl Identity {
    pub(crate) fn new(key: Option<IssuedKey>, program: Option<&str>) -> Identity {
        let executable = std::env::current_exe().ok();
        let executable =
            executable.as_ref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        let program = program.map(str::to_string).or(executable.map(|name| name.into_owned()));
        Identity { key, host: host_name(), program: program.unwrap_or_default(), boot_id: boot_id() }
    }

    /// Greets the server at the other end of `link`, as a connection of `session`.
    ///
    /// # Errors
    /// [`ErrorKind::Untrusted`] where the server does not know the key, its status where it refuses this client, and
    /// [`ErrorKind::Unreachable`] where it went away.
    pub(crate) fn greet(
        &self,
        link: &mut dyn Link,
        session: [u8; 16],
        timeout: Duration,
    ) -> Result<ProveReply, Error> {
        let hello = HelloRequest {
            version_min: VERSIONS.0,
            version_max: VERSIONS.1,
            role: if self.key.is_some() { peer_role::CLIENT } else { peer_role::PROCESS },
            client_nonce: random()?,
            key: self.key.as_ref().map(|key| key.info.clone()),
            session,
            boot_id: self.boot_id,
            process_id: std::process::id(),
            host: self.host.clone(),
            program: self.program.clone(),
        };
        let deadline = Instant::now() + timeout;
        let hello = body::encode(&hello);
        let reply = ask_encoded::<HelloRequest>(link, 1, &hello, deadline)?;
        if !(VERSIONS.0..=VERSIONS.1).contains(&reply.version) {
            let text = format!(
                "it speaks version {} of the protocol, this program {} to {}; upgrade the older one",
                reply.version, VERSIONS.0, VERSIONS.1
            );
            return Err(Error::new("connect", ErrorKind::Protocol, text).at_server(link.peer()));
        }
        let secret = self.key.as_ref().map_or(&Key::ZERO, |key| &key.secret);
        if !same_proof(&reply.proof, &server_proof(secret, &hello, &reply.server_nonce)) {
            let text = "it did not prove that it knows the cluster's key; the key here is another cluster's or was changed, \
                        or the server is no part of this one";
            return Err(Error::new("connect", ErrorKind::Untrusted, text).at_server(link.peer()));
        }
        let prove = ProveRequest { proof: client_proof(secret, &hello, &reply.server_nonce) };
        let proven: ProveReply = ask(link, 2, &prove, deadline)?;
        link.set_credits(proven.credits);
        Ok(proven)
    }
}

/// One request and its reply, with nothing else under way on the link.
pub(crate) fn ask<R: Request>(
    link: &mut dyn Link,
    request_id: u64,
    request: &R,
    deadline: Instant,
) -> Result<R::Reply, Error> {
    ask_encoded::<R>(link, request_id, &body::encode(request), deadline)
}

fn ask_encoded<R: Request>(
    link: &mut dyn Link,
    request_id: u64,
    body: &[u8],
    deadline: Instant,
) -> Result<R::Reply, Error> {
    let header = Header { trace: current_or_fresh(), ..Header::request(R::OP, request_id) };
    let name = R::OP.name();
    let completion = exchange(link, header, body, deadline)
        .map_err(|cause| Error::new(name, ErrorKind::Unreachable, cause).at_server(link.peer()))?;
    answer::<R>(&completion).map_err(|error| error.at_server(link.peer()))
}

fn exchange(
    link: &mut dyn Link,
    header: Header,
    body: &[u8],
    deadline: Instant,
) -> Result<Completion, String> {
    let text = |error: LinkError| error.to_string();
    // SAFETY: there is no bulk memory.
    unsafe { link.submit(header, body, Bulk::None) }.map_err(text)?;
    let mut done = Vec::new();
    loop {
        let progress = link.progress(&mut done);
        if let Some(at) = done.iter().position(|one| one.header.request_id == header.request_id) {
            return Ok(done.swap_remove(at));
        }
        progress.map_err(text)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it did not answer in time; it is overloaded, or no Weft server".to_string());
        }
        let mut sleep = PollSet::new();
        sleep.add(link.fd(), link.wants_write());
        let waker = Waker::current();
        // A server that hangs takes connections, and says nothing.
        let step = if deadline::is_looked_after() { left.min(LOOK_EVERY) } else { left };
        let begin = Instant::now();
        let signalled = sleep.sleep(&waker, step.as_millis() as u64 + 1);
        waker.awake(signalled);
        if begin.elapsed() >= LOOK_EVERY && deadline::is_interrupted() {
            return Err("whoever waited for it was interrupted".to_string());
        }
    }
}

/// The body of a reply, or the server's error.
pub(crate) fn answer<R: Request>(completion: &Completion) -> Result<R::Reply, Error> {
    let name = R::OP.name();
    match completion.header.status {
        Status::Ok => body::decode(&completion.header, &completion.body).map_err(|error| {
            Error::new(name, ErrorKind::Protocol, format!("its answer cannot be read: {error}"))
        }),
        status => {
            let detail =
                body::decode(&completion.header, &completion.body).map(|detail: ErrorDetail| detail.text);
            Err(Error::new(name, ErrorKind::Status(status), detail.unwrap_or_default()))
        }
    }
}

/// Random bytes of the kernel's.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], Error> {
    let mut bytes = [0u8; BYTES];
    // SAFETY: the kernel fills a live buffer; so few bytes come whole or not at all.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), BYTES, 0) };
    if got == BYTES as isize {
        return Ok(bytes);
    }
    let error = std::io::Error::last_os_error();
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    Err(Error::new("connect", ErrorKind::Local(errno), format!("cannot get random bytes: {error}")))
}

fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the kernel writes at most the length given, less one for the end that is already there.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The kernel's boot identity; zeros where it cannot be had, which equals no server's.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0u8; 16];
    if digits.len() == 32 {
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            let digit = |ascii: u8| (ascii as char).to_digit(16).unwrap_or(0) as u8;
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
    }
    id
}
