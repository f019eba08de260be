//! The thread of an I/O server that looks after checksums of data: it sums what was written, and scrubs.
//!
//! ```text
//!   half a second ─► settle what was left alone, sync marks ─► tell what reads have found ─► a second of the scrub, if one goes on ─┐
//!        ▲─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//!
//!   DIR/scrub-state   weft-scrub 1            written by rename, about every ten seconds of a scrub and at its end
//!                     known_s 1769000000      when this server first had checksums
//!                     begun_s 1769860800      the scrub that goes on; 0: none
//!                     cursor 298              the data file it has come to, in the order of listings; 0: the first
//!                     whole_begun_s 1769256000, whole_ended_s 1769256240      the last whole one; 0: none
//! ```
//!
//! It is a thread of low priority, and reads at a bounded rate. A scrub that was interrupted by a stop goes on where it was.

use crate::clock::unix_s;
use crate::counters::Counters;
use crate::log;
use crate::scrub_desk::Progress;
use crate::shared::Shared;
use crate::stop::StopFlag;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, UNIX_EPOCH};
use weft_reactor::{Reactor, ReactorOptions};
use weft_storage::sums::{Damage, DamageKind, Scrubbed, SettleWhen};
use weft_storage::{DataFiles, Disk, ObjectInfo, StorageError};
use weft_wire::limits::CLOCK_SKEW_S_MAX;
use weft_wire::messages::{ScrubFinding, scrub_found};

/// Between two rounds.
const ROUND: Duration = Duration::from_millis(500);
/// A scrub goes on for so long before what was written meanwhile is looked at.
const SCRUB_ROUND: Duration = Duration::from_secs(1);
/// What is written all the time is settled this often.
const DIRTY_MAX: Duration = Duration::from_secs(60);
/// Synced data gets checksums after this time without a change. The delay keeps a program that alternates writes and syncs from
/// voiding them each time.
const SYNCED_IDLE: Duration = Duration::from_secs(1);
/// How long checksums are made when the server stops, and of how much data of one file at most.
const STOP_SETTLES: Duration = Duration::from_secs(3);
const STOP_BYTES_MAX: u64 = 256 << 20;
/// Data files that a scrub has missed and that are kept.
const MISSING_MAX: usize = 4096;
/// How fast the settler reads.
const SETTLE_BYTES_PER_S: u64 = 256 << 20;
/// Storage that has never been scrubbed is so long after it first was under this care.
const FIRST_SCRUB_S: u64 = 3600;
/// Marks of data files are synced this often. A power cut can take those that were set since.
const MARKS_EVERY: Duration = Duration::from_secs(5);
const SAVE_EVERY: Duration = Duration::from_secs(10);
const FILES_PER_PAGE: usize = 256;
/// More findings are counted only.
const FINDINGS_MAX: usize = 100_000;
/// Data that was written so short a time before a scrub may have missed it.
const YOUNG_S: u64 = 120;
const STATE_FILE: &str = "scrub-state";

/// What a caretaker needs.
pub(crate) struct Setup<D: Disk> {
    pub files: DataFiles<D>,
    pub shared: Arc<Shared>,
    pub stop: StopFlag,
    pub settle_s: u64,
    pub scrub_interval_s: u64,
    pub scrub_bytes_per_s: u64,
}

/// Runs until the server is to stop.
pub(crate) fn run<D: Disk>(setup: Setup<D>) {
    be_modest();
    let path = setup.shared.directory.join(STATE_FILE);
    let mut state = Noted::load(&path);
    if state.known_s == 0 {
        state.known_s = unix_s();
        state.save(&path);
    }
    setup.shared.scrub.book().whole_ended_s = state.whole_ended_s;
    let caretaker =
        Caretaker { setup, path, state, scrub: None, marks_synced: Instant::now(), first_failure: true };
    match Reactor::new(ReactorOptions::default()) {
        Ok(reactor) => reactor.run(caretaker.run()),
        Err(error) => log::warning!("sums", "checksums of data are not kept: {error}"),
    }
}

/// Less processor time and disk than others. Not so little that it holds a lock for long.
fn be_modest() {
    const IOPRIO_WHO_PROCESS: i32 = 1;
    const LOWEST_BEST_EFFORT: i32 = 2 << 13 | 7;
    // SAFETY: both calls take numbers only, and are about this thread. What they say does not matter.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 10);
        libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, LOWEST_BEST_EFFORT);
    }
}

/// The state file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Noted {
    known_s: u64,
    begun_s: u64,
    cursor: u64,
    whole_begun_s: u64,
    whole_ended_s: u64,
}

