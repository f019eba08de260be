//! Operations of the metadata server on data files: removing them, listing what is there, and asking for sizes.

use super::IoPart;
use crate::answer::{Answer, Refusal};
use crate::scrub_desk::Desk;
use crate::spent;
use std::time::UNIX_EPOCH;
use weft_layout::Extent;
use weft_storage::Disk;
use weft_wire::Status;
use weft_wire::body::Added;
use weft_wire::limits::OBJECTS_PER_MESSAGE_MAX;
use weft_wire::messages::*;

/// Data files looked at before other tasks of the thread get their turn.
const OBJECTS_AT_ONCE: usize = 32;

fn check_count(files: usize) -> Result<(), Refusal> {
    if files <= OBJECTS_PER_MESSAGE_MAX {
        return Ok(());
    }
    let text = format!("{files} data files in one message, at most {OBJECTS_PER_MESSAGE_MAX}");
    Err(Refusal::new(Status::TooBig, text))
}

impl<D: Disk> IoPart<D> {
    /// Removes data files whose inodes are gone; those that are not there are no error.
    pub async fn remove_objects(&self, request: RemoveObjectsRequest) -> Result<Answer, Refusal> {
        check_count(request.inos.len())?;
        self.files.remove_all(&request.inos).await?;
        Ok(Answer::of(&Empty {}))
    }

    /// Sets the bytes of a file that has all of them in its first strip. Doing so again does no harm.
    pub async fn place_object(&self, request: PlaceObjectRequest) -> Result<Answer, Refusal> {
        let PlaceObjectRequest { ino, layout, durable, data } = request;
        spent::note_ino(ino);
        let is_here = self.holds(layout.chain(0)) && data.len() as u64 <= u64::from(layout.strip_bytes());
        if !is_here {
            let text = format!("{} bytes are not in a strip of I/O server {}", data.len(), self.id);
            return Err(Refusal::new(Status::Invalid, text));
        }
        let loss_epoch = self.loss_epoch(ino);
        let file = self.files.create_in(ino, &layout)?;
        file.write(0, &data).await?;
        if file.size()? != data.len() as u64 {
            let _turn = file.exclusive_turn(Extent::new(0, u64::MAX)).await;
            file.truncate(data.len() as u64)?;
        }
        self.settle(Some(&file), durable, loss_epoch).await?;
        Ok(Answer { moved_bytes: data.len() as u64, ..Answer::of(&Empty {}) })
    }

    /// Which data files have lost data, and, with `sizes`, the sizes of those that are there.
    pub async fn stat_objects(&self, request: StatObjectsRequest, sizes: bool) -> Result<Answer, Refusal> {
        check_count(request.inos.len())?;
        let (mut objects, mut lost) = (Vec::new(), Vec::new());
        for batch in request.inos.chunks(OBJECTS_AT_ONCE) {
            for ino in batch {
                if sizes {
                    let size = self.files.size_if_there(*ino)?;
                    objects.extend(size.map(|bytes| ObjectSize { ino: *ino, bytes }));
                }
                // Servers know from the registry which storages were replaced.
                let is_lost = match sizes {
                    true => self.files.has_lost(*ino)?,
                    false => self.files.has_lost_or_replaced(*ino)?,
                };
                if is_lost {
                    lost.push(*ino);
                }
            }
            weft_reactor::yield_now().await;
        }
        Ok(Answer::of(&StatObjectsReply { objects, lost: Added(lost) }))
    }

    /// How the files of data files are striped; those that are not there, or do not tell, are not in the answer.
    pub async fn noted_layouts(&self, request: NotedLayoutsRequest) -> Result<Answer, Refusal> {
        check_count(request.inos.len())?;
        let mut layouts = Vec::new();
        for batch in request.inos.chunks(OBJECTS_AT_ONCE) {
            for ino in batch {
                layouts.extend(self.files.layout_of(*ino)?.map(|layout| NotedLayout { ino: *ino, layout }));
            }
            weft_reactor::yield_now().await;
        }
        Ok(Answer::of(&NotedLayoutsReply { layouts }))
    }

    /// Notes which files never had a byte here.
    pub async fn vouch_empty(&self, request: VouchEmptyRequest) -> Result<Answer, Refusal> {
        check_count(request.inos.len())?;
        for batch in request.inos.chunks(OBJECTS_AT_ONCE) {
            batch.iter().try_for_each(|ino| self.files.vouch_empty(*ino))?;
            weft_reactor::yield_now().await;
        }
        Ok(Answer::of(&Empty {}))
    }

    /// A page of the data files that are there. With the last one come those that the last scrub has missed.
    pub fn list_objects(&self, request: ListObjectsRequest, desk: &Desk) -> Result<Answer, Refusal> {
        let entries_max = (request.entries_max as usize).clamp(1, OBJECTS_PER_MESSAGE_MAX);
        let after = (request.cursor != 0).then_some(request.cursor);
        let (page, next) = self.files.list(after, entries_max)?;
        let objects = page.iter().map(|object| ObjectInfo {
            ino: object.ino,
            bytes: object.bytes,
            mtime_s: object.modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64,
        });
        let missing = if next.is_none() { desk.book().missing.clone() } else { Vec::new() };
        let (objects, cursor) = (objects.collect(), next.unwrap_or(0));
        Ok(Answer::of(&ListObjectsReply { objects, cursor, missing: Added(missing) }))
    }
}
