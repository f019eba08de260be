//! Small files: their bytes lie with the inode on the metadata server until they become too many, and all clients see the same.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Barrier;
use std::time::Duration;

use weft_client::{At, Client, File, OpenOptions, SetAttr, Transport};
use weft_layout::{Extent, Regions};
use weft_test_cluster::{Cluster, pattern};
use weft_test_random::{Random, seed};
use weft_wire::Op;
use weft_wire::messages::{Caller, Time};

const STRIP_BYTES: u32 = 64 << 10;
/// The bound of the cluster's configuration.
const BOUND: usize = 16 << 10;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

/// How often a server was asked for an operation.
fn asked(client: &Client, server: usize, op: Op) -> u64 {
    let status = client.server_status(false).swap_remove(server).1.unwrap();
    status.operations.iter().filter(|count| count.op == op as u16).map(|count| count.count).sum()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(read);
    bytes
}

/// One message writes a new file and sets its times, for its owner only.
#[test]
fn contents_and_times_come_with_one_message() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let (root, observer) = (cluster.client(Transport::Tcp), cluster.client(Transport::Tcp));
    let time = |seconds| Time { seconds, nanoseconds: 123_456_789 };
    let told = || [Op::WriteSmall, Op::SetAttr].map(|op| asked(&observer, 0, op));
    let before = told();
    let file = root.open("/own", &create()).unwrap();
    assert_eq!(file.write_with_times(&pattern(1, 5000), &time(5), &time(-7)).unwrap(), Some(true));
    assert_eq!((file.attr().size, file.attr().mtime), (5000, time(-7)));
    file.close().unwrap();
    let attr = root.stat("/own", true).unwrap();
    assert_eq!((attr.atime, attr.mtime, attr.size), (time(5), time(-7), 5000));
    assert!(told() == [before[0] + 1, before[1]]);
    assert_eq!(contents(&root.open("/own", &OpenOptions::new().read(true)).unwrap()), pattern(1, 5000));
    // What is written later has its own time again.
    let file = root.open("/own", &create()).unwrap();
    file.write_at(b"x", 0).unwrap();
    file.close().unwrap();
    assert!(root.stat("/own", true).unwrap().mtime.seconds > 1_000_000);

    // Who may write, but does not own the file: its bytes count, its times do not.
    let other = root.with_caller(Caller { uid: 77, gid: 77, groups: Vec::new() });
    let chmod = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    root.setattr("/own", true, &chmod).unwrap();
    let file = other.open("/own", &OpenOptions::new().write(true)).unwrap();
    assert_eq!(file.write_with_times(&pattern(2, 6000), &time(1), &time(2)).unwrap(), Some(false));
    file.close().unwrap();
    let attr = root.stat("/own", true).unwrap();
    assert_ne!(attr.mtime, time(2));
    assert_eq!(attr.size, 6000);

    // Where it cannot be done nothing is written.
    let large = root.open("/large", &create()).unwrap();
    assert_eq!(large.write_with_times(&pattern(3, BOUND + 1), &time(1), &time(2)).unwrap(), None);
    let striped = root.open("/striped", &create().striped(true)).unwrap();
    assert_eq!(striped.write_with_times(b"x", &time(1), &time(2)).unwrap(), None);
    assert!(large.stat().unwrap().size == 0 && striped.stat().unwrap().size == 0);
}

