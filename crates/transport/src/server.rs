//! The server's side of the seam. What TCP and Unix sockets share of it is in [`crate::stream`] and
//! [`crate::stream_bulk`].
//!
//! ```text
//!  one task:      recv ─► Incoming ─► spawn handler ─► recv …       (recv waits while a payload is being read)
//!  its handlers:  bulk.get / bulk.put … reply                       (units of requests interleave: fair turns)
//! ```

use std::any::Any;
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;

use weft_wire::Header;

use crate::error::ConnError;

/// Unit of transfers that pass through a buffer and are copied out of it by a processor: small enough that it stays in
/// the processor's cache between the two copies.
pub(crate) const COPIED_UNIT_BYTES: u64 = 256 << 10;

/// Who is at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// How data moves, for status: "tcp cubic", "shm direct", "shm staged", "memory".
    pub transport: String,
    /// Its address, for people.
    pub address: String,
    /// Over a Unix socket: its process, as the kernel says.
    pub process_id: Option<u32>,
    /// Over a Unix socket: its user, as the kernel says.
    pub user_id: Option<u32>,
    /// Over a Unix socket: its groups, as the kernel says, the primary one first.
    pub group_ids: Vec<u32>,
}

impl std::fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client {} ({})", self.address, self.transport)
    }
}

/// A request as it came.
#[derive(Debug)]
pub struct Incoming<B> {
    /// Its header, with lengths that were checked.
    pub header: Header,
    /// Its body, not decoded.
    pub body: Vec<u8>,
    /// Its way to the client's memory.
    pub bulk: B,
}

/// A server's end of a connection; many tasks of one thread share it.
#[allow(async_fn_in_trait)]
pub trait ServerConn: 'static {
    /// The way to the memory of a request.
    type Bulk: ServerBulk;

    /// Waits for the next request; first until the payload of the one before is taken or its bulk dropped. What the
    /// transport itself asks for (probe, segments) is answered within.
    ///
    /// Called by one task at a time. After an error the connection is closed.
    ///
    /// # Errors
    /// The client is gone, stalled, or sent what is no message; where it can be told, it was.
    async fn recv(&self) -> Result<Incoming<Self::Bulk>, ConnError>;

    /// Sends a reply. Lengths are set here; `payload` is inline data, placed at the beginning of the memory of a put. How far that
    /// memory was filled is said by the header ([`Header::moved`]): where data goes through a buffer of the client's transport,
    /// no more is copied out of it.
    ///
    /// # Errors
    /// The client is gone or takes nothing any more.
    async fn reply(&self, header: Header, body: &[u8], payload: &[IoSlice<'_>]) -> Result<(), ConnError>;

    /// The client has proved that it knows the key: the limits of strangers are lifted.
    fn prove(&self);

    /// Who it is.
    fn peer(&self) -> PeerInfo;

    /// Cuts the connection: everything waiting on it fails.
    fn close(&self);
}

/// The way to the client's memory for one request. Offsets are in the request's share.
///
/// ```text
///   may this process address it?  local ──► system calls and copies on the pieces
///   else, by info():  files   put(Source::file)                      mapped   put(Source::mapped), get_mapped
///                     neither put(Source::slices), get               the end  put(Source::kept)
/// ```
///
/// Dropping it is always right: what is left of a streamed payload is then read and thrown away.
#[allow(async_fn_in_trait)]
pub trait ServerBulk: 'static {
    /// Its size, and what it can do beside moving slices: the same for all of the request.
    fn info(&self) -> BulkInfo;

    /// Client memory that this process can address. `None` where it cannot, or there are too many pieces.
    fn local(&self, share_offset: u64, bytes: u64) -> Option<LocalMemory<'_>>;

    /// Whether the client is gone, as far as is known: who has much to do before the next transfer asks now and then.
    fn is_gone(&self) -> bool {
        false
    }

    /// Moves one unit into the client's memory.
    ///
    /// # Errors
    /// The client is gone, or its memory is not there; [`ConnError::Mechanism`] for a source that
    /// [`ServerBulk::info`] does not name. [`ConnError::ClientMemory`] for mapped pieces says that they can be moved
    /// another way: a page is gone. On a stream, which is cut in the middle of a message then, the connection ends.
    async fn put(&mut self, share_offset: u64, source: Source<'_>) -> Result<(), ConnError>;

    /// Waits until [`ServerBulk::get_mapped`] may find bytes at this offset: on a stream until some have come.
    ///
    /// # Errors
    /// The client is gone or stalled.
    async fn arrival(&mut self, _share_offset: u64) -> Result<(), ConnError> {
        Ok(())
    }

    /// Moves bytes of the client into mapped pieces of a data file, as many as can be had without waiting for the client: how
    /// many, from the first piece on. After 0 [`ServerBulk::arrival`] is to be awaited.
    ///
    /// # Errors
    /// As [`ServerBulk::put`]; [`ConnError::Mechanism`] where [`BulkInfo::mapped`] says no.
    ///
    /// # Safety
    /// The pieces lie in mappings that stay until this returns, and are writable. This process may touch their pages: the
    /// caller deals with those that are gone.
    unsafe fn get_mapped(
        &mut self,
        share_offset: u64,
        pieces: &[(NonNull<u8>, usize)],
    ) -> Result<u64, ConnError>;

    /// Fetches one unit from the client's memory. Of a streamed payload offsets must rise; what is left out is thrown
    /// away.
    ///
    /// # Errors
    /// The client is gone, stalled, or its memory is not there.
    async fn get(&mut self, share_offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<(), ConnError>;

    /// Throws away what is left of a streamed payload, now.
    ///
    /// # Errors
    /// The client is gone or stalled.
    async fn discard(self) -> Result<(), ConnError>
    where
        Self: Sized;
}

/// What is fixed for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkInfo {
    /// Bytes that the request streams or describes. 0 for a put that is streamed: how much the client takes is known
    /// from its request, and more than that makes the client close the connection.
    pub bytes: u64,
    /// [`Source::file`]: bytes of a file, without passing them through this process.
    pub files: bool,
    /// [`Source::mapped`] and [`ServerBulk::get_mapped`]: pages of a file that this process has mapped.
    pub mapped: bool,
    /// Bytes of a unit that passes through a buffer, as this way likes them best.
    pub unit_bytes: u64,
}

impl BulkInfo {
    /// Slices alone, which a processor copies.
    pub(crate) fn copies(bytes: u64) -> BulkInfo {
        BulkInfo { bytes, files: false, mapped: false, unit_bytes: COPIED_UNIT_BYTES }
    }
}

/// Client memory that this process can address, as long as the bulk lives: for system calls, and for copies that
/// survive a page which cannot be had. The client may change it at any time.
pub struct LocalMemory<'a> {
    pieces: Vec<(NonNull<u8>, usize)>,
    gone: Option<&'a Cell<bool>>,
}

