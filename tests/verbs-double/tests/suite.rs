//! What every fabric must do, by the pretended one in each of its modes; and what only a pretended one can do.

#[macro_use]
#[path = "../../../crates/verbs/tests/suite/mod.rs"]
mod suite;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use suite::{End, Hosts, Memory, QUIET, TIMEOUT, is_readable, options, signalled, silent};
use weft_verbs::{
    Access, CompletionQueue, Device, DeviceEvent, Endpoint, EndpointState, Fabric, Receives, Registration,
    TrafficClass, VerbsError, Work, WorkStatus,
};
use weft_verbs_double::{
    Adapter, Costs, Delivery, Faults, NotReady, Pinning, Pretend, PretendDevice, PretendOptions, When,
};

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Two hosts of a network.
fn hosts(options: PretendOptions) -> Hosts<Pretend> {
    let client = Pretend::new(options);
    let server = client.another_host(vec![Adapter::new("pretend1", FAR)]);
    Hosts { server, client, ip: FAR, exact_windows: true }
}

fn shuffled(seed: u64) -> PretendOptions {
    PretendOptions { seed, delivery: Delivery::Shuffled, ..PretendOptions::default() }
}

mod at_once {
    use super::*;
    conformance!([] hosts(PretendOptions::default()));
}

mod shuffled_one_way {
    use super::*;
    conformance!([] hosts(shuffled(1)));
}

mod shuffled_another_way {
    use super::*;
    conformance!([] hosts(shuffled(2)));
}

mod over_pinned_pages {
    use super::*;
    conformance!([] hosts(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() }));
}

mod over_one_adapter {
    use super::*;
    conformance!([] {
        let fabric = Pretend::new(PretendOptions::default());
        Hosts { server: fabric.clone(), client: fabric, ip: IpAddr::V4(Ipv4Addr::LOCALHOST), exact_windows: true }
    });
}

/// Two connected ends, and memory of each.
struct Ends {
    client: End<Pretend>,
    server: End<Pretend>,
    ours: Memory<Pretend>,
    theirs: Memory<Pretend>,
}

const MEMORY_BYTES: usize = 2 * 4096;

fn ends(hosts: &Hosts<Pretend>) -> Ends {
    let (client, server) = hosts.pair();
    let (ours, theirs) = (client.memory(MEMORY_BYTES), server.memory(MEMORY_BYTES));
    ours.fill(1);
    theirs.fill(2);
    Ends { client, server, ours, theirs }
}

impl Ends {
    /// How a write of the client's ends.
    fn write(&mut self) -> WorkStatus {
        self.client.run(self.theirs.write_to(0), &[self.ours.piece(0, 8)]).status
    }

