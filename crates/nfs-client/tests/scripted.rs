//! The client with servers that do what no good server does: split replies, garbage, lost connections, silence.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use weft_nfs_client::{
    ConnectOptions, CreateHow, ErrorKind, FileHandle, NfsClient, NfsUrl, SetAttr, Stable, Status, wait_all,
};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const GETATTR: u32 = 1;
const READ: u32 = 6;
const WRITE: u32 = 7;
const CREATE: u32 = 8;
const FSINFO: u32 = 19;
const COMMIT: u32 = 21;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A call as the server sees it.
#[derive(Debug, Clone)]
struct Call {
    xid: u32,
    procedure: u32,
    arguments: Vec<u8>,
    /// The how-manieth connection it came by.
    connection: usize,
}

/// Takes a call from the stream; its program, too.
fn take_call(stream: &mut TcpStream, connection: usize) -> Option<(u32, Call)> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mark = u32::from_be_bytes(mark);
    assert_eq!(mark >> 31, 1, "a call is one fragment");
    let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).ok()?;
    let word = |at: usize| u32::from_be_bytes(record[at * 4..][..4].try_into().expect("four bytes"));
    assert_eq!((word(1), word(2), word(6)), (0, 2, 1), "a call of RPC 2 with AUTH_SYS");
    let arguments_at = 32 + word(7) as usize + 8;
    let arguments = record[arguments_at..].to_vec();
    Some((word(3), Call { xid: word(0), procedure: word(5), arguments, connection }))
}

fn record(bytes: &[u8]) -> Vec<u8> {
    [&words(&[bytes.len() as u32 | 1 << 31])[..], bytes].concat()
}

/// An accepted reply in a record.
fn reply(xid: u32, results: &[u8]) -> Vec<u8> {
    record(&[&words(&[xid, 1, 0, 0, 0, 0])[..], results].concat())
}

fn attr(size: u32) -> Vec<u8> {
    let mut words_of = [0u32; 21];
    (words_of[0], words_of[1], words_of[2], words_of[6]) = (1, 0o644, 1, size);
    words(&words_of)
}

fn attr_reply(xid: u32, size: u32) -> Vec<u8> {
    reply(xid, &[words(&[0]), attr(size)].concat())
}

fn read_reply(xid: u32, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let mut results = [words(&[0, 0, length, 0, length]), data.to_vec()].concat();
    results.resize(results.len().next_multiple_of(4), 0);
    reply(xid, &results)
}

/// What the server exports, and which sizes it offers.
fn usual(program: u32, call: &Call) -> Option<Vec<u8>> {
    Some(match (program, call.procedure) {
        (MOUNT, 0) => reply(call.xid, &[]),
        (MOUNT, 5) => reply(call.xid, &[words(&[1, 2]), b"/x\0\0".to_vec(), words(&[0, 0])].concat()),
        (MOUNT, 1) => reply(call.xid, &[words(&[0, 4]), b"root".to_vec(), words(&[1, 1])].concat()),
        (MOUNT, 3) => reply(call.xid, &[]),
        (NFS, FSINFO) => {
            let sizes = [0, 0, 1 << 20, 1 << 18, 1, 1 << 20, 1 << 18, 1, 4096, 0, 1 << 30, 0, 1, 0];
            reply(call.xid, &words(&sizes))
        }
        _ => return None,
    })
}

/// Starts a server that answers what is usual itself, and gives all other calls to `script`, which says whether the
/// connection goes on. Its URL.
fn serve(mut script: impl FnMut(&mut TcpStream, &Call) -> bool + Send + 'static) -> NfsUrl {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for (connection, stream) in listener.incoming().enumerate() {
            let mut stream = stream.expect("a connection");
            while let Some((program, call)) = take_call(&mut stream, connection) {
                let goes_on = match usual(program, &call) {
                    Some(reply) => stream.write_all(&reply).is_ok(),
                    None => script(&mut stream, &call),
                };
                if !goes_on {
                    break;
                }
            }
        }
    });
    NfsUrl::parse(&format!("nfs://127.0.0.1:{port}/x")).expect("a URL")
}

