//! Connections, messages, writes, reads, and how they are counted.

use super::ends::*;
use weft_verbs::{
    CompletionQueue, Device, Endpoint, Fabric, Listener, Receives, SendWork, SharedReceives, VerbsError,
    Work, WorkKind, WorkStatus,
};

/// What is said with a request and with its acceptance arrives, at its full length.
pub fn private_data_goes_both_ways<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    let (asked, answered): (Vec<u8>, Vec<u8>) = ((1..=56).collect(), (1..=196).collect());
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let mut end = End::<F>::new(door.next());
            assert!(end.endpoint.private_data().starts_with(&asked));
            end.endpoint.accept(&answered).expect("the request is taken");
            end.wait_connected();
            end
        });
        let mut client = End::<F>::new(hosts.resolve(door.address));
        client.endpoint.connect(&asked, TIMEOUT).expect("the server takes it");
        assert!(client.endpoint.private_data().starts_with(&answered));
        assert_eq!(client.endpoint.peer(), door.address);
        let server = accepting.join().expect("the server's side works");
        assert_eq!(server.endpoint.local(), door.address);
        assert_eq!(server.endpoint.peer().ip(), client.endpoint.local().ip());
    });
}

/// A refused client is told, with what the server says; the next one is taken.
pub fn a_refusal_says_why<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    std::thread::scope(|scope| {
        scope.spawn(|| door.next().reject(b"not you"));
        let mut client = End::<F>::new(hosts.resolve(door.address));
        match client.endpoint.connect(b"hello", TIMEOUT) {
            Err(VerbsError::Rejected { address, private_data }) => {
                assert_eq!(address, door.address);
                assert!(private_data.starts_with(b"not you"), "{private_data:?}");
            }
            other => panic!("not refused: {other:?}"),
        }
    });
    let (mut client, mut server) = hosts.pair_with(&door);
    exchange(&mut client, &mut server, 1);
}

/// Where nobody listens, nobody answers for the server.
pub fn a_port_without_a_listener_refuses<F: Fabric>(hosts: &Hosts<F>) {
    let address = hosts.listen().address();
    let mut client = End::<F>::new(hosts.resolve(address));
    match client.endpoint.connect(b"hello", TIMEOUT) {
        Err(VerbsError::Connect { address: told, .. }) => assert_eq!(told, address),
        other => panic!("connected to nobody: {other:?}"),
    }
}

/// Messages of all sizes arrive whole, in order, both ways.
pub fn messages_arrive<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (sent, received) = (client.memory(100_000), server.memory(100_000));
    for (seed, bytes) in [1, 7, 4096, 5000, 65_536, 100_000].into_iter().enumerate() {
        sent.fill(seed as u8);
        server.receive(seed as u64, received.all());
        client.run_well(Work::Send, &[sent.piece(0, bytes)]);
        let done = server.next_done();
        assert_eq!((done.id, done.kind, done.bytes), (seed as u64, WorkKind::Received, bytes as u32));
        assert_eq!(done.queue_pair, server.endpoint.queue_pair());
        assert_eq!(received.bytes()[..bytes], sent.bytes()[..bytes]);
    }
    server.wait_connected();
    exchange(&mut server, &mut client, 9);
    for id in 0..3 {
        server.receive(id, received.piece(id as usize * 100, 100));
    }
    let pieces = [sent.piece(0, 10), sent.piece(10, 20), sent.piece(30, 30)].map(|piece| [piece]);
    let chain: Vec<_> =
        pieces.iter().enumerate().map(|(id, piece)| signalled(id as u64, Work::Send, piece)).collect();
    client.post(&chain);
    for (id, bytes) in [10, 20, 30].into_iter().enumerate() {
        let done = server.next_done();
        assert_eq!((done.id, done.bytes), (id as u64, bytes));
    }
}

