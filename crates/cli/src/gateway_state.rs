//! What a running NFS gateway tells about itself, through a Unix socket in its directory.
//!
//! ```text
//!   weft nfs status ─ connect ─► nfs.sock ─ JSON, end of file ─► State
//! ```
//!
//! Whoever may enter the directory may ask: the gateway's user, and root.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a gateway calls itself before its name, in the servers' lists of clients.
pub const GATEWAY_PROGRAM: &str = "NFS gateway ";
const SOCKET: &str = "nfs.sock";
/// How long the other side may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the gateway waits for whoever asks: it does nothing else meanwhile that is not NFS.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// More than thousands of clients need.
const BYTES_MAX: u64 = 16 << 20;

/// A gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name in the cluster file.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// How long it has served, in milliseconds.
    pub uptime_ms: u64,
    /// Where it listens over TCP.
    pub addresses: Vec<String>,
    /// Where it listens over RDMA.
    pub rdma_addresses: Vec<String>,
    /// Addresses for RDMA where it cannot listen, each with the reason.
    pub rdma_lacks: Vec<String>,
    /// What it exports.
    pub exports: Vec<Export>,
    /// Why the cluster file, as it is now, is not in force.
    pub wrong_file: Option<String>,
    /// Who is connected, or has mounted something.
    pub clients: Vec<Client>,
    /// What it has done.
    pub counts: Counts,
}

/// An export in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The directory.
    pub path: String,
    /// Who may mount it, as in the cluster file.
    pub clients: Vec<String>,
    /// "ro" or "rw".
    pub access: String,
    /// "root", "all" or "none".
    pub squash: String,
    /// User of squashed requests.
    pub anonymous_uid: u32,
    /// Group of squashed requests.
    pub anonymous_gid: u32,
    /// Requests from any port count.
    pub insecure_ports: bool,
}

/// A client of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its address.
    pub address: String,
    /// Its connections.
    pub connections: usize,
    /// Those of them that are over RDMA.
    pub rdma_connections: usize,
    /// What it has said that it mounts. One that vanishes says nothing.
    pub mounts: Vec<String>,
}

/// Numbers of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Calls of all programs.
    pub calls: u64,
    /// Bytes that READs have returned.
    pub read_bytes: u64,
    /// Bytes that WRITEs have written.
    pub written_bytes: u64,
    /// Bytes that were read from the memory of clients by RDMA.
    pub rdma_read_bytes: u64,
    /// Bytes that were written to it.
    pub rdma_written_bytes: u64,
    /// Replies that clients were to read by RDMA (`rdma_design = "read-read"`).
    pub rdma_exposed_replies: u64,
    /// Bytes of these.
    pub rdma_exposed_bytes: u64,
    /// Those of them that clients may read at the moment.
    pub rdma_exposed_now_bytes: u64,
    /// Microseconds for which they were exposed, of all replies together.
    pub rdma_exposed_us: u64,
    /// Bytes of payloads that were copied between messages and buffers.
    pub copied_bytes: u64,
    /// Calls of clients that no export is for, and mounts that failed.
    pub refused: u64,
    /// Files that are open at the moment.
    pub open_inodes: usize,
    /// Operations of the cluster that are under way.
    pub under_way: usize,
}

/// Where a gateway is asked.
#[derive(Debug)]
pub struct Desk {
    listener: UnixListener,
    // The socket's name goes through it.
    _directory: File,
}

/// The path of the socket that fits into an address, however long that of the directory is.
fn short_path(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))
}

impl Desk {
    /// Opens it. The caller holds the lock of the directory.
    pub fn open(directory: &Path) -> Result<Desk> {
        let path = directory.join(SOCKET);
        let what = || format!("cannot listen at {}", path.display());
        // That of an earlier run; where there is none, binding works.
        let _ = std::fs::remove_file(&path);
        let opened = File::open(directory).with_context(what)?;
        let listener = UnixListener::bind(short_path(&opened)).with_context(what)?;
        listener.set_nonblocking(true).with_context(what)?;
        Ok(Desk { listener, _directory: opened })
    }

    /// Answers all who ask now.
    pub fn answer(&self, state: impl Fn() -> State) {
        while let Ok((mut asker, _)) = self.listener.accept() {
            let text = serde_json::to_vec(&state()).expect("numbers and texts can be written as JSON");
            // Who has asked and does not take the answer has no need of it.
            let _ = asker.set_write_timeout(Some(ANSWER_PATIENCE)).and_then(|()| asker.write_all(&text));
        }
    }
}

impl AsRawFd for Desk {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.listener.as_raw_fd()
    }
}

/// Asks the gateway of a directory; `None` if none runs.
pub fn ask(directory: &Path) -> Result<Option<State>> {
    let what = || format!("cannot ask the gateway at {}", directory.join(SOCKET).display());
    let opened = match File::open(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(what)?,
    };
    let asked = match UnixStream::connect(short_path(&opened)) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        asked => asked.with_context(what)?,
    };
    let mut text = Vec::new();
    asked.set_read_timeout(Some(PATIENCE)).with_context(what)?;
    asked.take(BYTES_MAX).read_to_end(&mut text).with_context(what)?;
    if text.is_empty() {
        bail!("{}: it has ended just now", what());
    }
    serde_json::from_slice(&text).map(Some).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            name: "nfs0".into(),
            pid: 7,
            uptime_ms: 8,
            addresses: vec!["127.0.0.1:2049".into()],
            rdma_addresses: Vec::new(),
            rdma_lacks: vec!["ib0:20049: there is none".into()],
            exports: Vec::new(),
            wrong_file: Some("line 3".into()),
            clients: vec![Client {
                address: "::1".into(),
                connections: 2,
                rdma_connections: 1,
                mounts: vec!["/a".into()],
            }],
            counts: Counts { calls: 9, ..Counts::default() },
        }
    }

    #[test]
    fn a_gateway_in_a_deep_directory_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let deep = directory.path().join("a".repeat(120));
        assert_eq!(ask(&deep).unwrap(), None, "the directory is not there");
        std::fs::create_dir(&deep).unwrap();
        assert_eq!(ask(&deep).unwrap(), None, "nothing has run there");
        let desk = Desk::open(&deep).unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| ask(&deep));
            while !asked.is_finished() {
                desk.answer(state);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(asked.join().unwrap().unwrap(), Some(state()));
        });
        drop(desk);
        assert_eq!(ask(&deep).unwrap(), None, "it has ended");
        Desk::open(&deep).unwrap();
    }

    #[test]
    fn whoever_takes_no_answer_is_not_waited_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let desk = Desk::open(directory.path()).unwrap();
        let asker = UnixStream::connect(directory.path().join(SOCKET)).unwrap();
        let large = State { addresses: vec!["x".repeat(4 << 20)], ..state() };
        let begun = std::time::Instant::now();
        desk.answer(|| large.clone());
        assert!(begun.elapsed() < 10 * ANSWER_PATIENCE, "{:?}", begun.elapsed());
        drop(asker);
    }
}
