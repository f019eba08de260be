//! The server that obeys commands, the fixtures, and memory with a known pattern.
#![allow(dead_code, reason = "each test crate uses a part of this")]

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weft_reactor::{MailSender, Reactor, ReactorOptions, mailbox, sleep, spawn, yield_now};
use weft_transport::*;
use weft_wire::messages::MemoryRun;
use weft_wire::{Header, Op, Status};

mod verbs;
mod zone;

#[allow(unused_imports, reason = "each test crate uses a part of this")]
pub use verbs::*;
pub use zone::*;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// After so many bytes a pattern begins again: a prime, so that no unit or strip falls together with it.
const PERIOD: u64 = 65_521;

/// The byte at an offset of a share.
pub fn pattern(seed: u64, offset: u64) -> u8 {
    let place = offset % PERIOD;
    (place.wrapping_mul(31) ^ (place >> 8).wrapping_mul(7) ^ seed.wrapping_mul(89)) as u8
}

fn pattern_bytes(seed: u64, offset: u64, bytes: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..PERIOD).map(|place| pattern(seed, place)).collect();
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let place = ((offset + all.len() as u64) % PERIOD) as usize;
        let part = (bytes - all.len()).min(period.len() - place);
        all.extend_from_slice(&period[place..place + part]);
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[repr(u8)]
pub enum Verb {
    #[default]
    Echo,
    /// Put the pattern in units.
    Read,
    /// The same, the last unit with its keeper.
    ReadHandingOver,
    /// The same, and then fail.
    HandOverAndFail,
    /// Get in units and compare.
    Write,
    ReadInline,
    ReadLocal,
    WriteLocal,
    ReadFile,
    ReadMapped,
    WriteMapped,
    Ignore,
    Discard,
    ReadHalf,
    VanishInPut,
    VanishInGet,
    /// Begin to get, give that up, and see that the memory is left alone from then on.
    GiveUp,
}

const VERBS: [Verb; 17] = [
    Verb::Echo,
    Verb::Read,
    Verb::ReadHandingOver,
    Verb::HandOverAndFail,
    Verb::Write,
    Verb::ReadInline,
    Verb::ReadLocal,
    Verb::WriteLocal,
    Verb::ReadFile,
    Verb::ReadMapped,
    Verb::WriteMapped,
    Verb::Ignore,
    Verb::Discard,
    Verb::ReadHalf,
    Verb::VanishInPut,
    Verb::VanishInGet,
    Verb::GiveUp,
];

#[derive(Debug, Clone, Default)]
pub struct Command {
    pub verb: Verb,
    pub bytes: u64,
    pub unit_bytes: u32,
    pub seed: u64,
    pub delay_ms: u32,
    pub yields: bool,
    pub extra: Vec<u8>,
}

impl Command {
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.verb as u8, self.yields as u8];
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.unit_bytes.to_le_bytes());
        bytes.extend(self.seed.to_le_bytes());
        bytes.extend(self.delay_ms.to_le_bytes());
        bytes.extend(&self.extra);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Command> {
        Some(Command {
            verb: *VERBS.get(usize::from(*bytes.first()?))?,
            yields: *bytes.get(1)? != 0,
            bytes: u64::from_le_bytes(bytes.get(2..10)?.try_into().ok()?),
            unit_bytes: u32::from_le_bytes(bytes.get(10..14)?.try_into().ok()?).max(1),
            seed: u64::from_le_bytes(bytes.get(14..22)?.try_into().ok()?),
            delay_ms: u32::from_le_bytes(bytes.get(22..26)?.try_into().ok()?),
            extra: Vec::new(),
        })
    }
}

/// Why connections ended, for tests to look at.
pub type Ends = Arc<Mutex<Vec<String>>>;

