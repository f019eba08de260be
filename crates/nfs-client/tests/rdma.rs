//! The client over RDMA with a server that tests script, on the double of verbs.

mod rdma_server;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use weft_nfs_client::{ErrorKind, FileHandle, NfsClient, RdmaTotals, SetAttr, Stable, wait_all};
use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, ReadSegment, Segment};
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::Writer;
use weft_test_random::{Random, seed};
use weft_verbs::WorkStatus;
use weft_verbs_double::Adapter;

use rdma_server::*;

const MEMORY: [&str; 4] = ["each", "cached", "windows", "copied"];

fn attr(size: u32) -> Writer {
    let mut words = [0u32; 21];
    (words[0], words[1], words[2], words[6]) = (1, 0o644, 1, size);
    words.into_iter().fold(Writer::new(), Writer::u32)
}

fn attr_results(size: u32) -> Vec<u8> {
    [0u32.to_be_bytes().to_vec(), attr(size).into_bytes()].concat()
}

/// Results of a READ without its data.
fn read_results(bytes: usize) -> Vec<u8> {
    [0, 0, bytes as u32, 0, bytes as u32].into_iter().fold(Writer::new(), Writer::u32).into_bytes()
}

fn written_results(bytes: usize) -> Vec<u8> {
    [0, 0, 0, bytes as u32, 2, 1, 1].into_iter().fold(Writer::new(), Writer::u32).into_bytes()
}

/// Offset and count of a READ or WRITE of the root.
fn range_of(call: &Call) -> (usize, usize) {
    let word = |at: usize| u32::from_be_bytes(call.arguments[at..at + 4].try_into().unwrap()) as usize;
    (word(12), word(16))
}

/// Data of a WRITE.
fn data_of(call: &Call) -> &[u8] {
    &call.arguments[28..][..range_of(call).1]
}

fn root(client: &NfsClient) -> FileHandle {
    client.root().clone()
}

fn totals(client: &NfsClient) -> RdmaTotals {
    client.rdma_status().unwrap().totals
}

/// A file in memory that is read and written. `ends_keys`: replies end a key of the call where clients take that.
fn file_server(ends_keys: bool) -> (Server, Arc<Mutex<Vec<u8>>>) {
    let file = Arc::new(Mutex::new(vec![0; 4 << 20]));
    let shared = file.clone();
    let server = Server::start(move |peer, call| {
        let mut file = shared.lock().unwrap();
        let (offset, bytes) = range_of(call);
        if ends_keys && peer.said.is_some_and(|said| said.takes_invalidation) {
            let reads = call.chunks.reads.iter().map(|read| read.segment.handle);
            let mut all = reads.chain(call.chunks.writes.iter().flatten().map(|segment| segment.handle));
            peer.ends_key = all.next();
        }
        match call.procedure {
            READ => peer.reply(call, &read_results(bytes), &file[offset..][..bytes]),
            WRITE => {
                file[offset..][..bytes].copy_from_slice(data_of(call));
                peer.reply(call, &written_results(bytes), &[]);
            }
            other => panic!("procedure {other}"),
        }
        true
    });
    (server, file)
}

#[test]
fn data_of_any_size_are_read_and_written_with_every_kind_of_memory() {
    for (memory, ends_keys) in MEMORY.into_iter().zip([false; 4]).chain([("windows", true)]) {
        let (server, file) = file_server(ends_keys);
        let client = server.client(memory);
        let mut random = Random(seed());
        for bytes in [1, 3, 700, 3500, 4000, 4096, 65_537, 1 << 20] {
            let data = random.bytes(bytes);
            let offset = random.below(1 << 20);
            let written = client.write(&root(&client), offset, &data, Stable::File).unwrap();
            assert_eq!(written.bytes, bytes, "{memory}");
            assert!(
                file.lock().unwrap()[offset as usize..][..bytes] == data[..],
                "{memory}: {bytes} written"
            );
            let mut seen = vec![0xee; bytes + 1];
            let read = client.read(&root(&client), offset, &mut seen[..bytes]).unwrap();
            assert_eq!((read.bytes, seen[bytes]), (bytes, 0xee), "{memory}");
            assert!(seen[..bytes] == data[..], "{memory}: {bytes} read");
        }
        let totals = totals(&client);
        assert_eq!(totals.credits, 32);
        assert_eq!(totals.ended_by_server > 0, ends_keys, "{memory}");
        drop(client);
        assert_eq!(
            server.host.counts().receiver_not_ready + server.client_host.counts().receiver_not_ready,
            0
        );
    }
}

