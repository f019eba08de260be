//! Rates of every transport on this machine, beside a plain memory copy: `cargo run --release --example rates [MiB] [name]`.
//!
//! A server thread and a client thread move a buffer to and fro, 16 MiB a request, units of 1 MiB, 4 requests under way. The
//! server's data is one unit that stays in its caches or a file in memory, so that the transport is what is measured.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use weft_reactor::{Reactor, ReactorOptions, spawn};
use weft_transport::*;
use weft_wire::messages::MemoryRun;
use weft_wire::{Header, Op, Status};

const UNIT_BYTES: usize = 1 << 20;
const REQUEST_BYTES: usize = 16 << 20;
const UNDER_WAY: usize = 4;
const PATIENCE: Duration = Duration::from_secs(10);

/// A file in memory and its mapping.
struct Data {
    file: OwnedFd,
    pages: NonNull<u8>,
}

impl Data {
    fn new() -> Data {
        let segment = Segment::new(REQUEST_BYTES).expect("memory for the file");
        let file = segment.fd().try_clone_to_owned().expect("a descriptor");
        // SAFETY: a segment of this size; written once so that its pages are there.
        unsafe { segment.base().as_ptr().write_bytes(1, REQUEST_BYTES) };
        let pages = segment.base();
        std::mem::forget(segment);
        Data { file, pages }
    }
}

async fn serve<C: ServerConn + Clone>(conn: C) {
    conn.prove();
    let data = std::rc::Rc::new(Data::new());
    while let Ok(incoming) = conn.recv().await {
        let (conn, data) = (conn.clone(), data.clone());
        spawn(async move {
            let (header, bytes) = (incoming.header, incoming.bulk.info().bytes);
            let result = match incoming.body.first() {
                Some(b'r') => read(incoming.bulk, &data).await,
                Some(b'w') => write(incoming.bulk, &data).await,
                Some(b'p') => {
                    let page = [0u8; 4096];
                    let _ =
                        conn.reply(header.reply(Status::Ok).moved(4096), &[], &[IoSlice::new(&page)]).await;
                    return;
                }
                _ => Ok(()),
            };
            let status = if result.is_ok() { Status::Ok } else { Status::Internal };
            let _ = conn.reply(header.reply(status).moved(bytes), &[], &[]).await;
        });
    }
}

async fn read<B: ServerBulk>(mut bulk: B, data: &Data) -> Result<(), ConnError> {
    let mut at = 0;
    while at < REQUEST_BYTES {
        if let Some(memory) = bulk.local(at as u64, UNIT_BYTES as u64) {
            vectored(memory.pieces(), |iov, count| {
                // SAFETY: the client's pieces are mapped here.
                unsafe { libc::preadv(data.file.as_raw_fd(), iov, count, at as i64) }
            });
        } else if bulk.info().files {
            let source = Source::file(data.file.as_fd(), at as u64, UNIT_BYTES as u64);
            bulk.put(at as u64, source).await?;
        } else if bulk.info().mapped {
            // SAFETY: the mapping is never removed.
            unsafe { bulk.put(at as u64, Source::mapped(&[(data.pages.add(at), UNIT_BYTES)])).await }?;
        } else {
            // SAFETY: the mapping is never removed or changed meanwhile.
            let unit = unsafe { std::slice::from_raw_parts(data.pages.as_ptr().add(at), UNIT_BYTES) };
            bulk.put(at as u64, Source::slices(&[IoSlice::new(unit)])).await?;
        }
        at += UNIT_BYTES;
        weft_reactor::yield_now().await;
    }
    Ok(())
}

async fn write<B: ServerBulk>(mut bulk: B, data: &Data) -> Result<(), ConnError> {
    let mut buffer = vec![0u8; UNIT_BYTES];
    let mut at = 0;
    while at < REQUEST_BYTES {
        if let Some(memory) = bulk.local(at as u64, UNIT_BYTES as u64) {
            vectored(memory.pieces(), |iov, count| {
                // SAFETY: the client's pieces are mapped here.
                unsafe { libc::pwritev(data.file.as_raw_fd(), iov, count, at as i64) }
            });
        } else if bulk.info().mapped {
            let (mut done, end) = (at, at + UNIT_BYTES);
            while done < end {
                bulk.arrival(done as u64).await?;
                // SAFETY: the mapping is writable and never removed.
                done +=
                    unsafe { bulk.get_mapped(done as u64, &[(data.pages.add(done), end - done)]) }? as usize;
            }
        } else {
            bulk.get(at as u64, &mut [IoSliceMut::new(&mut buffer)]).await?;
        }
        at += UNIT_BYTES;
        weft_reactor::yield_now().await;
    }
    Ok(())
}

fn vectored(pieces: &[(NonNull<u8>, usize)], call: impl Fn(*const libc::iovec, i32) -> isize) {
    let iov: Vec<_> = pieces
        .iter()
        .map(|(base, bytes)| libc::iovec { iov_base: base.as_ptr().cast(), iov_len: *bytes })
        .collect();
    assert_eq!(call(iov.as_ptr(), iov.len() as i32) as usize, UNIT_BYTES);
}

