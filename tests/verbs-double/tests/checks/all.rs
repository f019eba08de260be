//! The checks.

use super::link::{
    MEMORY_BYTES, OPTIONS, PATIENCE, Side, Site, connected, connected_with, next, register, wait_for,
};
use super::memory::Mapping;
use std::os::fd::RawFd;
use std::time::Duration;
use weft_verbs::{
    Access, CompletionQueue, Device, Endpoint, EndpointState, Fabric, Listener, MemoryPiece, Receives,
    Registration, SendWork, SharedReceives, TrafficClass, VerbsError, Window, Work, WorkDone, WorkKind,
    WorkStatus,
};

type Check<F> = fn(&Site<F>);

/// All checks, with their names.
pub fn checks<F: Fabric>() -> Vec<(&'static str, Check<F>)> {
    macro_rules! named {
        ($($check:ident),* $(,)?) => { vec![$((stringify!($check), $check::<F> as Check<F>)),*] };
    }
    named![
        a_connection_can_be_refused,
        nobody_listens,
        messages_arrive_in_order,
        receives_are_shared,
        writes_and_reads_move_pieces,
        many_reads_end_in_order,
        immediate_data_tells_the_peer,
        inline_work_needs_no_registration,
        a_fence_waits_for_reads,
        a_key_that_is_not_ends_both_sides,
        ranges_and_rights_are_checked,
        local_keys_are_checked,
        ended_registrations_are_useless,
        a_message_longer_than_its_receive_fails,
        a_message_waits_for_a_receive,
        unsignalled_work_is_not_reported_and_holds_its_place,
        windows_open_and_close,
        a_message_closes_a_window,
        an_armed_queue_wakes_once,
        memory_that_is_not_there_is_not_registered,
        a_goodbye_is_heard,
    ]
}

fn readable(fd: RawFd, wait: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry that lives.
    unsafe { libc::poll(&mut poll, 1, wait.as_millis() as i32) == 1 }
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn ids(done: &[WorkDone]) -> Vec<u64> {
    done.iter().map(|done| done.id).collect()
}

fn assert_ok(done: &[WorkDone]) {
    assert!(done.iter().all(|done| done.status == WorkStatus::Ok), "{done:?}");
}

fn a_connection_can_be_refused<F: Fabric>(site: &Site<F>) {
    let mut listener = site.server.listen(site.address, 8).expect("listening");
    let address = listener.address();
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let mut endpoint =
                site.client.resolve(address, TrafficClass::default(), PATIENCE).expect("resolving");
            let queue = endpoint.device().completion_queue(16).expect("a completion queue");
            endpoint.create_queue_pair(&OPTIONS, &queue, Receives::Own(4)).expect("a queue pair");
            endpoint.connect(b"please", PATIENCE)
        });
        let endpoint = next::<F>(&mut listener);
        assert!(endpoint.private_data().starts_with(b"please"));
        endpoint.reject(b"no");
        match asking.join().expect("the side that asks") {
            Err(VerbsError::Rejected { private_data, .. }) => assert!(private_data.starts_with(b"no")),
            other => panic!("{other:?}"),
        }
    });
}

fn nobody_listens<F: Fabric>(site: &Site<F>) {
    let address = site.server.listen(site.address, 8).expect("listening").address();
    let mut endpoint = site.client.resolve(address, TrafficClass::default(), PATIENCE).expect("resolving");
    let queue = endpoint.device().completion_queue(16).expect("a completion queue");
    endpoint.create_queue_pair(&OPTIONS, &queue, Receives::Own(4)).expect("a queue pair");
    let refused = endpoint.connect(b"", PATIENCE);
    assert!(matches!(refused, Err(VerbsError::Connect { .. } | VerbsError::Rejected { .. })), "{refused:?}");
}

