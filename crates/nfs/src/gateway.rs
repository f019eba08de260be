//! The programs that a gateway serves: which call is which procedure.
//!
//! ```text
//!   call (program, version, procedure, arguments) ─► args.rs ─► procedures/…, mount.rs ─► Outcome
//!                                                 └ not to be done twice: duplicates.rs
//! ```
//!
//! It knows no connections: who does hands it calls, and sends the outcomes.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use nfs3_types::nfs3::{
    NFS_PROGRAM as Procedure, Nfs3Result, READ3res, READ3resfail, READLINK3res, nfsstat3, post_op_attr,
};
use nfs3_types::xdr_codec::Pack;
use weft_client::Client;

use crate::args;
use crate::attributes::post_op;
use crate::duplicates::{CALLS_MAX, Duplicates, WRITES_MAX};
use crate::export::{ExportOptions, Exports};
use crate::handle::HandleKeys;
use crate::locks::{LockCounts, LockOptions, Locks};
use crate::mount::{self, Mounts};
use crate::procedures::Files;
use crate::procedures::limits::IO_BYTES_MAX;
use crate::target::Sender;
use crate::times::ProcedureTimes;
use weft_onc_rpc::xdr::{Reader, XdrError};
use weft_onc_rpc::{nlm, nsm};
use weft_onc_server::{Buffer, Buffers};

/// The program number of NFS.
pub const NFS_PROGRAM: u32 = nfs3_types::nfs3::PROGRAM;
/// The program number of MOUNT.
pub const MOUNT_PROGRAM: u32 = nfs3_types::mount::PROGRAM;
/// The version of both.
pub const VERSION: u32 = 3;

/// What an answer about locks begins with where it is remembered.
const RESULTS: u8 = 0;
const NO_PROCEDURE: u8 = 1;
const BAD_ARGUMENTS: u8 = 2;

/// What a gateway is made of.
#[derive(Clone)]
pub struct GatewayOptions {
    /// Acts for anybody in the cluster.
    pub client: Client,
    /// What clients may mount.
    pub exports: Vec<ExportOptions>,
    /// Keys of the handles.
    pub handle_keys: HandleKeys,
    /// How files are locked; without it clients lock by themselves (`nolock`).
    pub locks: Option<LockOptions>,
    /// The port mapper that is told where the programs are.
    pub rpcbind: Option<SocketAddr>,
    /// Where the times of calls are noted; without it none are taken.
    pub times: Option<Arc<ProcedureTimes>>,
}

/// One call, without its record marks and its head.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The client's number of it.
    pub(crate) xid: u32,
    /// Which program.
    pub(crate) program: u32,
    /// Of which version.
    pub(crate) version: u32,
    /// Which procedure.
    pub(crate) procedure: u32,
    /// Arguments; those of a WRITE end before its data, if that is in `payload`.
    pub(crate) args: &'a [u8],
    /// The data of a WRITE.
    pub(crate) payload: Option<Buffer>,
    /// Where the data of a READ are read into.
    pub(crate) buffers: Buffers,
}

/// What a call is answered with.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The results: these bytes, and behind them the data of a READ, without their padding.
    Done {
        /// All but the data.
        head: Vec<u8>,
        /// The data.
        data: Buffer,
    },
    /// There is no such program.
    NoProgram,
    /// There is the program, in these versions.
    Versions {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// There is no such procedure.
    NoProcedure,
    /// The arguments are none.
    BadArguments,
}

