//! Sizes of files that somebody may be writing: their data files know.
//!
//! ```text
//!   attributes say size_live ─► Size to every server of the file, at once ─► size  = greatest end that a data file implies
//!                                                                            mtime = newest, if newer than the attributes
//! ```

use std::sync::Arc;
use std::time::Duration;

use weft_layout::Layout;
use weft_wire::Status;
use weft_wire::messages::{
    Attr, Caller, DataSize, FileKind, SettleRequest, SizeRequest, Time, TruncateBeginRequest,
    TruncateCommitRequest, TruncateRequest,
};
use weft_wire::security::Capability;

use crate::At;
use crate::batch::{self, Batch};
use crate::call::{Call, Guard};
use crate::error::Error;
use crate::inner::Inner;
use crate::sizing::{Found, Sizing};

/// What the data files of a file say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveSize {
    pub file_bytes: u64,
    /// Space that they take.
    pub allocated_bytes: u64,
    pub mtime: Time,
}

/// Times are compared by it.
pub(crate) fn time_key(time: &Time) -> (i64, u32) {
    (time.seconds, time.nanoseconds)
}

impl LiveSize {
    pub(crate) fn of(layout: &Layout, parts: &[DataSize]) -> LiveSize {
        let ends =
            parts.iter().enumerate().map(|(slot, part)| layout.logical_size(slot as u16, part.local_bytes));
        let newest = parts.iter().map(|part| part.mtime.clone()).max_by_key(time_key);
        LiveSize {
            file_bytes: ends.max().unwrap_or(0),
            allocated_bytes: parts.iter().fold(0, |sum, part| sum.saturating_add(part.allocated_bytes)),
            mtime: newest.unwrap_or(Time { seconds: 0, nanoseconds: 0 }),
        }
    }

    /// Puts it into attributes. A time set by hand is as new as the last change of attributes and stays,
    /// until data is written after it.
    pub(crate) fn apply(&self, attr: &mut Attr) {
        attr.size = self.file_bytes;
        if time_key(&self.mtime) > time_key(&attr.ctime) {
            attr.mtime = self.mtime.clone();
        }
    }
}

/// Asks all servers of a file.
pub(crate) fn ask_size(inner: &Inner, capability: &Capability) -> Result<LiveSize, Error> {
    let requests =
        on_all_slots(inner, &capability.layout, |_| SizeRequest { capability: capability.clone() })?;
    let parts: Result<Vec<DataSize>, Error> = batch::ask_all(inner, requests, None).into_iter().collect();
    Ok(LiveSize::of(&capability.layout, &parts?))
}

/// One request for each slot of a layout, with the index of its server.
pub(crate) fn on_all_slots<R>(
    inner: &Inner,
    layout: &Layout,
    request: impl Fn(u16) -> R,
) -> Result<Vec<(usize, R)>, Error> {
    let slots = 0..layout.server_count();
    slots.map(|slot| Ok((inner.io(layout.chain(slot))?, request(slot)))).collect()
}

/// Puts the present size into the attributes of each file whose size the metadata server cannot know, all at
/// once.
pub(crate) fn bring_up_to_date<'a>(
    inner: &Inner,
    caller: &Caller,
    attrs: impl Iterator<Item = &'a mut Attr>,
) -> Result<(), Error> {
    let mut live: Vec<&mut Attr> = attrs.filter(|attr| is_live(attr)).collect();
    if live.is_empty() {
        return Ok(());
    }
    let inos: Vec<u64> = live.iter().map(|attr| attr.ino).collect();
    let found = ask_sizes(inner, caller, &inos, None)?;
    live.iter_mut().zip(found).for_each(|(attr, found)| put(inner, attr, found));
    Ok(())
}

/// Whether the metadata server cannot know the size.
pub(crate) fn is_live(attr: &Attr) -> bool {
    attr.size_live && attr.kind == FileKind::File && attr.layout.is_some()
}

