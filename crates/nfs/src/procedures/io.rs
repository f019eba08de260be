//! READ, WRITE and COMMIT (RFC 1813, 3.3.6, 3.3.7 and 3.3.21).
//!
//! Replies to READ have attributes, unless the gateway has written to the file and not reported that yet: the report
//! would cost more than the READ. Over RDMA they have them even then, for Linux. Replies to unstable WRITEs of small files
//! have them, because the metadata server does such a write and says what the file is then. Those of striped files have none, for
//! the same reason as READs; clients ask when they need them.
//!
//! No reply to WRITE has pre-operation attributes (RFC 1813, 2.6). They are valid only if the server reads them in the same
//! transaction as the write, since the client takes any later change for its own. No server can do that: the size and the time of
//! modification of a striped file are combined from all I/O servers, which write independently of each other.

use std::sync::Arc;

use nfs3_types::nfs3::{
    COMMIT3res, COMMIT3resfail, COMMIT3resok, Nfs3Result, WRITE3res, WRITE3resfail, WRITE3resok, fattr3,
    nfsstat3, stable_how,
};
use weft_client::{Guard, Pending};
use weft_layout::Regions;
use weft_onc_server::{Buffer, Buffers};
use weft_wire::messages::Attr;

use super::limits::{FILE_BYTES_MAX, IO_BYTES_MAX};
use super::{Files, by_handle};
use crate::attributes::wcc;
use crate::opens::{Access, OpenFile, Opened};
use crate::target::{Sender, Target};
use crate::used::Used;
use crate::weft::both;

/// How often a durable write is done again whose server lost it before it was durable.
const WRITES_MAX: usize = 4;

/// What a READ has found.
#[derive(Debug)]
pub(crate) struct ReadDone {
    pub(crate) data: Buffer,
    /// The file ends here.
    pub(crate) eof: bool,
    pub(crate) attributes: Option<fattr3>,
}

/// Memory that is a buffer's, from its beginning on.
fn memory_of(buffer: &[u8]) -> Regions {
    Regions::contiguous(0, buffer.len() as u64)
}

/// A buffer that is lent to the servers, and the open file, which an operation that nobody waits for keeps as well.
type Lent = (Buffer, Arc<OpenFile>);

fn start_read(file: &Arc<OpenFile>, mut buffer: Buffer, offset: u64) -> Pending<Lent> {
    let (base, memory) = (buffer.as_mut_ptr(), memory_of(&buffer));
    let from = Regions::contiguous(offset, buffer.len() as u64);
    // SAFETY: what is pending keeps the buffer, whose memory stays where it is, until the read is over.
    unsafe { file.start_read_raw(base, &memory, &from) }.keeping((buffer, file.clone()))
}

fn start_write(
    file: &Arc<OpenFile>,
    guard: Option<Arc<dyn Guard>>,
    buffer: Buffer,
    offset: u64,
) -> Pending<Lent> {
    let (base, memory) = (buffer.as_ptr(), memory_of(&buffer));
    let to = Regions::contiguous(offset, buffer.len() as u64);
    // SAFETY: as above; nobody changes the buffer meanwhile.
    unsafe { file.start_write_raw_while(guard, base, &memory, &to) }.keeping((buffer, file.clone()))
}

impl Files {
    /// READ of `count` bytes at `offset`, into a buffer of these.
    pub(crate) async fn read(
        &self,
        sender: &Sender,
        file: &[u8],
        (offset, count): (u64, u32),
        buffers: &Buffers,
    ) -> Result<ReadDone, nfsstat3> {
        let target = self.target(sender, file).await?;
        let opened = self.opens.get(&target, Access::Read).await?;
        let most = FILE_BYTES_MAX.saturating_sub(offset).min(IO_BYTES_MAX.into());
        let wanted = u64::from(count).min(most) as usize;
        let reading = async {
            if wanted == 0 {
                return Ok((0, Buffer::default()));
            }
            let pending = start_read(&opened.file, buffers.take(wanted), offset);
            self.finish_io(pending).await
        };
        let asking = self.attr_for_read(&target, &opened, buffers.are_of_rdma());
        let (read, attr) = both(reading, asking).await;
        let (mut attr, (bytes, mut data)) = (attr?, read?);
        data.truncate(bytes);
        let end = offset.saturating_add(bytes as u64);
        if attr.is_none() && bytes == wanted && opened.entry.may_end_at(end) {
            attr = self.attr_for_read(&target, &opened, true).await?;
        }
        let file_bytes = attr.as_ref().map(|attr| attr.size);
        // A READ past the size has met a file that grew in the meantime: it does not end there.
        let ends = file_bytes.is_some_and(|size| end == size || bytes == 0 && end > size);
        let attributes = match attr {
            Some(attr) => Some(self.tell(&target, attr).await),
            None => None,
        };
        Ok(ReadDone { data, eof: bytes < wanted || ends, attributes })
    }