/// What a gateway has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GatewayCounts {
    /// Calls of any program.
    pub calls: u64,
    /// Bytes that READs have returned.
    pub read_bytes: u64,
    /// Bytes that WRITEs have written.
    pub written_bytes: u64,
    /// Bytes that were read from the memory of clients by RDMA: data of WRITEs, long calls.
    pub rdma_read_bytes: u64,
    /// Bytes that were written to it: data of READs, long replies.
    pub rdma_written_bytes: u64,
    /// Replies that clients were to read by RDMA, where the gateway exposes its memory.
    pub rdma_exposed_replies: u64,
    /// Bytes of these.
    pub rdma_exposed_bytes: u64,
    /// Those of them that clients may read at the moment.
    pub rdma_exposed_now_bytes: u64,
    /// Microseconds for which they were exposed, of all replies together.
    pub rdma_exposed_us: u64,
    /// Bytes of payloads that were copied between messages and buffers.
    pub copied_bytes: u64,
    /// Inodes that are open at the moment.
    pub open_inodes: usize,
    /// Operations of the cluster that are under way.
    pub under_way: usize,
    /// Calls of clients that no export is for, and mounts that failed.
    pub refused: u64,
    /// Locks of clients.
    pub locks: LockCounts,
}

/// Serves calls on the current reactor.
pub struct Gateway {
    files: Rc<Files>,
    mounts: Mounts,
    duplicates: Duplicates,
    /// Of WRITEs, so many that they would displace the others. One that was sent again is not to be done when
    /// the client has written there anew.
    duplicate_writes: Duplicates,
    counts: Rc<Cell<GatewayCounts>>,
    locks: Option<Rc<Locks>>,
    times: Option<Arc<ProcedureTimes>>,
}

/// Packs the result of a procedure.
fn packed(result: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(result.packed_size());
    // Memory takes everything, and no result is longer than a length can say.
    result.pack(&mut bytes).expect("results fit in memory");
    bytes
}

fn done(result: &impl Pack) -> Outcome {
    Outcome::Done { head: packed(result), data: Buffer::default() }
}

impl Gateway {
    /// Begins to serve, on the current reactor.
    ///
    /// # Errors
    /// Those of `epoll_create1`, of a thread's start, and of the directory of locks.
    pub fn new(options: &GatewayOptions) -> io::Result<Rc<Gateway>> {
        let files = Rc::new(Files::start(&options.client, &options.exports, &options.handle_keys)?);
        weft_reactor::spawn(files.opens.clone().look_after());
        let locks = options.locks.as_ref().map(|locks| Locks::start(&files, locks)).transpose()?;
        let (duplicates, duplicate_writes) = (Duplicates::of(CALLS_MAX), Duplicates::of(WRITES_MAX));
        let (mounts, counts) = (Mounts::default(), Rc::default());
        let times = options.times.clone();
        Ok(Rc::new(Gateway { files, mounts, duplicates, duplicate_writes, counts, locks, times }))
    }

    /// From now on these are exported.
    pub fn set_exports(&self, exports: &[ExportOptions]) {
        *self.files.exports.borrow_mut() = Rc::new(Exports::new(&self.files.client, exports));
        // Users may be others on the servers now.
        self.files.known.forget_everything();
    }

    /// What was done so far.
    pub fn counts(&self) -> GatewayCounts {
        let (open_inodes, under_way) = (self.files.opens.count(), self.files.weft.under_way());
        let refused = self.files.refusals.count();
        let locks = self.locks.as_ref().map(|locks| locks.counts()).unwrap_or_default();
        GatewayCounts { open_inodes, under_way, refused, locks, ..self.counts.get() }
    }

    /// Which clients have said that they mount which paths.
    pub fn mounts(&self) -> Vec<(IpAddr, String)> {
        self.mounts.list()
    }

    /// Makes durable what was written, and closes all files. Locks stay for a few seconds, for a gateway that
    /// starts again.
    pub async fn close(&self) {
        if let Some(locks) = &self.locks {
            locks.stop().await;
        }
        self.files.opens.close_everything().await;
        self.files.workers.run(self.files.known.ending()).await;
    }

    #[cfg(test)]
    pub(crate) fn locks_for_tests(&self) -> &Rc<Locks> {
        self.locks.as_ref().expect("it locks")
    }

    fn count(&self, change: impl FnOnce(&mut GatewayCounts)) {
        change_counts(&self.counts, change);
    }

