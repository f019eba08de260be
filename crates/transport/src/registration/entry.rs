//! One registration, as the cache has it.

use std::mem::ManuallyDrop;

use weft_verbs::Registration;

use super::frames::Frames;
use super::home::Home;
use super::index::Span;
use super::watch::Watch;

/// Registered memory, by addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedRegion {
    /// Where.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// For this side's work.
    pub local_key: u32,
    /// For the peer's; 0 where windows are used.
    pub remote_key: u32,
}

/// A registration.
pub struct Entry<R> {
    pub start: u64,
    pub end: u64,
    pub is_writable: bool,
    pub registration: ManuallyDrop<R>,
    pub watch: Option<Watch>,
    pub frames: Option<Frames>,
    pub home: Home,
}

impl<R> Span for Entry<R> {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl<R: Registration> Entry<R> {
    pub fn region(&self) -> PinnedRegion {
        PinnedRegion {
            address: self.start,
            bytes: self.end - self.start,
            local_key: self.registration.local_key(),
            remote_key: self.registration.remote_key(),
        }
    }
}

impl<R> Drop for Entry<R> {
    fn drop(&mut self) {
        // In a forked child it is the parent's registration: ending it would end the parent's.
        if self.home.is_here() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.registration) };
        }
    }
}