fn options(silence_ms: u64, give_up_ms: u64) -> ConnectOptions {
    ConnectOptions { silence_ms, give_up_ms: Some(give_up_ms), ..ConnectOptions::default() }
}

fn client(url: &NfsUrl) -> (NfsClient, FileHandle) {
    let client = NfsClient::connect(url, &options(20_000, 20_000)).expect("it answers");
    let root = client.root().clone();
    (client, root)
}

fn calls() -> (Sender<Call>, Receiver<Call>) {
    channel()
}

#[test]
fn replies_come_in_any_order_and_in_single_bytes() {
    let mut held = Vec::new();
    let url = serve(move |stream, call| {
        held.push(call.xid);
        if held.len() == 20 {
            for (size, xid) in held.drain(..).enumerate().rev() {
                for byte in attr_reply(xid, size as u32) {
                    stream.write_all(&[byte]).expect("the client reads");
                }
            }
        }
        true
    });
    let (client, root) = client(&url);
    let attrs = wait_all((0..20).map(|_| client.start_getattr(&root)).collect());
    let sizes: Vec<u64> = attrs.into_iter().map(|attr| attr.unwrap().size_bytes).collect();
    assert_eq!(sizes, (0..20).collect::<Vec<_>>());
}

#[test]
fn data_of_many_reads_go_to_their_places() {
    let mut held = Vec::new();
    let url = serve(move |stream, call| {
        held.push(call.xid);
        if held.len() == 8 {
            let replies = held.drain(..).enumerate().rev();
            let bytes: Vec<u8> =
                replies.flat_map(|(number, xid)| read_reply(xid, &vec![number as u8; 100_001])).collect();
            stream.write_all(&bytes).expect("the client reads");
        }
        true
    });
    let (client, root) = client(&url);
    let reads: Vec<_> = (0..8).map(|at| client.start_read(&root, at, vec![0xff; 100_004])).collect();
    for (number, read) in reads.into_iter().enumerate() {
        let (read, buffer) = read.wait().unwrap();
        assert_eq!((read.bytes, read.is_end), (100_001, false));
        assert!(buffer[..100_001].iter().all(|byte| *byte == number as u8));
        assert_eq!(buffer[100_001..], [0xff; 3]);
    }
}

#[test]
fn replies_for_nobody_are_passed_over() {
    let url = serve(|stream, call| {
        let foreign = [attr_reply(call.xid ^ 1, 1), read_reply(!call.xid, &[9; 5000])].concat();
        stream.write_all(&[foreign, attr_reply(call.xid, 7), attr_reply(call.xid, 8)].concat()).is_ok()
    });
    let (client, root) = client(&url);
    for _ in 0..3 {
        assert_eq!(client.getattr(&root).unwrap().size_bytes, 7);
    }
}

