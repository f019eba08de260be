//! Where requests about a scrub and the thread that scrubs ([`crate::caretaker`]) meet.

use crate::clock::unix_s;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_wire::body::Added;
use weft_wire::messages::{ScrubFinding, ScrubReply, ScrubRequest, scrub_action};

const FINDINGS_PER_REPLY: usize = 512;

/// Where requests and the caretaker meet.
#[derive(Default)]
pub(crate) struct Desk {
    book: Mutex<Book>,
}

/// The scrub that runs or ran last, what is asked for, and what was found.
#[derive(Default)]
pub(crate) struct Book {
    /// A scrub that is asked for: its rate.
    pub wanted: Option<u64>,
    pub must_end: bool,
    pub number: u64,
    pub is_running: bool,
    pub progress: Progress,
    pub whole_ended_s: u64,
    pub failure: String,
    pub found: u64,
    pub findings: Vec<ScrubFinding>,
    /// Data files that the last scrub has missed. The files may be gone, which the names know.
    pub missing: Vec<u64>,
    /// Files that have lost data here, as reads and scrubs have found.
    pub lost: BTreeSet<u64>,
}

/// How far a scrub is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    pub begun_s: u64,
    pub files: u64,
    pub bytes: u64,
    pub adopted_blocks: u64,
    /// Those of them whose checksum was lost before.
    pub readopted_blocks: u64,
}

impl Desk {
    /// What it knows, for as long as this is held.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request asks for, and the state of things.
    pub fn answer(&self, request: &ScrubRequest) -> ScrubReply {
        let mut book = self.book();
        match request.action {
            scrub_action::BEGIN => {
                book.wanted = Some(request.bytes_per_s);
                book.number += 1;
                book.is_running = true;
                (book.progress, book.found) = (Progress { begun_s: unix_s(), ..Progress::default() }, 0);
                book.findings.clear();
                book.missing.clear();
                book.failure.clear();
            }
            scrub_action::END => book.must_end = true,
            _ => {}
        }
        let page = book.findings.iter().skip(request.known as usize).take(FINDINGS_PER_REPLY);
        ScrubReply {
            number: book.number,
            is_running: book.is_running,
            begun_s: book.progress.begun_s as i64,
            finished_s: book.whole_ended_s as i64,
            files: book.progress.files,
            bytes: book.progress.bytes,
            adopted_blocks: book.progress.adopted_blocks,
            failure: book.failure.clone(),
            found: u32::try_from(book.found + book.missing.len() as u64).unwrap_or(u32::MAX),
            findings: page.cloned().collect(),
            readopted_blocks: Added(book.progress.readopted_blocks),
        }
    }
}
