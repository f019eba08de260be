//! Asking the servers of files for their sizes, as a machine that never waits: who drives it, waits.
//!
//! ```text
//!   inodes ─► a capability for each: of an open, or by Open ─► Size to every server of every file ─► Found
//!             └────────────── one batch ──────────────────┘    └───────── the next one ─────────┘
//! ```

use std::time::Duration;

use weft_wire::Added;
use weft_wire::messages::{Caller, DataSize, OpenRequest, SizeRequest, Time};
use weft_wire::security::Capability;

use crate::At;
use crate::batch::{Batch, Finished};
use crate::call::Call;
use crate::error::{Error, ErrorKind};
use crate::inner::Inner;
use crate::size::LiveSize;

/// What the servers of a file say of it.
pub(crate) struct Found {
    pub size: LiveSize,
    /// All of them; else some are dead, or unknown here.
    pub is_whole: bool,
    pub capability: Capability,
}

/// See the module.
pub(crate) struct Sizing {
    /// `None`: gone, or not known yet.
    capabilities: Vec<Option<Capability>>,
    /// Of each file, what each slot's server has said.
    parts: Vec<Vec<Option<DataSize>>>,
    /// By the tags of requests for sizes: file, slot and server.
    asked: Vec<(usize, u16)>,
    phase: Phase,
    /// How long servers are waited for, if not for the operation's time.
    patience: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Capabilities,
    Sizes,
}

impl Sizing {
    /// Begins to ask about these inodes: the first requests go to `batch`.
    pub(crate) fn begin(
        inner: &Inner,
        caller: &Caller,
        inos: &[u64],
        patience: Option<Duration>,
        batch: &mut Batch,
    ) -> Sizing {
        let held = |ino: &u64| inner.held.of(*ino).first().map(|held| held.capability());
        let capabilities: Vec<Option<Capability>> = inos.iter().map(held).collect();
        for (file, ino) in inos.iter().enumerate().filter(|(file, _)| capabilities[*file].is_none()) {
            let at = At::ino(*ino).to_wire();
            let request = OpenRequest {
                caller: caller.clone(),
                at,
                follow: false,
                access: 0,
                small: Added(true),
                execute: Added(false),
                append: Added(false),
            };
            batch.push(Call::to_owner(inner, &request, file));
        }
        Sizing { capabilities, parts: Vec::new(), asked: Vec::new(), phase: Phase::Capabilities, patience }
    }

    /// Takes a reply.
    pub(crate) fn take(&mut self, inner: &Inner, finished: Finished) -> Result<(), Error> {
        let tag = finished.tag;
        if self.phase == Phase::Capabilities {
            match finished.decode::<OpenRequest>(inner) {
                Ok(reply) => self.capabilities[tag] = reply.capability,
                Err(error) if error.status().is_some() => {}
                Err(error) => return Err(error),
            }
            return Ok(());
        }
        let (file, slot) = self.asked[tag];
        match finished.decode::<SizeRequest>(inner) {
            Ok(part) => self.parts[file][usize::from(slot)] = Some(part),
            // A server that cannot be asked keeps nobody from hearing of the others.
            Err(error) if error.kind() == ErrorKind::Unreachable => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// All requests so far have their replies: the next ones go to `batch`. Says whether there are none left.
    pub(crate) fn next(&mut self, inner: &Inner, batch: &mut Batch) -> bool {
        if self.phase == Phase::Sizes {
            return true;
        }
        self.phase = Phase::Sizes;
        for (file, capability) in self.capabilities.iter().enumerate() {
            let count = capability.as_ref().map_or(0, |capability| capability.layout.server_count());
            self.parts.push(vec![None; usize::from(count)]);
            let Some(capability) = capability else { continue };
            let request = SizeRequest { capability: capability.clone() };
            for slot in 0..count {
                if let Ok(server) = inner.io(capability.layout.chain(slot)) {
                    let call = Call::of(inner, server, &request, self.asked.len());
                    batch.push(match self.patience {
                        None => call,
                        Some(patience) => call.patience_also_to_connect(patience),
                    });
                    self.asked.push((file, slot));
                }
            }
        }
        self.asked.is_empty()
    }

    /// What was found of each file; `None` where it is gone.
    pub(crate) fn found(self) -> Vec<Option<Found>> {
        let none = || DataSize {
            local_bytes: 0,
            allocated_bytes: 0,
            mtime: Time { seconds: 0, nanoseconds: 0 },
            loss_epoch: 0,
        };
        let found = self.capabilities.into_iter().zip(self.parts).map(|(capability, parts)| {
            let capability = capability?;
            let is_whole = parts.iter().all(Option::is_some);
            let parts: Vec<DataSize> = parts.into_iter().map(|part| part.unwrap_or_else(none)).collect();
            Some(Found { size: LiveSize::of(&capability.layout, &parts), is_whole, capability })
        });
        found.collect()
    }
}