/// Puts what was found of a file into its attributes.
pub(crate) fn put(inner: &Inner, attr: &mut Attr, found: Option<Found>) {
    let written_here = |ino: u64| {
        let opens = inner.held.of(ino);
        opens.iter().filter(|held| held.is_for_writing()).map(|held| held.written_bytes()).max()
    };
    match found {
        Some(found) if found.is_whole => {
            found.size.apply(attr);
            offer(inner, attr, &found.capability);
        }
        // The metadata server knows an end that was written; the servers that answer may know a later one.
        Some(Found { size, .. }) => {
            let recorded_bytes = attr.size.max(written_here(attr.ino).unwrap_or(0));
            size.apply(attr);
            attr.size = attr.size.max(recorded_bytes);
        }
        // The file has been removed meanwhile; the attributes are the last it had.
        None => {}
    }
}

/// How long servers are waited for that are asked for the space of files, which nobody relies on. A size is
/// waited for until the operation's deadline: a server that is only slow may know a greater one than the
/// others, and a short size ends a read.
const SPACE_PATIENCE: Duration = Duration::from_secs(2);

/// What the servers of each file say of it, all asked at once; `None` where it is gone. Servers that cannot
/// be asked keep nobody from hearing of the others.
fn ask_sizes(
    inner: &Inner,
    caller: &Caller,
    inos: &[u64],
    patience: Option<Duration>,
) -> Result<Vec<Option<Found>>, Error> {
    let mut batch = Batch::default();
    let mut sizing = Sizing::begin(inner, caller, inos, patience, &mut batch);
    loop {
        let mut taken = Ok(());
        while let Some(finished) = batch.wait(inner) {
            taken = taken.and(sizing.take(inner, finished));
        }
        taken?;
        if sizing.next(inner, &mut batch) {
            return Ok(sizing.found());
        }
    }
}

/// Files asked about at once.
const FILES_AT_ONCE: usize = 256;

/// The space that each file takes on its servers, in bytes, all asked at once; what is no file, or gone,
/// takes none. `None` where not all servers of the file can be asked.
pub(crate) fn allocated_bytes<'a>(
    inner: &Inner,
    caller: &Caller,
    attrs: impl Iterator<Item = &'a Attr>,
) -> Result<Vec<Option<u64>>, Error> {
    let attrs: Vec<&Attr> = attrs.collect();
    let has_data = |attr: &Attr| attr.kind == FileKind::File && attr.layout.is_some();
    let files: Vec<usize> = (0..attrs.len()).filter(|at| has_data(attrs[*at])).collect();
    let mut allocated = vec![Some(0); attrs.len()];
    for files in files.chunks(FILES_AT_ONCE) {
        let inos: Vec<u64> = files.iter().map(|at| attrs[*at].ino).collect();
        let patience = SPACE_PATIENCE.min(inner.options.patience() / 2);
        for (at, found) in files.iter().zip(ask_sizes(inner, caller, &inos, Some(patience))?) {
            allocated[*at] =
                found.map_or(Some(0), |found| found.is_whole.then_some(found.size.allocated_bytes));
        }
    }
    Ok(allocated)
}

/// Offers the size found to the metadata server, which takes it if nobody is writing. The answer is not
/// waited for.
fn offer(inner: &Inner, attr: &Attr, capability: &Capability) {
    let writes_itself = inner.held.of(attr.ino).iter().any(|held| held.is_for_writing());
    if writes_itself {
        return;
    }
    let request = SettleRequest { capability: capability.clone(), file_bytes: attr.size, epoch: attr.epoch };
    let mut batch = Batch::sharing();
    batch.push(Call::to_owner(inner, &request, 0));
    batch.detach(inner);
}

/// How often a truncation is begun again because the metadata server was restarted under it.
const TRUNCATIONS_MAX: usize = 8;

