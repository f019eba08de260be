//! READ, WRITE and COMMIT (RFC 1813, 3.3.6, 3.3.7 and 3.3.21).
//!
//! Replies to READ and unstable WRITE have no attributes: to ask for them would cost as much as the operation
//! itself, or more while the file is written, and clients ask when they need them. Those to READ over RDMA have
//! them, for Linux.

use std::sync::Arc;

use nfs3_types::nfs3::{
    COMMIT3res, COMMIT3resfail, COMMIT3resok, Nfs3Result, WRITE3res, WRITE3resfail, WRITE3resok, nfsstat3,
    stable_how,
};
use weft_client::Pending;
use weft_layout::{OFFSET_LIMIT, Regions};
use weft_onc_server::{Buffer, Buffers};

use super::limits::IO_BYTES_MAX;
use super::{Files, by_handle};
use crate::attributes::wcc;
use crate::opens::{Access, OpenFile};
use crate::target::Sender;

/// How often a durable write is done again whose server lost it before it was durable.
const WRITES_MAX: usize = 4;

/// What a READ has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReadDone {
    pub(crate) data: Buffer,
    /// The file ends here.
    pub(crate) eof: bool,
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

fn start_write(file: &Arc<OpenFile>, buffer: Buffer, offset: u64) -> Pending<Lent> {
    let (base, memory) = (buffer.as_ptr(), memory_of(&buffer));
    let to = Regions::contiguous(offset, buffer.len() as u64);
    // SAFETY: as above; nobody changes the buffer meanwhile.
    unsafe { file.start_write_raw(base, &memory, &to) }.keeping((buffer, file.clone()))
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
        let most = OFFSET_LIMIT.saturating_sub(offset).min(IO_BYTES_MAX.into());
        let wanted = u64::from(count).min(most) as usize;
        if wanted == 0 {
            return Ok(ReadDone { data: Buffer::default(), eof: offset >= OFFSET_LIMIT });
        }
        let pending = start_read(&opened.file, buffers.take(wanted), offset);
        let (bytes, mut data) = self.finish_io(pending).await?;
        data.truncate(bytes);
        Ok(ReadDone { data, eof: bytes < wanted })
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
            Ok(committed) => Nfs3Result::Ok(WRITE3resok {
                file_wcc: wcc(None, None),
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
    ) -> Result<stable_how, nfsstat3> {
        let target = self.target_to_change(sender, file).await?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > OFFSET_LIMIT) {
            return Err(nfsstat3::NFS3ERR_FBIG);
        }
        for _ in 0..WRITES_MAX {
            let opened = self.opens.get(&target, Access::Write).await?;
            if data.is_empty() {
                return Ok(stable);
            }
            // Before, so that a sync beside it does not take it for durable; and after, so that a report
            // beside it does not take it for reported.
            opened.entry.note_change();
            let written = self.finish_io(start_write(&opened.file, data, offset)).await;
            opened.entry.note_change();
            self.opens.look_for_losses(&opened);
            data = written?.1;
            if stable == stable_how::UNSTABLE {
                return Ok(stable_how::UNSTABLE);
            }
            drop(opened);
            if self.opens.sync(target.ino).await? {
                return Ok(stable_how::FILE_SYNC);
            }
        }
        Err(nfsstat3::NFS3ERR_IO)
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
