//! The client over RDMA in the Read-Read design, with a server that tests script, on the double of verbs.

mod rdma_server;

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use weft_nfs_client::{ErrorKind, NfsClient, RdmaTotals, Stable};
use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, ReadSegment, Segment};
use weft_onc_rpc::reply;
use weft_onc_rpc::xdr::Writer;
use weft_test_random::{Random, seed};

use rdma_server::*;

const MEMORY: [&str; 4] = ["each", "cached", "windows", "copied"];

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().fold(Writer::new(), |writer, word| writer.u32(*word)).into_bytes()
}

/// Results of a READ without its data.
fn read_results(bytes: usize) -> Vec<u8> {
    words(&[0, 0, bytes as u32, 0, bytes as u32])
}

fn attr_results(size: u32) -> Vec<u8> {
    let mut attr = [0u32; 22];
    (attr[1], attr[2], attr[3], attr[7]) = (1, 0o644, 1, size);
    words(&attr)
}

/// Offset and count of a READ or WRITE of the root.
fn range_of(call: &Call) -> (usize, usize) {
    let word = |at: usize| u32::from_be_bytes(call.arguments[at..at + 4].try_into().unwrap()) as usize;
    (word(12), word(16))
}

fn totals(client: &NfsClient) -> RdmaTotals {
    client.rdma_status().unwrap().totals
}

/// A file in memory that is read and written.
fn file_server(cuts: usize) -> Server {
    let mut file = vec![0; 4 << 20];
    Server::start(move |peer, call| {
        let (offset, bytes) = range_of(call);
        match call.procedure {
            READ => peer.reply_exposing(call, &read_results(bytes), &file[offset..][..bytes], cuts),
            WRITE => {
                file[offset..][..bytes].copy_from_slice(&call.arguments[28..][..bytes]);
                peer.reply(call, &words(&[0, 0, 0, bytes as u32, 2, 1, 1]), &[]);
            }
            other => panic!("procedure {other}"),
        }
        true
    })
}

#[test]
fn data_of_any_size_are_read_from_the_server_with_every_kind_of_memory() {
    for (memory, cuts) in MEMORY.into_iter().zip([1, 3, 1, 2]) {
        let server = file_server(cuts);
        let client = server.reading_client(memory);
        let root = client.root().clone();
        let (mut random, mut long, mut exposed) = (Random(seed()), 0, 0);
        for bytes in [1, 3, 700, 3500, 4096, 65_537, 1 << 20] {
            let data = random.bytes(bytes);
            let offset = random.below(1 << 20);
            assert_eq!(client.write(&root, offset, &data, Stable::File).unwrap().bytes, bytes, "{memory}");
            let mut seen = vec![0xee; bytes + 1];
            let read = client.read(&root, offset, &mut seen[..bytes]).unwrap();
            assert_eq!((read.bytes, seen[bytes]), (bytes, 0xee), "{memory}");
            assert!(seen[..bytes] == data[..], "{memory}: {bytes} read");
            if bytes >= 4096 {
                (long, exposed) = (long + 1, exposed + bytes as u64);
            }
        }
        let totals = totals(&client);
        assert_eq!((totals.replies_read, totals.read_bytes, totals.write_chunk_bytes), (long, exposed, 0));
        assert_eq!(totals.connections, 1);
        // Each reply is read, and the server told: the peer asserts that none is exposed twice.
        let counts = server.client_host.counts();
        assert_eq!(counts.reads, long * cuts as u64, "{memory}");
    }
}

#[test]
fn registrations_are_for_each_call_or_stay_and_reads_bind_no_windows() {
    const CALLS: u64 = 8;
    for (memory, made, copied) in [("each", CALLS, 0), ("cached", 1, 0), ("windows", 1, 0), ("copied", 0, 1)]
    {
        let server = file_server(1);
        let client = server.reading_client(memory);
        let root = client.root().clone();
        let mut buffer = vec![0; 64 << 10];
        client.read(&root, 0, &mut vec![0; 64 << 10]).unwrap();
        let before = client.rdma_status().unwrap();
        for _ in 0..CALLS {
            client.read(&root, 0, &mut buffer).unwrap();
        }
        let after = client.rdma_status().unwrap();
        let counts = after.counts.since(&before.counts);
        assert_eq!((counts.registrations, counts.reads, counts.binds), (made, CALLS, 0), "{memory}");
        let bytes = after.totals.copied_bytes - before.totals.copied_bytes;
        assert_eq!(bytes, copied * CALLS * (64 << 10), "{memory}");
    }
}

