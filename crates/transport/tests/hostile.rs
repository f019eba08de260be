//! Bad input, bad timing and bad luck: what strangers send, connections that stall, injected faults, sockets and their names.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};
use weft_test_needs::Need;

use common::*;
use weft_transport::*;
use weft_wire::messages::{ErrorDetail, MemoryRun, RemoteMemory, SegmentAddRequest};
use weft_wire::{HEADER_BYTES, Header, Op, Status, VERSIONS, Wire, flags, header_checksum};

/// A connection without a link, to send anything.
trait Raw: Read + Write {
    fn finish_sending(&self);
}

impl Raw for TcpStream {
    fn finish_sending(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

impl Raw for UnixStream {
    fn finish_sending(&self) {
        self.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

/// Raw connections to a TCP and a Unix server, each with the reasons for which connections ended.
fn each_stream(test: impl Fn(&mut dyn FnMut() -> Box<dyn Raw>, &Ends)) {
    let tcp = Tcp::start();
    let connect_tcp = &mut || {
        let stream = TcpStream::connect(tcp.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Box::new(stream) as Box<dyn Raw>
    };
    test(connect_tcp, &tcp.server.ends);
    let shm = Shm::<false>::start();
    let connect_unix = &mut || {
        let stream = UnixStream::connect(&shm.path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Box::new(stream) as Box<dyn Raw>
    };
    test(connect_unix, &shm.server.ends);
    // Whatever was sent, both still serve.
    call(&mut tcp.connect(), &Command::default().to_bytes(), Bulk::None);
    call(&mut shm.connect(), &Command::default().to_bytes(), Bulk::None);
}

fn message(mut header: Header, body: &[u8], payload: &[u8]) -> Vec<u8> {
    header.body_bytes = body.len() as u32;
    header.payload_bytes = payload.len() as u64;
    [header.encode().as_slice(), body, payload].concat()
}

fn prove(stream: &mut Box<dyn Raw>) {
    stream.write_all(&message(Header::request(Op::Ping, 1), b"prove", &[])).unwrap();
    assert_eq!(read_reply(stream).0.status, Status::Ok);
}

fn read_reply(stream: &mut Box<dyn Raw>) -> (Header, Vec<u8>) {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).unwrap();
    let header = Header::decode(&head).unwrap();
    let mut body = vec![0; header.body_bytes as usize];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

fn assert_closed(stream: &mut Box<dyn Raw>) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

fn wait_for_end(ends: &Ends, part: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !ends.lock().unwrap().iter().any(|end| end.contains(part)) {
        assert!(Instant::now() < deadline, "no connection ended with {part:?}: {:?}", ends.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn another_protocol_is_cut_off() {
    each_stream(|connect, ends| {
        let mut stream = connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: weft.example\r\nAccept: text/html, */*\r\n\r\n").unwrap();
        stream.write_all(&[b' '; 64]).unwrap();
        assert_closed(&mut stream);
        wait_for_end(ends, "not Weft's protocol");
    });
}

#[test]
fn a_damaged_header_is_cut_off() {
    each_stream(|connect, ends| {
        let mut stream = connect();
        let mut bytes = message(Header::request(Op::Ping, 1), b"prove", &[]);
        bytes[20] ^= 1;
        stream.write_all(&bytes).unwrap();
        assert_closed(&mut stream);
        wait_for_end(ends, "damaged");
    });
}

#[test]
fn an_unknown_operation_is_refused_clearly() {
    each_stream(|connect, _| {
        for (version, status) in [(1, Status::Unsupported), (VERSIONS.1 + 1, Status::Version)] {
            let mut stream = connect();
            let mut bytes = Header::request(Op::Ping, 42).encode();
            bytes[4] = version;
            bytes[6..8].copy_from_slice(&0xfff0u16.to_le_bytes());
            let sum = header_checksum(&bytes);
            bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
            stream.write_all(&bytes).unwrap();
            let (header, body) = read_reply(&mut stream);
            assert_eq!((header.request_id, header.status), (42, status));
            assert!(ErrorDetail::from_bytes(&body).unwrap().text.contains("unknown operation"));
            assert_closed(&mut stream);
        }
    });
}

#[test]
fn oversize_lengths_are_refused() {
    each_stream(|connect, _| {
        let mut unproven = connect();
        let mut header = Header::request(Op::Ping, 7);
        header.body_bytes = 1 << 20;
        unproven.write_all(&header.encode()).unwrap();
        assert_eq!(read_reply(&mut unproven).0.status, Status::TooBig);
        assert_closed(&mut unproven);
        for (body_bytes, payload_bytes) in [(u32::MAX, 0), (0, u64::MAX), (0, (1 << 30) + 1)] {
            let mut stream = connect();
            prove(&mut stream);
            header = Header { body_bytes, payload_bytes, ..Header::request(Op::Ping, 8) };
            stream.write_all(&header.encode()).unwrap();
            let (header, body) = read_reply(&mut stream);
            assert_eq!((header.request_id, header.status), (8, Status::TooBig));
            assert!(ErrorDetail::from_bytes(&body).unwrap().text.contains("announces"));
            assert_closed(&mut stream);
        }
    });
}

#[test]
fn messages_for_the_other_end_are_refused() {
    each_stream(|connect, _| {
        let mut stream = connect();
        prove(&mut stream);
        stream.write_all(&Header::request(Op::Ping, 3).data(0, 0).encode()).unwrap();
        assert_eq!(read_reply(&mut stream).0.status, Status::Malformed);
        assert_closed(&mut stream);
    });
}

#[test]
fn truncated_messages_end_the_connection() {
    each_stream(|connect, ends| {
        let whole = message(
            Header::request(Op::Ping, 2),
            &Command { verb: Verb::Write, bytes: 5000, unit_bytes: 5000, ..Command::default() }.to_bytes(),
            &[0; 5000],
        );
        for bytes in [10, HEADER_BYTES, HEADER_BYTES + 5, whole.len() - 1] {
            ends.lock().unwrap().clear();
            let mut stream = connect();
            prove(&mut stream);
            stream.write_all(&whole[..bytes]).unwrap();
            stream.finish_sending();
            wait_for_end(ends, "client");
        }
    });
}

#[test]
fn a_slow_loris_is_cut_off() {
    each_stream(|connect, ends| {
        let mut stream = connect();
        let bytes = message(Header::request(Op::Ping, 1), b"prove", &[]);
        let begin = Instant::now();
        for byte in &bytes[..20] {
            if stream.write_all(&[*byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(40));
        }
        wait_for_end(ends, "no progress");
        assert!(begin.elapsed() < Duration::from_secs(5));
        let mut idle = connect();
        prove(&mut idle);
        std::thread::sleep(Duration::from_millis(500));
        // Silence between messages is no stall.
        idle.write_all(&message(Header::request(Op::Ping, 2), &Command::default().to_bytes(), &[])).unwrap();
        assert_eq!(read_reply(&mut idle).0.status, Status::Ok);
    });
}

#[test]
fn a_client_that_takes_nothing_is_cut_off() {
    each_stream(|connect, ends| {
        let mut stream = connect();
        prove(&mut stream);
        let command =
            Command { verb: Verb::Read, bytes: 64 << 20, unit_bytes: 1 << 20, ..Command::default() };
        stream.write_all(&message(Header::request(Op::Ping, 2), &command.to_bytes(), &[])).unwrap();
        // The handler's put fails; then the connection is closed.
        wait_for_end(ends, "closed the connection");
        drop(stream);
    });
}

#[test]
fn remote_memory_over_tcp_is_refused() {
    let server = Tcp::start();
    let mut stream: Box<dyn Raw> = Box::new(TcpStream::connect(server.address).unwrap());
    prove(&mut stream);
    let header = Header { flags: flags::REMOTE_MEMORY, ..Header::request(Op::Ping, 3) };
    stream.write_all(&message(header, &[], &RemoteMemory { runs: vec![] }.to_bytes())).unwrap();
    assert_eq!(read_reply(&mut stream).0.status, Status::Malformed);
    assert_closed(&mut stream);
}

#[test]
fn remote_memory_that_makes_no_sense_is_refused_and_the_connection_lives() {
    let server = Shm::<false>::start();
    let mut stream: Box<dyn Raw> = Box::new(UnixStream::connect(&server.path).unwrap());
    prove(&mut stream);
    let run = |segment, address, bytes, count| MemoryRun { segment, address, bytes, stride_bytes: 1, count };
    let too_many = RemoteMemory { runs: vec![run(0, 1, 1, 1); 8193] }.to_bytes();
    for payload in [
        b"nonsense".to_vec(),
        RemoteMemory { runs: vec![run(0, 4096, 1, 1)] }.to_bytes(), // never probed
        RemoteMemory { runs: vec![run(3, 0, 1, 1)] }.to_bytes(),
        RemoteMemory { runs: vec![run(0, u64::MAX, 9, 9)] }.to_bytes(),
        RemoteMemory { runs: vec![run(0, 0, 1, u64::MAX)] }.to_bytes(),
    ] {
        let header = Header { flags: flags::REMOTE_MEMORY, ..Header::request(Op::Ping, 3) };
        stream.write_all(&message(header, &[], &payload)).unwrap();
        assert_eq!(read_reply(&mut stream).0.status, Status::Malformed);
    }
    let header = Header { flags: flags::REMOTE_MEMORY, ..Header::request(Op::Ping, 3) };
    stream.write_all(&message(header, &[], &too_many)).unwrap();
    assert_eq!(read_reply(&mut stream).0.status, Status::TooBig);
}

#[test]
fn memory_that_is_not_mapped_is_a_clear_error() {
    let server = Shm::<false>::start();
    let mut link = server.connect();
    let bytes = 1 << 20;
    // SAFETY: a new mapping, which the test then removes.
    let hole = unsafe {
        let base = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::munmap(base, bytes);
        base as u64
    };
    let run = MemoryRun { segment: 0, address: hole, bytes: bytes as u64, stride_bytes: 0, count: 1 };
    for (verb, bulk) in [(Verb::Read, Bulk::put(vec![run.clone()])), (Verb::Write, Bulk::get(vec![run]))] {
        let command = Command { verb, bytes: bytes as u64, unit_bytes: 65_536, ..Command::default() };
        let done = call(&mut link, &command.to_bytes(), bulk);
        assert_eq!(done.header.status, Status::Internal);
        assert!(String::from_utf8_lossy(&done.body).contains("cannot be reached"));
    }
    round_trip(&mut link, &mut TestMemory::new(&[(0, 100_000, 1)]), 50_000, 1);
}

#[test]
fn a_client_that_gives_a_connection_up_is_told_from_one_that_has_ended() {
    let tcp = Tcp::start();
    let mut link = tcp.connect();
    call(&mut link, &Command::default().to_bytes(), Bulk::None);
    drop(link);
    wait_for_end(&tcp.server.ends, "has ended");
    let mut link = tcp.connect();
    call(&mut link, &Command::default().to_bytes(), Bulk::None);
    link.give_up();
    drop(link);
    wait_for_end(&tcp.server.ends, "closed the connection");
    // A process on the same host may go on, whatever becomes of its connections.
    let shm = Shm::<false>::start();
    call(&mut shm.connect(), &Command::default().to_bytes(), Bulk::None);
    wait_for_end(&shm.server.ends, "closed the connection");
}

/// Sends a message with a descriptor.
fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: Option<&File>) {
    let mut control = [0u64; 8];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a message of one live piece, with room for one descriptor.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut piece;
        message.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        }
        assert_eq!(libc::sendmsg(stream.as_fd().as_raw_fd(), &message, 0), bytes.len() as isize);
    }
}

#[test]
fn segments_that_could_harm_the_server_are_refused() {
    let server = Shm::<false>::start();
    let stream = UnixStream::connect(&server.path).unwrap();
    let mut reader: Box<dyn Raw> = Box::new(stream.try_clone().unwrap());
    let add = |segment, bytes| {
        message(Header::request(Op::SegmentAdd, 5), &SegmentAddRequest { segment, bytes }.to_bytes(), &[])
    };
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    send_with(&stream, &add(1, 4096), Some(&file));
    assert_eq!(read_reply(&mut reader).0.status, Status::Unauthenticated);
    prove(&mut reader);
    let good = Segment::new(8192).unwrap();
    let good = File::from(good.fd().try_clone_to_owned().unwrap());
    for (segment, bytes, descriptor, status) in [
        (1, 4096, Some(&file), Status::Invalid), // no memfd
        (1, 4096, None, Status::Malformed),
        (1, 8193, Some(&good), Status::Invalid),
        (1, u64::MAX, Some(&good), Status::Limit),
        (0, 8192, Some(&good), Status::Invalid),
        (1, 8192, Some(&good), Status::Ok),
        (1, 8192, Some(&good), Status::Invalid), // again
    ] {
        send_with(&stream, &add(segment, bytes), descriptor);
        assert_eq!(read_reply(&mut reader).0.status, status, "{segment} {bytes} {descriptor:?}");
    }
    for segment in 2..=64 {
        send_with(&stream, &add(segment, 4096), Some(&good));
        assert_eq!(read_reply(&mut reader).0.status, Status::Ok);
    }
    send_with(&stream, &add(65, 4096), Some(&good));
    assert_eq!(read_reply(&mut reader).0.status, Status::Limit);
}

#[test]
fn staged_requests_wait_for_room_and_large_ones_are_refused() {
    let server = Shm::<true>::start();
    let mut link = server.connect();
    let bytes = link.bulk_bytes_max();
    assert_eq!(bytes, SHM_BULK_BYTES_MAX_STAGED);
    let mut memories: Vec<TestMemory> = (0..12).map(|_| TestMemory::new(&[(0, bytes as usize, 1)])).collect();
    let requests = memories.iter_mut().enumerate().map(|(at, memory)| {
        let seed = at as u64;
        let verb = if at % 3 == 0 { Verb::Write } else { Verb::Read };
        if verb == Verb::Write {
            memory.fill(seed);
        }
        let bulk = if verb == Verb::Write { Bulk::get(memory.runs()) } else { Bulk::put(memory.runs()) };
        let command = Command { verb, bytes, unit_bytes: 1 << 20, seed, ..Command::default() };
        (command.to_bytes(), bulk)
    });
    let done = call_many(&mut link, requests.collect());
    assert!(done.iter().all(|done| done.header.status == Status::Ok));
    for (at, memory) in memories.iter().enumerate() {
        memory.check(at as u64, bytes);
    }
    let large = TestMemory::new(&[(0, bytes as usize + 1, 1)]);
    let command = Command::default().to_bytes();
    let refused = submit(&mut link, 1, &command, Bulk::put(large.runs())).unwrap_err();
    assert!(matches!(refused, LinkError::TooLarge { .. }) && !refused.is_fatal());
}

/// The client asks again, over a connection with mappings of its own.
#[test]
fn no_success_is_replied_after_a_page_of_the_clients_memory_was_gone() {
    let server = Shm::<false>::start();
    let segment = Segment::new(1 << 20).unwrap();
    let run = MemoryRun { segment: segment.id(), address: 0, bytes: 1 << 20, stride_bytes: 0, count: 1 };
    let lose = |verb| {
        let mut link = server.connect();
        link.add_segment(&segment).unwrap();
        try_call(&mut link).expect("by now the server has the segment");
        let command = Command { verb, bytes: 1 << 20, ..Command::default() };
        submit(&mut link, 1, &command.to_bytes(), Bulk::put(vec![run.clone()])).unwrap();
        let done = try_wait(&mut link, 1);
        assert!(try_call(&mut link).is_err(), "the connection has ended");
        done
    };
    assert!(lose(Verb::LoseLocal).is_err());
    let refused = lose(Verb::LoseLocalAndFail).unwrap();
    assert_eq!(refused[0].header.status, Status::NoSpace);
    assert_eq!(refused[0].body, b"Ok(())");
}

#[test]
fn injected_faults_do_what_they_say() {
    let server = InProcess::with(MemoryFaults {
        seed: weft_test_random::seed(),
        refuse_first: 2,
        cut_after_messages: Some(10),
        delay_ms_max: 5,
    });
    for _ in 0..2 {
        assert!(matches!(server.connector.connect(), Err(LinkError::Connect { .. })));
    }
    let mut link = server.connect();
    let mut served = 0;
    while try_call(&mut link).is_ok() {
        served += 1;
        assert!(served < 10);
    }
    assert_eq!(served, 4, "10 messages are 5 requests with replies, one of them the proof");
}

fn try_call(link: &mut impl Link) -> Result<(), LinkError> {
    submit(link, 1, &Command::default().to_bytes(), Bulk::None)?;
    try_wait(link, 1).map(drop)
}

#[test]
fn nobody_there_is_a_clear_error() {
    let listening = listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listening.address().unwrap();
    drop(listening);
    let error = connect_tcp(address, &TcpOptions::default(), PATIENCE).err().unwrap();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none");
    let error = connect_shm(&path, ShmOptions::default(), PATIENCE).err().unwrap();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn socket_names_are_replaced_only_when_stale_and_may_be_long() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    let listening = listen_unix(&path).unwrap();
    assert!(listen_unix(&path).is_err(), "it is in use");
    drop(listening);
    assert!(!path.exists());
    std::fs::write(&path, b"data").unwrap();
    assert!(listen_unix(&path).unwrap_err().to_string().contains("no socket"));
    let deep = directory.path().join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    let long = deep.join("socket");
    let _listening = listen_unix(&long).unwrap();
    connect_shm(&long, ShmOptions::default(), PATIENCE).unwrap();
    assert!(listen_unix(&deep.join("n".repeat(120))).is_err());
}

#[test]
fn the_congestion_control_in_effect_is_told() {
    let server = Tcp::start();
    let kind = server.connect().kind().to_string();
    assert!(kind == "tcp cubic" || kind == "tcp reno", "{kind}");
    let named = TcpOptions { congestion: Congestion::Named("reno".into()), ..TcpOptions::default() };
    let link = connect_tcp(server.address, &named, PATIENCE).unwrap();
    assert_eq!(link.kind().to_string(), "tcp reno");
    let wrong = TcpOptions { congestion: Congestion::Named("none such".into()), ..TcpOptions::default() };
    assert!(connect_tcp(server.address, &wrong, PATIENCE).is_err());
}

/// Runs `child` in a forked process and returns its exit status.
fn in_forked_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `child` and leaves without unwinding or running destructors of other threads.
    unsafe {
        let process = libc::fork();
        assert!(process >= 0);
        if process == 0 {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
            libc::_exit(status);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &mut status, 0), process);
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    }
}

fn a_link_dropped_in_a_forked_child_is_still_the_parents<F: Fixture>() {
    let server = F::start();
    let mut link = server.connect();
    let mut memory = TestMemory::new(&[(0, 300_000, 1)]);
    let command = Command {
        verb: Verb::Read,
        bytes: 300_000,
        unit_bytes: 65_536,
        seed: 5,
        delay_ms: 100,
        ..Command::default()
    };
    submit(&mut link, 1, &command.to_bytes(), Bulk::put(memory.runs())).unwrap();
    // SAFETY: the child drops its own copy of the link; the parent's memory has its own.
    let mut copy = Some(unsafe { std::ptr::read(&link) });
    let begin = Instant::now();
    let status = in_forked_child(|| {
        drop(copy.take());
        0
    });
    std::mem::forget(copy);
    assert_eq!(status, 0);
    assert!(begin.elapsed() < Duration::from_secs(1), "the child only closes descriptors");
    assert_eq!(wait_all(&mut link, 1)[0].header.status, Status::Ok);
    memory.check(5, 300_000);
    round_trip(&mut link, &mut memory, 65_536, 6);
}

#[test]
fn links_survive_a_fork() {
    a_link_dropped_in_a_forked_child_is_still_the_parents::<Tcp>();
    a_link_dropped_in_a_forked_child_is_still_the_parents::<Shm<false>>();
    a_link_dropped_in_a_forked_child_is_still_the_parents::<Shm<true>>();
    a_link_dropped_in_a_forked_child_is_still_the_parents::<Verbs<Pretended, 0>>();
}

#[test]
fn the_memory_of_another_user_is_not_reached_for() {
    use std::os::unix::fs::PermissionsExt;
    if !Need::Root.is_met() {
        return;
    }
    let server = Shm::<false>::start();
    std::fs::set_permissions(server.path.parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let status = in_forked_child(|| {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::setresuid(65_534, 65_534, 65_534) }, 0);
        let mut link = server.connect_unproven();
        call(&mut link, b"prove", Bulk::None);
        link.set_credits(4);
        link.set_up(PATIENCE).unwrap();
        round_trip(&mut link, &mut TestMemory::new(&[(7, 50_000, 9)]), 1 << 20, 3);
        i32::from(link.kind().to_string() != "shm staged: the server runs as another user")
    });
    assert_eq!(status, 0);
}

#[test]
fn a_request_of_a_client_that_has_died_touches_nothing() {
    let server = Shm::<false>::start();
    let status = in_forked_child(|| {
        let mut link = server.connect();
        let memory = TestMemory::new(&[(0, 1 << 20, 1)]);
        let command = Command {
            verb: Verb::Read,
            bytes: 1 << 20,
            unit_bytes: 1 << 16,
            delay_ms: 100,
            ..Command::default()
        };
        submit(&mut link, 1, &command.to_bytes(), Bulk::put(memory.runs())).unwrap();
        // SAFETY: ends this process as a kill would.
        unsafe { libc::_exit(7) }
    });
    assert_eq!(status, 7);
    wait_for_end(&server.server.ends, "closed the connection");
    round_trip(&mut server.connect(), &mut TestMemory::new(&[(0, 70_000, 1)]), 1 << 16, 1);
}
