//! Ports for servers of tests, which no other test takes meanwhile.
//!
//! ```text
//!   12000        12050        12100        …  32000        below those that the kernel gives to outgoing connections
//!   [ process A ][ process B ][ process A ]  …             a block is one process's as long as it holds the block's abstract socket
//! ```
//!
//! A port that is only looked for may be taken before its server listens: by another test, or by a cluster that gives its next server the
//! next port. So processes divide the ports among them, and each gives a port away once.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

const FIRST: u16 = 12_000;
const BLOCK_PORTS: u16 = 50;
const BLOCKS: u16 = 400;

/// Ports of a block that this process has not given away.
struct Left {
    next: u16,
    end: u16,
    /// Other processes see by it that the block is taken; the kernel removes it with the last descriptor.
    _claim: UnixDatagram,
}

/// The first of `count` free ports in a row, which this process gives to nobody else.
///
/// # Panics
/// Where all are taken, or more are asked for than a block has.
pub fn free_ports(count: u16) -> u16 {
    static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());
    assert!(count <= BLOCK_PORTS, "{count} ports in a row: there are {BLOCK_PORTS}");
    let mut blocks = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(left) = blocks.last_mut() {
            while left.next + count <= left.end {
                let first = left.next;
                // Somebody who is no test may listen there.
                let taken =
                    (first..first + count).find(|port| TcpListener::bind(("0.0.0.0", *port)).is_err());
                left.next = taken.map_or(first + count, |taken| taken + 1);
                if taken.is_none() {
                    return first;
                }
            }
        }
        blocks.push(claim());
    }
}

fn claim() -> Left {
    let begin = std::process::id() % u32::from(BLOCKS);
    for number in (0..BLOCKS).map(|number| (begin as u16 + number) % BLOCKS) {
        let name = SocketAddr::from_abstract_name(format!("weft-test-ports-{number}")).expect("a short name");
        if let Ok(claim) = UnixDatagram::bind_addr(&name) {
            let next = FIRST + number * BLOCK_PORTS;
            return Left { next, end: next + BLOCK_PORTS, _claim: claim };
        }
    }
    panic!("all {BLOCKS} blocks of ports are taken by other tests");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_away_once() {
        let mut given = Vec::new();
        for count in [1, 3, 20, 20, 20, 2, 50, 1] {
            let first = free_ports(count);
            given.extend(first..first + count);
        }
        let all = given.len();
        given.sort_unstable();
        given.dedup();
        assert_eq!((given.len(), all), (117, 117));
        assert!(given.iter().all(|port| (12_000..32_000).contains(port)));
    }

    #[test]
    fn a_block_is_one_claim() {
        let (one, other) = (claim(), claim());
        assert_ne!(one.next, other.next);
        let number = (one.next - FIRST) / BLOCK_PORTS;
        let name = SocketAddr::from_abstract_name(format!("weft-test-ports-{number}")).unwrap();
        UnixDatagram::bind_addr(&name).unwrap_err();
        drop(one);
        UnixDatagram::bind_addr(&name).unwrap();
    }
}