#[test]
fn many_reads_at_once_wait_for_credits_and_for_room_in_the_queue() {
    for memory in MEMORY {
        let server = file_server(4);
        let client = server.reading_client(memory);
        let root = client.root().clone();
        let data = Random(seed()).bytes(1 << 20);
        client.write(&root, 0, &data, Stable::File).unwrap();
        let part = 8192;
        let reads = (0..data.len() / part)
            .map(|at| client.start_read(&root, (at * part) as u64, vec![0; part]))
            .collect::<Vec<_>>();
        for (at, read) in reads.into_iter().enumerate() {
            assert!(read.wait().unwrap().1 == data[at * part..][..part], "{memory}: {at}");
        }
        assert_eq!(totals(&client).connections, 1, "{memory}");
    }
}

#[test]
fn long_listings_are_read_as_wholes() {
    for memory in MEMORY {
        let server = Server::start(|peer, call| {
            let begin = Writer::new().u32(0).u32(0).u64(9);
            let all = (0..400u64).fold(begin, |writer, number| {
                let name = format!("a-name-of-some-length-{number}");
                writer.u32(1).u64(number).opaque(name.as_bytes()).u64(number + 1).u32(0).u32(0)
            });
            peer.reply_exposing(call, &all.u32(0).bool(true).into_bytes(), &[], 2);
            true
        });
        let client = server.reading_client(memory);
        let page = client.readdirplus(client.root(), Default::default(), 64 << 10).unwrap();
        assert_eq!((page.entries.len(), page.is_end), (400, true), "{memory}");
        assert_eq!(page.entries[399].name, b"a-name-of-some-length-399");
        assert_eq!((totals(&client).long_replies, totals(&client).replies_read), (1, 1));
    }
}

#[test]
fn a_server_of_the_other_design_refuses_and_the_error_says_what_to_do() {
    let server = Server::start(|peer, call| {
        match call.procedure {
            READ => peer.refuse(call, RdmaError::Chunks),
            _ => peer.reply(call, &attr_results(5), &[]),
        }
        true
    });
    let client = server.reading_client("each");
    let error = client.read(client.root(), 0, &mut [0; 8192]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Refused(libc::EREMOTEIO));
    assert!(error.to_string().contains("rdma-design=read-write"), "{error}");
    assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5);
}

#[test]
fn what_makes_no_sense_makes_a_new_connection_but_not_for_ever() {
    fn expose(peer: &mut Peer, call: &Call, position: i64, exposed: usize, said: usize) {
        let xid = call.header.xid;
        let segment = peer.expose(xid, &vec![4; exposed]);
        let inline = [&reply::success(xid).into_bytes()[..], &read_results(said)].concat();
        let position = (inline.len() as i64 + position) as u32;
        let reads = vec![ReadSegment { position, segment }];
        peer.send(xid, Body::Message(Chunks { reads, ..Chunks::default() }), &inline);
    }
    let too_much: fn(&mut Peer, &Call) = |peer, call| expose(peer, call, 0, 8196, 8196);
    let too_little: fn(&mut Peer, &Call) = |peer, call| expose(peer, call, 0, 8000, 8192);
    let elsewhere: fn(&mut Peer, &Call) = |peer, call| expose(peer, call, -4, 8192, 8192);
    let wrong_key: fn(&mut Peer, &Call) = |peer, call| {
        let xid = call.header.xid;
        let inline = [&reply::success(xid).into_bytes()[..], &read_results(8192)].concat();
        let segment = Segment { handle: 0xdead_beef, bytes: 8192, offset: 4096 };
        let reads = vec![ReadSegment { position: inline.len() as u32, segment }];
        peer.send(xid, Body::Message(Chunks { reads, ..Chunks::default() }), &inline);
    };
    // Three bytes beyond the caller's memory, which would be padding if the reply did not count them.
    let beyond: fn(&mut Peer, &Call) = |peer, call| expose(peer, call, 0, 8192, 8192);
    // The whole reply in no bytes.
    let nothing: fn(&mut Peer, &Call) = |peer, call| {
        let segment = Segment { bytes: 0, ..peer.expose(call.header.xid, &[0; 8]) };
        let reads = vec![ReadSegment { position: 0, segment }];
        peer.send(call.header.xid, Body::NoMessage(Chunks { reads, ..Chunks::default() }), &[]);
    };
    let answers = [
        (too_much, 8192),
        (too_little, 8192),
        (elsewhere, 8192),
        (wrong_key, 8192),
        (beyond, 8189),
        (nothing, 8192),
    ];
    for ((number, (answer, bytes)), memory) in
        answers.into_iter().enumerate().flat_map(|answer| MEMORY.map(|memory| (answer, memory)))
    {
        let server = Server::start(move |peer, call| {
            match call.connection {
                0 => answer(peer, call),
                _ => peer.reply_exposing(call, &read_results(bytes), &vec![4; bytes], 1),
            }
            true
        });
        let client = server.reading_client(memory);
        let mut buffer = vec![1; 8192];
        let read = client.read(client.root(), 0, &mut buffer[..bytes]);
        assert_eq!(read.unwrap().bytes, bytes, "{number}, {memory}");
        assert!(
            buffer[..bytes].iter().all(|byte| *byte == 4) && buffer[bytes..].iter().all(|byte| *byte == 1)
        );
        assert_eq!(totals(&client).connections, 2, "{number}, {memory}");
    }
}