/// Inline memory need not be registered, and may change once the work is posted.
pub fn inline_memory_is_free_at_once<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let room = client.endpoint.inline_bytes() as usize;
    if room == 0 {
        return;
    }
    let received = server.memory(room);
    server.receive(1, received.all());
    let mut data: Vec<u8> = (0..room).map(|at| pattern(3, at)).collect();
    let piece = weft_verbs::MemoryPiece { address: data.as_ptr() as u64, bytes: room as u32, local_key: 0 };
    client.post(&[SendWork { inline: true, ..signalled(2, Work::Send, &[piece]) }]);
    data.fill(0);
    assert_eq!(server.next_done().status, WorkStatus::Ok);
    assert_eq!(client.next_done().status, WorkStatus::Ok);
    assert!(received.bytes().iter().enumerate().all(|(at, byte)| *byte == pattern(3, at)));
}

/// Writes and reads move exactly their bytes; the peer's program notices nothing.
pub fn writes_and_reads_reach_the_peers_memory<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (ours, theirs) = (client.memory(70_000), server.memory(70_000));
    ours.fill(1);
    theirs.fill(2);
    let mut expected = theirs.bytes();
    client.run_well(theirs.write_to(1001), &[ours.piece(5, 60_000)]);
    expected[1001..61_001].copy_from_slice(&ours.bytes()[5..60_005]);
    assert_eq!(theirs.bytes(), expected);
    client.run_well(theirs.read_from(3), &[ours.piece(10, 65_000)]);
    assert_eq!(ours.bytes()[10..65_010], expected[3..65_003]);
    assert_eq!(ours.bytes()[65_010], pattern(1, 65_010));
    assert_eq!(server.next_done_within(QUIET), None);
}

/// A write with immediate data is told to the peer, after its bytes are there.
pub fn writes_with_immediate_data_take_a_receive<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (ours, theirs, unused) = (client.memory(5000), server.memory(5000), server.memory(64));
    ours.fill(1);
    unused.fill(7);
    for immediate in [0x0102_0304, 0, u32::MAX] {
        server.receive(u64::from(immediate), unused.all());
        let (remote_address, remote_key) = (theirs.address(), theirs.remote_key());
        client.run_well(Work::WriteImmediate { remote_address, remote_key, immediate }, &[ours.all()]);
        let done = server.next_done();
        assert_eq!(done.id, u64::from(immediate));
        assert_eq!((done.kind, done.status), (WorkKind::ReceivedImmediate(immediate), WorkStatus::Ok));
        assert_eq!(done.bytes, 5000);
    }
    assert_eq!(theirs.bytes(), ours.bytes());
    assert_eq!(unused.bytes()[9], pattern(7, 9), "the bytes do not go where receives are");
}

/// As many pieces as the adapter takes, of odd sizes, gathered by writes and sends, scattered by reads; one
/// more is refused.
pub fn pieces_are_gathered_and_scattered<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let count = options(&*client.device).pieces as usize;
    let (ours, theirs) = (client.memory(400 * count), server.memory(400 * count));
    ours.fill(1);
    let ranges: Vec<_> = (0..count).map(|index| (400 * index + index % 3, 100 + 7 * (index % 40))).collect();
    let pieces: Vec<_> = ranges.iter().map(|(offset, bytes)| ours.piece(*offset, *bytes)).collect();
    let data = ours.bytes();
    let gathered: Vec<u8> = ranges.iter().flat_map(|(at, bytes)| data[*at..at + bytes].to_vec()).collect();

    client.run_well(theirs.write_to(9), &pieces);
    assert_eq!(theirs.bytes()[9..9 + gathered.len()], gathered);
    server.receive(1, theirs.all());
    client.run_well(Work::Send, &pieces);
    assert_eq!(server.next_done().bytes as usize, gathered.len());
    assert_eq!(theirs.bytes()[..gathered.len()], gathered);

    ours.fill(0);
    client.run_well(theirs.read_from(0), &pieces);
    let mut expected: Vec<u8> = (0..400 * count).map(|at| pattern(0, at)).collect();
    let mut rest = gathered.as_slice();
    for (offset, bytes) in &ranges {
        let (piece, behind) = rest.split_at(*bytes);
        expected[*offset..offset + bytes].copy_from_slice(piece);
        rest = behind;
    }
    assert_eq!(ours.bytes(), expected);
    let most = client.device.limits().send_pieces_max;
    one_piece_too_many(&mut client, &ours, most);
}