#[test]
fn a_small_file_takes_two_messages_to_be_made_and_two_to_be_read() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    for transport in [Transport::Tcp, Transport::Shm, Transport::Rdma] {
        let (client, other) = (cluster.client(transport), cluster.client(Transport::Tcp));
        const OPS: [Op; 8] = [
            Op::Create,
            Op::Open,
            Op::WriteSmall,
            Op::ReadSmall,
            Op::Report,
            Op::Spread,
            Op::SetAttr,
            Op::GetAttr,
        ];
        let told = || {
            let at_io = [Op::Read, Op::Write, Op::Size, Op::PlaceObject];
            let at_io = (1..3).flat_map(|server| at_io.map(|op| asked(&other, server, op))).sum::<u64>();
            (OPS.map(|op| asked(&other, 0, op)), at_io)
        };
        let round = || {
            let before = told();
            let file = client.open("/two", &create()).unwrap();
            file.write_at(&pattern(1, 4096), 0).unwrap();
            file.close().unwrap();
            let made = told();
            let file = client.open("/two", &OpenOptions::new().read(true)).unwrap();
            let mut back = [0; 4096];
            assert_eq!(file.read_at(&mut back, 0).unwrap(), 4096);
            file.close().unwrap();
            let read = told();
            assert_eq!(back.as_slice(), pattern(1, 4096));
            assert_eq!(before.1, read.1, "I/O servers are not asked");
            let attr = other.stat("/two", true).unwrap();
            assert_eq!((attr.size, attr.size_live), (4096, false));
            client.unlink("/two").unwrap();
            [difference(before.0, made.0), difference(made.0, read.0)]
        };
        let made = OPS.map(|op| u64::from(matches!(op, Op::Create | Op::WriteSmall)));
        let read = OPS.map(|op| u64::from(matches!(op, Op::Open | Op::ReadSmall)));
        // Where the map of the cluster has just changed, a request is refused and asked again.
        weft_test_cluster::eventually("two messages each", || round() == [made, read]);
    }
}