fn messages_arrive_in_order<F: Fabric>(site: &Site<F>) {
    const MESSAGES: u64 = 20;
    let (mut client, mut server) = connected(site);
    for id in 0..MESSAGES {
        server.receive(100 + id, id as usize * 64, 64);
    }
    client.memory.write(0, &pattern(1, 4096));
    for id in 0..MESSAGES {
        let (first, second) = (client.piece(id as usize, 10), client.piece(1000 + id as usize, 5));
        client.post(id, Work::Send, &[first, second]);
    }
    let sent = client.wait(MESSAGES as usize);
    assert_ok(&sent);
    assert_eq!(ids(&sent), (0..MESSAGES).collect::<Vec<_>>());
    assert!(sent.iter().all(|done| done.queue_pair == client.endpoint.queue_pair()));
    let received = server.wait(MESSAGES as usize);
    assert_ok(&received);
    assert_eq!(ids(&received), (100..100 + MESSAGES).collect::<Vec<_>>());
    let sent_bytes = pattern(1, 4096);
    for id in 0..MESSAGES as usize {
        assert_eq!((received[id].kind, received[id].bytes), (WorkKind::Received, 15));
        let expected = [&sent_bytes[id..id + 10], &sent_bytes[1000 + id..1005 + id]].concat();
        assert_eq!(server.memory.read(id * 64, 15), expected);
    }
}

fn receives_are_shared<F: Fabric>(site: &Site<F>) {
    let probe = site
        .server
        .listen(site.address, 1)
        .and_then(|listener| site.server.resolve(listener.address(), TrafficClass::default(), PATIENCE));
    let device = probe.expect("resolving its own address").device();
    if device.limits().shared_receives_max == 0 {
        return;
    }
    let shared = device.shared_receives(16).expect("a shared queue");
    let mut links = [connected_with(site, |_| Some(&shared)), connected_with(site, |_| Some(&shared))];
    let first = &links[0].1;
    let buffers = [first.piece(0, 64), first.piece(64, 64), first.piece(128, 64)];
    let receives: Vec<(u64, MemoryPiece)> = (7..).zip(buffers).collect();
    // SAFETY: the memory lives until the messages have come.
    unsafe { shared.post(&receives) }.expect("posting receives");
    let mut arrived = Vec::new();
    for (link, text) in [(0, b"first."), (1, b"second"), (0, b"third.")] {
        let (client, server) = &mut links[link];
        client.memory.write(0, text);
        let piece = client.piece(0, 6);
        client.post(1, Work::Send, &[piece]);
        assert_eq!(client.wait_one().status, WorkStatus::Ok);
        let received = server.wait_one();
        assert_eq!((received.status, received.bytes), (WorkStatus::Ok, 6));
        assert_eq!(received.queue_pair, server.endpoint.queue_pair());
        arrived.push((received.id as usize - 7, text));
    }
    for (index, text) in arrived {
        assert_eq!(links[0].1.memory.read(index * 64, 6), text);
    }
    drop(links);
}

fn writes_and_reads_move_pieces<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    client.memory.write(0, &pattern(3, 100_000));
    let (remote_address, remote_key) = (server.remote_address(5), server.remote_key());
    let pieces = [client.piece(10, 50_000), client.piece(70_000, 3), client.piece(60_000, 1000)];
    client.post(1, Work::Write { remote_address, remote_key }, &pieces);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    let sent = pattern(3, 100_000);
    let expected = [&sent[10..50_010], &sent[70_000..70_003], &sent[60_000..61_000]].concat();
    assert_eq!(server.memory.read(5, expected.len()), expected);
    assert_eq!(server.memory.read(5 + expected.len(), 10), [0; 10]);

    let into = [client.piece(150_000, 100), client.piece(200_000, 50_903)];
    let into = &into[..into.len().min(client.device.limits().read_pieces_max)];
    let bytes: usize = into.iter().map(|piece| piece.bytes as usize).sum();
    client.post(2, Work::Read { remote_address, remote_key }, into);
    let read = client.wait_one();
    assert_eq!((read.id, read.status, read.bytes as usize), (2, WorkStatus::Ok, bytes));
    assert_eq!(client.memory.read(150_000, 100), expected[..100]);
    if into.len() == 2 {
        assert_eq!(client.memory.read(200_000, 50_903), expected[100..]);
    }
    server.assert_quiet();
}