    /// How a write of the server's ends.
    fn write_back(&mut self) -> WorkStatus {
        self.server.run(self.ours.write_to(0), &[self.theirs.piece(0, 8)]).status
    }
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

fn resolve(fabric: &Pretend, ip: IpAddr) -> Result<Arc<PretendDevice>, VerbsError> {
    let endpoint = fabric.resolve((ip, 1).into(), TrafficClass::default(), Duration::ZERO);
    endpoint.map(|endpoint| endpoint.device())
}

fn client_device(hosts: &Hosts<Pretend>) -> Arc<PretendDevice> {
    resolve(&hosts.client, FAR).expect("there is a way")
}

#[test]
fn registrations_are_refused_when_they_should_be() {
    let faults = Faults { refused_registrations: When::At(vec![2]), ..Faults::default() };
    let mut adapter = Adapter::default();
    adapter.limits.registrations_max = 3;
    adapter.limits.registration_bytes_max = 10_000;
    let hosts = hosts(PretendOptions {
        faults,
        adapters: vec![adapter],
        pinned_bytes_max: 12_000,
        ..PretendOptions::default()
    });
    let device = client_device(&hosts);
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
    let counts = hosts.client.counts();
    assert_eq!((counts.registrations, counts.registrations_refused, counts.deregistrations), (4, 4, 4));
}

#[test]
fn costs_are_charged_and_not_waited_for() {
    let costs = Costs { registration_ns: 1_000_000_000_000, ..Costs::default() };
    let hosts = hosts(PretendOptions { costs, ..PretendOptions::default() });
    let device = client_device(&hosts);
    let memory = vec![0u8; 3 * 4096];
    let aligned = memory.as_ptr().align_offset(4096);
    drop(register(&device, &memory[aligned..aligned + 4097]).expect("two pages"));
    let charged = device.charged();
    assert_eq!(charged.registration_ns, costs.registration_ns + 2 * costs.registration_page_ns);
    assert_eq!(charged.deregistration_ns, costs.deregistration_ns + 2 * costs.deregistration_page_ns);

    let Ends { mut client, server: _server, ours, theirs } = ends(&hosts);
    let before = device.charged();
    client.post(&[signalled(1, theirs.write_to(0), &[ours.piece(0, 1000), ours.piece(5000, 1048)])]);
    let since = device.charged().since(&before);
    assert_eq!(since.posting_ns, costs.doorbell_ns + costs.work_ns + 2 * costs.piece_ns);
    assert_eq!(since.moving_ns, 2 * costs.kilobyte_ns);
    client.queue.poll(&mut Vec::new(), 4).expect("polling");
    assert_eq!(device.charged().since(&before).completion_ns, costs.poll_ns + costs.completion_ns);
    assert_eq!(hosts.client.charged("pretend0"), device.charged());
}

#[test]
fn work_fails_where_it_is_told_to() {
    let hosts = hosts(PretendOptions::default());
    let mut ends = ends(&hosts);
    let begun = hosts.client.counted().1;
    let failed_work = Some((When::At(vec![begun + 2]), WorkStatus::Other(21)));
    hosts.client.set_faults(Faults { failed_work, ..Faults::default() });
    let statuses = [ends.write(), ends.write(), ends.write()];
    assert_eq!(statuses, [WorkStatus::Ok, WorkStatus::Other(21), WorkStatus::Flushed]);
}

#[test]
fn connections_break_where_they_are_told_to() {
    let hosts = hosts(PretendOptions::default());
    let mut ends = ends(&hosts);
    let begun = hosts.client.counted().1;
    let broken_connections = When::At(vec![begun + 2]);
    hosts.client.set_faults(Faults { broken_connections, ..Faults::default() });
    assert_eq!([ends.write(), ends.write()], [WorkStatus::Ok, WorkStatus::RetriesExceeded]);
    assert_eq!(ends.server.endpoint.state(), EndpointState::Connected);
    assert_eq!(ends.write_back(), WorkStatus::RetriesExceeded);
    drop(ends.client);
    ends.server.wait_ended();
}

#[test]
fn a_message_waits_for_a_receive() {
    let hosts = hosts(PretendOptions::default());
    let Ends { mut client, mut server, ours, theirs } = ends(&hosts);
    client.post(&[signalled(1, Work::Send, &[ours.piece(0, 8)])]);
    assert_eq!(client.next_done_within(QUIET), None);
    assert_eq!(hosts.client.counts().receiver_not_ready, 1);
    server.receive(2, theirs.piece(0, 8));
    assert_eq!(client.next_done().status, WorkStatus::Ok);
    assert_eq!(server.next_done().status, WorkStatus::Ok);
    assert_eq!(hosts.client.counts().receiver_not_ready, 1);
}

#[test]
fn a_message_without_a_receive_fails_if_it_is_not_to_wait() {
    let hosts = hosts(PretendOptions { not_ready: NotReady::Fail, ..PretendOptions::default() });
    let Ends { mut client, server: _server, ours, .. } = ends(&hosts);
    assert_eq!(client.run(Work::Send, &[ours.piece(0, 8)]).status, WorkStatus::ReceiverNotReady);
    assert_eq!(hosts.client.counts().receiver_not_ready, 1);
    assert_eq!(hosts.server.counts().receiver_not_ready, 0);
}

#[test]
fn a_message_longer_than_its_receive_ends_both_sides() {
    let hosts = hosts(PretendOptions::default());
    let Ends { mut client, mut server, ours, theirs } = ends(&hosts);
    server.receive(1, theirs.piece(0, 8));
    let (length, request) = (WorkStatus::Other(1), WorkStatus::Other(9));
    assert_eq!(client.run(Work::Send, &[ours.piece(0, 9)]).status, request);
    assert_eq!(server.next_done().status, length);
    server.receive(2, theirs.piece(0, 8));
    assert_eq!(server.next_done().status, WorkStatus::Flushed);
}

#[test]
fn an_adapter_is_removed() {
    let hosts = hosts(PretendOptions::default());
    let mut ends = ends(&hosts);
    ends.client.receive(1, ends.ours.piece(0, 64));
    hosts.client.remove_adapter("pretend0");
    let client = &mut ends.client;
    assert!(is_readable(client.device.event_fd(), Duration::ZERO));
    assert!(matches!(client.device.events()[..], [DeviceEvent::Fatal(_)]));
    assert!(!is_readable(client.device.event_fd(), Duration::ZERO));
    client.wait_ended();
    assert_eq!(client.next_done().status, WorkStatus::Flushed);
    assert_eq!(errno_of(client.queue.poll(&mut Vec::new(), 1)), Some(libc::ENODEV));
    assert_eq!(errno_of(register(&client.device, &[0; 10])), Some(libc::ENODEV));
    assert_eq!(errno_of(resolve(&hosts.client, FAR)), Some(libc::ENODEV));
    assert_eq!(hosts.client.device_names().expect("names"), Vec::<String>::new());
    assert_eq!(ends.write_back(), WorkStatus::RetriesExceeded);
}

#[test]
fn a_port_goes_down_and_comes_up() {
    let hosts = hosts(PretendOptions::default());
    let mut ends = ends(&hosts);
    hosts.server.set_port("pretend1", false);
    assert_eq!(ends.server.device.events(), [DeviceEvent::PortDown(1)]);
    assert_eq!(ends.write(), WorkStatus::RetriesExceeded);
    assert_eq!(errno_of(resolve(&hosts.client, FAR)), Some(libc::EHOSTUNREACH));
    hosts.server.set_port("pretend1", true);
    assert_eq!(ends.server.device.events(), [DeviceEvent::PortUp(1)]);
    assert!(resolve(&hosts.client, FAR).is_ok());
}

/// A connection whose client has room for so many ends of work.
fn with_room(hosts: &Hosts<Pretend>, depth: u32) -> (End<Pretend>, End<Pretend>) {
    let door = hosts.listen_with(hosts.listen());
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut end = End::<Pretend>::new(door.next());
            end.endpoint.accept(b"").expect("the request is taken");
            end
        });
        let mut endpoint = hosts.resolve(door.address);
        let device = endpoint.device();
        let queue = device.completion_queue(depth).expect("a small queue");
        endpoint.create_queue_pair(&options(&*device), &queue, Receives::Own(1)).expect("a queue pair");
        endpoint.connect(b"", TIMEOUT).expect("the server takes it");
        let client = End { endpoint, queue, device, done: VecDeque::new() };
        (client, accepting.join().expect("the server's side works"))
    })
}