#[test]
fn large_data_are_copied_only_where_that_is_chosen() {
    const BYTES: usize = 256 << 10;
    for memory in MEMORY {
        let (server, _) = file_server(false);
        let client = server.client(memory);
        let mut buffer = vec![7; BYTES];
        client.write(&root(&client), 0, &buffer, Stable::File).unwrap();
        client.read(&root(&client), 0, &mut buffer).unwrap();
        let totals = totals(&client);
        assert_eq!((totals.read_chunk_bytes, totals.write_chunk_bytes), (BYTES as u64, BYTES as u64));
        let copied = if memory == "copied" { 2 * BYTES as u64 } else { 0 };
        assert_eq!(totals.copied_bytes, copied, "{memory}");
    }
}

#[test]
fn registrations_are_for_each_call_or_stay() {
    const CALLS: u64 = 8;
    for (memory, made, bound) in
        [("each", CALLS, 0), ("cached", 1, 0), ("windows", 1, CALLS), ("copied", 0, 0)]
    {
        let (server, _) = file_server(false);
        let client = server.client(memory);
        let mut buffer = vec![0; 64 << 10];
        // The first makes what the link itself needs.
        client.read(&root(&client), 0, &mut vec![0; 64 << 10]).unwrap();
        let before = client.rdma_status().unwrap();
        for _ in 0..CALLS {
            client.read(&root(&client), 0, &mut buffer).unwrap();
        }
        let after = client.rdma_status().unwrap();
        let registered = after.registrations.registrations - before.registrations.registrations;
        assert_eq!(registered, made, "{memory}");
        assert_eq!(after.counts.since(&before.counts).registrations, made, "{memory}");
        assert_eq!(after.totals.windows_bound - before.totals.windows_bound, bound, "{memory}");
    }
}

#[test]
fn many_calls_wait_for_credits_and_never_for_each_other() {
    const GRANTED: u32 = 4;
    let mut held: Vec<Call> = Vec::new();
    let server = Server::start(move |peer, call| {
        peer.credits = GRANTED;
        held.push(call.clone());
        if held.len() == GRANTED as usize {
            assert!(!peer.has_more(), "more calls than were granted");
            for (size, call) in held.drain(..).enumerate().rev() {
                peer.reply(&call, &attr_results(size as u32), &[]);
            }
        }
        true
    });
    let client = server.client("cached");
    // What was granted before is still in force for these.
    let attrs = wait_all((0..GRANTED).map(|_| client.start_getattr(client.root())).collect());
    assert!(attrs.iter().all(Result::is_ok), "{attrs:?}");
    let attrs = wait_all((0..5 * GRANTED).map(|_| client.start_getattr(client.root())).collect());
    let sizes: Vec<u64> = attrs.into_iter().map(|attr| attr.unwrap().size_bytes).collect();
    assert_eq!(sizes, (0..5).flat_map(|_| 0..GRANTED.into()).collect::<Vec<u64>>());
    assert_eq!(totals(&client).credits, GRANTED.into());
}

fn listing(names: usize) -> Vec<u8> {
    let begin = Writer::new().u32(0).u32(0).u64(9);
    let all = (0..names as u64).fold(begin, |writer, number| {
        let name = format!("a-name-of-some-length-{number}");
        writer.u32(1).u64(number).opaque(name.as_bytes()).u64(number + 1).u32(0).u32(0)
    });
    all.u32(0).bool(true).into_bytes()
}