fn many_reads_end_in_order<F: Fabric>(site: &Site<F>) {
    const READS: usize = 40;
    let (mut client, server) = connected(site);
    server.memory.write(0, &pattern(9, READS * 100));
    let remote_key = server.remote_key();
    for index in 0..READS {
        let piece = client.piece(index * 100, 100);
        let remote_address = server.remote_address(index * 100);
        client.post(index as u64, Work::Read { remote_address, remote_key }, &[piece]);
    }
    let done = client.wait(READS);
    assert_ok(&done);
    assert_eq!(ids(&done), (0..READS as u64).collect::<Vec<_>>());
    assert_eq!(client.memory.read(0, READS * 100), pattern(9, READS * 100));
}

fn immediate_data_tells_the_peer<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    server.receive(4, 0, 16);
    client.memory.write(0, b"put where I want");
    let piece = client.piece(0, 16);
    let work = Work::WriteImmediate {
        remote_address: server.remote_address(9000),
        remote_key: server.remote_key(),
        immediate: 0x0102_0304,
    };
    client.post(1, work, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    let told = server.wait_one();
    assert_eq!((told.id, told.status), (4, WorkStatus::Ok));
    assert_eq!((told.kind, told.bytes), (WorkKind::ReceivedImmediate(0x0102_0304), 16));
    assert_eq!(server.memory.read(9000, 16), b"put where I want");
    assert_eq!(server.memory.read(0, 16), [0; 16]);
}

fn inline_work_needs_no_registration<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    assert!(client.endpoint.inline_bytes() <= OPTIONS.inline_bytes);
    if client.endpoint.inline_bytes() < 9 {
        return;
    }
    server.receive(1, 0, 64);
    let mut text = *b"on a leaf";
    let piece = MemoryPiece { address: text.as_ptr() as u64, bytes: 9, local_key: 0 };
    let work = Work::Send;
    client.post_as(SendWork { id: 1, work, pieces: &[piece], signalled: true, fenced: false, inline: true });
    text.fill(0);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    assert_eq!(server.wait_one().bytes, 9);
    assert_eq!(server.memory.read(0, 9), b"on a leaf");
    assert_eq!(text, [0; 9]);
}

fn a_fence_waits_for_reads<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    for round in 0..20u8 {
        server.memory.write(0, &pattern(round, 20_000));
        server.receive(1, 100_000, 20_000);
        let piece = client.piece(0, 20_000);
        let read = Work::Read { remote_address: server.remote_address(0), remote_key: server.remote_key() };
        let pieces = [piece];
        let work =
            |id, work, fenced| SendWork { id, work, pieces: &pieces, signalled: true, fenced, inline: false };
        let chain = [work(1, read, false), work(2, Work::Send, true)];
        // SAFETY: the memory lives until the work has ended.
        unsafe { client.endpoint.post_send(&chain) }.expect("posting");
        assert_ok(&client.wait(2));
        assert_eq!(server.wait_one().status, WorkStatus::Ok);
        assert_eq!(server.memory.read(100_000, 20_000), pattern(round, 20_000));
    }
}

fn a_key_that_is_not_ends_both_sides<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    server.receive(1, 0, 64);
    client.receive(2, 0, 64);
    let remote_address = server.remote_address(0);
    let remote_key = server.remote_key() ^ 0x10;
    let piece = client.piece(0, 8);
    client.post(3, Work::Write { remote_address, remote_key }, &[piece]);
    let failed = client.wait(2);
    assert_eq!((failed[0].id, failed[0].status), (3, WorkStatus::RemoteAccess));
    assert_eq!((failed[1].id, failed[1].status), (2, WorkStatus::Flushed));
    let flushed = server.wait_one();
    assert_eq!((flushed.id, flushed.status), (1, WorkStatus::Flushed));
    let piece = client.piece(0, 8);
    client.post(4, Work::Send, &[piece]);
    let flushed = client.wait_one();
    assert_eq!((flushed.id, flushed.status), (4, WorkStatus::Flushed));
    assert_eq!(server.memory.read(0, 8), [0; 8]);
}