fn difference<const N: usize>(before: [u64; N], after: [u64; N]) -> [u64; N] {
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn whatever_is_done_to_it_a_file_is_the_same_to_all() {
    let cluster = Cluster::start(3, STRIP_BYTES);
    let clients =
        [Transport::Tcp, Transport::Shm, Transport::Rdma].map(|transport| cluster.client(transport));
    let mut random = Random(seed());
    for round in 0..40 {
        let name = format!("/walk{round}");
        let mut files: Vec<File> =
            clients.iter().map(|client| client.open(&*name, &create()).unwrap()).collect();
        let mut model: Vec<u8> = Vec::new();
        for step in 0..25 {
            let which = random.below(3) as usize;
            let (client, file) = (&clients[which], &files[which]);
            // Most steps leave it small.
            let offset = match random.below(12) {
                0 => random.below(3 * u64::from(STRIP_BYTES)),
                _ => random.below(BOUND as u64 - 2000),
            };
            let length = random.below(2000) as usize;
            let bytes = random.bytes(length);
            let end = offset as usize + length;
            match random.below(14) {
                0..=4 => {
                    file.write_at(&bytes, offset).unwrap();
                    put(&mut model, offset as usize, &bytes);
                }
                5 => {
                    let middle = length / 2;
                    let two = [
                        Extent::new(offset, middle as u64),
                        Extent::new(offset + 5000, (length - middle) as u64),
                    ];
                    let memory = [IoSlice::new(&bytes[..middle]), IoSlice::new(&bytes[middle..])];
                    file.write_list(&memory, &Regions::list(two)).unwrap();
                    put(&mut model, offset as usize, &bytes[..middle]);
                    put(&mut model, offset as usize + 5000, &bytes[middle..]);
                }
                6 => {
                    let size = random.below(40_000) * random.below(4).min(1);
                    file.truncate(size).unwrap();
                    model.resize(size as usize, 0);
                }
                7 if random.one_in(4) && length > 0 => {
                    file.punch(offset, length as u64).unwrap();
                    let end = end.min(model.len());
                    model[(offset as usize).min(end)..end].fill(0);
                }
                8 => {
                    assert_eq!(file.append(&bytes).unwrap(), model.len() as u64);
                    model.extend_from_slice(&bytes);
                }
                9 => {
                    let to = client.open(&*format!("{name}.copy"), &create().truncate(true)).unwrap();
                    let copied = client.copy_range(file, 0, &to, 100, 1 << 30).unwrap();
                    let mut expected = vec![0; if model.is_empty() { 0 } else { 100 }];
                    expected.extend_from_slice(&model);
                    assert_eq!(
                        (copied as usize, contents(&to) == expected),
                        (model.len(), true),
                        "{round}.{step}"
                    );
                }
                10 => file.sync_data().unwrap(),
                11 => {
                    let mut parts = [vec![7; 3000], vec![7; 50], vec![7; 1000]];
                    let [one, two, three] = &mut parts;
                    let list = [(9000, 3000), (100, 50), (12_500, 1000)];
                    let regions = Regions::list(list.map(|(offset, bytes)| Extent::new(offset, bytes)));
                    let mut memory = [IoSliceMut::new(one), IoSliceMut::new(two), IoSliceMut::new(three)];
                    file.read_list(&mut memory, &regions).unwrap();
                    for ((offset, _), part) in list.into_iter().zip(&parts) {
                        let mut expected = vec![0; part.len()];
                        let there = model.get(offset as usize..).unwrap_or_default();
                        let there = &there[..there.len().min(expected.len())];
                        expected[..there.len()].copy_from_slice(there);
                        assert!(*part == expected, "{round}.{step}");
                    }
                }
                12 => {
                    let data = file.seek_data(0).unwrap();
                    assert!(data.is_none_or(|data| model[..data as usize].iter().all(|byte| *byte == 0)));
                    assert_eq!(file.seek_hole(model.len() as u64).unwrap(), None);
                }
                _ => {
                    let again = client.open(&*name, &create()).unwrap();
                    std::mem::replace(&mut files[which], again).close().unwrap();
                }
            }
            let reader = &files[random.below(3) as usize];
            assert!(contents(reader) == model, "{round}.{step}");
            assert_eq!(reader.stat().unwrap().size, model.len() as u64, "{round}.{step}");
        }
        drop(files);
        let attr = clients[0].stat(&*name, true).unwrap();
        assert_eq!(attr.size, model.len() as u64);
    }
}

fn put(model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if !bytes.is_empty() {
        model.resize(model.len().max(offset + bytes.len()), 0);
        model[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Two clients write records of a file in turn and at once, while it grows out of its bound: none is lost.
#[test]
fn writes_while_it_is_spread_are_all_kept() {
    const RECORD: usize = 500;
    const RECORDS: usize = 60;
    let cluster = Cluster::start(2, STRIP_BYTES);
    let clients = [Transport::Shm, Transport::Tcp].map(|transport| cluster.client(transport));
    for round in 0..60_u64 {
        let name = format!("/grows{round}");
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            for (which, client) in clients.iter().enumerate() {
                let (begin, name) = (&begin, &name);
                scope.spawn(move || {
                    let file = client.open(&**name, &create()).unwrap();
                    let mut mine: Vec<usize> = (0..RECORDS).filter(|record| record % 2 == which).collect();
                    let mut random = Random(seed() + round * 2 + which as u64);
                    begin.wait();
                    while !mine.is_empty() {
                        let record = mine.swap_remove(random.below(mine.len() as u64) as usize);
                        file.write_at(&[record as u8 + 1; RECORD], (record * RECORD) as u64).unwrap();
                    }
                    file.close().unwrap();
                });
            }
        });
        let expected: Vec<u8> = (0..RECORDS).flat_map(|record| [record as u8 + 1; RECORD]).collect();
        let file = clients[0].open(&*name, &OpenOptions::new().read(true)).unwrap();
        assert!(contents(&file) == expected, "{round}");
        assert_eq!(clients[1].stat(&*name, true).unwrap().size, expected.len() as u64);
    }
}

#[test]
fn bytes_stay_when_the_metadata_server_starts_anew() {
    let mut cluster = Cluster::start(1, STRIP_BYTES);
    let client = cluster.client(Transport::Tcp);
    let (small, grown) =
        (client.open("/small", &create()).unwrap(), client.open("/grown", &create()).unwrap());
    small.write_at(&[1; 1000], 0).unwrap();
    grown.write_at(&[2; 1000], 0).unwrap();
    grown.write_at(&[3; BOUND], 1000).unwrap();
    cluster.stop_server(0);
    cluster.start_server(0);
    small.write_at(&[4; 10], 995).unwrap();
    assert_eq!(contents(&small), [[1; 995].as_slice(), &[4; 10]].concat());
    assert_eq!(contents(&grown), [[2; 1000].as_slice(), &[3; BOUND]].concat());
    small.write_at(&[5; BOUND], 1005).unwrap();
    assert_eq!(contents(&small), [[1; 995].as_slice(), &[4; 10], &[5; BOUND]].concat());
}

#[test]
fn a_file_that_grows_waits_for_its_io_server() {
    let mut cluster = Cluster::start(1, STRIP_BYTES);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/f", &create()).unwrap();
    file.write_at(&[1; 1000], 0).unwrap();
    cluster.stop_server(1);
    // What needs no I/O server goes on.
    file.write_at(&[2; 1000], 500).unwrap();
    assert_eq!(contents(&file).len(), 1500);
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| file.write_at(&[3; BOUND], 1500).unwrap());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!grows.is_finished());
        cluster.start_server(1);
        assert_eq!(grows.join().unwrap(), BOUND);
    });
    assert_eq!(contents(&file), [[1; 500].as_slice(), &[2; 1000], &[3; BOUND]].concat());
}

