//! Protection, ends and what is left behind.

use super::ends::*;
use weft_verbs::{
    Access, Device, Endpoint, EndpointState, Fabric, MemoryPiece, Registration, SendWork, VerbsError, Window,
    Work, WorkKind, WorkStatus,
};

/// The work is refused by the peer's adapter, and its queue pair is over: what follows is flushed.
#[track_caller]
fn refused<F: Fabric>(end: &mut End<F>, work: Work, piece: MemoryPiece) {
    let done = end.run(work, &[piece]);
    assert_eq!(done.status, WorkStatus::RemoteAccess, "{work:?}");
    let after = end.run(Work::Send, &[piece]);
    assert_eq!(after.status, WorkStatus::Flushed);
}

/// Keys that do not exist and ranges beyond a registration are refused, and nobody else notices.
pub fn wrong_keys_end_only_their_connection<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    let (mut client, mut server) = hosts.pair_with(&door);
    let theirs = server.memory(4096);
    theirs.fill(1);
    let before = theirs.bytes();
    let at = |remote_address, remote_key| Work::Write { remote_address, remote_key };
    let wrong = [
        at(theirs.address(), theirs.remote_key() ^ 0x55),
        at(theirs.address(), 0x7654_3210),
        at(theirs.address() + 4000, theirs.remote_key()),
        at(theirs.address() - 1, theirs.remote_key()),
        at(u64::MAX - 50, theirs.remote_key()),
        theirs.read_from(4000),
    ];
    for work in wrong {
        let (mut hostile, _served) = hosts.pair_with(&door);
        let memory = hostile.memory(100);
        refused(&mut hostile, work, memory.all());
    }
    assert_eq!(theirs.bytes(), before);
    exchange(&mut client, &mut server, 1);
}

/// A registration gives the rights that it was made with, and no others.
pub fn memory_is_protected_as_it_was_registered<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    let written = [Access::LOCAL_WRITE, Access::REMOTE_WRITE];
    for (access, may_write, may_read) in [
        (&written[..], true, false),
        (&[Access::REMOTE_READ][..], false, true),
        (&[Access::LOCAL_WRITE][..], false, false),
    ] {
        let (mut writer, server) = hosts.pair_with(&door);
        let theirs = server.memory_for(4096, access);
        let ours = writer.memory(100);
        ours.fill(3);
        theirs.fill(4);
        match may_write {
            true => writer.run_well(theirs.write_to(0), &[ours.all()]),
            false => refused(&mut writer, theirs.write_to(0), ours.all()),
        }
        assert_eq!(theirs.bytes()[..100] == ours.bytes(), may_write);
        let (mut reader, _server) = hosts.pair_with(&door);
        let ours = reader.memory(100);
        match may_read {
            true => reader.run_well(theirs.read_from(0), &[ours.all()]),
            false => refused(&mut reader, theirs.read_from(0), ours.all()),
        }
        assert_eq!(theirs.bytes()[..100] == ours.bytes(), may_read);
    }
    let (_client, server) = hosts.pair_with(&door);
    let local = server.memory_for(4096, &[Access::LOCAL_WRITE]);
    assert_eq!(local.remote_key(), 0, "there is no key to tell a peer");
}

/// Pieces that are not as their local keys say are told as such.
pub fn wrong_local_keys_are_told<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    for spoil in [
        |piece: MemoryPiece| MemoryPiece { local_key: piece.local_key ^ 0x55, ..piece },
        |piece: MemoryPiece| MemoryPiece { address: piece.address + 1, ..piece },
    ] {
        let (mut client, server) = hosts.pair_with(&door);
        let (ours, theirs) = (client.memory(4096), server.memory(4096));
        let done = client.run(theirs.write_to(0), &[spoil(ours.all())]);
        // Some drivers do not tell this error from others of this side.
        assert!(matches!(done.status, WorkStatus::LocalProtection | WorkStatus::Other(_)), "{done:?}");
    }
}

/// A key is worth nothing once its registration is dropped.
pub fn a_deregistered_key_is_refused<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, server) = hosts.pair();
    let (ours, theirs) = (client.memory(100), server.memory(4096));
    let work = theirs.write_to(0);
    client.run_well(work, &[ours.all()]);
    drop(theirs);
    refused(&mut client, work, ours.all());
}