fn ranges_and_rights_are_checked<F: Fabric>(site: &Site<F>) {
    type Try = (Access, u64, bool);
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let tries: [Try; 5] = [
        (all, MEMORY_BYTES as u64 - 7, false),
        (all, u64::MAX, false),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, 0, true),
        (Access::LOCAL_WRITE | Access::REMOTE_READ, 0, false),
        (Access::LOCAL_READ | Access::REMOTE_READ, 0, false),
    ];
    for (access, offset, is_read) in tries {
        let (mut client, mut server) = connected(site);
        server.registration = None;
        server.registration = Some(register::<F>(&server.device, &server.memory, access));
        let remote_address = server.remote_address(0).wrapping_add(offset);
        let remote_key = server.remote_key();
        let piece = client.piece(0, 8);
        let work = match is_read {
            true => Work::Read { remote_address, remote_key },
            false => Work::Write { remote_address, remote_key },
        };
        client.memory.write(0, &[7; 8]);
        client.post(1, work, &[piece]);
        assert_eq!(client.wait_one().status, WorkStatus::RemoteAccess, "{access:?} {offset}");
        assert_eq!(server.memory.read(0, 8), [0; 8]);
        assert_eq!(server.memory.read(MEMORY_BYTES - 8, 8), [0; 8]);
    }
}

fn local_keys_are_checked<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    server.receive(1, 0, 64);
    let mistaken = MemoryPiece { local_key: client.piece(0, 8).local_key ^ 0x10, ..client.piece(0, 8) };
    client.post(1, Work::Send, &[mistaken]);
    assert_eq!(client.wait_one().status, WorkStatus::LocalProtection);

    let (mut client, server) = connected(site);
    let beyond = client.piece(MEMORY_BYTES - 4, 8);
    let work = Work::Write { remote_address: server.remote_address(0), remote_key: server.remote_key() };
    client.post(1, work, &[beyond]);
    assert_eq!(client.wait_one().status, WorkStatus::LocalProtection);
}

fn ended_registrations_are_useless<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    let before = server.device.counters().counts();
    let work = Work::Write { remote_address: server.remote_address(0), remote_key: server.remote_key() };
    server.registration = None;
    assert_eq!(server.device.counters().counts().since(&before).deregistrations, 1);
    let piece = client.piece(0, 8);
    client.post(1, work, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::RemoteAccess);
}

fn a_message_longer_than_its_receive_fails<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    server.receive(1, 0, 8);
    let piece = client.piece(0, 9);
    client.post(1, Work::Send, &[piece]);
    assert!(matches!(client.wait_one().status, WorkStatus::Other(_) | WorkStatus::RemoteAccess));
    assert_ne!(server.wait_one().status, WorkStatus::Ok);
}

fn a_message_waits_for_a_receive<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    let piece = client.piece(0, 8);
    client.post(1, Work::Send, &[piece]);
    client.assert_quiet();
    server.receive(1, 0, 8);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    assert_eq!(server.wait_one().status, WorkStatus::Ok);
}