#[test]
fn who_wants_a_striped_file_gets_one() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let client = cluster.client(Transport::Shm);
    let before = || [asked(&client, 0, Op::WriteSmall), asked(&client, 0, Op::Spread)];
    let small = client.open("/small", &create()).unwrap();
    small.write_at(b"few bytes", 0).unwrap();
    let asked_before = before();
    let striped = client.open("/small", &create().striped(true)).unwrap();
    striped.write_at(b"FEW", 0).unwrap();
    assert_eq!(contents(&small), b"FEW bytes");
    client.open("/new", &create().striped(true)).unwrap().write_at(b"text", 0).unwrap();
    assert_eq!(before(), asked_before);
    // Others that are to use the open without asking anybody.
    let shared = client.open("/shared", &create()).unwrap();
    shared.write_at(b"few bytes", 0).unwrap();
    let other = cluster.client(Transport::Tcp);
    let theirs = other.import_shared(&shared.share().unwrap()).unwrap();
    theirs.write_at(b"FEW", 0).unwrap();
    assert_eq!(contents(&shared), b"FEW bytes");
}

#[test]
fn an_open_of_its_own_elsewhere_is_of_the_same_small_file() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let (client, other) = (cluster.client(Transport::Shm), cluster.client(Transport::Tcp));
    let file = client.open("/f", &create()).unwrap();
    file.write_at(b"few bytes", 0).unwrap();
    let imported = other.import(&file.export().unwrap()).unwrap();
    let adopted = other.adopt(&file.pass(), "/f", false).unwrap();
    imported.write_at(b"FEW", 0).unwrap();
    adopted.write_at(b"BYTES", 4).unwrap();
    assert_eq!(contents(&file), b"FEW BYTES");
    assert!((1..3).all(|server| asked(&client, server, Op::Write) == 0));
}

#[test]
fn a_small_file_without_a_name_is_read_and_written_until_it_is_closed() {
    let cluster = Cluster::start(1, STRIP_BYTES);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/f", &create()).unwrap();
    file.write_at(b"few bytes", 0).unwrap();
    client.unlink("/f").unwrap();
    file.write_at(b"FEW", 0).unwrap();
    assert_eq!(contents(&file), b"FEW bytes");
    file.write_at(&[1; BOUND], 9).unwrap();
    let ino = file.ino();
    assert_eq!(contents(&file).len(), 9 + BOUND);
    file.close().unwrap();
    assert!(client.stat(At::ino(ino), true).is_err());
    weft_test_cluster::eventually("the data file to go", || asked(&client, 1, Op::RemoveObjects) > 0);
}