    /// Does a call.
    pub(crate) async fn call(&self, sender: &Sender, call: Call<'_>) -> Outcome {
        self.count(|counts| counts.calls += 1);
        match call.program {
            NFS_PROGRAM | MOUNT_PROGRAM if call.version != VERSION => {
                Outcome::Versions { low: VERSION, high: VERSION }
            }
            MOUNT_PROGRAM => {
                match mount::call(&self.files, &self.mounts, sender, call.procedure, call.args).await {
                    Ok(Some(head)) => Outcome::Done { head, data: Buffer::default() },
                    Ok(None) => Outcome::NoProcedure,
                    Err(_) => Outcome::BadArguments,
                }
            }
            NFS_PROGRAM => {
                let Ok(procedure) = Procedure::try_from(call.procedure) else { return Outcome::NoProcedure };
                let (number, begun) = (call.procedure, self.times.as_ref().map(|_| Instant::now()));
                let outcome = self.nfs(sender, procedure, call).await.unwrap_or(Outcome::BadArguments);
                if let (Some(times), Some(begun)) = (&self.times, begun) {
                    times.note(number, begun);
                }
                outcome
            }
            nlm::PROGRAM | nsm::PROGRAM => match &self.locks {
                Some(locks) => self.locks(locks, sender, call).await,
                None => Outcome::NoProgram,
            },
            _ => Outcome::NoProgram,
        }
    }

    async fn locks(&self, locks: &Rc<Locks>, sender: &Sender, call: Call<'_>) -> Outcome {
        let is_nlm = call.program == nlm::PROGRAM;
        let served = if is_nlm { nlm::VERSION } else { nsm::VERSION };
        if call.version != served {
            return Outcome::Versions { low: served, high: served };
        }
        let (locks, sender, number, args) = (locks.clone(), *sender, call.procedure, call.args.to_vec());
        let work = async move {
            let results = match is_nlm {
                true => locks.nlm(&sender, number, &args).await,
                false => locks.nsm(&sender, number, &args).await,
            };
            // Only what has results is remembered by them; what has none begins with its reason.
            match results {
                Ok(Some(results)) => [&[RESULTS][..], &results].concat(),
                Ok(None) => vec![NO_PROCEDURE],
                Err(_) => vec![BAD_ARGUMENTS],
            }
        };
        // Numbers of procedures of NFS are small: these are told from them by the program's.
        let key = call.program.wrapping_add(number << 20);
        let id = self.duplicates.id(sender.peer.ip(), call.xid, key, call.args);
        let mut answer = self.duplicates.once(id, work).await;
        match answer.first() {
            Some(&RESULTS) => Outcome::Done { head: answer.split_off(1), data: Buffer::default() },
            Some(&NO_PROCEDURE) => Outcome::NoProcedure,
            _ => Outcome::BadArguments,
        }
    }