#[test]
fn long_replies_come_in_a_chunk_and_short_ones_inline() {
    for memory in MEMORY {
        let server = Server::start(|peer, call| {
            match call.procedure {
                READDIRPLUS => peer.reply(call, &listing(if peer.connection == 0 { 400 } else { 0 }), &[]),
                READLINK => {
                    let target = Writer::new().u32(0).u32(0).opaque(&[b't'; 3000]).into_bytes();
                    peer.reply(call, &target, &[]);
                }
                GETATTR => {
                    assert!(call.chunks.reply.is_none(), "its reply is never long");
                    peer.reply(call, &attr_results(5), &[]);
                }
                other => panic!("procedure {other}"),
            }
            true
        });
        let client = server.client(memory);
        let page = client.readdirplus(client.root(), Default::default(), 64 << 10).unwrap();
        assert_eq!((page.entries.len(), page.is_end), (400, true), "{memory}");
        assert_eq!(page.entries[399].name, b"a-name-of-some-length-399");
        assert_eq!(totals(&client).long_replies, 1);
        assert_eq!(client.readlink(client.root()).unwrap(), [b't'; 3000], "it fits, so it is inline");
        assert_eq!(totals(&client).long_replies, 1);
        assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5);
    }
}

#[test]
fn a_call_that_is_too_long_is_read_by_the_server() {
    for memory in MEMORY {
        let (sender, seen) = channel();
        let script = move |peer: &mut Peer, call: &Call| {
            sender.send(call.clone()).unwrap();
            let no_handle = [0, 0, 0, 0, 0].into_iter().fold(Writer::new(), Writer::u32).into_bytes();
            peer.reply(call, &no_handle, &[]);
            true
        };
        // A server that says nothing of itself takes 1024 bytes.
        let server = Server::start_with(&[], Adapter::new("client", [127, 0, 0, 2].into()), script);
        let client = server.client(memory);
        let target = [b'x'; 2000];
        client.symlink(client.root(), b"link", &target, &SetAttr::default()).unwrap();
        let call = seen.recv().unwrap();
        assert!(call.is_long && call.procedure == SYMLINK, "{memory}");
        assert!(call.arguments.ends_with(&target));
        client.symlink(client.root(), b"link", &target[..200], &SetAttr::default()).unwrap();
        assert!(!seen.recv().unwrap().is_long);
        assert_eq!(totals(&client).long_calls, 1);
    }
}

#[test]
fn a_lost_connection_is_made_again_and_calls_keep_their_numbers() {
    for memory in MEMORY {
        let (sender, seen) = channel();
        let server = Server::start(move |peer, call| {
            sender.send(call.clone()).unwrap();
            if call.connection < 2 {
                return false;
            }
            let bytes = range_of(call).1;
            peer.reply(call, &read_results(bytes), &vec![3; bytes]);
            true
        });
        let client = server.client(memory);
        let mut buffer = vec![0; 100_000];
        assert_eq!(client.read(&root(&client), 0, &mut buffer).unwrap().bytes, 100_000);
        assert!(buffer.iter().all(|byte| *byte == 3));
        let seen: Vec<Call> = seen.try_iter().collect();
        assert_eq!(seen.iter().map(|call| call.connection).collect::<Vec<_>>(), [0, 1, 2], "{memory}");
        assert!(seen.iter().all(|call| call.header.xid == seen[0].header.xid));
        assert_eq!(totals(&client).connections, 3);
    }
}