impl Noted {
    /// What is missing or damaged is as if it was never written.
    fn load(path: &Path) -> Noted {
        fs::read_to_string(path).ok().and_then(|text| Noted::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Option<Noted> {
        let mut lines = text.lines();
        if lines.next()? != "weft-scrub 1" {
            return None;
        }
        let mut noted = Noted::default();
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            let field = match key {
                "known_s" => &mut noted.known_s,
                "begun_s" => &mut noted.begun_s,
                "cursor" => &mut noted.cursor,
                "whole_begun_s" => &mut noted.whole_begun_s,
                "whole_ended_s" => &mut noted.whole_ended_s,
                _ => return None,
            };
            *field = value.parse().ok()?;
        }
        Some(noted)
    }

    fn text(&self) -> String {
        let Noted { known_s, begun_s, cursor, whole_begun_s, whole_ended_s } = self;
        format!(
            "weft-scrub 1\nknown_s {known_s}\nbegun_s {begun_s}\ncursor {cursor}\nwhole_begun_s {whole_begun_s}\n\
             whole_ended_s {whole_ended_s}\n"
        )
    }

    fn save(&self, path: &Path) {
        let new = path.with_extension("new");
        let saved = fs::write(&new, self.text()).and_then(|()| fs::rename(&new, path));
        if let Err(error) = saved
            && log::once_a_minute("scrub state")
        {
            log::warning!("sums", "cannot note how far the scrub is in {}: {error}", path.display());
        }
    }

    /// Whether the time for a scrub by itself has come.
    fn is_due(&self, now_s: u64, interval_s: u64) -> bool {
        // The clock was wrong when this was noted. When the scrub began is unknown.
        if interval_s > 0 && self.whole_begun_s.max(self.known_s) > now_s + CLOCK_SKEW_S_MAX {
            return true;
        }
        let due_s = match self.whole_begun_s {
            0 => self.known_s + FIRST_SCRUB_S.min(interval_s),
            begun_s => begun_s + interval_s,
        };
        interval_s > 0 && now_s >= due_s
    }
}

/// A scrub that goes on.
struct Scrub {
    bytes_per_s: u64,
    cursor: Option<u64>,
    page: Vec<ObjectInfo>,
    saved: Instant,
}

struct Caretaker<D: Disk> {
    setup: Setup<D>,
    path: PathBuf,
    state: Noted,
    scrub: Option<Scrub>,
    marks_synced: Instant,
    first_failure: bool,
}

/// Waits so that reading stays below a rate; says whether to go on.
async fn pause(stop: &StopFlag, bytes: u64, bytes_per_s: u64) -> bool {
    if bytes_per_s > 0 && bytes > 0 && !stop.is_stopped() {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s);
        weft_reactor::sleep(Duration::from_nanos(nanoseconds.min(1_000_000_000) as u64)).await;
    }
    !stop.is_stopped()
}

/// When data gets checksums that is to get them `settle_s` after its last change.
fn settle_when(settle_s: u64) -> SettleWhen {
    let idle = Duration::from_secs(settle_s);
    SettleWhen { idle, dirty: DIRTY_MAX.max(idle), synced: SYNCED_IDLE.min(idle), bytes_max: u64::MAX }
}

impl<D: Disk> Caretaker<D> {
    async fn run(mut self) {
        let when = settle_when(self.setup.settle_s);
        while !self.setup.stop.is_stopped() {
            self.settle(when).await;
            self.sync_marks().await;
            self.tell_damage();
            self.begin_or_end().await;
            if self.scrub.is_some() {
                self.scrub_for_a_while().await;
                self.tell_damage();
            }
            self.count();
            let until = Instant::now() + if self.scrub.is_some() { Duration::ZERO } else { ROUND };
            while Instant::now() < until
                && !self.setup.stop.is_stopped()
                && self.setup.shared.scrub.book().wanted.is_none()
            {
                weft_reactor::sleep(Duration::from_millis(100)).await;
            }
        }
        if self.scrub.is_some() {
            self.state.save(&self.path);
        }
    }

    async fn settle(&mut self, when: SettleWhen) {
        let stop = &self.setup.stop;
        let settled =
            self.setup.files.settle(when, async |bytes| pause(stop, bytes, SETTLE_BYTES_PER_S).await).await;
        match settled {
            Err(error) if log::once_a_minute("settle") => {
                log::warning!(&self.setup.shared.name, "cannot keep checksums of what was written: {error}");
            }
            _ => {}
        }
    }