fn one_piece_too_many<F: Fabric>(client: &mut End<F>, ours: &Memory<F>, most: usize) {
    let pieces = vec![ours.piece(0, 1); most + 1];
    // SAFETY: it is refused.
    let result = unsafe { client.endpoint.post_send(&[signalled(1, Work::Send, &pieces)]) };
    assert!(matches!(result, Err(VerbsError::Post { posted: 0, .. })), "{result:?}");
}

/// Fenced work sees what reads before it have brought.
pub fn a_fence_waits_for_reads<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (ours, theirs, back) = (client.memory(50_000), server.memory(50_000), server.memory(50_000));
    for seed in 0..4 {
        theirs.fill(seed);
        ours.fill(100);
        server.receive(1, back.all());
        let piece = [ours.all()];
        let send = SendWork { fenced: true, ..signalled(2, Work::Send, &piece) };
        client.post(&[silent(1, theirs.read_from(0), &piece), send]);
        assert_eq!(client.next_done().status, WorkStatus::Ok);
        assert_eq!(server.next_done().status, WorkStatus::Ok);
        assert_eq!(back.bytes(), theirs.bytes());
    }
}

/// Writes and the message behind them: posted at once, ended at once.
pub fn a_chain_is_one_doorbell_and_one_completion<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (ours, theirs, message) = (client.memory(8192), server.memory(8192), server.memory(64));
    ours.fill(5);
    server.receive(1, message.all());
    let pieces: Vec<_> = (0..8).map(|index| [ours.piece(1024 * index, 1024)]).collect();
    let mut chain: Vec<_> =
        (0..8).map(|index| silent(index, theirs.write_to(1024 * index), &pieces[index as usize])).collect();
    let last = [ours.piece(0, 64)];
    chain.push(signalled(8, Work::Send, &last));
    // Both ends may have one device: what is counted is what happens between these two lines.
    let before = client.counts();
    client.post(&chain);
    let posted = client.counts().since(&before);
    assert_eq!((posted.doorbells, posted.writes, posted.sends), (1, 8, 1));
    assert_eq!(server.next_done().kind, WorkKind::Received);
    assert_eq!(theirs.bytes(), ours.bytes(), "writes are done before the message behind them is told");
    assert_eq!(client.next_done().id, 8);
    assert_eq!(client.next_done_within(QUIET), None);
}

/// Of a chain that does not fit, the front is posted, and the error says how much that is.
pub fn a_full_queue_says_how_much_it_took<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, server) = hosts.pair();
    let (ours, theirs) = (client.memory(4096), server.memory(4096));
    let piece = [ours.all()];
    let depth = options(&*client.device).send_depth as usize;
    let chain: Vec<_> = (0..8 * depth as u64).map(|id| signalled(id, theirs.write_to(0), &piece)).collect();
    // SAFETY: the memory stays until all of it has ended.
    let result = unsafe { client.endpoint.post_send(&chain) };
    let Err(VerbsError::Post { posted, .. }) = result else { panic!("it was not too much: {result:?}") };
    assert!((depth..chain.len()).contains(&posted), "{posted} of at least {depth}");
    for id in 0..posted as u64 {
        let done = client.next_done();
        assert_eq!((done.id, done.status), (id, WorkStatus::Ok));
    }
    client.run_well(theirs.write_to(0), &piece);
}

