//! What a thousand idle connections cost. A program of its own: it looks at the memory of its process.

mod common;

use std::io::Write;
use std::net::TcpStream;

use common::*;
use weft_onc_server::{HEAD_ROOM_BYTES, Limits};

const CONNECTIONS: usize = 1000;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_thousand_idle_connections_hold_no_buffers() {
    raise_descriptors();
    with_server(Limits::default(), |address, watch| {
        let before = resident_bytes();
        let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        for (xid, stream) in streams.iter_mut().enumerate() {
            stream.write_all(&in_fragments(&echo(xid as u32, &pattern(30_000)), 1)).unwrap();
            expect_echo(stream, xid as u32, &pattern(30_000));
        }
        watch.wait("all are idle", |counts| counts.connections == CONNECTIONS && counts.memory_bytes == 0);
        let each = resident_bytes().saturating_sub(before) / CONNECTIONS;
        assert!(each < HEAD_ROOM_BYTES, "{each} bytes for each");
    });
}

/// Lets the process open as many descriptors as it may.
fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take one structure, which lives for them.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}