    async fn sync_marks(&mut self) {
        if self.marks_synced.elapsed() < MARKS_EVERY {
            return;
        }
        let synced = self.setup.files.sync_marks().await;
        self.marks_synced = Instant::now();
        match synced {
            Err(error) if log::once_a_minute("marks") => log::warning!(&self.setup.shared.name, "{error}"),
            _ => {}
        }
    }

    fn tell_damage(&self) {
        for damage in self.setup.files.take_damage() {
            let Damage { ino, offset, bytes, .. } = damage;
            self.note_lost(ino, damage.kind);
            let name = &self.setup.shared.name;
            match damage.kind {
                DamageKind::Data => log::warning!(
                    name,
                    "inode {ino}: {bytes} bytes from {offset} on of its data file are damaged: they do not fit their checksum"
                ),
                DamageKind::Short => log::warning!(
                    name,
                    "inode {ino}: {bytes} bytes from {offset} on of its data file are gone: it ends before"
                ),
                DamageKind::Sums => log::warning!(
                    name,
                    "inode {ino}: checksums are damaged, of data from {offset} on; the data may be sound"
                ),
                DamageKind::NoSums => log::warning!(name, "inode {ino}: its checksums are gone"),
                DamageKind::Missing => log::warning!(name, "inode {ino}: its data file is missing"),
                DamageKind::Foreign => log::warning!(
                    name,
                    "inode {ino}: its data file has the checksums of another inode: they were swapped"
                ),
            }
        }
    }

    fn note_lost(&self, ino: u64, kind: DamageKind) {
        if !matches!(kind, DamageKind::Sums | DamageKind::NoSums) {
            let mut book = self.setup.shared.scrub.book();
            if book.lost.len() < FINDINGS_MAX {
                book.lost.insert(ino);
            }
        }
    }

    fn count(&self) {
        let counters: &Counters = &self.setup.shared.counters;
        let counts = self.setup.files.sums_counts();
        let book = self.setup.shared.scrub.book();
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        for (name, value) in [
            ("sums_compared_blocks", load(&counts.verified_blocks)),
            ("sums_wrong_blocks", load(&counts.wrong_blocks)),
            ("sums_damaged", load(&counts.damaged_sums)),
            ("sums_settled_blocks", load(&counts.settled_blocks)),
            ("sums_voided", load(&counts.voided)),
            ("sums_unsettled_files", self.setup.files.unsettled_files() as u64),
            ("scrub_is_running", u64::from(book.is_running)),
            ("scrub_files", book.progress.files),
            ("scrub_bytes", book.progress.bytes),
            ("scrub_found", book.found),
            ("scrub_finished_s", book.whole_ended_s),
            ("lost_files", book.lost.len() as u64),
        ] {
            counters.gauge(name).store(value, Ordering::Relaxed);
        }
    }

    async fn begin_or_end(&mut self) {
        let (wanted, must_end) = {
            let mut book = self.setup.shared.scrub.book();
            (book.wanted.take(), std::mem::take(&mut book.must_end))
        };
        if must_end {
            self.state.begun_s = 0;
            self.end();
        }
        let usual = self.setup.scrub_bytes_per_s;
        if let Some(bytes_per_s) = wanted {
            // What was just written is scrubbed, too.
            self.settle(SettleWhen::NOW).await;
            (self.state.begun_s, self.state.cursor) = (unix_s(), 0);
            self.begin(if bytes_per_s == 0 { usual } else { bytes_per_s });
        } else if self.scrub.is_none()
            && (self.state.begun_s > 0 || self.state.is_due(unix_s(), self.setup.scrub_interval_s))
        {
            if self.state.begun_s == 0 {
                (self.state.begun_s, self.state.cursor) = (unix_s(), 0);
            }
            self.begin(usual);
        }
    }

    fn begin(&mut self, bytes_per_s: u64) {
        self.state.save(&self.path);
        let mut book = self.setup.shared.scrub.book();
        if !book.is_running {
            book.number += 1;
            book.progress = Progress { begun_s: self.state.begun_s, ..Progress::default() };
            book.is_running = true;
            book.missing.clear();
            // What the scrub finds damaged comes back.
            let lost = std::mem::take(&mut book.lost);
            drop(book);
            let is_lost = |ino: &u64| self.setup.files.has_lost(*ino).unwrap_or(true);
            let lost = lost.into_iter().filter(is_lost);
            self.setup.shared.scrub.book().lost = lost.collect();
        }
        let cursor = (self.state.cursor != 0).then_some(self.state.cursor);
        self.scrub = Some(Scrub { bytes_per_s, cursor, page: Vec::new(), saved: Instant::now() });
        self.first_failure = true;
    }