#[test]
fn a_lost_connection_is_made_again_and_calls_keep_their_numbers() {
    let (sender, seen) = calls();
    let url = serve(move |stream, call| {
        sender.send(call.clone()).expect("the test listens");
        call.connection > 1 && stream.write_all(&attr_reply(call.xid, 7)).is_ok()
    });
    let (client, root) = client(&url);
    assert_eq!(client.getattr(&root).unwrap().size_bytes, 7);
    let seen: Vec<Call> = seen.try_iter().collect();
    assert_eq!(seen.iter().map(|call| call.connection).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(seen.iter().all(|call| call.xid == seen[0].xid && call.procedure == GETATTR), "{seen:?}");
}

#[test]
fn what_may_be_the_effect_of_the_first_of_two_equal_calls_is_told() {
    let url = serve(|stream, call| {
        call.connection > 0 && stream.write_all(&reply(call.xid, &words(&[2, 0, 0]))).is_ok()
    });
    let (client, root) = client(&url);
    let error = client.remove(&root, b"name").unwrap_err();
    assert_eq!(error.status(), Some(Status::NOENT));
    let text = error.to_string();
    assert!(
        text.starts_with("REMOVE /x/name: server 127.0.0.1:") && text.contains("NFS3ERR_NOENT"),
        "{text}"
    );
    assert!(text.contains("repeated"), "{text}");
    let error = client.remove(&root, b"name").unwrap_err();
    assert!(!error.to_string().contains("repeated"), "it was sent once: {error}");
}

#[test]
fn a_silent_server_is_given_up() {
    let (sender, seen) = calls();
    let url = serve(move |_, call| sender.send(call.clone()).is_ok());
    let client = NfsClient::connect(&url, &options(300, 1500)).unwrap();
    let begun = Instant::now();
    let error = client.getattr(client.root()).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!((error.kind, error.errno()), (ErrorKind::Unreachable, libc::ETIMEDOUT));
    assert!(error.to_string().contains("no answer for 1.5 s"), "{error}");
    let seen: Vec<Call> = seen.try_iter().collect();
    assert!(seen.len() > 1 && seen.iter().all(|call| call.xid == seen[0].xid), "sent again: {seen:?}");
}

#[test]
fn a_hard_client_waits_for_its_server() {
    let down_until = Instant::now() + Duration::from_secs(3);
    let url = serve(move |stream, call| {
        Instant::now() >= down_until && stream.write_all(&attr_reply(call.xid, 7)).is_ok()
    });
    let hard = ConnectOptions { give_up_ms: None, ..ConnectOptions::default() };
    let client = NfsClient::connect(&url, &hard).unwrap();
    assert_eq!(client.getattr(client.root()).unwrap().size_bytes, 7);
    assert!(Instant::now() >= down_until);
}

#[test]
fn garbage_makes_a_new_connection_but_not_for_ever() {
    let url = serve(|stream, call| match call.connection {
        // A fragment of almost 2 GiB.
        0 => stream.write_all(&words(&[0x7fff_fff0, 1, 2, 3])).is_ok(),
        _ => stream.write_all(&attr_reply(call.xid, 7)).is_ok(),
    });
    let (healed, root) = client(&url);
    assert_eq!(healed.getattr(&root).unwrap().size_bytes, 7, "garbage once");
    let url = serve(|stream, _| stream.write_all(&words(&[0x8000_0000; 9])).is_ok());
    let (broken, root) = client(&url);
    let error = broken.getattr(&root).unwrap_err();
    assert_eq!((error.kind, error.errno()), (ErrorKind::Protocol, libc::EPROTO), "{error}");
    assert!(error.to_string().contains("makes no sense"), "{error}");
}

#[test]
fn replies_that_cannot_be_fail_their_call_only() {
    let url = serve(|stream, call| {
        let bytes = match call.procedure {
            // Too short; more data than asked for; data that are missing.
            GETATTR => reply(call.xid, &words(&[0, 1, 2])),
            READ if call.arguments[15] == 0 => read_reply(call.xid, &[1; 101]),
            READ if call.arguments[15] == 1 => reply(call.xid, &words(&[0, 0, 100, 0, 100, 1])),
            READ => read_reply(call.xid, &[3; 100]),
            // It takes more than was sent.
            WRITE => reply(call.xid, &words(&[0, 0, 0, 99, 2, 1, 1])),
            _ => return false,
        };
        stream.write_all(&bytes).is_ok()
    });
    let (client, root) = client(&url);
    let mut buffer = [0xff; 100];
    for error in [
        client.getattr(&root).unwrap_err(),
        client.read(&root, 0, &mut buffer).unwrap_err(),
        client.read(&root, 1, &mut buffer).unwrap_err(),
        client.write(&root, 0, &[1; 98], Stable::File).unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Protocol, "{error}");
    }
    assert_eq!(client.read(&root, 2, &mut buffer).unwrap().bytes, 100);
    assert_eq!(buffer, [3; 100]);
}

#[test]
fn refused_calls_say_why() {
    let url = serve(|stream, call| {
        let bytes = match call.procedure {
            GETATTR => record(&words(&[call.xid, 1, 1, 1, 5])),
            _ => record(&words(&[call.xid, 1, 0, 0, 0, 3])),
        };
        stream.write_all(&bytes).is_ok()
    });
    let (client, root) = client(&url);
    let error = client.getattr(&root).unwrap_err();
    assert_eq!(error.errno(), libc::EACCES);
    assert!(
        error.to_string().contains("AUTH_TOOWEAK") && error.to_string().contains("GETATTR /x"),
        "{error}"
    );
    let error = client.readlink(&root).unwrap_err();
    assert!(error.to_string().contains("PROC_UNAVAIL"), "{error}");
}

