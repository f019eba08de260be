//! An access of which it is known what it is about: memory, and bytes of the file.

use weft_client::{Direction, LockKind, LockTarget, LockWait};
use weft_layout::Regions;

use crate::error::{Class, MpiError, Result};
use crate::external::Staged;
use crate::file::MpiFile;

/// An access with its memory and its bytes of the file.
pub struct Job {
    /// Read or write.
    pub direction: Direction,
    /// Memory, as addresses.
    pub memory: Regions,
    /// Bytes of the file.
    pub file: Regions,
    /// Where external32 is converted.
    pub staged: Option<Staged>,
}

impl Job {
    /// Carries it out by this process alone.
    pub fn run(mut self, file: &MpiFile) -> Result<u64> {
        self.run_here(file)
    }

    fn run_here(&mut self, file: &MpiFile) -> Result<u64> {
        if self.file.is_empty() {
            return Ok(0);
        }
        let _locked = file.is_atomic().then(|| Locked::new(file, self)).transpose()?;
        // SAFETY: the program's memory is this call's until it returns, by the rules of MPI.
        let bytes = unsafe { file.file.move_raw(self.direction, 0, &self.memory, None, &self.file) }?;
        self.finish(bytes)
    }

    /// As [`Job::run`]; the job, whose buffer outlives the operation.
    pub fn run_and_keep(mut self, file: &MpiFile) -> (Result<u64>, Job) {
        (self.run_here(file), self)
    }

    /// The bytes of the program's data, of `bytes` in the file; converts what was read.
    pub fn finish(&mut self, bytes: u64) -> Result<u64> {
        match &mut self.staged {
            Some(staged) => staged.finish(self.direction, bytes),
            None => Ok(bytes),
        }
    }
}

/// The range of a job, locked against all other accesses in atomic mode (MPI 4.0, 14.6.1).
pub struct Locked<'a> {
    file: &'a MpiFile,
    target: LockTarget,
}

impl<'a> Locked<'a> {
    /// Waits for the range.
    pub fn new(file: &'a MpiFile, job: &Job) -> Result<Locked<'a>> {
        let span = job.file.span().ok_or_else(|| MpiError::new(Class::Intern, "a lock on no bytes"))?;
        let target = LockTarget::range(span.offset..span.end());
        let kind = match job.direction {
            Direction::Read => LockKind::Shared,
            Direction::Write => LockKind::Exclusive,
        };
        // A lock replaces those of the same open file, so threads of this process take turns.
        file.file.lock(target, kind, LockWait::Forever)?;
        Ok(Locked { file, target })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.file.file.unlock(self.target) {
            crate::report::report(|| format!("a lock of atomic mode could not be given back: {error}"));
        }
    }
}
