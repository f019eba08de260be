//! `st_blocks`: the space that files take, which only their I/O servers know.
//!
//! ```text
//!   attributes to be shown ─►   small: as if without holes ──────────────► st_blocks
//!                            └─► large: as asked before, if size and times are the same; else the servers are asked
//! ```
//!
//! So who lists many files asks the servers once for each large one, and once more after it has changed.

use crate::sharded::Sharded;
use weft_client::Client;
use weft_wire::messages::{Attr, FileKind, Time};

const STAT_BLOCK_BYTES: u64 = 512;

/// What was learnt about files.
#[derive(Default)]
pub struct Blocks {
    known: Sharded<u64, Known>,
}

#[derive(Default)]
struct Known {
    /// Space was reserved or freed through this gateway: also a small file is asked for.
    reserved: bool,
    /// Size and times, and the blocks that there were then.
    told: Option<((u64, Time, Time), u64)>,
}

impl Blocks {
    /// The blocks of what has these attributes now. Where its servers do not answer, as many as its size needs.
    pub fn of(&self, client: &Client, attr: &Attr) -> u64 {
        let as_by_size = attr.size.div_ceil(STAT_BLOCK_BYTES);
        if attr.kind != FileKind::File {
            return as_by_size;
        }
        let small = attr.layout.is_none_or(|layout| attr.size <= u64::from(layout.strip_bytes()));
        let state = (attr.size, attr.mtime.clone(), attr.ctime.clone());
        let reserved = match self.known.lock(&attr.ino).get(&attr.ino) {
            Some(Known { told: Some((then, blocks)), .. }) if *then == state => return *blocks,
            known => known.is_some_and(|known| known.reserved),
        };
        let found = match small && !reserved {
            true => return client.blocks(attr).unwrap_or(as_by_size),
            false => client.allocated_bytes_known([attr]),
        };
        let Ok([Some(found)]) = found.as_deref() else { return as_by_size };
        let blocks = found.div_ceil(STAT_BLOCK_BYTES);
        self.known.lock(&attr.ino).entry(attr.ino).or_default().told = Some((state, blocks));
        blocks
    }

    /// Space of a file was reserved or freed through this gateway.
    pub fn reserved(&self, ino: u64) {
        *self.known.lock(&ino).entry(ino).or_default() = Known { reserved: true, told: None };
    }

    /// Nobody uses the file here any more.
    pub fn forget(&self, ino: u64) {
        self.known.lock(&ino).remove(&ino);
    }
}