/// Sets a file's size: the metadata server checks and notes it, the I/O servers cut, the metadata server
/// notes the end. `held` shows that the file is open for writing. A metadata server that was restarted in
/// between knows of no beginning: it is begun again, on the same inode.
pub(crate) fn truncate(
    inner: &Inner,
    caller: &Caller,
    at: &At<'_>,
    held: Option<Capability>,
    file_bytes: u64,
    guard: Option<Arc<dyn Guard>>,
) -> Result<(), Error> {
    batch::reap(inner);
    let mut request = TruncateBeginRequest { caller: caller.clone(), at: at.to_wire(), held, file_bytes };
    for begun_before in 0.. {
        let begun = match request.at.path.is_empty() {
            true => inner.closing().ask_behind(inner, request.at.dir, &request, guard.clone())?,
            false => batch::ask_guarded(inner, &request, guard.clone())?,
        };
        if let Some(capability) = &begun.capability {
            let committed = cut_and_commit(inner, capability, file_bytes, begun.attr.epoch, &guard);
            match committed {
                Err(error) if error.status() == Some(Status::Stale) && begun_before < TRUNCATIONS_MAX => {
                    request.at = At::ino(begun.attr.ino).to_wire();
                    request.held = Some(capability.clone());
                    continue;
                }
                committed => committed?,
            }
        }
        inner.held.of(begun.attr.ino).iter().for_each(|held| held.note_size(file_bytes));
        break;
    }
    Ok(())
}

fn cut_and_commit(
    inner: &Inner,
    capability: &Capability,
    file_bytes: u64,
    epoch: u64,
    guard: &Option<Arc<dyn Guard>>,
) -> Result<(), Error> {
    let cuts = on_all_slots(inner, &capability.layout, |slot| TruncateRequest {
        capability: capability.clone(),
        slot,
        file_bytes,
    })?;
    let opens = inner.held.of(capability.ino);
    let replies = batch::ask_each(inner, cuts, |_, call| call.guarded(guard.clone()));
    for (slot, reply) in (0..).zip(replies) {
        let loss_epoch = reply?.loss_epoch;
        // All opens of a file have the same losses.
        opens.first().inspect(|held| held.losses().note_change(slot, loss_epoch));
    }
    let commit = TruncateCommitRequest { capability: capability.clone(), file_bytes, epoch };
    batch::ask_guarded(inner, &commit, guard.clone()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(local_bytes: u64, seconds: i64) -> DataSize {
        let mtime = Time { seconds, nanoseconds: 0 };
        DataSize { local_bytes, allocated_bytes: 4096, mtime, loss_epoch: 0 }
    }

    fn attr(mtime_s: i64, ctime_s: i64) -> Attr {
        use weft_wire::Wire;
        let time = |seconds| Time { seconds, nanoseconds: 0 };
        Attr { mtime: time(mtime_s), ctime: time(ctime_s), size: 1, ..Attr::sample(&mut 0) }
    }

    #[test]
    fn the_greatest_end_counts() {
        let layout = Layout::new(4096, 0, 3, 3).unwrap();
        let size = LiveSize::of(&layout, &[part(4096, 5), part(10, 9), part(0, 0)]);
        assert_eq!(
            size,
            LiveSize {
                file_bytes: 4106,
                allocated_bytes: 3 * 4096,
                mtime: Time { seconds: 9, nanoseconds: 0 }
            }
        );
    }

    #[test]
    fn a_time_set_by_hand_stays_until_data_is_written_after_it() {
        let size =
            LiveSize { file_bytes: 7, allocated_bytes: 0, mtime: Time { seconds: 50, nanoseconds: 0 } };
        let mut by_hand = attr(10, 60);
        size.apply(&mut by_hand);
        assert_eq!((by_hand.size, by_hand.mtime.seconds), (7, 10));
        let mut written_after = attr(10, 40);
        size.apply(&mut written_after);
        assert_eq!(written_after.mtime.seconds, 50);
    }
}