fn start_server(listening: Listening) {
    std::thread::spawn(move || {
        let reactor = Reactor::new(ReactorOptions { ring_entries: None, spin_us: 0 }).expect("a reactor");
        reactor.run(async {
            let acceptor = listening.acceptor().expect("epoll takes sockets");
            while let Ok(accepted) = acceptor.accept().await {
                match accepted.network {
                    Network::Tcp => {
                        let conn =
                            TcpConn::from_fd(accepted.fd, &TcpOptions::default()).expect("a connection");
                        spawn(serve(conn));
                    }
                    Network::Unix => {
                        spawn(serve(ShmConn::from_fd(accepted.fd).expect("a connection")));
                    }
                }
            }
        });
    });
}

fn wait(link: &mut dyn Link, done: &mut Vec<Completion>) {
    let before = done.len();
    loop {
        link.progress(done).expect("the server lives");
        if done.len() > before {
            return;
        }
        let events = libc::POLLIN | if link.wants_write() { libc::POLLOUT } else { 0 };
        let mut entry = libc::pollfd { fd: link.fd(), events, revents: 0 };
        // SAFETY: one live entry.
        unsafe { libc::poll(&mut entry, 1, -1) };
    }
}

/// MiB/s of one direction; requests are cut to what the link takes.
fn rate(link: &mut dyn Link, base: *mut u8, total_mib: usize, is_put: bool) -> f64 {
    let begin = Instant::now();
    let count = (total_mib << 20) / REQUEST_BYTES;
    let mut free: VecDeque<u64> = (0..UNDER_WAY as u64).collect();
    let (mut sent, mut done) = (0, Vec::new());
    let mut completed = 0;
    while completed < count {
        while sent < count
            && let Some(id) = free.pop_front()
        {
            let address = base as u64 + id * REQUEST_BYTES as u64;
            let run =
                MemoryRun { segment: 0, address, bytes: REQUEST_BYTES as u64, stride_bytes: 0, count: 1 };
            let (body, bulk) =
                if is_put { (b"r", Bulk::put(vec![run])) } else { (b"w", Bulk::get(vec![run])) };
            // SAFETY: the buffer lives until the end of `main`.
            unsafe { link.submit(Header::request(Op::Ping, id), body, bulk) }.expect("a credit is free");
            sent += 1;
        }
        wait(link, &mut done);
        for completion in done.drain(..) {
            assert_eq!(completion.header.status, Status::Ok);
            free.push_back(completion.header.request_id);
            completed += 1;
        }
    }
    total_mib as f64 / begin.elapsed().as_secs_f64()
}

/// Microseconds of a 4 KiB read.
fn latency(link: &mut dyn Link, base: *mut u8) -> f64 {
    let count = 20_000;
    let begin = Instant::now();
    let mut done = Vec::new();
    for _ in 0..count {
        let run = MemoryRun { segment: 0, address: base as u64, bytes: 4096, stride_bytes: 0, count: 1 };
        // SAFETY: the buffer lives until the end of `main`.
        unsafe { link.submit(Header::request(Op::Ping, 1), b"p", Bulk::put(vec![run])) }
            .expect("a credit is free");
        wait(link, &mut done);
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

fn show(name: &str, link: &mut dyn Link, base: *mut u8, total_mib: usize, only: Option<&str>) {
    if only.is_some_and(|only| !name.contains(only)) {
        return;
    }
    link.set_credits(UNDER_WAY as u16);
    let (put, get) = (rate(link, base, total_mib, true), rate(link, base, total_mib, false));
    println!("{name:22} put {put:7.0} MiB/s   get {get:7.0} MiB/s   4 KiB {:6.1} us", latency(link, base));
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let total_mib = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(4096);
    let only = arguments.next();
    let only = only.as_deref();
    let buffer_bytes = UNDER_WAY * REQUEST_BYTES;
    let mut plain = vec![1u8; buffer_bytes];
    let base = plain.as_mut_ptr();

    let source = vec![2u8; REQUEST_BYTES];
    let begin = Instant::now();
    for at in 0..total_mib / 16 {
        plain[at % UNDER_WAY * REQUEST_BYTES..][..REQUEST_BYTES].copy_from_slice(black_box(&source));
        black_box(&mut plain);
    }
    println!("{:22} {:11.0} MiB/s", "memory copy", total_mib as f64 / begin.elapsed().as_secs_f64());

    let tcp = listen_tcp("127.0.0.1:0".parse().expect("an address")).expect("a port is free");
    let address = tcp.address().expect("it is TCP");
    start_server(tcp);
    let path = std::env::temp_dir().join(format!("weft-rates-{}", std::process::id()));
    start_server(listen_unix(&path).expect("a socket can be made"));

    for name in ["cubic", "bbr"] {
        let options = TcpOptions { congestion: Congestion::Named(name.into()), ..TcpOptions::default() };
        match connect_tcp(address, &options, PATIENCE) {
            Ok(mut link) => show(&link.kind().to_string(), &mut link, base, total_mib, only),
            Err(error) => println!("tcp {name}: {error}"),
        }
    }
    let mut direct = connect_shm(&path, ShmOptions::default(), PATIENCE).expect("the server listens");
    direct.set_up(PATIENCE).expect("it answers");
    show(&direct.kind().to_string(), &mut direct, base, total_mib, only);

    let segment = Segment::new(buffer_bytes).expect("memory for a segment");
    direct.add_segment(&segment).expect("the server lives");
    // SAFETY: the segment's memory, not in use yet.
    unsafe { segment.base().as_ptr().write_bytes(1, buffer_bytes) };
    latency(&mut direct, base);
    show("shm segment", &mut direct, segment.base().as_ptr(), total_mib, only);
    drop(direct);
    let _ = std::fs::remove_file(&path);
}