/// Several connections receive from one queue; each message says whose it is.
pub fn many_share_one_receive_queue<F: Fabric>(hosts: &Hosts<F>) {
    let door = hosts.listen_with(hosts.listen());
    let mut shared: Option<(F::Shared, Memory<F>)> = None;
    let (mut clients, mut servers): (Vec<End<F>>, Vec<End<F>>) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let endpoint = door.next();
                let device = endpoint.device();
                let (shared, _) = shared.get_or_insert_with(|| {
                    let queue = device.shared_receives(16).expect("a shared receive queue");
                    (queue, Memory::<F>::new(&*device, 16 * 256, &ALL))
                });
                let mut end = End::<F>::with(endpoint, Receives::Shared(shared));
                end.endpoint.accept(b"").expect("the request is taken");
                end
            });
            let mut client = End::<F>::new(hosts.resolve(door.address));
            client.endpoint.connect(b"", TIMEOUT).expect("the server takes it");
            clients.push(client);
            servers.push(accepting.join().expect("the server's side works"));
        });
    }
    let (shared, buffers) = shared.expect("there were clients");
    let receives: Vec<_> = (0..9).map(|id| (id, buffers.piece(256 * id as usize, 256))).collect();
    // SAFETY: the buffers stay until the end.
    unsafe { shared.post(&receives) }.expect("there is room for receives");
    let mut seen = Vec::new();
    for (index, client) in clients.iter_mut().enumerate() {
        let sent = client.memory(256);
        sent.fill(index as u8);
        for _ in 0..3 {
            client.run_well(Work::Send, &[sent.all()]);
            let done = servers[index].next_done();
            assert_eq!(
                (done.status, done.queue_pair),
                (WorkStatus::Ok, servers[index].endpoint.queue_pair())
            );
            let start = 256 * done.id as usize;
            assert_eq!(buffers.bytes()[start..start + 256], sent.bytes());
            seen.push(done.id);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..9).collect::<Vec<_>>(), "each receive is taken once");
    drop(clients.pop());
    servers.pop().expect("three").wait_ended();
    // SAFETY: as above.
    unsafe { shared.post(&receives[..1]) }.expect("there is room for a receive");
    clients[0].run_well(Work::Send, &[]);
    assert_eq!(servers[0].next_done().bytes, 0);
}

/// An armed queue wakes its sleeper once; one that is not armed does not.
pub fn sleepers_are_woken_once<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let (sent, received) = (client.memory(64), server.memory(64));
    let mut done = Vec::new();
    for id in 0..4 {
        server.receive(id, received.all());
    }
    server.queue.poll(&mut done, 16).expect("the queue works");
    assert!(done.is_empty());
    server.queue.arm().expect("the queue works");
    assert!(!is_readable(server.queue.fd(), QUIET), "nothing has happened");
    client.run_well(Work::Send, &[sent.all()]);
    assert!(is_readable(server.queue.fd(), TIMEOUT), "a message wakes");
    assert_eq!(server.queue.take_wakeups().expect("the queue works"), 1);
    assert!(!is_readable(server.queue.fd(), std::time::Duration::ZERO), "the wake-up was taken");
    server.queue.poll(&mut done, 16).expect("the queue works");
    assert_eq!(done.len(), 1);
    client.run_well(Work::Send, &[sent.all()]);
    assert!(!is_readable(server.queue.fd(), QUIET), "nobody has asked to be woken");
    server.queue.arm().expect("the queue works");
    server.queue.poll(&mut done, 16).expect("the queue works");
    assert_eq!(done.len(), 2, "what came before the queue was armed is found by the poll after it");
}

/// What is asked of a device is counted.
pub fn counts_add_up<F: Fabric>(hosts: &Hosts<F>) {
    let (mut client, mut server) = hosts.pair();
    let before = client.counts();
    let (ours, theirs) = (client.memory(8192), client.memory(100));
    let registered = client.counts().since(&before);
    assert_eq!((registered.registrations, registered.registered_pages), (2, 3));
    drop(theirs);
    assert_eq!(client.counts().since(&before).deregistrations, 1);

    let theirs = server.memory(8192);
    let before = client.counts();
    client.post(&[silent(1, theirs.write_to(0), &[ours.piece(0, 4000)])]);
    client.post(&[signalled(2, theirs.read_from(0), &[ours.piece(0, 3000)])]);
    assert_eq!(client.next_done().id, 2);
    let counted = client.counts().since(&before);
    assert_eq!((counted.doorbells, counted.writes, counted.reads), (2, 1, 1));
    assert_eq!((counted.sent_bytes, counted.read_bytes), (4000, 3000));
    assert_eq!(counted.completions, 1);
    assert!(counted.polls >= 1);
    let before = server.counts();
    server.receive(1, theirs.all());
    assert_eq!(server.counts().since(&before).receives, 1);
    client.run_well(Work::Send, &[ours.piece(0, 1)]);
    assert_eq!(server.next_done().bytes, 1);
    assert_eq!(server.counts().receiver_not_ready, 0);
}