pub async fn serve<C: ServerConn + Clone>(conn: C, ends: Ends) {
    let mut first = true;
    loop {
        let incoming = match conn.recv().await {
            Ok(incoming) => incoming,
            Err(error) => {
                ends.lock().unwrap().push(error.to_string());
                return;
            }
        };
        if std::mem::take(&mut first) && incoming.body == b"prove" {
            conn.prove();
            let _ = conn.reply(incoming.header.reply(Status::Ok), &[], &[]).await;
            continue;
        }
        let conn = conn.clone();
        spawn(async move {
            let (header, body) = (incoming.header, incoming.body);
            let answer = match Command::from_bytes(&body) {
                Some(command) => obey(&conn, &command, incoming.bulk).await,
                None => Answer::Fails(Status::Malformed, "no command".into()),
            };
            let _ = match answer {
                Answer::Echoes(moved_bytes) => {
                    conn.reply(header.reply(Status::Ok).moved(moved_bytes), &body, &[]).await
                }
                Answer::Inline(data) => {
                    let (head, tail) = data.split_at(data.len() / 3);
                    let header = header.reply(Status::Ok).moved(data.len() as u64);
                    conn.reply(header, b"inline", &[IoSlice::new(head), IoSlice::new(tail)]).await
                }
                Answer::Fails(status, text) => conn.reply(header.reply(status), text.as_bytes(), &[]).await,
                Answer::None => Ok(()),
            };
        });
    }
}

enum Answer {
    /// The command, once so much of the share was moved.
    Echoes(u64),
    Inline(Vec<u8>),
    Fails(Status, String),
    None,
}

async fn obey<C: ServerConn>(conn: &C, command: &Command, bulk: C::Bulk) -> Answer {
    if command.delay_ms > 0 {
        sleep(Duration::from_millis(command.delay_ms.into())).await;
    }
    let result = match command.verb {
        Verb::Echo => Ok(()),
        Verb::Read => put_units(command, bulk, command.bytes).await,
        Verb::ReadHandingOver => put_and_hand_over(command, bulk).await,
        Verb::HandOverAndFail => {
            let result = put_and_hand_over(command, bulk).await;
            return Answer::Fails(Status::NoSpace, format!("{result:?}"));
        }
        Verb::Write => get_units(command, bulk, command.bytes).await,
        Verb::ReadInline => {
            return Answer::Inline(pattern_bytes(command.seed, 0, command.bytes as usize));
        }
        Verb::ReadLocal | Verb::WriteLocal => touch_local(command, bulk),
        Verb::ReadFile => put_file(command, bulk).await,
        Verb::ReadMapped | Verb::WriteMapped => move_mapped(command, bulk).await,
        Verb::Ignore => {
            drop(bulk);
            return Answer::Fails(Status::NoSpace, "ignored".into());
        }
        Verb::Discard => {
            let result = bulk.discard().await;
            return Answer::Fails(Status::NoSpace, format!("{result:?}"));
        }
        Verb::ReadHalf => {
            let result = get_units(command, bulk, command.bytes / 2).await;
            return Answer::Fails(Status::NoSpace, format!("{result:?}"));
        }
        Verb::VanishInPut => {
            let _ = put_units(command, bulk, command.bytes / 2).await;
            conn.close();
            return Answer::None;
        }
        Verb::GiveUp => give_up(command, bulk).await,
        Verb::VanishInGet => {
            let _ = get_units(command, bulk, command.bytes / 2).await;
            conn.close();
            return Answer::None;
        }
    };
    match result {
        Ok(()) => Answer::Echoes(command.bytes),
        Err(text) => Answer::Fails(Status::Internal, text),
    }
}

async fn put_units<B: ServerBulk>(command: &Command, mut bulk: B, bytes: u64) -> Result<(), String> {
    let mut done = 0;
    while done < bytes {
        let unit = (bytes - done).min(command.unit_bytes.into()) as usize;
        let data = UnitMemory::of(pattern_bytes(command.seed, done, unit));
        let (head, tail) = data.split_at(unit / 2);
        let slices = [IoSlice::new(head), IoSlice::new(tail)];
        bulk.put(done, Source::slices(&slices)).await.map_err(|error| error.to_string())?;
        if command.yields {
            yield_now().await;
        }
        done += unit as u64;
    }
    Ok(())
}