fn unsignalled_work_is_not_reported_and_holds_its_place<F: Fabric>(site: &Site<F>) {
    let (mut client, server) = connected(site);
    let remote_key = server.remote_key();
    let work = Work::Write { remote_address: server.remote_address(0), remote_key };
    let piece = client.piece(0, 8);
    let one = SendWork { id: 1, work, pieces: &[piece], signalled: false, fenced: false, inline: false };
    client.post_as(one);
    client.assert_quiet();
    client.post_as(SendWork { signalled: true, ..one });
    assert_eq!(client.wait_one().status, WorkStatus::Ok);

    let (mut client, server) = connected(site);
    let work = Work::Write { remote_address: server.remote_address(0), remote_key: server.remote_key() };
    let piece = client.piece(0, 8);
    let one = SendWork { id: 1, work, pieces: &[piece], signalled: true, fenced: false, inline: false };
    let chain = [one; 32];
    let mut posted = 0;
    let most = 100 * OPTIONS.send_depth as usize;
    loop {
        // SAFETY: the memory lives until the work has ended.
        match unsafe { client.endpoint.post_send(&chain) } {
            Ok(()) => posted += chain.len(),
            Err(VerbsError::Post { posted: some, .. }) => {
                posted += some;
                break;
            }
            Err(other) => panic!("{other}"),
        }
        assert!(posted < most, "a send queue that is never full");
    }
    assert!(posted >= OPTIONS.send_depth as usize);
    assert_ok(&client.wait(posted));
    client.post(2, work, &[piece]);
    assert_eq!(client.wait_one().id, 2);
}

/// Binds a window to a part of a side's memory.
fn bind<F: Fabric>(side: &mut Side<F>, window_key: u32, offset: usize, bytes: u64, access: Access) {
    let local_key = side.piece(0, 1).local_key;
    let address = side.remote_address(offset);
    side.post(90, Work::Bind { window_key, local_key, address, bytes, access }, &[]);
    assert_eq!(side.wait_one().status, WorkStatus::Ok, "binding");
}

fn windows_open_and_close<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    if !server.device.limits().windows {
        return;
    }
    let mut window = server.device.window().expect("a window");
    for round in 0..3u8 {
        let key = window.next_key();
        bind(&mut server, key, 4096, 100, Access::REMOTE_WRITE);
        client.memory.write(0, &[round + 1; 100]);
        let piece = client.piece(0, 100);
        let remote_address = server.remote_address(4096);
        client.post(1, Work::Write { remote_address, remote_key: key }, &[piece]);
        assert_eq!(client.wait_one().status, WorkStatus::Ok);
        assert_eq!(server.memory.read(4096, 101)[..100], [round + 1; 100]);
        server.post(2, Work::Invalidate { key }, &[]);
        assert_eq!(server.wait_one().status, WorkStatus::Ok);
    }
    let key = window.next_key();
    bind(&mut server, key, 4096, 100, Access::REMOTE_WRITE);
    let piece = client.piece(0, 101);
    let remote_address = server.remote_address(4096);
    client.post(3, Work::Write { remote_address, remote_key: key }, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::RemoteAccess);

    for (closed, is_read) in [(true, false), (false, true)] {
        let (mut client, mut server) = connected(site);
        let mut window = server.device.window().expect("a window");
        let remote_key = window.next_key();
        bind(&mut server, remote_key, 0, 100, Access::REMOTE_WRITE);
        if closed {
            server.post(2, Work::Invalidate { key: remote_key }, &[]);
            assert_eq!(server.wait_one().status, WorkStatus::Ok);
        }
        let remote_address = server.remote_address(0);
        let piece = client.piece(0, 8);
        let work = match is_read {
            true => Work::Read { remote_address, remote_key },
            false => Work::Write { remote_address, remote_key },
        };
        client.post(3, work, &[piece]);
        assert_eq!(client.wait_one().status, WorkStatus::RemoteAccess);
        drop((client, server.endpoint, window));
    }
    drop((client, server.endpoint, window));
}

fn a_message_closes_a_window<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    if !server.device.limits().windows {
        return;
    }
    let mut window = server.device.window().expect("a window");
    let key = window.next_key();
    bind(&mut server, key, 0, 100, Access::REMOTE_WRITE | Access::REMOTE_READ);
    server.receive(5, 1000, 64);
    let piece = client.piece(0, 8);
    client.post(1, Work::SendInvalidate { remote_key: key }, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::Ok);
    let told = server.wait_one();
    assert_eq!((told.id, told.kind, told.bytes), (5, WorkKind::ReceivedInvalidate(key), 8));
    let remote_address = server.remote_address(0);
    client.post(2, Work::Write { remote_address, remote_key: key }, &[piece]);
    assert_eq!(client.wait_one().status, WorkStatus::RemoteAccess);
    drop((client, server.endpoint, window));
}