#[test]
fn an_overrun_completion_queue_is_useless() {
    let hosts = hosts(PretendOptions::default());
    let (mut client, server) = with_room(&hosts, 2);
    let (ours, theirs) = (client.memory(8), server.memory(8));
    let pieces = [ours.all()];
    client.post(&[signalled(1, theirs.write_to(0), &pieces); 3]);
    let mut done = Vec::new();
    client.queue.poll(&mut done, 4).expect("what had ended before");
    assert_eq!(done.len(), 2);
    assert_eq!(errno_of(client.queue.poll(&mut done, 4)), Some(libc::EOVERFLOW));
    assert_eq!(errno_of(client.queue.arm()), Some(libc::EOVERFLOW));
    assert_eq!(hosts.client.complaints().len(), 1);
}

#[test]
fn places_in_the_send_queue_come_back_with_reports() {
    let hosts = hosts(PretendOptions::default());
    let Ends { mut client, server: _server, ours, theirs } = ends(&hosts);
    let pieces = [ours.piece(0, 8)];
    let one = silent(1, theirs.write_to(0), &pieces);
    for _ in 0..options(&*client.device).send_depth - 1 {
        client.post(&[one]);
    }
    client.post(&[signalled(2, theirs.write_to(0), &pieces)]);
    // SAFETY: the memory outlives the work.
    let post = |client: &mut End<Pretend>| errno_of(unsafe { client.endpoint.post_send(&[one]) });
    assert_eq!(post(&mut client), Some(libc::ENOMEM), "all has ended, but nobody has looked");
    assert_eq!(client.next_done().status, WorkStatus::Ok);
    assert_eq!(post(&mut client), None);
}

#[test]
fn a_read_that_is_not_fenced_is_overtaken() {
    let mut overtaken = 0;
    for seed in weft_test_random::seeds().take(20) {
        let Ends { mut client, mut server, ours, theirs } = ends(&hosts(shuffled(seed)));
        let before = ours.bytes();
        server.receive(1, theirs.piece(4096, 8));
        let pieces = [ours.piece(0, 8)];
        client.post(&[signalled(1, theirs.read_from(0), &pieces), signalled(2, Work::Send, &pieces)]);
        // Looking is what lets it happen here; sleeping would have everything done, in no order either.
        let (mut done, mut received) = (Vec::new(), Vec::new());
        while done.len() < 2 || received.is_empty() {
            client.queue.poll(&mut done, 2).expect("polling");
            server.queue.poll(&mut received, 1).expect("polling");
        }
        overtaken += usize::from(theirs.bytes()[4096..4104] == before[..8]);
    }
    assert!((1..20).contains(&overtaken), "{overtaken} of 20");
}

