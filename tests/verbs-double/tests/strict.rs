//! The checks, in every mode.

mod checks;

use checks::{Site, checks};
use std::net::{IpAddr, Ipv4Addr};
use weft_verbs_double::{Adapter, Delivery, Pinning, Pretend, PretendOptions};

/// Runs all checks between two hosts, each on a network of its own.
fn run(options: &PretendOptions) {
    for (name, check) in checks::<Pretend>() {
        println!("{name}");
        let client = Pretend::new(options.clone());
        let far = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        let server = client.another_host(vec![Adapter::new("pretend1", far)]);
        check(&Site { client, server, address: (far, 0).into() });
    }
}

#[test]
fn at_once() {
    run(&PretendOptions::default());
}

#[test]
fn shuffled() {
    for seed in 0..8 {
        run(&PretendOptions { seed, delivery: Delivery::Shuffled, ..PretendOptions::default() });
    }
}

#[test]
fn pinned() {
    run(&PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() });
}

#[test]
fn over_one_adapter() {
    for (name, check) in checks::<Pretend>() {
        println!("{name}");
        let fabric = Pretend::new(PretendOptions::default());
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        check(&Site { client: fabric.clone(), server: fabric, address });
    }
}