/// A window of a server's memory, bound in front of the message that tells the client of it.
struct Opened<F: Fabric> {
    _window: <F::Device as Device>::Window,
    key: u32,
    memory: Memory<F>,
}

const WINDOW_OFFSET: u64 = 1000;
const WINDOW_BYTES: u64 = 2000;

/// Opens one for both writing and reading.
fn open<F: Fabric>(client: &mut End<F>, server: &mut End<F>) -> Opened<F> {
    let memory = server.memory_for(4096, &[Access::LOCAL_WRITE, Access::WINDOW_BIND]);
    assert_eq!(memory.remote_key(), 0, "only windows lead here");
    memory.fill(9);
    let mut window = server.device.window().expect("the device has windows");
    let key = window.next_key();
    let bind = Work::Bind {
        window_key: key,
        local_key: memory.registration.local_key(),
        address: memory.address() + WINDOW_OFFSET,
        bytes: WINDOW_BYTES,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
    };
    let (told, heard) = (server.memory(8), client.memory(8));
    client.receive(1, heard.all());
    let before = server.counts();
    server.wait_connected();
    server.post(&[silent(1, bind, &[]), signalled(2, Work::Send, &[told.all()])]);
    assert_eq!(server.counts().since(&before).binds, 1);
    let done = server.next_done();
    assert_eq!((done.id, done.status), (2, WorkStatus::Ok));
    assert_eq!(client.next_done().kind, WorkKind::Received);
    Opened { _window: window, key, memory }
}

fn has_windows<F: Fabric>(end: &End<F>) -> bool {
    end.device.limits().windows
}

/// A window is open from its bind until the peer's message that closes it.
pub fn windows_open_and_close<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    if !has_windows(&server) {
        return;
    }
    let opened = open(&mut client, &mut server);
    let remote_address = opened.memory.address() + WINDOW_OFFSET;
    let ours = client.memory(WINDOW_BYTES as usize);
    ours.fill(1);
    client.run_well(Work::Write { remote_address, remote_key: opened.key }, &[ours.all()]);
    assert_eq!(opened.memory.bytes()[1000..3000], ours.bytes());
    let last = server.memory(64);
    server.receive(4, last.all());
    client.run_well(Work::SendInvalidate { remote_key: opened.key }, &[ours.piece(0, 10)]);
    let done = server.next_done();
    assert_eq!((done.id, done.kind), (4, WorkKind::ReceivedInvalidate(opened.key)));
    refused(&mut client, Work::Read { remote_address, remote_key: opened.key }, ours.all());
}

/// A window leads to its own part of a registration only.
pub fn a_window_opens_only_its_part<F: Fabric>(hosts: &Hosts<F>) {
    let exact = [(WINDOW_OFFSET - 1, 10), (WINDOW_OFFSET + WINDOW_BYTES - 9, 10)];
    let behind = [(4090, 10), (4096, 1)];
    for (offset, bytes) in if hosts.exact_windows { exact } else { behind } {
        let (mut client, mut server) = hosts.pair();
        if !has_windows(&server) {
            return;
        }
        let opened = open(&mut client, &mut server);
        let before = opened.memory.bytes();
        let ours = client.memory(bytes);
        let remote_address = opened.memory.address() + offset;
        refused(&mut client, Work::Write { remote_address, remote_key: opened.key }, ours.all());
        assert_eq!(opened.memory.bytes(), before);
    }
}

/// The owner of a window closes it, and opens it again with another key.
pub fn windows_are_closed_by_their_owner<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    if !has_windows(&server) {
        return;
    }
    let mut opened = open(&mut client, &mut server);
    let ours = client.memory(16);
    let remote_address = opened.memory.address() + WINDOW_OFFSET;
    server.run_well(Work::Invalidate { key: opened.key }, &[]);
    let key = opened._window.next_key();
    assert_ne!(key, opened.key);
    let bind = Work::Bind {
        window_key: key,
        local_key: opened.memory.registration.local_key(),
        address: opened.memory.address(),
        bytes: 4096,
        access: Access::REMOTE_READ,
    };
    server.run_well(bind, &[]);
    client.run_well(Work::Read { remote_address, remote_key: key }, &[ours.all()]);
    assert_eq!(opened.memory.bytes()[1000..1016], ours.bytes());
    refused(&mut client, Work::Read { remote_address, remote_key: opened.key }, ours.all());
}

