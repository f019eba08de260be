//! Every read and write: one function for the 62 of MPI.
//!
//! ```text
//!   memory   count × datatype at buffer ──► Regions                  ┐
//!   file     offset in etypes ──► position in the view ──► Regions   ├─► Job ──► weft-client, to all servers
//!            (given, individual, shared or ordered pointer)          ┘            │
//!                                                                     blocking: wait; else: a request
//! ```

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use weft_client::Direction;
use weft_layout::Regions;

use crate::abi::Handle;
use crate::collective;
use crate::error::{Class, MpiError, Result};
use crate::external::{Elements, Staged};
use crate::file::{MpiFile, Split, SplitKind, SplitPointer};
use crate::job::Job;
use crate::pointers;
use crate::request;
use crate::split;
use crate::types::{Representation, datatype_of};
use crate::view::FileView;

/// Where an access begins, in etypes of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// Here.
    At(i64),
    /// At this process's pointer.
    Individual,
    /// At the pointer of all processes.
    Shared,
    /// At the pointer of all processes, by rank.
    Ordered,
}

/// What a program asks for.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// Read or write.
    pub direction: Direction,
    /// Where.
    pub pointer: Pointer,
    /// All processes call it.
    pub is_collective: bool,
    /// The address of the first element; 0 with addresses in the type (`MPI_BOTTOM`).
    pub buffer: usize,
    /// How many elements.
    pub count: i64,
    /// Of what.
    pub datatype: Handle,
}

/// How the program hears of the end.
#[derive(Debug, Clone, Copy)]
pub enum Completion {
    /// The call waits; this is the program's status.
    Status(*mut c_void),
    /// By a request; the address of the program's place for it.
    Request(usize),
    /// By the matching call that ends a split collective.
    End,
}

/// What is known of an access before it is known where it begins.
struct Prepared {
    view: Arc<FileView>,
    memory: Regions,
    /// Bytes in the file.
    bytes: u64,
    staged: Option<Staged>,
}

/// Carries an access out, or begins it; the request where one was asked for.
///
/// # Errors
/// To be raised with the handler of the file.
pub fn access(file: &Arc<MpiFile>, access: Access, completion: Completion) -> Result<Option<Handle>> {
    if let Completion::End = completion {
        split::check_free(file)?;
    }
    let prepared = prepare(file, &access);
    let etypes = prepared.as_ref().map_or(0, |prepared| prepared.bytes / prepared.view.etype_bytes);
    // Of an ordered access all processes take part, also those whose arguments are wrong.
    let offset = match access.pointer {
        Pointer::Ordered => Some(pointers::advance_ordered(file, etypes)),
        _ => None,
    };
    let job = prepared.and_then(|prepared| {
        let offset = match (access.pointer, offset) {
            (_, Some(offset)) => offset?,
            (Pointer::At(offset), None) => offset,
            (Pointer::Individual, None) => pointers::advance(file, etypes)?,
            (_, None) => pointers::advance_shared(file, etypes)?,
        };
        place(file, access.direction, prepared, offset)
    });
    match completion {
        Completion::Status(status) => {
            let bytes = carry_out(file, &access, job)?;
            // SAFETY: the program's status.
            unsafe { file.mpi.set_status(status, bytes) };
            Ok(None)
        }
        Completion::Request(_) => request::start(file, job?).map(Some),
        Completion::End => {
            let result = carry_out(file, &access, job);
            let kind = SplitKind { direction: access.direction, pointer: split_pointer(access.pointer) };
            split::begun(file, Split { kind, buffer: access.buffer, bytes: result? });
            Ok(None)
        }
    }
}

fn split_pointer(pointer: Pointer) -> SplitPointer {
    match pointer {
        Pointer::At(_) => SplitPointer::At,
        Pointer::Individual | Pointer::Shared => SplitPointer::Individual,
        Pointer::Ordered => SplitPointer::Ordered,
    }
}

/// Carries out a blocking access; bytes of the program's data.
fn carry_out(file: &Arc<MpiFile>, access: &Access, job: Result<Job>) -> Result<u64> {
    let bytes = match access.is_collective {
        true => collective::carry_out(file, access.direction, job)?,
        false => {
            let (job, begin) = (job?, Instant::now());
            let bytes = job.run(file)?;
            file.stats.note_alone(begin.elapsed().as_nanos() as u64);
            bytes
        }
    };
    file.stats.note(access.direction, bytes);
    Ok(bytes)
}