#[test]
fn a_server_that_needs_more_time_is_asked_again_with_a_new_number() {
    let (sender, seen) = calls();
    let mut is_first = true;
    let url = serve(move |stream, call| {
        sender.send(call.clone()).expect("the test listens");
        let bytes = if std::mem::take(&mut is_first) {
            reply(call.xid, &words(&[10008]))
        } else {
            attr_reply(call.xid, 7)
        };
        stream.write_all(&bytes).is_ok()
    });
    let (client, root) = client(&url);
    assert_eq!(client.getattr(&root).unwrap().size_bytes, 7);
    let seen: Vec<Call> = seen.try_iter().collect();
    assert_eq!((seen.len(), seen[0].connection, seen[1].connection), (2, 0, 0));
    assert_ne!(seen[0].xid, seen[1].xid);
}

#[test]
fn a_dropped_write_does_not_disturb_those_behind_it() {
    let (sender, seen) = calls();
    let url = serve(move |stream, call| {
        // The client has to stop in the midst of the data.
        std::thread::sleep(Duration::from_millis(300));
        sender.send(call.clone()).expect("the test listens");
        let bytes = match call.procedure {
            WRITE => reply(call.xid, &words(&[0, 0, 0, 1 << 20, 2, 1, 1])),
            _ => attr_reply(call.xid, 7),
        };
        stream.write_all(&bytes).is_ok()
    });
    let (client, root) = client(&url);
    let blocking = client.start_getattr(&root);
    let writes: Vec<_> =
        (0..12).map(|at| client.start_write(&root, at, vec![at as u8; 1 << 20], Stable::File)).collect();
    client.flush();
    drop(writes);
    assert_eq!(blocking.wait().unwrap().size_bytes, 7);
    assert_eq!(client.getattr(&root).unwrap().size_bytes, 7);
    let sent: Vec<Call> = seen.try_iter().filter(|call| call.procedure == WRITE).collect();
    assert!(
        (1..12).contains(&sent.len()),
        "some were sent, and those that were not begun are gone: {}",
        sent.len()
    );
    for (at, call) in sent.iter().enumerate() {
        assert!(call.arguments[call.arguments.len() - (1 << 20)..].iter().all(|byte| *byte == at as u8));
    }
}

#[test]
fn what_a_restarted_server_has_lost_is_written_again() {
    let (sender, seen) = calls();
    let mut commits = 0;
    let url = serve(move |stream, call| {
        let bytes = match call.procedure {
            WRITE => {
                sender.send(call.clone()).expect("the test listens");
                // It takes at most 100,000 bytes at once.
                let count = u32::from_be_bytes(call.arguments[16..20].try_into().expect("a count"));
                reply(call.xid, &words(&[0, 0, 0, count.min(100_000), 0, 0, commits]))
            }
            COMMIT => {
                commits = 1;
                reply(call.xid, &words(&[0, 0, 0, 0, commits]))
            }
            _ => return false,
        };
        stream.write_all(&bytes).is_ok()
    });
    let (client, root) = client(&url);
    client.write_all(&root, 0, &vec![7; 600_000], 4).unwrap();
    let written = |calls: &[Call]| {
        let counts =
            calls.iter().map(|call| u32::from_be_bytes(call.arguments[16..20].try_into().expect("a count")));
        counts.map(|count| u64::from(count.min(100_000))).sum::<u64>()
    };
    assert_eq!(written(&seen.try_iter().collect::<Vec<_>>()), 1_200_000, "all of it twice");
}

#[test]
fn a_created_file_without_a_handle_is_told() {
    let url = serve(|stream, call| {
        assert_eq!(call.procedure, CREATE);
        stream.write_all(&reply(call.xid, &words(&[0, 0, 0, 0, 0]))).is_ok()
    });
    let (client, root) = client(&url);
    let how = CreateHow::Guarded(SetAttr { mode: Some(0o600), ..SetAttr::default() });
    assert_eq!(client.create(&root, b"new", &how).unwrap().handle, None);
}
