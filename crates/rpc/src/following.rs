//! What is known of newer maps, and whether a map can be gone by. Fetching one: `follow.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use weft_wire::messages::ClusterMapReply;

use crate::error::{Error, ErrorKind};
use crate::wait::lock;

/// How long nobody is asked again for a map that nobody had.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Or so many times as long as asking took: one that is asked may be silent, while another is about to hear
/// of it.
const ASK_AGAIN_TIMES: u32 = 2;

/// What is known of newer maps.
#[derive(Default)]
pub(crate) struct Following {
    /// Held while one is fetched.
    pub(crate) fetching: Mutex<()>,
    pub(crate) fetches: AtomicU64,
    /// A version that a reply carried, and whose reply it was.
    pub(crate) heard: AtomicU32,
    pub(crate) heard_from: AtomicUsize,
    /// Whose turn it is to be asked among those who know no better than others.
    pub(crate) turn: AtomicUsize,
    /// When others may next be asked for a chain that the map does not have.
    pub(crate) ask_for_chains_at: Mutex<Option<Instant>>,
}

/// Whether it is time to ask others; then it is not for a while.
pub(crate) fn begin_asking(ask_at: &Mutex<Option<Instant>>) -> bool {
    let now = Instant::now();
    let ask_at = &mut *lock(ask_at);
    let is_due = ask_at.is_none_or(|at| at <= now);
    if is_due {
        *ask_at = Some(now + ASK_AGAIN);
    }
    is_due
}

/// Those who were asked took so long that others are not to wait for them as often.
pub(crate) fn end_asking(ask_at: &Mutex<Option<Instant>>, begun: Instant) {
    let pause = ASK_AGAIN.max(begun.elapsed() * ASK_AGAIN_TIMES);
    *lock(ask_at) = Some(begun + pause);
}

/// Whether a map that a server sent can be gone by.
///
/// # Errors
/// [`ErrorKind::Untrusted`] where it is another cluster's, [`ErrorKind::Protocol`] where it is not sound.
pub fn check_map(map: &ClusterMapReply, cluster_id: &[u8; 16]) -> Result<(), Error> {
    if map.cluster_id != *cluster_id {
        let text = "the map of the cluster that it sent is another cluster's";
        return Err(Error::new("connect", ErrorKind::Untrusted, text));
    }
    map.check().map_err(|text| unsound(&text))
}

pub(crate) fn unsound(text: &str) -> Error {
    let text = format!("the map of the cluster that it sent cannot be used: {text}");
    Error::new("connect", ErrorKind::Protocol, text)
}