    /// Each procedure is a future of its own in memory: as one they would be as large as the largest, and moved with every
    /// call.
    async fn nfs(&self, sender: &Sender, procedure: Procedure, call: Call<'_>) -> Result<Outcome, XdrError> {
        let (files, from) = (&self.files, &mut Reader::new(call.args));
        Ok(match procedure {
            Procedure::NFSPROC3_NULL => Outcome::Done { head: Vec::new(), data: Buffer::default() },
            Procedure::NFSPROC3_GETATTR => done(&Box::pin(files.getattr(sender, args::handle(from)?)).await),
            Procedure::NFSPROC3_LOOKUP => {
                let place = args::place(from)?;
                done(&Box::pin(files.lookup(sender, place.dir, place.name)).await)
            }
            Procedure::NFSPROC3_ACCESS => {
                let (object, wanted) = (args::handle(from)?, from.u32()?);
                done(&Box::pin(files.access(sender, object, wanted)).await)
            }
            Procedure::NFSPROC3_READLINK => {
                readlink(Box::pin(files.readlink(sender, args::handle(from)?)).await)
            }
            Procedure::NFSPROC3_READ => {
                let (file, offset, count) = (args::handle(from)?, from.u64()?, from.u32()?);
                Box::pin(self.read(sender, file, (offset, count), &call.buffers)).await
            }
            Procedure::NFSPROC3_WRITE => Box::pin(self.write(sender, call)).await?,
            Procedure::NFSPROC3_READDIR => {
                let (dir, place) = (args::handle(from)?, (from.u64()?, from.u64()?));
                done(&Box::pin(files.readdir(sender, dir, place, from.u32()?)).await)
            }
            Procedure::NFSPROC3_READDIRPLUS => {
                let (dir, place) = (args::handle(from)?, (from.u64()?, from.u64()?));
                let counts = (from.u32()?, from.u32()?);
                done(&Box::pin(files.readdirplus(sender, dir, place, counts)).await)
            }
            Procedure::NFSPROC3_FSSTAT => done(&Box::pin(files.fsstat(sender, args::handle(from)?)).await),
            Procedure::NFSPROC3_FSINFO => done(&Box::pin(files.fsinfo(sender, args::handle(from)?)).await),
            Procedure::NFSPROC3_PATHCONF => {
                done(&Box::pin(files.pathconf(sender, args::handle(from)?)).await)
            }
            Procedure::NFSPROC3_COMMIT => {
                let file = args::handle(from)?;
                from.u64()?;
                from.u32()?;
                done(&Box::pin(files.commit(sender, file)).await)
            }
            procedure => {
                // What makes no sense is refused at once, and not remembered.
                check(procedure, call.args)?;
                let id = self.duplicates.id(sender.peer.ip(), call.xid, call.procedure, call.args);
                let (files, sender, arguments) = (files.clone(), *sender, call.args.to_vec());
                let work = async move {
                    Box::pin(change(&files, &sender, procedure, &arguments)).await.unwrap_or_default()
                };
                let head = self.duplicates.once(id, work).await;
                Outcome::Done { head, data: Buffer::default() }
            }
        })
    }

    /// Over RDMA the reply always has attributes. Linux expects them: if the head of a mount's first READ is shorter,
    /// it shifts the data in its page, where the adapter has already put them.
    async fn read(&self, sender: &Sender, file: &[u8], part: (u64, u32), buffers: &Buffers) -> Outcome {
        let read = match self.files.read(sender, file, part, buffers).await {
            // Of a file that was read they are missing for a moment only.
            Ok(read) if buffers.are_of_rdma() && read.attributes.is_none() => Err(nfsstat3::NFS3ERR_JUKEBOX),
            read => read,
        };
        match read {
            Ok(read) => {
                let bytes = read.data.len() as u32;
                self.count(|counts| counts.read_bytes += u64::from(bytes));
                let mut head = packed(&nfsstat3::NFS3_OK);
                head.extend(packed(&post_op(read.attributes)));
                head.extend(packed(&bytes));
                head.extend(packed(&read.eof));
                head.extend(packed(&bytes));
                Outcome::Done { head, data: read.data }
            }
            Err(status) => {
                let file_attributes = match self.files.target(sender, file).await {
                    Ok(target) => post_op(self.files.after(&target, target.ino).await),
                    Err(_) => post_op_attr::None,
                };
                let failed: READ3res<'_> = Nfs3Result::Err((status, READ3resfail { file_attributes }));
                done(&failed)
            }
        }
    }

    async fn write(&self, sender: &Sender, call: Call<'_>) -> Result<Outcome, XdrError> {
        let mut from = Reader::new(call.args);
        let head = args::write(&mut from)?;
        if head.data_bytes > IO_BYTES_MAX || head.count > head.data_bytes {
            return Err(XdrError::Wrong);
        }
        let mut data = match call.payload {
            Some(data) => data,
            None => from.fixed(head.data_bytes as usize)?.to_vec().into(),
        };
        // The count says how much of the data is meant (RFC 1813, 3.3.7).
        if data.len() < head.count as usize {
            return Err(XdrError::Short);
        }
        data.truncate(head.count as usize);
        let said = (call.args, &data[..]);
        let id = self.duplicate_writes.id_of_write(sender.peer.ip(), call.xid, call.procedure, said);
        let (file, offset, stable) = (head.file.to_vec(), head.offset, head.stable);
        let (files, sender, counts) = (self.files.clone(), *sender, self.counts.clone());
        let work = async move {
            let result = files.write(&sender, &file, offset, stable, data).await;
            if let Nfs3Result::Ok(written) = &result {
                change_counts(&counts, |counts| counts.written_bytes += u64::from(written.count));
            }
            packed(&result)
        };
        Ok(Outcome::Done { head: self.duplicate_writes.once(id, work).await, data: Buffer::default() })
    }
}