/// Checks the arguments, and finds the memory.
fn prepare(file: &MpiFile, access: &Access) -> Result<Prepared> {
    check_mode(file, access)?;
    let count = u64::try_from(access.count).map_err(|_| {
        MpiError::new(Class::Count, format!("{} elements: the count is negative", access.count))
    })?;
    if let Pointer::At(offset) = access.pointer
        && offset < 0
    {
        return Err(MpiError::new(Class::Arg, format!("the offset {offset} in the file is negative")));
    }
    let datatype = datatype_of(file.mpi, access.datatype)?;
    let memory_bytes = datatype.size_bytes().checked_mul(count).filter(|bytes| *bytes <= i64::MAX as u64);
    let memory_bytes =
        memory_bytes.ok_or_else(|| MpiError::new(Class::Count, "more than 2^63 bytes in one access"))?;
    let view = file.view();
    let (memory, bytes, staged) = match view.representation {
        Representation::Native => (datatype.regions(access.buffer as u64, count)?, memory_bytes, None),
        Representation::External32 => {
            let data = Elements { buffer: access.buffer, count, datatype: access.datatype };
            let staged = Staged::new(file.mpi, access.direction, data)?;
            (staged.memory(), staged.bytes(), Some(staged))
        }
    };
    if bytes % view.etype_bytes != 0 {
        let text = format!(
            "{bytes} bytes in a view whose etype has {}: only whole etypes can be accessed",
            view.etype_bytes
        );
        return Err(MpiError::new(Class::Io, text));
    }
    Ok(Prepared { view, memory, bytes, staged })
}

fn check_mode(file: &MpiFile, access: &Access) -> Result<()> {
    let numbers = file.mpi.numbers();
    let is_sequential = file.has_mode(numbers.mode_sequential);
    match access.direction {
        Direction::Read if file.has_mode(numbers.mode_wronly) => {
            Err(MpiError::new(Class::Access, "a read of a file that was opened with MPI_MODE_WRONLY"))
        }
        Direction::Write if file.has_mode(numbers.mode_rdonly) => {
            Err(MpiError::new(Class::ReadOnly, "a write to a file that was opened with MPI_MODE_RDONLY"))
        }
        _ if is_sequential && !matches!(access.pointer, Pointer::Shared | Pointer::Ordered) => {
            Err(MpiError::new(
                Class::UnsupportedOperation,
                "a file of MPI_MODE_SEQUENTIAL is accessed by the shared pointer only",
            ))
        }
        _ => Ok(()),
    }
}

fn place(file: &MpiFile, direction: Direction, prepared: Prepared, offset: i64) -> Result<Job> {
    let Prepared { view, memory, bytes, staged } = prepared;
    let position = view.position(offset)?;
    let regions = view.regions(position, bytes).map_err(|mut error| {
        error.text = format!("{}: {}", file.place.path, error.text);
        error
    })?;
    let job = Job { direction, memory, file: regions, staged };
    match direction {
        Direction::Read => before_the_end(file, job, &view, position),
        Direction::Write => Ok(job),
    }
}

/// A read without what is beyond the end of the file, so that the program's memory stays as it is there. The
/// size is asked for where the file may be shorter than the read; it seldom is, as files seldom shrink.
fn before_the_end(file: &MpiFile, job: Job, view: &FileView, position: u64) -> Result<Job> {
    let end = job.file.span().map_or(0, |span| span.end());
    if end <= file.known_bytes.load(Ordering::Acquire) {
        return Ok(job);
    }
    let file_bytes = crate::sizes::size(file)? as u64;
    file.known_bytes.store(file_bytes, Ordering::Release);
    if end <= file_bytes {
        return Ok(job);
    }
    let bytes = view.visible_bytes(file_bytes).saturating_sub(position).min(job.file.total_bytes());
    Ok(Job { memory: job.memory.window(0, bytes), file: job.file.window(0, bytes), ..job })
}