    fn end(&mut self) {
        self.scrub = None;
        self.state.save(&self.path);
        let mut book = self.setup.shared.scrub.book();
        book.is_running = book.wanted.is_some();
        book.whole_ended_s = self.state.whole_ended_s;
    }

    async fn scrub_for_a_while(&mut self) {
        let until = Instant::now() + SCRUB_ROUND;
        while Instant::now() < until && !self.setup.stop.is_stopped() {
            let Some(scrub) = &mut self.scrub else { return };
            if scrub.page.is_empty() {
                match self.setup.files.list(scrub.cursor, FILES_PER_PAGE) {
                    Ok((page, _)) if page.is_empty() => {
                        self.finish();
                        return;
                    }
                    Ok((mut page, _)) => {
                        page.reverse();
                        scrub.page = page;
                    }
                    Err(error) => {
                        self.failed(&error.to_string());
                        self.state.begun_s = 0;
                        self.end();
                        return;
                    }
                }
            }
            let Some(file) = self.scrub.as_mut().and_then(|scrub| scrub.page.pop()) else { return };
            self.scrub_file(&file).await;
        }
        if let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.saved.elapsed() >= SAVE_EVERY) {
            scrub.saved = Instant::now();
            self.state.save(&self.path);
        }
    }

    async fn scrub_file(&mut self, file: &ObjectInfo) {
        let Some(bytes_per_s) = self.scrub.as_ref().map(|scrub| scrub.bytes_per_s) else { return };
        let (stop, desk) = (&self.setup.stop, &self.setup.shared.scrub);
        let modified_s = file.modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let had_sums = self.state.whole_begun_s > modified_s + YOUNG_S;
        let mut go_on = async |bytes| {
            let must_end = {
                let book = desk.book();
                book.must_end || book.wanted.is_some()
            };
            pause(stop, bytes, bytes_per_s).await && !must_end
        };
        let scrubbed = self.setup.files.scrub(file.ino, had_sums, &mut go_on).await;
        if stop.is_stopped() || desk.book().wanted.is_some() {
            return;
        }
        match scrubbed {
            Ok(scrubbed) => self.note(file.ino, &scrubbed),
            Err(error) => self.failed(&error.to_string()),
        }
        self.state.cursor = file.ino;
        if let Some(scrub) = &mut self.scrub {
            scrub.cursor = Some(file.ino);
        }
    }

    fn note(&self, ino: u64, scrubbed: &Scrubbed) {
        let mut book = self.setup.shared.scrub.book();
        book.progress.files += 1;
        book.progress.bytes += scrubbed.bytes;
        book.progress.adopted_blocks += scrubbed.adopted_blocks;
        book.progress.readopted_blocks += scrubbed.readopted_blocks;
        let kind = |kind: DamageKind| match kind {
            DamageKind::Data => scrub_found::DATA,
            DamageKind::Short => scrub_found::SHORT,
            DamageKind::Sums => scrub_found::SUMS,
            DamageKind::NoSums => scrub_found::NO_SUMS,
            DamageKind::Missing => scrub_found::MISSING,
            DamageKind::Foreign => scrub_found::FOREIGN,
        };
        for Damage { offset, bytes, kind: what, .. } in scrubbed.findings(ino) {
            book.found += 1;
            if !matches!(what, DamageKind::Sums | DamageKind::NoSums) && book.lost.len() < FINDINGS_MAX {
                book.lost.insert(ino);
            }
            if book.findings.len() < FINDINGS_MAX {
                book.findings.push(ScrubFinding { ino, offset, bytes, kind: kind(what) });
            }
        }
    }

    fn failed(&mut self, error: &str) {
        if std::mem::take(&mut self.first_failure) {
            log::warning!(&self.setup.shared.name, "the scrub cannot read everything: {error}");
            self.setup.shared.scrub.book().failure = error.to_owned();
        }
    }

    /// All data files are scrubbed.
    fn finish(&mut self) {
        let missing = look_for_missing(&self.setup.files).unwrap_or_else(|error| {
            self.failed(&error.to_string());
            BTreeSet::new()
        });
        {
            let mut book = self.setup.shared.scrub.book();
            for ino in &missing {
                book.findings.push(ScrubFinding {
                    ino: *ino,
                    offset: 0,
                    bytes: 0,
                    kind: scrub_found::MISSING,
                });
            }
            book.missing = missing.into_iter().collect();
        }
        (self.state.whole_begun_s, self.state.whole_ended_s) = (self.state.begun_s, unix_s());
        self.state.begun_s = 0;
        let found = self.setup.shared.scrub.book().found;
        if found > 0 {
            log::warning!(
                &self.setup.shared.name,
                "the scrub has found damage in {found} places; weft scrub lists the files"
            );
        }
        self.end();
    }
}

