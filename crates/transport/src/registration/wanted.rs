//! What a request needs registered.

use weft_verbs::Device;
use weft_wire::messages::MemoryRun;

use super::pinned::Pinned;
use crate::link::Allocation;

/// What is to be registered, and what is known of it.
pub(super) struct Wanted<'a, D: Device> {
    pub runs: &'a [MemoryRun],
    pub allocations: &'a [Allocation],
    pub write: bool,
    /// The whole read or write takes about so many times as much.
    pub windows: u64,
    /// What is registered for all of it.
    pub lasting: Option<&'a Pinned<D>>,
}

/// Where registrations are looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    All,
    Arenas,
}
