//! Single calls, and one call to each of several servers.

use std::time::Duration;

use weft_transport::Completion;
use weft_wire::Request;

use super::Batch;
use super::sleep::sleep_at_most;
use crate::call::Call;
use crate::error::Error;
use crate::greet;
use crate::rpc::Rpc;

/// One request, and its reply.
pub fn ask<R: Request>(rpc: &Rpc, server: usize, request: &R) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::of(rpc, server, request, 0));
    let finished = batch.wait(rpc).expect("a request that was pushed ends");
    decode::<R>(rpc, server, finished.result)
}

/// One request whose reply may be long in coming: calls `look` every so often meanwhile.
pub fn ask_looking<R: Request>(
    rpc: &Rpc,
    server: usize,
    request: &R,
    every: Duration,
    mut look: impl FnMut() -> Result<(), Error>,
) -> Result<R::Reply, Error> {
    let mut batch = Batch::default();
    batch.push(Call::of(rpc, server, request, 0));
    loop {
        if let Some(finished) = batch.poll(rpc) {
            return decode::<R>(rpc, server, finished.result);
        }
        sleep_at_most(&[(rpc, &mut batch)], Some(every));
        look()?;
    }
}

/// The same request, or different ones of one kind, to several servers at once; replies in the order of the requests.
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

/// As [`ask_all`]; `adapt` gets the place of each request, and may change how long it is waited for.
pub fn ask_each<R: Request>(
    rpc: &Rpc,
    requests: impl IntoIterator<Item = (usize, R)>,
    adapt: impl Fn(usize, Call) -> Call,
) -> Vec<Result<R::Reply, Error>> {
    let mut batch = Batch::default();
    let mut servers = Vec::new();
    for (tag, (server, request)) in requests.into_iter().enumerate() {
        batch.push(adapt(tag, Call::of(rpc, server, &request, tag)));
        servers.push(server);
    }
    let mut replies: Vec<Option<Result<R::Reply, Error>>> = servers.iter().map(|_| None).collect();
    while let Some(finished) = batch.wait(rpc) {
        let tag = finished.tag;
        replies[tag] = Some(decode::<R>(rpc, servers[tag], finished.result));
    }
    replies.into_iter().map(|reply| reply.expect("every request ends")).collect()
}

/// Reads a reply.
pub fn decode<R: Request>(
    rpc: &Rpc,
    server: usize,
    result: Result<Completion, Error>,
) -> Result<R::Reply, Error> {
    greet::answer::<R>(&result?).map_err(|error| error.at_server(rpc.session().server(server).describe(None)))
}