#[test]
fn what_the_servers_transport_refuses_fails_its_call_only() {
    let server = Server::start(|peer, call| {
        match call.procedure {
            READ if range_of(call).0 == 0 => peer.refuse(call, RdmaError::Chunks),
            READ => peer.refuse(call, RdmaError::Versions { low: 2, high: 3 }),
            _ => peer.reply(call, &attr_results(5), &[]),
        }
        true
    });
    let client = server.client("each");
    let error = client.read(&root(&client), 0, &mut [0; 8192]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused(libc::EREMOTEIO));
    assert!(error.to_string().contains("ERR_CHUNK"), "{error}");
    let error = client.read(&root(&client), 1, &mut [0; 8192]).unwrap_err();
    assert!(error.to_string().contains("versions 2 to 3"), "{error}");
    assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5);
    assert_eq!(totals(&client).connections, 1);
}

#[test]
fn what_makes_no_sense_makes_a_new_connection_but_not_for_ever() {
    let foreign = |peer: &mut Peer, call: &Call| {
        let inline = reply::success(call.header.xid ^ 1).into_bytes();
        peer.send(call.header.xid ^ 1, Body::Message(Chunks::default()), &inline);
    };
    let other_number = |peer: &mut Peer, call: &Call| {
        let inline = reply::success(call.header.xid ^ 1).into_bytes();
        peer.send(call.header.xid, Body::Message(Chunks::default()), &inline);
    };
    let too_much = |peer: &mut Peer, call: &Call| {
        let mut chunks = call.chunks.clone();
        chunks.writes[0][0].bytes += 1;
        peer.send(call.header.xid, Body::Message(chunks), &[]);
    };
    let exposes = |peer: &mut Peer, call: &Call| {
        let segment = Segment { handle: 1, bytes: 4, offset: 0 };
        let reads = vec![ReadSegment { position: 0, segment }];
        peer.send(call.header.xid, Body::NoMessage(Chunks { reads, ..Chunks::default() }), &[]);
    };
    let done = |peer: &mut Peer, call: &Call| peer.send(call.header.xid, Body::Done, &[]);
    let answers: [fn(&mut Peer, &Call); 5] = [foreign, other_number, too_much, exposes, done];
    for (number, answer) in answers.into_iter().enumerate() {
        for times in [1, usize::MAX] {
            let server = Server::start(move |peer, call| {
                if call.connection < times {
                    answer(peer, call);
                } else {
                    peer.reply(call, &read_results(8192), &[4; 8192]);
                }
                true
            });
            let client = server.client("each");
            let mut buffer = vec![0; 8192];
            let read = client.read(&root(&client), 0, &mut buffer);
            match times {
                1 => assert_eq!((read.unwrap().bytes, buffer[8191]), (8192, 4), "{number}"),
                _ => assert_eq!(read.unwrap_err().kind, ErrorKind::Protocol, "{number}"),
            }
        }
    }
}

#[test]
fn with_windows_no_key_outlives_its_call() {
    let mut before: Option<Segment> = None;
    let (sender, statuses) = channel();
    let server = Server::start(move |peer, call| {
        if let Some(segment) = before.take() {
            sender.send(peer.write(&segment, b"late")).unwrap();
            return false;
        }
        if call.connection == 0 {
            before = Some(call.chunks.writes[0][0]);
        }
        peer.reply(call, &read_results(8192), &[4; 8192]);
        true
    });
    let client = server.client("windows");
    let mut first = vec![0; 8192];
    client.read(&root(&client), 0, &mut first).unwrap();
    // The server writes to the first call's memory when the second call comes, which ends the connection.
    client.read(&root(&client), 0, &mut vec![0; 8192]).unwrap();
    assert_eq!(statuses.recv().unwrap(), WorkStatus::RemoteAccess);
    assert!(first.iter().all(|byte| *byte == 4));
}