/// Memory that is spoilt when nobody keeps it any more.
struct Kept(UnitMemory);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fill(0x5a);
    }
}

/// All units but the last are put; that one is handed over, in two pieces.
async fn put_and_hand_over<B: ServerBulk>(command: &Command, mut bulk: B) -> Result<(), String> {
    let unit_bytes = u64::from(command.unit_bytes);
    let mut done = 0;
    while command.bytes - done > unit_bytes {
        let data = pattern_bytes(command.seed, done, unit_bytes as usize);
        let slices = [IoSlice::new(&data)];
        bulk.put(done, Source::slices(&slices)).await.map_err(|error| error.to_string())?;
        done += unit_bytes;
    }
    let mut kept = Kept(UnitMemory::of(pattern_bytes(command.seed, done, (command.bytes - done) as usize)));
    let (head, tail) = kept.0.split_at_mut((command.bytes - done) as usize / 3);
    let pieces = [head, tail].map(|part| (NonNull::from(&mut *part).cast(), part.len()));
    // SAFETY: the pieces are the keeper's, which changes them only when it is dropped.
    let source = unsafe { Source::kept(&pieces, Rc::new(kept)) };
    bulk.put(done, source).await.map_err(|error| error.to_string())
}

async fn get_units<B: ServerBulk>(command: &Command, mut bulk: B, bytes: u64) -> Result<(), String> {
    if bulk.info().bytes != command.bytes {
        return Err(format!("{} bytes came, {} were announced", bulk.info().bytes, command.bytes));
    }
    let mut done = 0;
    while done < bytes {
        let unit = (bytes - done).min(command.unit_bytes.into()) as usize;
        // What somebody else had there before.
        let mut data = UnitMemory::of(vec![0xa7; unit]);
        let (head, tail) = data.split_at_mut(unit / 2);
        bulk.get(done, &mut [IoSliceMut::new(head), IoSliceMut::new(tail)])
            .await
            .map_err(|error| error.to_string())?;
        if *data != *pattern_bytes(command.seed, done, unit) {
            return Err(format!("the unit at {done} is wrong, its first byte is {}", data[0]));
        }
        if command.yields {
            yield_now().await;
        }
        done += unit as u64;
    }
    Ok(())
}

async fn give_up<B: ServerBulk>(command: &Command, mut bulk: B) -> Result<(), String> {
    let mut data = UnitMemory::of(vec![0; command.bytes as usize]);
    {
        let mut buffers = [IoSliceMut::new(&mut data)];
        let mut get = std::pin::pin!(bulk.get(0, &mut buffers));
        for _ in 0..command.unit_bytes {
            let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(get.as_mut().poll(cx).is_ready()));
            if begun.await {
                return Ok(());
            }
            yield_now().await;
        }
    }
    data.fill(GUARD);
    sleep(Duration::from_millis(30)).await;
    assert!(data.iter().all(|byte| *byte == GUARD), "memory was written to after the transfer was given up");
    Ok(())
}

fn touch_local<B: ServerBulk>(command: &Command, bulk: B) -> Result<(), String> {
    let half = command.bytes / 2;
    let mut at = 0;
    for (offset, bytes) in [(0, half), (half, command.bytes - half)] {
        let memory = bulk.local(offset, bytes).ok_or("the memory cannot be addressed")?;
        for (base, bytes) in memory.pieces() {
            for byte in 0..*bytes {
                // SAFETY: within the client's piece, which lives in this test process.
                let place = unsafe { &mut *base.as_ptr().add(byte) };
                let expected = pattern(command.seed, at);
                if command.verb == Verb::ReadLocal {
                    *place = expected;
                } else if *place != expected {
                    return Err(format!("byte {at} is wrong"));
                }
                at += 1;
            }
        }
    }
    if at == command.bytes { Ok(()) } else { Err(format!("{at} bytes were lent")) }
}