/// Data files that there must be and are not.
fn look_for_missing<D: Disk>(files: &DataFiles<D>) -> Result<BTreeSet<u64>, StorageError> {
    let mut missing = BTreeSet::new();
    let mut cursor = None;
    loop {
        let (inos, next) = files.missing_with_sums(cursor, FILES_PER_PAGE)?;
        missing.extend(inos);
        cursor = next;
        if cursor.is_none() || missing.len() >= MISSING_MAX {
            break;
        }
    }
    loop {
        let (inos, next) = files.missing_with_marks(cursor, FILES_PER_PAGE)?;
        missing.extend(inos);
        cursor = next;
        if cursor.is_none() || missing.len() >= MISSING_MAX {
            break;
        }
    }
    Ok(missing.into_iter().take(MISSING_MAX).collect())
}

/// Makes the checksums of the data that was written last, when the server stops and no client can write any more. It stops after
/// [`STOP_SETTLES`]; the rest has no checksums until it is written again or scrubbed.
pub(crate) fn settle_at_stop<D: Disk>(files: &DataFiles<D>, name: &str) {
    let Ok(reactor) = Reactor::new(ReactorOptions::default()) else { return };
    let until = Instant::now() + STOP_SETTLES;
    let when = SettleWhen { bytes_max: STOP_BYTES_MAX, ..SettleWhen::NOW };
    let settled = reactor.run(files.settle(when, async |_| Instant::now() < until));
    if let Err(error) = reactor.run(files.sync_marks()) {
        log::warning!(name, "{error}");
    }
    if let Err(error) = settled {
        log::warning!(name, "cannot keep checksums of what was written: {error}");
    }
    let left = files.unsettled_files();
    if left > 0 {
        log::warning!(
            name,
            "stops before all that was written has checksums: {left} data files are left, and get them by the next scrub"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_again_and_damage_is_nothing() {
        let noted = Noted { known_s: 1, begun_s: 2, cursor: 3, whole_begun_s: 4, whole_ended_s: 5 };
        assert_eq!(Noted::parse(&noted.text()), Some(noted));
        assert_eq!(Noted::parse("weft-scrub 1\ncursor x\n"), None);
        assert_eq!(Noted::parse(""), None);
    }

    #[test]
    fn synced_data_waits_a_second_for_its_checksums_and_never_longer_than_other_data() {
        let seconds = |settle_s| {
            let when = settle_when(settle_s);
            [when.synced, when.idle, when.dirty].map(|time| time.as_secs())
        };
        assert_eq!(seconds(10), [1, 10, 60]);
        assert_eq!(seconds(1), [1, 1, 60]);
        assert_eq!(seconds(0), [0, 0, 60]);
        assert_eq!(seconds(600), [1, 600, 600]);
    }

    #[test]
    fn a_scrub_is_due_an_hour_after_the_first_start_and_then_at_intervals() {
        let week = 7 * 86400;
        let new = Noted { known_s: 1000, ..Noted::default() };
        assert!(!new.is_due(1000 + FIRST_SCRUB_S - 1, week) && new.is_due(1000 + FIRST_SCRUB_S, week));
        assert!(new.is_due(1010, 10), "a short interval comes first");
        let scrubbed = Noted { whole_begun_s: 5000, whole_ended_s: 9000, ..new };
        assert!(!scrubbed.is_due(5000 + week - 1, week) && scrubbed.is_due(5000 + week, week));
        assert!(!scrubbed.is_due(u64::MAX, 0), "0: never");
        // The clock was ahead by years when it was noted, or is behind by a day now.
        let ahead = Noted { whole_begun_s: 5000 + 100 * week, ..scrubbed };
        assert!(ahead.is_due(5000, week) && !ahead.is_due(5000, 0));
        let day = Noted { whole_begun_s: 5000 + 86400, ..scrubbed };
        assert!(!day.is_due(5000, week) && day.is_due(5000 + 86400 + week, week));
    }

    #[test]
    fn damaged_notes_are_none_or_written_back_the_same() {
        let noted = Noted { known_s: 1, begun_s: 2, cursor: 3, whole_begun_s: 4, whole_ended_s: 5 };
        weft_test_fuzz::run("scrub-notes", &[noted.text().into_bytes()], |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            if let Some(noted) = Noted::parse(text) {
                assert_eq!(Noted::parse(&noted.text()), Some(noted));
            }
        });
    }
}