impl<'a> LocalMemory<'a> {
    /// With a flag to set when a page is gone, where pages can go.
    pub(crate) fn new(pieces: Vec<(NonNull<u8>, usize)>, gone: Option<&'a Cell<bool>>) -> LocalMemory<'a> {
        LocalMemory { pieces, gone }
    }

    /// Its pieces, in the order of the share.
    pub fn pieces(&self) -> &[(NonNull<u8>, usize)] {
        &self.pieces
    }

    /// A page was gone, and an empty one may be in its place: the memory must not be used any more. The request is
    /// to be refused, and its connection ends with that reply.
    pub fn mark_gone(&self) {
        if let Some(gone) = self.gone {
            gone.set(true);
        }
    }
}

/// What a put moves.
pub struct Source<'a>(pub(crate) SourceKind<'a>);

pub(crate) enum SourceKind<'a> {
    Slices(&'a [IoSlice<'a>]),
    Kept { pieces: &'a [(NonNull<u8>, usize)], keeper: Rc<dyn Any> },
    File { file: BorrowedFd<'a>, offset: u64, bytes: u64 },
    Mapped(&'a [(NonNull<u8>, usize)]),
}

impl<'a> Source<'a> {
    /// Bytes in this process's memory.
    pub fn slices(slices: &'a [IoSlice<'a>]) -> Source<'a> {
        Source(SourceKind::Slices(slices))
    }

    /// The last unit of a request that is going to succeed: it may be moved as late as with the reply, so that both take
    /// one step, also when the bulk is dropped before it. A reply of a failure leaves open whether the unit arrives.
    ///
    /// # Safety
    /// The pieces stay, and nobody changes them, as long as `keeper` lives.
    pub unsafe fn kept(pieces: &'a [(NonNull<u8>, usize)], keeper: Rc<dyn Any>) -> Source<'a> {
        Source(SourceKind::Kept { pieces, keeper })
    }

    /// Bytes of a file. What the file does not have (any more) arrives as zeros.
    pub fn file(file: BorrowedFd<'a>, offset: u64, bytes: u64) -> Source<'a> {
        Source(SourceKind::File { file, offset, bytes })
    }

    /// Mapped pieces of a data file, one behind the other; pages that are gone are an error and no signal.
    ///
    /// # Safety
    /// The pieces lie in mappings that stay until the put has returned or is dropped.
    pub unsafe fn mapped(pieces: &'a [(NonNull<u8>, usize)]) -> Source<'a> {
        Source(SourceKind::Mapped(pieces))
    }
}

impl SourceKind<'_> {
    /// The error of a way that does not move it.
    pub(crate) fn refused(&self, peer: String) -> ConnError {
        let what = match self {
            SourceKind::File { .. } => "send files; see its BulkInfo",
            SourceKind::Mapped(_) => "send mapped pages; see its BulkInfo",
            SourceKind::Slices(_) | SourceKind::Kept { .. } => "take data in a request that brings data",
        };
        ConnError::Mechanism { peer, what }
    }
}

/// Pieces of memory for a put.
///
/// # Safety
/// They stay, and nobody changes them, as long as the slices are used; or only the kernel looks at the bytes.
pub(crate) unsafe fn slices<'a>(pieces: &[(NonNull<u8>, usize)]) -> Vec<IoSlice<'a>> {
    // SAFETY: as the caller promises.
    let slice = |(base, bytes): &(NonNull<u8>, usize)| unsafe {
        IoSlice::new(std::slice::from_raw_parts(base.as_ptr(), *bytes))
    };
    pieces.iter().map(slice).collect()
}