#[test]
fn a_run_can_be_repeated() {
    let run = |seed| {
        let hosts = hosts(shuffled(seed));
        let mut links = [ends(&hosts), ends(&hosts), ends(&hosts)];
        let mut seen = Vec::new();
        for _ in 0..20 {
            for Ends { client, ours, theirs, .. } in &mut links {
                client.post(&[signalled(1, theirs.write_to(0), &[ours.piece(0, 8)])]);
                let mut done = Vec::new();
                client.queue.poll(&mut done, 20).expect("polling");
                seen.push(done.len());
            }
        }
        seen
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
    assert!((1..5).any(|seed| run(seed) != run(0)));
}

/// Unmaps a page and maps another in its place.
fn replace_page(memory: &Memory<Pretend>) {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let page = memory.address() as *mut libc::c_void;
    // SAFETY: the page is the test's own, and looked at only through copies.
    let mapped = unsafe { libc::mmap(page, 4096, rights, flags | libc::MAP_FIXED, -1, 0) };
    assert_eq!(mapped, page);
}

#[test]
fn pinned_pages_are_those_that_were_there() {
    let hosts = hosts(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() });
    let mut ends = ends(&hosts);
    let (written, kept) = (ends.ours.bytes(), ends.theirs.bytes());
    replace_page(&ends.theirs);
    assert_eq!(ends.write(), WorkStatus::Ok);
    assert_eq!(ends.theirs.bytes()[..4096], [0; 4096], "the new page is not registered");
    assert_eq!(ends.theirs.bytes()[4096..], kept[4096..]);
    ends.client.run_well(ends.theirs.read_from(0), &[ends.ours.piece(4096, 4096)]);
    assert_eq!(ends.ours.bytes()[4096..4104], written[..8], "the old page is, and was written");
    assert_eq!(ends.ours.bytes()[4104..], kept[8..4096]);
}

#[test]
fn the_nearest_adapter_is_used() {
    let address = |bytes: [u8; 4]| IpAddr::V4(Ipv4Addr::from(bytes));
    let fabric = Pretend::new(PretendOptions {
        adapters: vec![
            Adapter::new("one", address([10, 0, 1, 1])),
            Adapter::new("two", address([10, 0, 2, 1])),
        ],
        ..PretendOptions::default()
    });
    let _far = fabric.another_host(vec![
        Adapter::new("three", address([10, 0, 1, 2])),
        Adapter::new("four", address([10, 0, 2, 2])),
    ]);
    let way = |bytes| resolve(&fabric, address(bytes)).map(|device| device.name().to_string());
    assert_eq!(way([10, 0, 1, 2]).expect("a way"), "one");
    assert_eq!(way([10, 0, 2, 2]).expect("a way"), "two");
    assert_eq!(way([10, 0, 2, 1]).expect("a way"), "two");
    assert_eq!(errno_of(way([10, 0, 3, 1])), Some(libc::EHOSTUNREACH));
    assert_eq!(fabric.device_names().expect("names"), ["one", "two"]);
}

#[test]
fn a_forked_child_ends_nothing_of_its_parents() {
    let hosts = hosts(PretendOptions { pinning: Pinning::Pinned, ..PretendOptions::default() });
    let mut both = Some(ends(&hosts));
    // SAFETY: the child only runs what is here, and ends without cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let uses = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let device = both.take().map(|ends| ends.client.device.clone());
            let made =
                device.is_some_and(|device| device.window().is_ok() || register(&device, &[0; 8]).is_ok());
            made || resolve(&hosts.client, FAR).is_ok()
        }));
        // SAFETY: nothing is passed but a number.
        unsafe { libc::_exit(i32::from(uses.unwrap_or(true))) };
    }
    let mut status = -1;
    // SAFETY: there is room for the status of a child of our own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child can use nothing");
    let mut ends = both.take().expect("only the child has dropped it");
    assert_eq!((ends.write(), ends.write_back()), (WorkStatus::Ok, WorkStatus::Ok));
}