/// Memory with a hole, or that cannot be written, is refused as a whole, with the system's reason.
pub fn memory_that_is_not_there_is_not_registered<F: Fabric>(hosts: &Hosts<F>) {
    let (client, _server) = hosts.pair();
    let mapping = Mapping::new(3 * 4096);
    mapping.take_away(4096, 4096);
    let before = client.counts();
    let register = |offset, bytes, access| {
        // SAFETY: nothing is done with it.
        unsafe { client.device.register(mapping.address() + offset, bytes, access) }
    };
    assert_eq!(refusal(register(0, 3 * 4096, Access::LOCAL_READ)), Some(libc::EFAULT));
    assert_eq!(refusal(register(4000, 200, Access::LOCAL_WRITE)), Some(libc::EFAULT));
    drop(register(0, 4096, Access::LOCAL_WRITE).expect("this page is there"));
    mapping.protect_front();
    assert_eq!(refusal(register(0, 4096, Access::LOCAL_WRITE)), Some(libc::EFAULT));
    drop(register(0, 4096, Access::LOCAL_READ).expect("it can be read"));
    let counted = client.counts().since(&before);
    assert_eq!((counted.registrations, counted.registrations_refused), (2, 3));
}

/// When a connection ends, receives and sends that wait come back as flushed, on both sides.
pub fn an_end_flushes_what_is_posted<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    server.wait_connected();
    let (ours, theirs) = (client.memory(300), server.memory(300));
    for id in 0..3 {
        client.receive(id, ours.piece(100 * id as usize, 100));
        server.receive(id, theirs.piece(100 * id as usize, 100));
    }
    client.endpoint.disconnect();
    assert!(matches!(client.endpoint.state(), EndpointState::Ended(_)));
    let cause = server.wait_ended();
    assert!(!cause.is_empty());
    for end in [&mut client, &mut server] {
        let mut ids: Vec<_> = (0..3)
            .map(|_| {
                let done = end.next_done();
                assert_eq!(done.status, WorkStatus::Flushed);
                done.id
            })
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2]);
    }
    // SAFETY: it is refused or flushed.
    match unsafe { client.endpoint.post_send(&[signalled(9, Work::Send, &[ours.all()])]) } {
        Ok(()) => assert_eq!(client.next_done().status, WorkStatus::Flushed),
        Err(error) => assert!(matches!(error, VerbsError::Post { posted: 0, .. }), "{error}"),
    }
}

/// An endpoint that is dropped ends the connection for its peer.
pub fn a_dropped_endpoint_ends_the_other<F: Fabric>(hosts: &Hosts<F>) {
    let (client, mut server) = hosts.pair();
    server.wait_connected();
    drop(client);
    server.wait_ended();
    let (mut client, mut server) = hosts.pair();
    server.wait_connected();
    exchange(&mut client, &mut server, 1);
    drop(server);
    client.wait_ended();
}

/// Queues, memory, devices and endpoints are dropped in orders in which they were not made.
pub fn things_may_be_dropped_in_any_order<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    for turn in 0..4 {
        let (mut client, mut server) = hosts.pair_with(&door);
        exchange(&mut client, &mut server, turn);
        let memory = client.memory(4096);
        let posted = server.memory(64);
        server.receive(1, posted.all());
        let End { endpoint, queue, device, .. } = client;
        match turn {
            0 => drop((queue, memory, device, endpoint)),
            1 => drop((device, endpoint, memory, queue)),
            2 => drop((memory, endpoint, queue, device)),
            _ => drop((endpoint, device, queue, memory)),
        }
        let End { endpoint, queue, device, .. } = server;
        match turn {
            0 => drop((posted, device, queue, endpoint)),
            1 => drop((queue, endpoint, posted, device)),
            2 => drop((device, posted, endpoint, queue)),
            _ => drop((endpoint, queue, device, posted)),
        }
    }
    let (mut client, mut server) = hosts.pair_with(&door);
    let bare = SendWork { inline: true, ..signalled(1, Work::Send, &[]) };
    let memory = server.memory(64);
    server.receive(3, memory.all());
    client.post(&[bare]);
    assert_eq!(server.next_done().bytes, 0);
}