fn pattern_file(command: &Command, bytes: u64) -> std::fs::File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[1; 100]).unwrap();
    file.write_all(&pattern_bytes(command.seed, 0, bytes as usize)).unwrap();
    file
}

/// What the info of a bulk does not name is an error.
fn is_refused(moved: Result<(), ConnError>) -> Result<(), String> {
    match moved {
        Err(ConnError::Mechanism { .. }) => Ok(()),
        other => Err(format!("what its info does not name: {other:?}")),
    }
}

/// From a file that turns out shorter: the last 10 bytes, which arrive as zeros, are put after.
async fn put_file<B: ServerBulk>(command: &Command, mut bulk: B) -> Result<(), String> {
    if !bulk.info().files {
        let file = pattern_file(command, 10);
        is_refused(bulk.put(0, Source::file(file.as_fd(), 0, 10)).await)?;
        return put_units(&Command { unit_bytes: 1 << 20, ..command.clone() }, bulk, command.bytes).await;
    }
    let file = pattern_file(command, command.bytes - 10);
    let source = Source::file(file.as_fd(), 100, command.bytes);
    bulk.put(0, source).await.map_err(|error| error.to_string())?;
    let tail = pattern_bytes(command.seed, command.bytes - 10, 10);
    let slices = [IoSlice::new(&tail)];
    bulk.put(command.bytes - 10, Source::slices(&slices)).await.map_err(|error| error.to_string())
}

/// Fetches all of a share into mapped pieces.
///
/// # Safety
/// As for [`ServerBulk::get_mapped`].
async unsafe fn get_all_mapped<B: ServerBulk>(
    bulk: &mut B,
    mut pieces: Vec<(NonNull<u8>, usize)>,
) -> Result<(), ConnError> {
    let mut done = 0;
    while !pieces.is_empty() {
        bulk.arrival(done).await?;
        // SAFETY: as the caller promises.
        let moved = unsafe { bulk.get_mapped(done, &pieces) }?;
        done += moved;
        let mut moved = moved as usize;
        pieces.retain_mut(|(base, bytes)| {
            let part = moved.min(*bytes);
            moved -= part;
            // SAFETY: at most the end of the piece.
            (*base, *bytes) = (unsafe { base.add(part) }, *bytes - part);
            *bytes > 0
        });
    }
    Ok(())
}

async fn move_mapped<B: ServerBulk>(command: &Command, mut bulk: B) -> Result<(), String> {
    let units = Command { unit_bytes: 1 << 20, ..command.clone() };
    if !bulk.info().mapped {
        let mut memory = [0u8; 10];
        let pieces = [(NonNull::from(&mut memory).cast(), 10)];
        // SAFETY: the memory is this function's.
        is_refused(unsafe { bulk.put(0, Source::mapped(&pieces)).await })?;
        // SAFETY: as above.
        is_refused(unsafe { bulk.get_mapped(0, &pieces) }.map(|_| ()))?;
        return match command.verb {
            Verb::ReadMapped => put_units(&units, bulk, command.bytes).await,
            _ => get_units(&units, bulk, command.bytes).await,
        };
    }
    let bytes = command.bytes as usize;
    let file = pattern_file(command, command.bytes);
    // SAFETY: a new shared mapping of a file of at least this size.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes + 100,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: within the mapping.
    let pages = unsafe { NonNull::new(base.cast::<u8>().add(100)).unwrap() };
    // In pieces of all lengths, more of them than one system call takes.
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes {
        let piece = (1 + pieces.len() * 37 % 1999).min(bytes - at);
        // SAFETY: within the mapping.
        pieces.push((unsafe { pages.add(at) }, piece));
        at += piece;
    }
    let result = if command.verb == Verb::ReadMapped {
        // SAFETY: the mapping stays until the end of this function.
        let moved = unsafe { bulk.put(0, Source::mapped(&pieces)).await }.map_err(|error| error.to_string());
        if bulk.info().files {
            // SAFETY: nobody uses the mapping any more.
            unsafe { libc::munmap(base, bytes + 100) };
            return moved;
        }
        file.set_len(0).unwrap();
        // SAFETY: as above; its pages are gone now, which has to be an error and not a signal.
        let gone = unsafe { bulk.put(0, Source::mapped(&pieces)).await };
        moved.and(match gone {
            Err(ConnError::ClientMemory { .. }) => Ok(()),
            other => Err(format!("pages that are gone: {other:?}")),
        })
    } else {
        // SAFETY: as above, and it is writable.
        unsafe {
            pages.as_ptr().write_bytes(0, bytes);
            let moved = get_all_mapped(&mut bulk, pieces).await.map_err(|error| error.to_string());
            let same =
                std::slice::from_raw_parts(pages.as_ptr(), bytes) == pattern_bytes(command.seed, 0, bytes);
            moved.and(if same { Ok(()) } else { Err("wrong bytes in the mapped file".into()) })
        }
    };
    // SAFETY: nobody uses the mapping any more.
    unsafe { libc::munmap(base, bytes + 100) };
    result
}

