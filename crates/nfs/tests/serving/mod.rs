//! A gateway in this process that exports a directory to everybody, as whoever they say they are.

// Not every test needs all of it.
#![allow(dead_code)]

use std::net::TcpListener;

use weft_client::Client;
use weft_gateway::Squash;
use weft_nfs::{ExportOptions, GatewayOptions, HandleKeys, Listeners, Network, Rule, Serving};
use weft_wire::security::Key;

/// Of a gateway without locks that is registered nowhere.
pub fn options(client: Client, key: &Key, path: &str) -> GatewayOptions {
    let mut rule = Rule::for_clients(Network::ANY);
    rule.insecure = true;
    rule.identities.squash = Squash::None;
    GatewayOptions {
        client,
        exports: vec![ExportOptions { path: path.into(), rules: vec![rule] }],
        handle_keys: HandleKeys::of_cluster(std::slice::from_ref(key)),
        locks: None,
        rpcbind: None,
        times: None,
    }
}

/// Serves at a free port of this host.
pub fn serve(options: GatewayOptions) -> Serving {
    serve_at(options, "127.0.0.1:0")
}

/// Serves at this address and port.
pub fn serve_at(options: GatewayOptions, address: &str) -> Serving {
    let listeners = Listeners::tcp(vec![TcpListener::bind(address).unwrap()]);
    Serving::start(options, listeners).unwrap()
}