fn change_counts(counts: &Cell<GatewayCounts>, change: impl FnOnce(&mut GatewayCounts)) {
    let mut changed = counts.get();
    change(&mut changed);
    counts.set(changed);
}

/// A path is data: a client over RDMA may have said where it wants it (RFC 8267, 3).
fn readlink(result: READLINK3res<'_>) -> Outcome {
    let Nfs3Result::Ok(read) = &result else { return done(&result) };
    let path = read.data.0.to_vec();
    let mut head = packed(&nfsstat3::NFS3_OK);
    head.extend(packed(&read.symlink_attributes));
    head.extend(packed(&(path.len() as u32)));
    Outcome::Done { head, data: path.into() }
}

/// Whether the arguments of a procedure that changes something can be read.
fn check(procedure: Procedure, bytes: &[u8]) -> Result<(), XdrError> {
    let from = &mut Reader::new(bytes);
    match procedure {
        Procedure::NFSPROC3_SETATTR => {
            args::handle(from)?;
            args::sattr(from)?;
            args::guard(from).map(drop)
        }
        Procedure::NFSPROC3_CREATE => {
            args::place(from)?;
            args::how(from).map(drop)
        }
        Procedure::NFSPROC3_MKDIR => {
            args::place(from)?;
            args::sattr(from).map(drop)
        }
        Procedure::NFSPROC3_SYMLINK => {
            args::place(from)?;
            args::sattr(from)?;
            args::name(from).map(drop)
        }
        Procedure::NFSPROC3_MKNOD => {
            args::place(from)?;
            args::special(from).map(drop)
        }
        Procedure::NFSPROC3_RENAME => {
            args::place(from)?;
            args::place(from).map(drop)
        }
        Procedure::NFSPROC3_LINK => {
            args::handle(from)?;
            args::place(from).map(drop)
        }
        _ => args::place(from).map(drop),
    }
}

/// Does what changes names or attributes.
async fn change(
    files: &Files,
    sender: &Sender,
    procedure: Procedure,
    bytes: &[u8],
) -> Result<Vec<u8>, XdrError> {
    let from = &mut Reader::new(bytes);
    if procedure == Procedure::NFSPROC3_SETATTR {
        let (object, wanted, guard) = (args::handle(from)?, args::sattr(from)?, args::guard(from)?);
        return Ok(packed(&files.setattr(sender, object, &wanted, guard).await));
    }
    if procedure == Procedure::NFSPROC3_LINK {
        let (file, place) = (args::handle(from)?, args::place(from)?);
        return Ok(packed(&files.link(sender, file, place).await));
    }
    let place = args::place(from)?;
    Ok(match procedure {
        Procedure::NFSPROC3_CREATE => packed(&files.create(sender, place, &args::how(from)?).await),
        Procedure::NFSPROC3_MKDIR => packed(&files.mkdir(sender, place, &args::sattr(from)?).await),
        Procedure::NFSPROC3_SYMLINK => {
            args::sattr(from)?;
            packed(&files.symlink(sender, place, args::name(from)?).await)
        }
        Procedure::NFSPROC3_MKNOD => packed(&files.mknod(sender, place, &args::special(from)?).await),
        Procedure::NFSPROC3_RENAME => packed(&files.rename(sender, place, args::place(from)?).await),
        Procedure::NFSPROC3_RMDIR => packed(&files.rmdir(sender, place).await),
        _ => packed(&files.remove(sender, place).await),
    })
}

#[cfg(test)]
mod tests;