/// A server thread that is stopped at the end of a test.
pub struct ServerThread {
    stop: MailSender<()>,
    thread: Option<JoinHandle<()>>,
    pub ends: Ends,
}

impl ServerThread {
    fn spawn<M: Send + 'static>(material: M, accept: impl FnOnce(M, Ends) + Send + 'static) -> ServerThread {
        let (stop, mut stopped) = mailbox(1);
        let ends = Ends::default();
        let thread_ends = ends.clone();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(ReactorOptions::default()).unwrap();
            reactor.run(async {
                accept(material, thread_ends);
                stopped.receive().await;
            });
        });
        ServerThread { stop, thread: Some(thread), ends }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server thread panicked");
        }
    }
}

fn serve_sockets(listening: Listening, ends: Ends) {
    spawn(async move {
        let acceptor = listening.acceptor().unwrap();
        loop {
            let accepted = acceptor.accept().await.unwrap();
            match accepted.network {
                Network::Tcp => {
                    let conn = TcpConn::from_fd(accepted.fd, &TcpOptions::default()).unwrap();
                    conn.set_stall_timeout(Duration::from_millis(300));
                    spawn(serve(conn, ends.clone()));
                }
                Network::Unix => {
                    let conn = ShmConn::from_fd(accepted.fd).unwrap();
                    conn.set_stall_timeout(Duration::from_millis(300));
                    spawn(serve(conn, ends.clone()));
                }
            }
        }
    });
}

/// A transport under test.
pub trait Fixture: Sized {
    type Link: Link;
    /// Whether the server addresses segments directly.
    const REACHES_SEGMENTS: bool = false;
    /// The largest transfer that is tried.
    const BIG_BYTES: u64 = 64 << 20;
    fn start() -> Self;
    fn connect_unproven(&self) -> Self::Link;
    fn set_up(_link: &mut Self::Link) {}

    fn connect(&self) -> Self::Link {
        let mut link = self.connect_unproven();
        assert_eq!(call(&mut link, b"prove", Bulk::None).header.status, Status::Ok);
        link.set_credits(32);
        Self::set_up(&mut link);
        link
    }
}

pub struct Tcp {
    pub server: ServerThread,
    pub address: SocketAddr,
}

impl Fixture for Tcp {
    type Link = TcpLink;

    fn start() -> Self {
        let listening = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listening.address().unwrap();
        Tcp { server: ServerThread::spawn(listening, serve_sockets), address }
    }

    fn connect_unproven(&self) -> TcpLink {
        connect_tcp(self.address, &TcpOptions::default(), PATIENCE).unwrap()
    }
}

pub struct Shm<const STAGED: bool> {
    pub server: ServerThread,
    pub path: PathBuf,
    _directory: tempfile::TempDir,
}