#[test]
fn nothing_that_is_exposed_is_nothing_to_read() {
    let server = Server::start(|peer, call| {
        let xid = call.header.xid;
        let segment = Segment { bytes: 0, ..peer.expose(xid, &[0; 8]) };
        let inline = [&reply::success(xid).into_bytes()[..], &read_results(0)].concat();
        let reads = vec![ReadSegment { position: inline.len() as u32, segment }];
        peer.send(xid, Body::Message(Chunks { reads, ..Chunks::default() }), &inline);
        true
    });
    for memory in MEMORY {
        let client = server.reading_client(memory);
        assert_eq!(client.read(client.root(), 1 << 20, &mut [0; 8192]).unwrap().bytes, 0, "{memory}");
        assert_eq!((totals(&client).replies_read, totals(&client).connections), (1, 1), "{memory}");
    }
}

/// Nobody has a key to the memory, so the connection stays; and the server is told that it may let go.
#[test]
fn a_call_that_was_given_up_is_not_read_and_the_server_is_told() {
    for memory in MEMORY {
        let (go, goes) = channel::<()>();
        let done = Arc::new(Mutex::new(Vec::new()));
        let seen = done.clone();
        let server = Server::start(move |peer, call| {
            match call.procedure {
                READ => {
                    goes.recv().unwrap();
                    peer.reply_exposing(call, &read_results(8192), &[9; 8192], 1);
                }
                _ => peer.reply(call, &attr_results(5), &[]),
            }
            *seen.lock().unwrap() = peer.done.clone();
            true
        });
        let client = server.reading_client(memory);
        let mut buffer = vec![1; 8192];
        // SAFETY: the buffer lives longer than the call.
        let call = unsafe { client.start_read_raw(client.root(), 0, buffer.as_mut_ptr(), buffer.len()) };
        client.flush();
        drop(call);
        go.send(()).unwrap();
        while done.lock().unwrap().is_empty() {
            assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 5, "{memory}");
        }
        assert!(buffer.iter().all(|byte| *byte == 1), "{memory}");
        assert_eq!((totals(&client).connections, totals(&client).read_bytes), (1, 0), "{memory}");
    }
}

#[test]
fn a_lost_connection_is_made_again_and_the_reply_is_read_by_the_new_one() {
    for memory in MEMORY {
        let server = Server::start(move |peer, call| {
            let bytes = range_of(call).1;
            peer.reply_exposing(call, &read_results(bytes), &vec![3; bytes], 2);
            // The reply may be on its way, or being read.
            call.connection >= 2
        });
        let client = server.reading_client(memory);
        let mut buffer = vec![0; 100_000];
        assert_eq!(client.read(client.root(), 0, &mut buffer).unwrap().bytes, 100_000);
        assert!(buffer.iter().all(|byte| *byte == 3), "{memory}");
    }
}
