//! Single calls, and one call to each of several servers.

use std::sync::Arc;
use std::time::Duration;

use weft_wire::{Owned, Request};

use super::requests::Batch;
use super::sleep::sleep_at_most;
use crate::call::{Call, Guard};
use crate::error::Error;
use crate::rpc::Rpc;

/// Sends a request to the metadata server that owns what it is about, and waits for the reply.
pub fn ask<R: Owned>(rpc: &Rpc, request: &R) -> Result<R::Reply, Error> {
    ask_guarded(rpc, request, None)
}

/// As [`ask`], for a request that is sent only while the guard allows it.
pub fn ask_guarded<R: Owned>(
    rpc: &Rpc,
    request: &R,
    guard: Option<Arc<dyn Guard>>,
) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::to_owner(rpc, request, 0).guarded(guard));
    batch.wait(rpc).expect("a request that was pushed ends").decode::<R>(rpc)
}

/// Sends a request to the server with this index, and waits for the reply.
pub fn ask_server<R: Request>(rpc: &Rpc, server: usize, request: &R) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::of(rpc, server, request, 0));
    batch.wait(rpc).expect("a request that was pushed ends").decode::<R>(rpc)
}

/// As [`ask`], for a request whose reply may take long: calls `look` at this interval meanwhile.
pub fn ask_looking<R: Owned>(
    rpc: &Rpc,
    request: &R,
    every: Duration,
    mut look: impl FnMut() -> Result<(), Error>,
) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::to_owner(rpc, request, 0));
    loop {
        if let Some(finished) = batch.poll(rpc) {
            return finished.decode::<R>(rpc);
        }
        sleep_at_most(&[(rpc, &mut batch)], Some(every));
        look()?;
    }
}

/// The same request, or different ones of one kind, to several servers at once; replies in the order of the
/// requests.
pub fn ask_all<R: Request>(
    rpc: &Rpc,
    requests: impl IntoIterator<Item = (usize, R)>,
    patience: Option<Duration>,
) -> Vec<Result<R::Reply, Error>> {
    ask_each(rpc, requests, |_, call| match patience {
        Some(patience) => call.patience(patience),
        None => call,
    })
}

/// As [`ask_all`]; `adapt` gets the place of each request, and may change how long it is waited for or guard it.
pub fn ask_each<R: Request>(
    rpc: &Rpc,
    requests: impl IntoIterator<Item = (usize, R)>,
    adapt: impl Fn(usize, Call) -> Call,
) -> Vec<Result<R::Reply, Error>> {
    let mut batch = Batch::default();
    let mut replies: Vec<Option<Result<R::Reply, Error>>> = Vec::new();
    for (tag, (server, request)) in requests.into_iter().enumerate() {
        batch.push(adapt(tag, Call::of(rpc, server, &request, tag)));
        replies.push(None);
    }
    while let Some(finished) = batch.wait(rpc) {
        let tag = finished.tag;
        replies[tag] = Some(finished.decode::<R>(rpc));
    }
    replies.into_iter().map(|reply| reply.expect("every request ends")).collect()
}