    /// Attributes for a reply to READ, if they cost no report of what was written.
    async fn attr_for_read(
        &self,
        target: &Target,
        opened: &Opened,
        always: bool,
    ) -> Result<Option<Attr>, nfsstat3> {
        if !always && opened.entry.is_unreported() {
            return Ok(None);
        }
        match self.opens.attr(target.root(), target.ino).await.map_err(by_handle) {
            Ok(attr) => Ok(Some(attr)),
            Err(nfsstat3::NFS3ERR_STALE) => Err(nfsstat3::NFS3ERR_STALE),
            Err(_) => Ok(None),
        }
    }

    /// Waits for the end of a read or write.
    async fn finish_io(&self, pending: Pending<Lent>) -> Result<(usize, Buffer), nfsstat3> {
        let (bytes, (buffer, _)) = self.weft.finish(pending).await.wait().map_err(by_handle)?;
        Ok((bytes, buffer))
    }

    /// WRITE.
    pub(crate) async fn write(
        &self,
        sender: &Sender,
        file: &[u8],
        offset: u64,
        stable: stable_how,
        data: Buffer,
    ) -> WRITE3res {
        let count = data.len() as u32;
        match self.write_data(sender, file, offset, stable, data).await {
            Ok((committed, after)) => Nfs3Result::Ok(WRITE3resok {
                file_wcc: wcc(None, after),
                count,
                committed,
                verf: self.opens.verifier.now(),
            }),
            Err(status) => {
                let after = self.after_on(&self.target(sender, file).await.ok()).await;
                Nfs3Result::Err((status, WRITE3resfail { file_wcc: wcc(None, after) }))
            }
        }
    }

    async fn write_data(
        &self,
        sender: &Sender,
        file: &[u8],
        offset: u64,
        stable: stable_how,
        mut data: Buffer,
    ) -> Result<(stable_how, Option<fattr3>), nfsstat3> {
        let target = self.target_to_change(sender, file).await?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(nfsstat3::NFS3ERR_FBIG)?;
        for _ in 0..WRITES_MAX {
            let guard = self.for_change(&target).await?;
            let opened = self.opens.get(&target, Access::Write).await?;
            if data.is_empty() {
                return Ok((stable, self.after(&target, target.ino).await));
            }
            // Before, so that a sync beside it does not take it for durable; and after, so that a report
            // beside it does not take it for reported.
            opened.entry.note_change();
            let written = self.finish_io(start_write(&opened.file, guard, data, offset)).await;
            opened.entry.note_change();
            self.opens.look_for_losses(&opened);
            data = written?.1;
            opened.entry.note_size(end);
            if stable == stable_how::UNSTABLE {
                return Ok((stable_how::UNSTABLE, self.after_small_write(&target, &opened)));
            }
            drop(opened);
            if self.opens.sync(target.ino).await? {
                return Ok((stable_how::FILE_SYNC, self.after(&target, target.ino).await));
            }
        }
        Err(nfsstat3::NFS3ERR_IO)
    }

    /// Attributes after a write of a small file, which its reply had.
    fn after_small_write(&self, target: &Target, opened: &Opened) -> Option<fattr3> {
        let attr = opened.file.small_attr().filter(|attr| attr.ino == target.ino && attr.nlink > 0)?;
        let used_bytes = Used::of_small(&attr);
        Some(target.tell(attr, used_bytes))
    }

    /// COMMIT. All of the file is made durable, whatever range is asked for.
    pub(crate) async fn commit(&self, sender: &Sender, file: &[u8]) -> COMMIT3res {
        let target = self.target_to_change(sender, file).await;
        let synced = match &target {
            Ok(target) => self.opens.sync(target.ino).await,
            Err(status) => Err(*status),
        };
        let verf = self.opens.verifier.now();
        let file_wcc = wcc(None, self.after_on(&target.ok()).await);
        match synced {
            // What was lost is written again by the client, which sees another verifier.
            Ok(_) => Nfs3Result::Ok(COMMIT3resok { file_wcc, verf }),
            Err(status) => Nfs3Result::Err((status, COMMIT3resfail { file_wcc })),
        }
    }
}
