//! Keys that end with their requests: memory windows of type 2.
//!
//! ```text
//!   submit     [■■■■■ registered, no remote key ■■■■■]      a window for each region, on just what the pieces span
//!                   [run 1]   [run 2]
//!                   [■■■■ window ■■■]
//!   flush      Bind ▸ Send of the request                   one doorbell
//!   reply      Send with Invalidate of the last key         by the server
//!              Invalidate of the others, if there are any   in the next post of the client; alone where adapters want that
//!   completion no key of the request is valid
//! ```
//!
//! A window is free, or a request's from its `submit` until its key has ended: used again only then, with
//! another key. What a server does not end, because it cannot or will not, the client ends. After a failed
//! bind or invalidation the connection is over.
//!
//! With the link they end in this order: connection, windows, queue pair, registrations.
//!
//! Windows are made as requests need them and belong to this link's queue pair; some that are free are kept.
//! A request has one for each region, however many these are; if the adapter has no more, the request is
//! refused as if its memory could not be registered.

use std::collections::VecDeque;
use std::io;

use weft_rdma::Batch;
use weft_verbs::{Access, Device, Fabric, Window, Work};
use weft_wire::messages::RemoteKeys;

use crate::error::LinkError;
use crate::verbs::keys::narrow;

use super::*;

/// Free windows that are kept.
const WINDOWS_KEPT: usize = 64;
/// In [`Pending::waits_for`]: work that is not posted yet.
const NOT_POSTED: u64 = u64::MAX;

/// A request's windows, with their keys.
#[derive(Default)]
pub(super) enum Windows<W> {
    /// It has none, or their keys have ended.
    #[default]
    None,
    /// The server may use them.
    Lent(Vec<(u32, W)>),
    /// Answered: work that ends the keys is posted, or will be.
    Ending(Vec<(u32, W)>),
}

impl<W> Windows<W> {
    /// Takes out the one whose key has ended.
    pub(super) fn take(&mut self, key: u32) -> Option<W> {
        let Windows::Lent(windows) = self else { return None };
        let at = windows.iter().position(|(known, _)| *known == key)?;
        Some(windows.swap_remove(at).1)
    }
}

/// A request's windows, and the binds that go before it.
type Bound<F> = (Windows<<<F as Fabric>::Device as Device>::Window>, VecDeque<Work>);

impl<F: Fabric> Inner<F> {
    /// Takes a window for each key, which names the local key of a registration until now.
    pub(super) fn window_each(&mut self, told: &mut RemoteKeys, write: bool) -> Result<Bound<F>, LinkError> {
        narrow(told)?;
        let access = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let (mut windows, mut binds) = (Vec::with_capacity(told.keys.len()), VecDeque::new());
        for key in &mut told.keys {
            let made = match self.windows_free.pop() {
                Some(window) => Ok(window),
                None => self.adapter.device.window(),
            };
            let mut window = match made {
                Ok(window) => window,
                Err(error) => {
                    self.free_windows(windows.into_iter().map(|(_, window)| window));
                    let source = io::Error::other(error.to_string());
                    return Err(LinkError::Local {
                        what: "make a memory window of the RDMA adapter",
                        source,
                    });
                }
            };
            let (window_key, local_key) = (window.next_key(), key.remote_key);
            let (address, bytes) = (key.address, key.bytes);
            binds.push_back(Work::Bind { window_key, local_key, address, bytes, access });
            key.remote_key = window_key;
            windows.push((window_key, window));
        }
        told.keys_end = true;
        Ok((Windows::Lent(windows), binds))
    }

    /// Adds binds to the batch; false if there is no room for all and for a message behind them.
    pub(super) fn bind(&mut self, binds: &mut VecDeque<Work>, batch: &mut Batch) -> bool {
        if !binds.is_empty() && !self.requester.takes_local_work() {
            return false;
        }
        while self.has_room()
            && let Some(work) = binds.pop_front()
        {
            self.requester.add(batch, work, [], Freed::Local, false);
        }
        self.has_room()
    }

    /// Keeps windows whose keys have ended, up to a number.
    pub(super) fn free_windows(&mut self, windows: impl IntoIterator<Item = <F::Device as Device>::Window>) {
        let room = WINDOWS_KEPT.saturating_sub(self.windows_free.len());
        self.windows_free.extend(windows.into_iter().take(room));
    }

    /// Drops all of a link that is disconnected: nothing is bound any more. Some adapters do not end a queue
    /// pair that windows are bound on (rxe waits for them), so they go before it; the registrations go after
    /// it.
    pub(super) fn drop_windows(&mut self) {
        for pending in &mut self.pending {
            pending.windows = Windows::None;
        }
        self.windows_free.clear();
    }

    /// Whether no key of an answered request is valid; if one is, its end is asked for.
    pub(super) fn keys_have_ended(&mut self, at: usize) -> bool {
        let pending = &mut self.pending[at];
        match std::mem::take(&mut pending.windows) {
            Windows::Lent(windows) if !windows.is_empty() => {
                self.ending.extend(windows.iter().map(|(key, _)| (pending.request_id, *key)));
                pending.windows = Windows::Ending(windows);
                pending.waits_for = Some(NOT_POSTED);
                false
            }
            Windows::Ending(windows) => {
                self.free_windows(windows.into_iter().map(|(_, window)| window));
                true
            }
            Windows::Lent(_) | Windows::None => true,
        }
    }

    /// Adds the work that ends keys of answered requests; false if it has to wait until other work has ended.
    pub(super) fn end_keys(&mut self, batch: &mut Batch) -> bool {
        if !self.ending.is_empty() && !self.requester.takes_local_work() {
            return false;
        }
        while self.has_room()
            && let Some((request_id, key)) = self.ending.pop_front()
        {
            let last = self.ending.front().is_none_or(|(next, _)| *next != request_id);
            let work = self.requester.add(batch, Work::Invalidate { key }, [], Freed::Local, last);
            let pending = self.pending.iter_mut().find(|pending| pending.request_id == request_id);
            if let Some(pending) = pending.filter(|_| last) {
                pending.waits_for = Some(work);
            }
        }
        true
    }
}