fn an_armed_queue_wakes_once<F: Fabric>(site: &Site<F>) {
    const SHORT: Duration = Duration::from_millis(50);
    let (mut client, mut server) = connected(site);
    for id in 0..4 {
        server.receive(id, 0, 64);
    }
    let piece = client.piece(0, 8);
    let fd = server.queue.fd();
    client.post(1, Work::Send, &[piece]);
    assert_eq!(server.wait_one().status, WorkStatus::Ok);
    assert!(!readable(fd, SHORT), "it was not armed");
    server.queue.arm().expect("arming");
    assert!(!readable(fd, SHORT), "nothing has ended since");
    client.post(2, Work::Send, &[piece]);
    assert!(readable(fd, PATIENCE));
    client.post(3, Work::Send, &[piece]);
    assert_eq!(server.wait(2).len(), 2);
    assert_eq!(server.queue.take_wakeups().expect("waking"), 1);
    assert!(!readable(fd, SHORT), "it was armed once");
    client.post(4, Work::Send, &[piece]);
    assert_eq!(server.wait_one().status, WorkStatus::Ok);
    assert!(!readable(fd, SHORT), "it was not armed again");
    assert_ok(&wait_for(&mut client.queue, 4));
}

fn memory_that_is_not_there_is_not_registered<F: Fabric>(site: &Site<F>) {
    let (client, _server) = connected(site);
    let holed = Mapping::new(3 * 4096);
    holed.unmap_page(4096);
    let before = client.device.counters().counts();
    let refused = |address: usize, bytes: usize, access: Access| {
        // SAFETY: nothing uses the registration.
        match unsafe { client.device.register(address, bytes, access) } {
            Err(VerbsError::Register { source, .. }) => source.raw_os_error(),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("memory with a hole was registered"),
        }
    };
    let whole = refused(holed.address(), 3 * 4096, Access::LOCAL_WRITE);
    assert_eq!(whole, Some(libc::EFAULT));
    assert_eq!(refused(holed.address() + 4000, 97, Access::LOCAL_READ), Some(libc::EFAULT));
    let read_only = Mapping::new(4096);
    read_only.make_read_only();
    assert_eq!(refused(read_only.address(), 4096, Access::LOCAL_WRITE), Some(libc::EFAULT));
    let since = client.device.counters().counts().since(&before);
    assert_eq!((since.registrations, since.registrations_refused), (0, 3));
    // SAFETY: nothing uses the registration.
    let page = unsafe { client.device.register(holed.address() + 100, 3996, Access::LOCAL_WRITE) };
    assert_ne!(page.expect("registering the page before the hole").local_key(), 0);
    let since = client.device.counters().counts().since(&before);
    assert_eq!((since.registrations, since.registered_pages, since.deregistrations), (1, 1, 1));
}

fn a_goodbye_is_heard<F: Fabric>(site: &Site<F>) {
    let (mut client, mut server) = connected(site);
    client.receive(1, 0, 64);
    server.receive(2, 0, 64);
    client.endpoint.disconnect();
    assert_eq!(client.wait_one().status, WorkStatus::Flushed);
    assert!(readable(server.endpoint.event_fd(), PATIENCE));
    server.wait_state(|state| matches!(state, EndpointState::Ended(_)));
    let flushed = server.wait_one();
    assert_eq!((flushed.id, flushed.status), (2, WorkStatus::Flushed));

    let (client, mut server) = connected(site);
    drop(client);
    server.wait_state(|state| matches!(state, EndpointState::Ended(_)));
}