#[test]
fn memory_of_a_call_that_was_given_up_is_not_touched() {
    for memory in MEMORY {
        let (sender, statuses) = channel();
        let (go, goes) = channel::<()>();
        let server = Server::start(move |peer, call| {
            match call.procedure {
                READ => {
                    goes.recv().unwrap();
                    sender.send(peer.write(&call.chunks.writes[0][0], &[9; 8192])).unwrap();
                    peer.send(call.header.xid, Body::Message(Chunks::default()), &[]);
                }
                _ => peer.reply(call, &attr_results(5), &[]),
            }
            call.procedure != READ
        });
        let client = server.client(memory);
        let mut buffer = vec![1; 8192];
        // SAFETY: the buffer lives longer than the call.
        let call = unsafe { client.start_read_raw(client.root(), 0, buffer.as_mut_ptr(), buffer.len()) };
        client.flush();
        drop(call);
        go.send(()).unwrap();
        let status = statuses.recv().unwrap();
        assert_eq!(status == WorkStatus::Ok, memory == "copied", "{memory}: {status:?}");
        assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5, "{memory}");
        assert!(buffer.iter().all(|byte| *byte == 1), "{memory}");
    }
}

#[test]
fn a_key_that_is_not_of_the_call_may_not_be_ended() {
    let server = Server::start(move |peer, call| {
        // The READ's own key ends with the reply to the GETATTR.
        if call.connection == 0 && call.procedure == READ {
            peer.ends_key = Some(call.chunks.writes[0][0].handle);
            return true;
        }
        match call.procedure {
            READ => peer.reply(call, &read_results(8192), &[4; 8192]),
            _ => peer.reply(call, &attr_results(5), &[]),
        }
        true
    });
    let client = server.client("windows");
    let read = client.start_read(client.root(), 0, vec![0; 8192]);
    assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5);
    let (read, buffer) = read.wait().unwrap();
    assert_eq!((read.bytes, buffer[8191]), (8192, 4));
    assert_eq!((totals(&client).ended_by_server, totals(&client).connections), (0, 2));
}

#[test]
fn adapters_that_bind_alone_and_register_little_are_served_too() {
    for memory in MEMORY {
        let (server, file) = {
            let file = Arc::new(Mutex::new(Random(seed()).bytes(1 << 20)));
            let shared = file.clone();
            let own = weft_onc_rpc::rdma::PrivateData {
                takes_invalidation: false,
                send_bytes: 4096,
                receive_bytes: 4096,
            };
            let mut adapter = Adapter::new("client", [127, 0, 0, 2].into());
            (adapter.limits.binds_alone, adapter.limits.registration_bytes_max) = (true, 1 << 20);
            adapter.limits.send_depth_max = 8;
            let server = Server::start_with(&own.to_bytes(), adapter, move |peer, call| {
                let (offset, bytes) = range_of(call);
                let data = shared.lock().unwrap()[offset..][..bytes].to_vec();
                peer.reply(call, &read_results(bytes), &data);
                true
            });
            (server, file)
        };
        let client = server.client(memory);
        let mut seen = vec![0; 1 << 20];
        let bytes = client.read_all(&root(&client), 0, &mut seen, 8).unwrap();
        assert!(bytes == seen.len() && seen == *file.lock().unwrap(), "{memory}");
    }
}

#[test]
fn memory_that_cannot_be_registered_fails_its_call_only() {
    let (server, _) = file_server(false);
    let client = server.client("each");
    let faults = weft_verbs_double::Faults {
        refused_registrations: weft_verbs_double::When::OneIn(1),
        ..Default::default()
    };
    server.client_host.set_faults(faults);
    let error = client.read(&root(&client), 0, &mut vec![0; 8192]).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Local(_)), "{error:?}");
    assert!(error.to_string().contains("over RDMA"), "{error}");
    server.client_host.set_faults(Default::default());
    assert_eq!(client.read(&root(&client), 0, &mut vec![0; 8192]).unwrap().bytes, 8192);
    assert_eq!(totals(&client).connections, 1);
}

#[test]
fn a_place_where_nobody_listens_is_told() {
    let (server, _) = file_server(false);
    let mut nowhere = server.url.clone();
    nowhere.port = Some(1);
    let options = weft_nfs_client::ConnectOptions::default();
    let error = NfsClient::connect_rdma(&nowhere, &options, &server.client_host).err().unwrap();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert_eq!(error.kind, ErrorKind::Unreachable);
}
