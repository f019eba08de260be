//! The checks, in every mode; and what only a pretended fabric can do.

mod checks;

use checks::{OPTIONS, Side, Site, checks, connected, connected_through};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;
use weft_verbs::{
    Access, CompletionQueue, Device, DeviceEvent, Endpoint, EndpointState, Fabric, Registration, SendWork,
    TrafficClass, VerbsError, Work, WorkStatus,
};
use weft_verbs_double::{
    Adapter, Costs, Delivery, Faults, NotReady, Pinning, Pretend, PretendDevice, PretendOptions, When,
};

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Two hosts of a network.
fn site(options: PretendOptions) -> Site<Pretend> {
    let client = Pretend::new(options);
    let server = client.another_host(vec![Adapter::new("pretend1", FAR)]);
    Site { client, server, address: (FAR, 0).into() }
}

/// Runs all checks between two hosts, each on a network of its own.
fn run(options: &PretendOptions) {
    for (name, check) in checks::<Pretend>() {
        println!("{name}");
        check(&site(options.clone()));
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

/// A write of 8 bytes, signalled.
fn write(from: &mut Side<Pretend>, to: &Side<Pretend>, id: u64) {
    let work = Work::Write { remote_address: to.remote_address(0), remote_key: to.remote_key() };
    let piece = from.piece(0, 8);
    from.post(id, work, &[piece]);
}

fn register(device: &PretendDevice, memory: &[u8]) -> Result<impl Registration + use<>, VerbsError> {
    // SAFETY: nothing writes to it.
    unsafe { device.register(memory.as_ptr() as usize, memory.len(), Access::LOCAL_READ) }
}

fn errno_of<T>(result: Result<T, VerbsError>) -> Option<i32> {
    match result.err()? {
        VerbsError::Register { source, .. }
        | VerbsError::Device { source, .. }
        | VerbsError::Post { source, .. }
        | VerbsError::Resolve { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

fn readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry that lives.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn device(site: &Site<Pretend>) -> Arc<PretendDevice> {
    let endpoint = site.client.resolve((FAR, 1).into(), TrafficClass::default(), Duration::ZERO);
    endpoint.expect("resolving").device()
}

#[test]
fn registrations_are_refused_when_they_should_be() {
    let faults = Faults { refused_registrations: When::At(vec![2]), ..Faults::default() };
    let mut adapter = Adapter::default();
    adapter.limits.registrations_max = 3;
    adapter.limits.registration_bytes_max = 10_000;
    let site = site(PretendOptions {
        faults,
        adapters: vec![adapter],
        pinned_bytes_max: 12_000,
        ..PretendOptions::default()
    });
    let device = device(&site);
    let memory = vec![0; 20_000];
    let first = register(&device, &memory[..100]).expect("the first");
    assert_eq!(errno_of(register(&device, &memory[..100])), Some(libc::ENOMEM), "it was told to");
    assert_eq!(errno_of(register(&device, &memory[..10_001])), Some(libc::ENOMEM), "too large");
    let large = register(&device, &memory[..10_000]).expect("as large as can be");
    assert_eq!(errno_of(register(&device, &memory[..2000])), Some(libc::ENOMEM), "too much in all");
    let third = register(&device, &memory[..1900]).expect("as much as can be in all");
    assert_eq!(errno_of(register(&device, &memory[..1])), Some(libc::ENOMEM), "too many");
    drop((first, large, third));
    assert!(register(&device, &memory[..2000]).is_ok());
    let counts = site.client.counts();
    assert_eq!((counts.registrations, counts.registrations_refused, counts.deregistrations), (4, 4, 4));
}

#[test]
fn costs_are_charged_and_not_waited_for() {
    let costs = Costs { registration_ns: 1_000_000_000_000, ..Costs::default() };
    let site = site(PretendOptions { costs, ..PretendOptions::default() });
    let device = device(&site);
    let memory = vec![0u8; 3 * 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    drop(register(&device, &memory[aligned..aligned + 4097]).expect("two pages"));
    let charged = device.charged();
    assert_eq!(charged.registration_ns, costs.registration_ns + 2 * costs.registration_page_ns);
    assert_eq!(charged.deregistration_ns, costs.deregistration_ns + 2 * costs.deregistration_page_ns);

    let (mut client, server) = connected(&site);
    let before = device.charged();
    let pieces = [client.piece(0, 1000), client.piece(5000, 1048)];
    client.post(
        1,
        Work::Write { remote_address: server.remote_address(0), remote_key: server.remote_key() },
        &pieces,
    );
    let since = device.charged().since(&before);
    assert_eq!(since.posting_ns, costs.doorbell_ns + costs.work_ns + 2 * costs.piece_ns);
    assert_eq!(since.moving_ns, 2 * costs.kilobyte_ns);
    let mut done = Vec::new();
    client.queue.poll(&mut done, 4).expect("polling");
    assert_eq!(device.charged().since(&before).completion_ns, costs.poll_ns + costs.completion_ns);
    assert_eq!(site.client.charged("pretend0"), device.charged());
}

#[test]
fn work_fails_and_connections_break_where_they_are_told_to() {
    let site = site(PretendOptions::default());
    let (mut client, server) = connected(&site);
    let begun = site.client.counted().1;
    let failed_work = Some((When::At(vec![begun + 2]), WorkStatus::Other(21)));
    site.client.set_faults(Faults { failed_work, ..Faults::default() });
    for id in 1..4 {
        write(&mut client, &server, id);
    }
    let statuses: Vec<_> = client.wait(3).iter().map(|done| done.status).collect();
    assert_eq!(statuses, [WorkStatus::Ok, WorkStatus::Other(21), WorkStatus::Flushed]);

    let (mut client, mut server) = connected(&site);
    let begun = site.client.counted().1;
    let broken_connections = When::At(vec![begun + 2]);
    site.client.set_faults(Faults { broken_connections, ..Faults::default() });
    write(&mut client, &server, 1);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    write(&mut client, &server, 2);
    assert_eq!(client.wait_one().status, WorkStatus::RetriesExceeded);
    assert_eq!(server.endpoint.state(), EndpointState::Connected);
    write(&mut server, &client, 3);
    assert_eq!(server.wait_one().status, WorkStatus::RetriesExceeded);
    drop(client);
    assert!(matches!(server.endpoint.state(), EndpointState::Ended(_)));
}

#[test]
fn a_message_without_a_receive_is_counted_and_may_fail() {
    let site = site(PretendOptions { not_ready: NotReady::Fail, ..PretendOptions::default() });
    let (mut client, server) = connected(&site);
    let piece = client.piece(0, 8);
    client.post(1, Work::Send, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::ReceiverNotReady);
    assert_eq!(site.client.counts().receiver_not_ready, 1);
    assert_eq!(site.server.counts().receiver_not_ready, 0);
    drop(server);
}

#[test]
fn an_adapter_is_removed() {
    let site = site(PretendOptions::default());
    let (mut client, mut server) = connected(&site);
    client.receive(1, 0, 64);
    site.client.remove_adapter("pretend0");
    assert!(readable(client.device.event_fd()));
    assert!(matches!(client.device.events()[..], [DeviceEvent::Fatal(_)]));
    assert!(!readable(client.device.event_fd()));
    assert!(matches!(client.endpoint.state(), EndpointState::Ended(_)));
    assert_eq!(client.wait_one().status, WorkStatus::Flushed);
    assert_eq!(errno_of(client.queue.poll(&mut Vec::new(), 1)), Some(libc::ENODEV));
    assert_eq!(errno_of(register(&client.device, &[0; 10])), Some(libc::ENODEV));
    let resolved = site.client.resolve((FAR, 1).into(), TrafficClass::default(), Duration::ZERO);
    assert_eq!(errno_of(resolved), Some(libc::ENODEV));
    assert_eq!(site.client.device_names().expect("names"), Vec::<String>::new());
    write(&mut server, &client, 2);
    assert_eq!(server.wait_one().status, WorkStatus::RetriesExceeded);
}

#[test]
fn a_port_goes_down_and_comes_up() {
    let site = site(PretendOptions::default());
    let (mut client, server) = connected(&site);
    site.server.set_port("pretend1", false);
    assert_eq!(server.device.events(), [DeviceEvent::PortDown(1)]);
    write(&mut client, &server, 1);
    assert_eq!(client.wait_one().status, WorkStatus::RetriesExceeded);
    let resolve = || site.client.resolve((FAR, 1).into(), TrafficClass::default(), Duration::ZERO);
    assert_eq!(errno_of(resolve()), Some(libc::EHOSTUNREACH));
    site.server.set_port("pretend1", true);
    assert_eq!(server.device.events(), [DeviceEvent::PortUp(1)]);
    assert!(resolve().is_ok());
}

#[test]
fn an_overrun_completion_queue_is_useless() {
    let site = site(PretendOptions::default());
    let queue = device(&site).completion_queue(2).expect("a small queue");
    let (mut small, server) = connected_through(&site, queue);
    for id in 0..3 {
        write(&mut small, &server, id);
    }
    let mut done = Vec::new();
    small.queue.poll(&mut done, 4).expect("what had ended before");
    assert_eq!(done.len(), 2);
    assert_eq!(errno_of(small.queue.poll(&mut done, 4)), Some(libc::EOVERFLOW));
    assert_eq!(errno_of(small.queue.arm()), Some(libc::EOVERFLOW));
    assert_eq!(site.client.complaints().len(), 1);
}

#[test]
fn places_in_the_send_queue_come_back_with_reports() {
    let site = site(PretendOptions::default());
    let (mut client, server) = connected(&site);
    let work = Work::Write { remote_address: server.remote_address(0), remote_key: server.remote_key() };
    let pieces = [client.piece(0, 8)];
    let one = SendWork { id: 1, work, pieces: &pieces, signalled: false, fenced: false, inline: false };
    for _ in 0..OPTIONS.send_depth - 1 {
        client.post_as(one);
    }
    client.post_as(SendWork { signalled: true, ..one });
    // SAFETY: the memory outlives the work.
    let full = |client: &mut Side<Pretend>| errno_of(unsafe { client.endpoint.post_send(&[one]) });
    assert_eq!(full(&mut client), Some(libc::ENOMEM), "all has ended, but nobody has looked");
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    assert_eq!(full(&mut client), None);
}

#[test]
fn a_read_that_is_not_fenced_is_overtaken() {
    let mut overtaken = 0;
    for seed in 0..20 {
        let site = site(PretendOptions { seed, delivery: Delivery::Shuffled, ..PretendOptions::default() });
        let (mut client, mut server) = connected(&site);
        server.memory.write(0, &[5; 8]);
        server.receive(1, 100, 8);
        let read = Work::Read { remote_address: server.remote_address(0), remote_key: server.remote_key() };
        let piece = client.piece(0, 8);
        client.post(1, read, &[piece]);
        client.post(2, Work::Send, &[piece]);
        client.wait(2);
        server.wait_one();
        overtaken += usize::from(server.memory.read(100, 8) == [0; 8]);
    }
    assert!((1..20).contains(&overtaken), "{overtaken} of 20");
}

#[test]
fn a_run_can_be_repeated() {
    let order = |seed| {
        let site = site(PretendOptions { seed, delivery: Delivery::Shuffled, ..PretendOptions::default() });
        let mut links = [connected(&site), connected(&site), connected(&site)];
        let mut seen = Vec::new();
        for id in 0..20 {
            for (client, server) in &mut links {
                write(client, server, id);
                let mut done = Vec::new();
                client.queue.poll(&mut done, 20).expect("polling");
                seen.push(done.len());
            }
        }
        seen
    };
    for seed in 0..5 {
        assert_eq!(order(seed), order(seed));
    }
    assert!((1..5).any(|seed| order(seed) != order(0)));
}

#[test]
fn pinned_pages_are_those_that_were_there() {
    let site = site(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() });
    let (mut client, server) = connected(&site);
    client.memory.write(0, &[1; 8]);
    server.memory.write(4096, &[2; 8]);
    server.memory.replace_page(0);
    assert_eq!(server.memory.read(0, 8), [0; 8]);
    write(&mut client, &server, 1);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    assert_eq!(server.memory.read(0, 8), [0; 8], "the new page is not registered");
    let piece = client.piece(100, 8);
    let (remote_address, remote_key) = (server.remote_address(0), server.remote_key());
    client.post(2, Work::Read { remote_address, remote_key }, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    assert_eq!(client.memory.read(100, 8), [1; 8], "the old page is");
    assert_eq!(server.memory.read(4096, 8), [2; 8]);
}

#[test]
fn rails_lead_to_the_nearest_adapter() {
    let near = |last: [u8; 4]| IpAddr::V4(Ipv4Addr::from(last));
    let fabric = Pretend::new(PretendOptions {
        adapters: vec![Adapter::new("one", near([10, 0, 1, 1])), Adapter::new("two", near([10, 0, 2, 1]))],
        ..PretendOptions::default()
    });
    let _far = fabric.another_host(vec![
        Adapter::new("three", near([10, 0, 1, 2])),
        Adapter::new("four", near([10, 0, 2, 2])),
    ]);
    let way = |last| {
        let resolved = fabric.resolve((near(last), 1).into(), TrafficClass::default(), Duration::ZERO);
        resolved.map(|endpoint| endpoint.device().name().to_string())
    };
    assert_eq!(way([10, 0, 1, 2]).expect("a way"), "one");
    assert_eq!(way([10, 0, 2, 2]).expect("a way"), "two");
    assert_eq!(way([10, 0, 2, 1]).expect("a way"), "two");
    assert_eq!(errno_of(way([10, 0, 3, 1])), Some(libc::EHOSTUNREACH));
    assert_eq!(fabric.device_names().expect("names"), ["one", "two"]);
}