impl<const STAGED: bool> Fixture for Shm<STAGED> {
    type Link = ShmLink;
    const REACHES_SEGMENTS: bool = true;

    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listening = listen_unix(&path).unwrap();
        Shm { server: ServerThread::spawn(listening, serve_sockets), path, _directory: directory }
    }

    fn connect_unproven(&self) -> ShmLink {
        let options = ShmOptions { staged: STAGED, ..ShmOptions::default() };
        connect_shm(&self.path, options, PATIENCE).unwrap()
    }

    fn set_up(link: &mut ShmLink) {
        link.set_up(PATIENCE).unwrap();
        let kind = link.kind().to_string();
        assert_eq!(kind, if STAGED { "shm staged: asked for" } else { "shm direct" });
    }
}

pub struct InProcess {
    pub server: ServerThread,
    pub connector: MemoryConnector,
}

impl InProcess {
    pub fn with(faults: MemoryFaults) -> InProcess {
        InProcess::on(MemoryHub::new(faults))
    }

    fn on((connector, hub): (MemoryConnector, MemoryHub)) -> InProcess {
        let server = ServerThread::spawn(hub, |mut hub: MemoryHub, ends| {
            spawn(async move {
                while let Some(end) = hub.accept().await {
                    spawn(serve(MemoryConn::from_end(end), ends.clone()));
                }
            });
        });
        InProcess { server, connector }
    }
}

impl Fixture for InProcess {
    type Link = MemoryLink;

    fn start() -> Self {
        InProcess::with(MemoryFaults::default())
    }

    fn connect_unproven(&self) -> MemoryLink {
        self.connector.connect().unwrap()
    }
}

/// In one process, where the server is lent the client's memory.
pub struct Lending(InProcess);

impl Fixture for Lending {
    type Link = MemoryLink;
    const REACHES_SEGMENTS: bool = true;

    fn start() -> Self {
        // SAFETY: the server of these tests uses what it is lent before it gives way to anything else.
        Lending(InProcess::on(unsafe { MemoryHub::lending(MemoryFaults::default()) }))
    }

    fn connect_unproven(&self) -> MemoryLink {
        self.0.connect_unproven()
    }
}

/// Memory with pieces described by (gap before each, bytes, count); what lies between pieces is watched.
pub struct TestMemory {
    buffer: Vec<u8>,
    runs: Vec<(usize, usize, usize, u64)>,
}

const GUARD: u8 = 0xa5;

impl TestMemory {
    pub fn new(shape: &[(usize, usize, u64)]) -> TestMemory {
        let mut at = 0;
        let mut runs = Vec::new();
        for (gap, bytes, count) in shape {
            runs.push((at + gap, *bytes, gap + bytes, *count));
            at += (gap + bytes) * *count as usize;
        }
        TestMemory { buffer: vec![GUARD; at + 16], runs }
    }

    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|(_, bytes, _, count)| *bytes as u64 * count).sum()
    }

    /// In the order of the share.
    pub fn runs(&self) -> MemoryRuns {
        let base = self.buffer.as_ptr() as u64;
        self.runs
            .iter()
            .map(|(start, bytes, stride, count)| MemoryRun {
                segment: 0,
                address: base + *start as u64,
                bytes: *bytes as u64,
                stride_bytes: *stride as i64,
                count: *count,
            })
            .collect()
    }

    /// Begin and length of every piece, in the order of the share.
    fn pieces(&self) -> Vec<(usize, usize)> {
        let pieces = self.runs.iter().flat_map(|(start, bytes, stride, count)| {
            (0..*count as usize).map(move |piece| (start + piece * stride, *bytes))
        });
        pieces.collect()
    }

    pub fn fill(&mut self, seed: u64) {
        let data = pattern_bytes(seed, 0, self.bytes() as usize);
        let mut offset = 0;
        for (start, bytes) in self.pieces() {
            self.buffer[start..start + bytes].copy_from_slice(&data[offset..offset + bytes]);
            offset += bytes;
        }
    }

    pub fn check(&self, seed: u64, bytes: u64) {
        let data = pattern_bytes(seed, 0, bytes as usize);
        let mut offset = 0;
        for (start, bytes) in self.pieces() {
            let part = bytes.min(data.len() - offset);
            let same = self.buffer[start..start + part] == data[offset..offset + part];
            assert!(same, "a piece at byte {offset} of the share is wrong");
            offset += part;
        }
        self.check_untouched_outside();
    }

    /// That from `begin` on it is as [`fill`](TestMemory::fill) left it.
    pub fn check_behind(&self, seed: u64, begin: u64) {
        let data = pattern_bytes(seed, 0, self.bytes() as usize);
        let pieces = self.pieces();
        let held: Vec<u8> = pieces
            .into_iter()
            .flat_map(|(start, bytes)| &self.buffer[start..start + bytes])
            .copied()
            .collect();
        let begin = begin as usize;
        assert!(held[begin..] == data[begin..], "memory behind byte {begin} of the share was touched");
    }

    /// Pieces lie in rising order.
    pub fn check_untouched_outside(&self) {
        let mut end = 0;
        for (start, bytes) in self.pieces().into_iter().chain([(self.buffer.len(), 0)]) {
            assert!(
                self.buffer[end..start].iter().all(|byte| *byte == GUARD),
                "bytes before {start} were touched"
            );
            end = start + bytes;
        }
    }
}

