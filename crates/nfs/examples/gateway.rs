//! A gateway by the library alone: `gateway URL PORT`. It exports everything to everybody, root included.

use std::net::TcpListener;

use weft_client::{Client, ConnectOptions, Url};
use weft_gateway::Squash;
use weft_nfs::{ExportOptions, GatewayOptions, HandleKeys, Network, Rule, Serving};
use weft_wire::security::Key;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(port)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: gateway URL PORT");
        std::process::exit(2);
    };
    let client = Client::connect(&Url::parse(&url).expect("a URL"), ConnectOptions::default());
    let mut rule = Rule::for_clients(Network::ANY);
    rule.insecure = true;
    rule.identities.squash = Squash::None;
    let options = GatewayOptions {
        client: client.expect("the cluster answers"),
        exports: vec![ExportOptions { path: "/".into(), rules: vec![rule] }],
        handle_keys: HandleKeys::of_cluster(&[Key([7; 32])]),
    };
    let listener = TcpListener::bind(("127.0.0.1", port.parse().expect("a port"))).expect("it is free");
    let _serving = Serving::start(options, vec![listener]).expect("a thread");
    loop {
        std::thread::park();
    }
}
