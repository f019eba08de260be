//! Payloads that stop in the middle hold up nobody else, not even at the same bytes of the same file.

use super::*;

/// Every second KiB of 1 MiB, from `first` on.
fn every_second_kib(first: u64) -> Regions {
    Regions::strided(first, 1024, vec![Level { count: 512, stride_bytes: 2048 }])
}

/// Begins a write of `payload_bytes` and sends `sent` of them.
fn begin_write(io: &mut Raw, capability: &Capability, regions: Regions, payload_bytes: u64, sent: &[u8]) {
    let write = WriteRequest { capability: capability.clone(), slot: 0, flags: 0, regions }.to_bytes();
    let header = Header { body_bytes: write.len() as u32, payload_bytes, ..io.request(Op::Write) };
    io.socket.write_all(&[&header.encode(), write.as_slice(), sent].concat()).expect("it can be sent");
}

/// Writes the odd KiBs by a read-modify-write of the whole range, which waits for all others there.
fn write_odd_kibs(cluster: &Served, capability: &Capability, byte: u8) {
    let mut io = io_connection(cluster, "io0");
    let regions = every_second_kib(1024);
    let flags = io_flags::ACCESS_SIEVE;
    let write = WriteRequest { capability: capability.clone(), slot: 0, flags, regions };
    let header = io.request(Op::Write);
    io.send(header, &write.to_bytes(), &vec![byte; 512 << 10]).expect("it can be sent");
    let reply = io.receive_reply().expect("nobody is waited for");
    assert_eq!(reply.header.status, Status::Ok, "{}", reply.error_text());
    let reply = WriteReply::from_bytes(&reply.body).expect("a reply of a write");
    assert_eq!(reply.work.methods, io_flags::ACCESS_SIEVE);
}

#[test]
fn payloads_that_never_come_hold_nobody_up() {
    let mut cluster = Served::start(1);
    let (_meta, capability) = open_file(&cluster, "file", rights::READ | rights::WRITE);
    let mut stuck = Vec::new();
    for _ in 0..40 {
        let mut io = io_connection(&cluster, "io0");
        begin_write(&mut io, &capability, Regions::contiguous(0, 8 << 20), 8 << 20, &[1; 1000]);
        stuck.push(io);
    }
    let bystander = Bystander::start(&cluster);
    std::thread::sleep(Duration::from_secs(2));
    bystander.check();
    check_unharmed(&mut cluster);
}

#[test]
fn a_write_whose_payload_stops_holds_up_nobody_at_its_range() {
    let mut cluster = Served::start(1);
    let (_file, _meta, capability) = written_file(&cluster, 1 << 20, rights::READ | rights::WRITE);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/file", &OpenOptions::new().read(true).write(true)).expect("open");
    let mut stopped = io_connection(&cluster, "io0");
    let payload = vec![1; 512 << 10];
    let (first, second) = payload.split_at(payload.len() / 2);
    begin_write(&mut stopped, &capability, every_second_kib(0), payload.len() as u64, first);
    std::thread::sleep(Duration::from_millis(300));

    let begun = Instant::now();
    write_odd_kibs(&cluster, &capability, 2);
    file.write_at(&[4; 100], 1024).expect("nobody is waited for");
    let mut content = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut content, 0).expect("nobody is waited for"), content.len());
    assert!(begun.elapsed() < LATENCY_MAX, "others waited {:?}", begun.elapsed());

    // It goes on where it stopped, and its bytes and those of the others are all there.
    stopped.socket.write_all(second).expect("it can be sent");
    let reply = stopped.receive_reply().expect("a reply");
    assert_eq!(reply.header.status, Status::Ok, "{}", reply.error_text());
    let reply = WriteReply::from_bytes(&reply.body).expect("a reply of a write");
    assert_eq!(reply.work.methods, io_flags::ACCESS_MAPPED, "it went straight into mapped pages");
    file.read_at(&mut content, 0).expect("read");
    for (number, kib) in content.chunks(1024).enumerate() {
        let expected = if number % 2 == 0 { 1 } else { 2 };
        let from = if number == 1 { 100 } else { 0 };
        assert!(kib[..from].iter().all(|byte| *byte == 4), "KiB {number}");
        assert!(kib[from..].iter().all(|byte| *byte == expected), "KiB {number}");
    }
    check_unharmed(&mut cluster);
}

/// Those of many pieces hold no buffer, the others at most their share; none holds a turn at the range.
#[test]
fn many_payloads_that_stop_leave_buffers_and_turns_to_others() {
    let mut cluster = Served::start(1);
    let (_file, _meta, capability) = written_file(&cluster, 1 << 20, rights::READ | rights::WRITE);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/file", &OpenOptions::new().read(true).write(true)).expect("open");
    let mut stopped = Vec::new();
    for number in 0..80 {
        let mut io = io_connection(&cluster, "io0");
        match number % 2 {
            0 => begin_write(&mut io, &capability, every_second_kib(0), 512 << 10, &[1; 100_000]),
            _ => begin_write(&mut io, &capability, Regions::contiguous(0, 1 << 20), 1 << 20, &[1; 100_000]),
        }
        stopped.push(io);
    }
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let mut content = vec![0; 1 << 20];
    for round in 5..8 {
        write_odd_kibs(&cluster, &capability, round);
        file.write_at(&vec![round + 1; 1 << 20], 0).expect("nobody is waited for");
        file.read_at(&mut content, 0).expect("nobody is waited for");
        // The stopped ones may have changed the others.
        let odd = content.chunks(1024).skip(1).step_by(2);
        assert!(odd.flatten().all(|byte| *byte == round + 1), "round {round}");
    }
    assert!(begun.elapsed() < LATENCY_MAX, "others waited {:?}", begun.elapsed());
    check_unharmed(&mut cluster);
}
