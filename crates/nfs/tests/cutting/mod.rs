//! A proxy between clients and a gateway that ends connections and repeats calls, and watches that a repeated
//! call has one reply.
//!
//! ```text
//!   client ══► call ═══════════════► gateway     one in some: half a call, then the connection ends
//!                  └ the same again ─►           one in some: twice
//!   client ◄── reply ◄══════════════ gateway     one in some: no reply or half of it, then the connection ends
//! ```

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use weft_test_random::Random;

/// A call in so many is sent twice.
const REPEAT: u64 = 15;
/// At a call or reply in so many the connection ends.
const CUT: u64 = 80;
/// SETATTR, and WRITE to LINK but for COMMIT: what must be done once.
const ONCE: [u32; 10] = [2, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// What the proxy has done, and seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub cuts: u32,
    pub repeated: u32,
    /// Calls that had two different replies.
    pub different: Vec<String>,
    /// Calls that must be done once: their procedure and reply.
    calls: HashMap<u32, (u32, Option<Vec<u8>>)>,
}

/// The proxy. Dropping it ends it.
pub struct Cutting {
    pub port: u16,
    pub seen: Arc<Mutex<Seen>>,
    ends: Arc<AtomicBool>,
}

impl Cutting {
    pub fn before(gateway: SocketAddr, seed: u64) -> Cutting {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, ends) = (Arc::<Mutex<Seen>>::default(), Arc::<AtomicBool>::default());
        let proxy = Cutting { port, seen: seen.clone(), ends: ends.clone() };
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(gateway)) else { return };
                begin(&client, &server, &seen, seed.wrapping_add(2 * number as u64));
            }
        });
        proxy
    }
}

impl Drop for Cutting {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// One direction of a connection.
struct Way {
    from: TcpStream,
    to: TcpStream,
    seen: Arc<Mutex<Seen>>,
    random: Random,
}

fn begin(client: &TcpStream, server: &TcpStream, seen: &Arc<Mutex<Seen>>, seed: u64) {
    let way = |from: &TcpStream, to: &TcpStream, seed| Way {
        from: from.try_clone().unwrap(),
        to: to.try_clone().unwrap(),
        seen: seen.clone(),
        random: Random(seed),
    };
    let (calls, replies) = (way(client, server, seed), way(server, client, seed + 1));
    std::thread::spawn(move || calls.run(Way::call));
    std::thread::spawn(move || replies.run(Way::reply));
}

fn word(record: &[u8], number: usize) -> u32 {
    record.get(4 * number..4 * number + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().unwrap()))
}

impl Way {
    fn run(mut self, step: fn(&mut Way, &[u8]) -> io::Result<()>) {
        let mut pass = || {
            let mut mark = [0; 4];
            self.from.read_exact(&mut mark)?;
            let bytes = u32::from_be_bytes(mark) & 0x7fff_ffff;
            let mut record = vec![0; 4 + bytes as usize];
            record[..4].copy_from_slice(&mark);
            self.from.read_exact(&mut record[4..])?;
            if self.random.one_in(CUT) {
                let half = if self.random.one_in(2) { record.len() / 2 } else { 0 };
                self.to.write_all(&record[..half])?;
                self.seen.lock().unwrap().cuts += 1;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            step(&mut self, &record)
        };
        while pass().is_ok() {}
        let _ = (self.from.shutdown(Shutdown::Both), self.to.shutdown(Shutdown::Both));
    }

    fn call(&mut self, record: &[u8]) -> io::Result<()> {
        let (xid, program, procedure) = (word(record, 1), word(record, 4), word(record, 6));
        let is_change = program == weft_nfs::NFS_PROGRAM && ONCE.contains(&procedure);
        if is_change {
            self.seen.lock().unwrap().calls.entry(xid).or_insert((procedure, None));
        }
        self.to.write_all(record)?;
        if is_change && self.random.one_in(REPEAT) {
            self.seen.lock().unwrap().repeated += 1;
            self.to.write_all(record)?;
        }
        Ok(())
    }

    fn reply(&mut self, record: &[u8]) -> io::Result<()> {
        let mut seen = self.seen.lock().unwrap();
        let Seen { calls, different, .. } = &mut *seen;
        if let Some((procedure, known)) = calls.get_mut(&word(record, 1)) {
            let known = known.get_or_insert_with(|| record.to_vec());
            if known != record {
                different.push(format!("procedure {procedure}: {known:?}, then {record:?}"));
            }
        }
        drop(seen);
        self.to.write_all(record)
    }
}