/// Writes a pattern from the memory, and reads another one into it.
pub fn round_trip(link: &mut impl Link, memory: &mut TestMemory, unit_bytes: u32, seed: u64) {
    let bytes = memory.bytes();
    memory.fill(seed);
    let command = Command { verb: Verb::Write, bytes, unit_bytes, seed, ..Command::default() };
    let done = call(link, &command.to_bytes(), Bulk::get(memory.runs()));
    assert_eq!(done.header.status, Status::Ok, "{}", String::from_utf8_lossy(&done.body));
    memory.check(seed, bytes);
    let seed = seed + 1;
    let command = Command { verb: Verb::Read, bytes, unit_bytes, seed, ..Command::default() };
    let done = call(link, &command.to_bytes(), Bulk::put(memory.runs()));
    assert_eq!(done.header.status, Status::Ok, "{}", String::from_utf8_lossy(&done.body));
    assert_eq!(done.delivered_bytes, bytes);
    memory.check(seed, bytes);
}

pub fn submit(link: &mut impl Link, id: u64, body: &[u8], bulk: Bulk) -> Result<(), LinkError> {
    // SAFETY: tests keep their memory until the completion or until they have dropped the link.
    unsafe { link.submit(Header::request(Op::Ping, id), body, bulk) }
}

/// Waits for so many completions.
pub fn try_wait(link: &mut impl Link, count: usize) -> Result<Vec<Completion>, LinkError> {
    let mut done = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        link.progress(&mut done)?;
        if done.len() >= count {
            return Ok(done);
        }
        let events = libc::POLLIN | if link.wants_write() { libc::POLLOUT } else { 0 };
        let mut entry = libc::pollfd { fd: link.fd(), events, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&mut entry, 1, 1000) };
        assert!(Instant::now() < deadline, "no completion came");
    }
}

pub fn wait_all(link: &mut impl Link, count: usize) -> Vec<Completion> {
    try_wait(link, count).unwrap()
}

pub fn call(link: &mut impl Link, body: &[u8], bulk: Bulk) -> Completion {
    submit(link, 1, body, bulk).unwrap();
    wait_all(link, 1).remove(0)
}

/// Does all requests, as many at once as credits allow; results in the order of the requests.
pub fn call_many(link: &mut impl Link, requests: Vec<(Vec<u8>, Bulk)>) -> Vec<Completion> {
    let total = requests.len();
    let mut waiting = requests.into_iter().enumerate();
    let mut done = Vec::new();
    while done.len() < total {
        while link.credits() > 0 {
            let Some((id, (body, bulk))) = waiting.next() else { break };
            submit(link, id as u64, &body, bulk).unwrap();
        }
        done.append(&mut wait_all(link, 1));
    }
    done.sort_by_key(|done| done.header.request_id);
    done
}
