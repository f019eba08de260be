//! The client against real servers, over TCP, shared memory, and RDMA with pretended adapters.

use std::io::{IoSlice, IoSliceMut, SeekFrom};

use weft_client::{
    At, Client, ErrorKind, LockKind, LockWait, OpenOptions, SetAttr, SetTime, Transport, wait_all,
};
use weft_layout::{Extent, Level, Partition, Regions};
use weft_test_cluster::{Cluster, pattern};
use weft_wire::Op;
use weft_wire::messages::{FileKind, LayoutWish, Time, rename_flags};

const STRIP_BYTES: u32 = 4096;

fn over_all(test: impl Fn(&Cluster, Client)) {
    let cluster = Cluster::start(4, STRIP_BYTES);
    for transport in [Transport::Tcp, Transport::Shm, Transport::Rdma] {
        let client = cluster.client(transport);
        test(&cluster, client.clone());
        let kinds: Vec<_> = client.transports().into_iter().filter_map(|used| used.transport).collect();
        let expected = match transport {
            Transport::Tcp => "tcp",
            Transport::Shm => "shm",
            _ => "verbs client0 pretended",
        };
        assert!(!kinds.is_empty() && kinds.iter().all(|kind| kind.starts_with(expected)), "{kinds:?}");
    }
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).truncate(true)
}

#[test]
fn what_is_written_is_read_at_any_offset() {
    over_all(|_, client| {
        let file = client.open("/plain", &create()).unwrap();
        let data = pattern(1, 3_000_000);
        assert_eq!(file.write_at(&data, 0).unwrap(), data.len());
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), data.len());
        assert!(back == data);
        for (offset, bytes) in [(0, 1), (4095, 2), (1_000_001, 70_000), (2_999_999, 1)] {
            let mut back = vec![0; bytes];
            assert_eq!(file.read_at(&mut back, offset).unwrap(), bytes);
            assert_eq!(back, data[offset as usize..][..bytes]);
        }
        assert_eq!(file.stat().unwrap().size, data.len() as u64);
        file.close().unwrap();
        let attr = client.stat("/plain", true).unwrap();
        assert_eq!((attr.size, attr.size_live), (data.len() as u64, false));
    });
}

/// Three writers, each over its own transport, write one value everywhere in one range, whole or in pieces, at the same time.
#[test]
fn after_writes_to_the_same_bytes_each_byte_is_one_of_the_writers() {
    const BYTES: usize = 50_000;
    let cluster = Cluster::start(4, STRIP_BYTES);
    let clients =
        [Transport::Tcp, Transport::Shm, Transport::Rdma].map(|transport| cluster.client(transport));
    clients[0].open("/shared", &create()).unwrap().write_at(&[0; BYTES], 0).unwrap();
    let files = clients
        .each_ref()
        .map(|client| client.open("/shared", &OpenOptions::new().read(true).write(true)).unwrap());
    // Blocks that touch, which a server may also write as one extent.
    let in_pieces = Regions::strided(0, 100, [Level { count: BYTES as u64 / 100, stride_bytes: 100 }]);
    let begun = std::sync::Barrier::new(files.len());
    for round in 0..30u8 {
        std::thread::scope(|scope| {
            for (file, writer) in files.iter().zip(1..) {
                let (begun, in_pieces) = (&begun, &in_pieces);
                scope.spawn(move || {
                    let data = vec![round * 8 + writer; BYTES];
                    begun.wait();
                    match (round + writer) % 3 {
                        0 => assert_eq!(
                            file.write_list(&[IoSlice::new(&data)], in_pieces).unwrap(),
                            BYTES as u64
                        ),
                        _ => assert_eq!(file.write_at(&data, 0).unwrap(), BYTES),
                    }
                });
            }
        });
        let mut found = vec![0; BYTES];
        assert_eq!(files[0].read_at(&mut found, 0).unwrap(), BYTES);
        let strange = found.iter().position(|byte| byte / 8 != round || !(1..=3).contains(&(byte % 8)));
        assert_eq!(strange.map(|at| (at, found[at])), None, "round {round}");
    }
}

#[test]
fn a_file_ends_where_it_ends_and_holes_are_zeros() {
    over_all(|_, client| {
        let file = client.open("/holes", &create()).unwrap();
        assert_eq!(file.read_at(&mut [7; 10], 0).unwrap(), 0, "an empty file");
        file.write_at(b"end", 20_000).unwrap();
        let mut back = vec![7; 40_000];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 20_003);
        assert!(back[..20_000].iter().all(|byte| *byte == 0) && &back[20_000..20_003] == b"end");
        let mut small = [7; 100];
        assert_eq!(
            file.read_at(&mut small, 4096).unwrap(),
            100,
            "a hole on one server, whose end others know"
        );
        assert_eq!(small, [0; 100]);
        assert_eq!(file.read_at(&mut small, 19_990).unwrap(), 13);
        assert_eq!(file.read_at(&mut small, 20_003).unwrap(), 0);
        assert_eq!(file.read_at(&mut small, 1 << 40).unwrap(), 0);
        assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    });
}

#[test]
fn both_sides_may_be_in_pieces() {
    over_all(|_, client| {
        let file = client.open("/pieces", &create()).unwrap();
        let data = pattern(2, 600_000);
        file.write_at(&data, 0).unwrap();
        let regions = Regions::strided(100, 24, [Level { count: 1000, stride_bytes: 500 }])
            .then(Regions::list([Extent::new(50, 7), Extent::new(10, 3), Extent::new(599_995, 20)]));
        let bytes = regions.total_bytes() as usize;
        let mut expected: Vec<u8> = Vec::new();
        for extent in regions.extents() {
            expected
                .extend((extent.offset..extent.end()).map(|at| data.get(at as usize).copied().unwrap_or(0)));
        }
        let (mut first, mut second) = (vec![9; 1001], vec![9; bytes - 1001]);
        let memory = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(
            file.read_list(memory, &regions).unwrap(),
            bytes as u64 - 15,
            "15 bytes lie beyond the end"
        );
        first.extend(second);
        assert!(first == expected);

        let scattered = Regions::strided(7, 3, [Level { count: 5000, stride_bytes: 11 }]);
        let memory = [IoSlice::new(&data[..5000]), IoSlice::new(&data[9000..19_000])];
        assert_eq!(file.write_list(&memory, &scattered).unwrap(), 15_000);
        let mut model = data.clone();
        let mut source = data[..5000].iter().chain(&data[9000..19_000]);
        for extent in scattered.extents() {
            for at in extent.offset..extent.end() {
                model[at as usize] = *source.next().unwrap();
            }
        }
        let mut back = vec![0; model.len()];
        file.read_at(&mut back, 0).unwrap();
        assert!(back == model);
    });
}

#[test]
fn long_lists_are_cut_into_windows() {
    over_all(|_, client| {
        let file = client.open("/long", &create()).unwrap();
        let data = pattern(3, 200_000);
        let extents: Vec<_> = (0..20_000u64).map(|at| Extent::new(at * 7919 % 20_000 * 31, 10)).collect();
        let regions = Regions::list(extents);
        assert_eq!(file.write_list(&[IoSlice::new(&data)], &regions).unwrap(), 200_000);
        let mut back = vec![0; data.len()];
        assert_eq!(file.read_list(&mut [IoSliceMut::new(&mut back)], &regions).unwrap(), 200_000);
        assert!(back == data);
    });
}

#[test]
fn a_list_that_goes_back_counts_the_hole_at_the_end_of_one_data_file() {
    over_all(|_, client| {
        let file = client.open("/back", &create()).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        file.write_at(&[2; 100], file.layout().strip_bytes().into()).unwrap();
        // Both extents are in the first strip, whose data file ends between them; the file ends in another.
        let regions = Regions::list([Extent::new(1000, 10), Extent::new(0, 10)]);
        let mut back = [9; 20];
        assert_eq!(file.read_list(&mut [IoSliceMut::new(&mut back)], &regions).unwrap(), 20);
        assert_eq!((&back[..10], &back[10..]), (&[0; 10][..], &[1; 10][..]));
    });
}

#[test]
fn a_size_is_right_for_every_client_while_the_file_is_written() {
    over_all(|cluster, client| {
        let other = cluster.client(Transport::Tcp);
        let file = client.open("/live", &create()).unwrap();
        for bytes in [1u64, 5000, 300_000] {
            file.write_at(&vec![1; bytes as usize], 0).unwrap();
            assert_eq!(other.stat("/live", true).unwrap().size, bytes);
            let entry = other.read_dir("/").unwrap().map(Result::unwrap).find(|entry| entry.name == b"live");
            assert_eq!(entry.unwrap().attr.unwrap().size, bytes);
        }
        let flushed = file.flush().unwrap().unwrap();
        assert_eq!(flushed.size, 300_000);
        assert_eq!(file.flush().unwrap(), None);
        file.close().unwrap();
        assert_eq!(other.stat("/live", true).unwrap().size, 300_000);
    });
}

#[test]
fn truncation_cuts_extends_and_empties() {
    over_all(|_, client| {
        let file = client.open("/cut", &create()).unwrap();
        let data = pattern(4, 100_000);
        file.write_at(&data, 0).unwrap();
        file.truncate(10_001).unwrap();
        assert_eq!(file.stat().unwrap().size, 10_001);
        file.truncate(50_000).unwrap();
        let mut back = vec![9; 60_000];
        assert_eq!(file.read_at(&mut back, 0).unwrap(), 50_000);
        assert!(back[..10_001] == data[..10_001] && back[10_001..50_000].iter().all(|byte| *byte == 0));
        file.close().unwrap();
        assert_eq!(client.stat("/cut", true).unwrap().size, 50_000);
        client.truncate("/cut", 3).unwrap();
        assert_eq!(client.stat("/cut", true).unwrap().size, 3);
        client.open("/cut", &create()).unwrap().close().unwrap();
        assert_eq!(client.stat("/cut", true).unwrap().size, 0);
    });
}

#[test]
fn space_is_freed_and_reserved() {
    over_all(|_, client| {
        let file = client.open("/space", &create()).unwrap();
        file.write_at(&pattern(5, 100_000), 0).unwrap();
        file.punch(8192, 30_000).unwrap();
        let mut back = vec![9; 30_000];
        file.read_at(&mut back, 8192).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
        file.allocate(150_000, 10_000, true).unwrap();
        assert_eq!(file.stat().unwrap().size, 100_000);
        file.allocate(150_000, 10_000, false).unwrap();
        assert_eq!(file.stat().unwrap().size, 160_000);
        file.sync_data().unwrap();
        assert_eq!(file.punch(5, 0).unwrap_err().errno(), libc::EINVAL);
    });
}

#[test]
fn cursor_view_and_append() {
    over_all(|_, client| {
        let file = client.open("/cursor", &create()).unwrap();
        let data = pattern(6, 1000);
        file.write(&data[..400]).unwrap();
        file.write(&data[400..]).unwrap();
        assert_eq!(file.seek(SeekFrom::End(-100)).unwrap(), 900);
        let mut back = vec![0; 200];
        assert_eq!(file.read(&mut back).unwrap(), 100);
        assert_eq!(back[..100], data[900..]);
        assert!(file.seek(SeekFrom::Start(0)).is_ok() && file.seek(SeekFrom::Current(-1)).is_err());
        file.set_view(Some(Partition::new(100, 10, 50).unwrap().into()));
        assert_eq!(file.read(&mut back[..25]).unwrap(), 25);
        let expected: Vec<u8> = [&data[100..110], &data[150..160], &data[200..205]].concat();
        assert_eq!(back[..25], expected);
        assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 180);
        file.set_view(None);
        assert_eq!(file.append(b"more").unwrap(), 1000);
        assert_eq!(file.append(b"!").unwrap(), 1004);
        assert_eq!(file.stat().unwrap().size, 1005);
    });
}

#[test]
fn names_and_attributes() {
    over_all(|_, client| {
        let base = client.mkdir("/d", 0o755).unwrap();
        assert_eq!(base.kind, FileKind::Directory);
        let at = |name: &'static str| At::child(base.ino, name.as_bytes());
        client.open(at("a"), &create()).unwrap().close().unwrap();
        client.symlink(at("s"), b"a").unwrap();
        assert_eq!(client.readlink("/d/s").unwrap(), b"a");
        assert_eq!(client.stat("/d/s", true).unwrap().kind, FileKind::File);
        assert_eq!(client.stat("/d/s", false).unwrap().kind, FileKind::Symlink);
        assert_eq!(client.link("/d/a", false, at("hard")).unwrap().nlink, 2);
        client.mknod(at("pipe"), FileKind::Fifo, 0o600, 0).unwrap();
        client.rename(at("hard"), "/d/moved", rename_flags::NOREPLACE).unwrap();
        let mut names: Vec<_> = client.read_dir("/d").unwrap().map(|entry| entry.unwrap().name).collect();
        names.sort();
        assert_eq!(names, [&b"a"[..], b"moved", b"pipe", b"s"]);
        let ino = client.stat("/d/a", true).unwrap().ino;
        client.set_xattr(ino, b"user.k", b"v", 0).unwrap();
        assert_eq!(client.get_xattr(ino, b"user.k").unwrap(), b"v");
        assert_eq!(client.list_xattrs(ino).unwrap(), [b"user.k"]);
        client.remove_xattr(ino, b"user.k").unwrap();
        let error = client.get_xattr(ino, b"user.k").unwrap_err();
        assert_eq!(error.errno(), libc::ENODATA);
        client.access("/d/a", true, 4).unwrap();
        let changed =
            client.setattr("/d/a", true, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        assert_eq!(changed.mode & 0o7777, 0o600);
        let wish = LayoutWish { strip_bytes: 65536, server_count: 2, first_server_plus_1: 0 };
        client.set_layout("/d", Some(&wish)).unwrap();
        let file = client.open(at("wide"), &create()).unwrap();
        assert_eq!((file.layout().strip_bytes(), file.layout().server_count()), (65536, 2));
        drop(file);
        for name in ["a", "s", "moved", "pipe", "wide"] {
            client.unlink(at(name)).unwrap();
        }
        client.rmdir("/d").unwrap();
        let error = client.stat("/d/a", true).unwrap_err();
        assert_eq!(error.errno(), libc::ENOENT);
        assert!(error.to_string().contains("look up /d/a: server meta0 ("), "{error}");
    });
}

#[test]
fn a_time_set_by_hand_survives_the_close() {
    over_all(|_, client| {
        let file = client.open("/times", &create()).unwrap();
        file.write_at(b"x", 0).unwrap();
        let mtime = Time { seconds: 1_000_000, nanoseconds: 5 };
        let changes = SetAttr { mtime: Some(SetTime::To(mtime.clone())), ..SetAttr::default() };
        assert_eq!(client.setattr(At::ino(file.ino()), false, &changes).unwrap().mtime, mtime);
        file.close().unwrap();
        let attr = client.stat("/times", true).unwrap();
        assert_eq!((attr.mtime, attr.size), (mtime, 1));
    });
}

#[test]
fn attributes_are_changed_after_the_report_of_what_was_written() {
    over_all(|_, client| {
        let file = client.open("/reported", &create()).unwrap();
        let ino = file.attr().ino;
        file.write_at(&[1; 5000], 0).unwrap();
        let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        let attr = client.report_and_setattr(ino, &mode).unwrap();
        assert_eq!((attr.size, attr.mode & 0o7777), (5000, 0o640));
        file.write_at(&[2; 5000], 5000).unwrap();
        let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
        let mtime = SetAttr { mtime: Some(SetTime::To(time.clone())), ..SetAttr::default() };
        let attr = client.report_and_setattr(ino, &mtime).unwrap();
        assert_eq!((attr.size, &attr.mtime), (10_000, &time));
        file.close().unwrap();
        let attr = client.report_and_setattr(ino, &mode).unwrap();
        assert_eq!(
            (attr.size, attr.size_live, &attr.mtime),
            (10_000, false, &time),
            "nothing is left to report"
        );
        let error = client.report_and_setattr(ino + 1000, &mode).unwrap_err();
        assert_eq!(error.status(), Some(weft_wire::Status::Stale));
    });
}

#[test]
fn who_does_not_want_attributes_asks_no_io_server_for_the_size() {
    over_all(|_, client| {
        let file = client.open("/unasked", &create().striped(true)).unwrap();
        file.write_at(&[1; 5000], 0).unwrap();
        let sizes = || {
            let servers = client.server_status(false).into_iter().map(|(_, status)| status.unwrap());
            let counts = servers.flat_map(|status| status.operations);
            counts.filter(|count| count.op == Op::Size as u16).map(|count| count.count).sum::<u64>()
        };
        let before = sizes();
        let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
        let set = SetAttr { mtime: Some(SetTime::To(time.clone())), ..SetAttr::default() };
        client.report_and_set(file.ino(), &set).unwrap();
        assert_eq!(sizes(), before);
        file.close().unwrap();
        let attr = client.stat("/unasked", true).unwrap();
        assert_eq!((attr.size, attr.mtime), (5000, time));
        let other = client.with_caller(weft_wire::messages::Caller { uid: 5, gid: 5, groups: Vec::new() });
        assert_eq!(other.report_and_set(attr.ino, &set).unwrap_err().errno(), libc::EPERM);
    });
}

/// How often the metadata server was asked to do this.
fn asked(client: &Client, op: Op) -> u64 {
    let status = client.server_status(false).swap_remove(0).1.unwrap();
    status.operations.iter().filter(|count| count.op == op as u16).map(|count| count.count).sum()
}

#[test]
fn a_change_of_attributes_and_the_report_before_it_are_one_message() {
    over_all(|_, client| {
        let file = client.open("/one", &create()).unwrap();
        let counts = || [Op::SetAttr, Op::Report, Op::Close].map(|op| asked(&client, op));
        let before = counts();
        file.write_at(&[1; 5000], 0).unwrap();
        let mode = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        assert_eq!(client.report_and_setattr(file.ino(), &mode).unwrap().size, 5000);
        assert_eq!(file.flush().unwrap(), None, "nothing is left to report");
        let refused = client.with_caller(weft_wire::messages::Caller { uid: 5, gid: 5, groups: Vec::new() });
        file.write_at(&[1; 5000], 5000).unwrap();
        assert_eq!(refused.report_and_setattr(file.ino(), &mode).unwrap_err().errno(), libc::EPERM);
        assert_eq!(file.flush().unwrap().unwrap().size, 10_000, "what was refused with it is reported later");
        file.close().unwrap();
        weft_test_cluster::eventually("two changes, one report, one close", || {
            let after = counts();
            [0, 1, 2].map(|at| after[at] - before[at]) == [2, 1, 1]
        });
    });
}

#[test]
fn closes_that_wait_are_one_message() {
    over_all(|cluster, client| {
        let other = cluster.client(Transport::Tcp);
        let told = || (weft_test_cluster::gauge(&other, "open_files"), asked(&other, Op::Close));
        let before = told();
        let open = |client: &Client, name: usize| {
            client.open(&*format!("/later{name}"), &create().striped(true)).unwrap()
        };
        let files: Vec<_> = (0..24).map(|name| open(&client, name)).collect();
        files[3].write_at(b"text", 0).unwrap();
        let inos: Vec<_> = files.iter().map(|file| file.ino()).collect();
        let waiting: Vec<_> = files.into_iter().map(|file| file.close_later().unwrap()).collect();
        // What has to be reported is closed at once; of the others sixteen are a message.
        let expected: Vec<usize> = (1..=3).chain([0]).chain(4..=15).chain([0]).chain(1..=7).collect();
        assert_eq!(waiting, expected);
        let closed = |open_files, messages| {
            weft_test_cluster::eventually("the closes that were sent", || {
                told() == (before.0 + open_files, before.1 + messages)
            });
        };
        closed(7, 2);
        assert_eq!(other.stat("/later3", true).unwrap().size, 4);
        let lookup = |name: usize| other.stat(&*format!("/later{name}"), true).unwrap().size_live;
        assert!(lookup(23) && !lookup(0), "one that waits counts as written");

        // One that is opened again by its number is closed before, and its size is known.
        let again = client.open(At::ino(inos[23]), &OpenOptions::new().read(true)).unwrap();
        assert!(!again.attr().size_live);
        closed(1, 3);
        // One that was only read is nobody's business.
        assert_eq!(again.close_later().unwrap(), 1);
        drop(client.open(At::ino(inos[23]), &OpenOptions::new().read(true)).unwrap());
        closed(1, 4);
        client.send_closes();
        closed(0, 5);
        client.send_closes();

        // So it is before it is truncated, and the truncation is not disturbed by it.
        assert_eq!(open(&client, 5).close_later().unwrap(), 1);
        client.truncate(At::ino(inos[5]), 1000).unwrap();
        closed(0, 6);
        let attr = other.stat("/later5", true).unwrap();
        assert_eq!((attr.size, attr.size_live), (1000, false));

        // A lock that was had through a file goes with it.
        let locked = open(&client, 6);
        locked.lock(weft_client::LockTarget::Whole, LockKind::Exclusive, LockWait::Never).unwrap();
        assert_eq!(locked.close_later().unwrap(), 0);
        let locked = open(&other, 6);
        locked.lock(weft_client::LockTarget::Whole, LockKind::Exclusive, LockWait::Never).unwrap();
        locked.close().unwrap();
        closed(0, 8);

        // The last handle of a client leaves nothing.
        let gone = cluster.client(Transport::Tcp);
        assert_eq!(open(&gone, 7).close_later().unwrap(), 1);
        assert_eq!(open(&gone, 8).close_later().unwrap(), 2);
        drop(gone);
        closed(0, 9);
        assert!(!lookup(7) && !lookup(8));
        for name in 0..24 {
            client.unlink(&*format!("/later{name}")).unwrap();
        }
    });
}

#[test]
fn nonblocking_operations_go_on_side_by_side() {
    over_all(|_, client| {
        let file = client.open("/pending", &create()).unwrap();
        let parts: Vec<_> = (0..20).map(|at| pattern(at, 50_000)).collect();
        let writes =
            parts.iter().zip(0..).map(|(part, at)| file.start_write(part.clone(), at * 50_000)).collect();
        assert!(wait_all(writes).into_iter().all(|result| result.unwrap().0 == 50_000));
        let mut reads: Vec<_> = (0..20).map(|at| file.start_read(vec![0; 50_000], at * 50_000)).collect();
        let mut last = reads.pop().unwrap();
        while !last.test() {
            std::thread::yield_now();
        }
        assert!(last.wait().unwrap().1 == parts[19]);
        drop(reads.pop());
        for (result, part) in wait_all(reads).into_iter().zip(&parts) {
            assert!(result.unwrap().1 == *part);
        }
        let wrong = client.open("/pending", &OpenOptions::new().read(true)).unwrap().start_write(vec![1], 0);
        assert_eq!(wrong.wait().unwrap_err().errno(), libc::EBADF);
    });
}

#[test]
fn shared_memory_works_on_every_transport() {
    over_all(|_, client| {
        let file = client.open("/arena", &create()).unwrap();
        let mut arena = client.alloc(1 << 20).unwrap();
        let data = pattern(8, 1 << 20);
        arena.copy_from_slice(&data);
        file.write_at(&arena, 0).unwrap();
        arena.fill(0);
        assert_eq!(file.read_at(&mut arena[1000..900_000], 1000).unwrap(), 899_000);
        assert!(arena[1000..900_000] == data[1000..900_000] && arena[0] == 0);
        drop(arena);
        let mut next = client.alloc(100_000).unwrap();
        assert_eq!(file.read_at(&mut next, 500).unwrap(), 100_000);
        assert!(next[..] == data[500..100_500]);
    });
}

#[test]
fn many_threads_share_one_client() {
    over_all(|_, client| {
        let file = client.open("/threads", &create()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..20u64 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..10 {
                        let data = pattern(thread * 100 + round, 30_000);
                        let offset = thread * 100_000 + round * 1000;
                        file.write_at(&data, offset).unwrap();
                        let mut back = vec![0; data.len()];
                        assert_eq!(file.read_at(&mut back, offset).unwrap(), data.len());
                        assert!(back == data);
                    }
                });
            }
        });
        assert_eq!(file.stat().unwrap().size, 19 * 100_000 + 9000 + 30_000);
    });
}

#[test]
fn space_status_and_rights() {
    over_all(|cluster, client| {
        let space = client.statfs().unwrap();
        assert!(space.space_bytes >= space.free_bytes && space.files >= 1);
        let status = client.server_status(true);
        assert_eq!(status.len(), 5);
        assert!(status.iter().all(|(server, reply)| reply.as_ref().unwrap().name == server.name));
        assert!(client.ping("io3", &[1; 100]).is_ok() && client.ping("io9", &[]).is_err());
        client.sync_all().unwrap();
        let missing = client.open("/missing", &OpenOptions::new().read(true)).unwrap_err();
        assert_eq!(missing.errno(), libc::ENOENT);
        assert_eq!(client.open("/", &OpenOptions::new().read(true)).unwrap_err().errno(), libc::EISDIR);
        let key = Some(weft_wire::keys::IssuedKey::of_cluster(&weft_wire::security::Key([9; 32])));
        let wrong = weft_client::ConnectOptions { key, ..cluster.options(Transport::Tcp) };
        let error = Client::connect(&cluster.url(), wrong).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Untrusted | ErrorKind::Status(_)), "{error}");
    });
}

#[test]
fn an_open_file_is_passed_on_to_a_client_that_knows_the_map() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let first = cluster.client(Transport::Auto);
    let file = first.open("/passed", &create().mode(0o400)).unwrap();
    file.write_at(b"before", 0).unwrap();
    let options = cluster.options(Transport::Auto);
    let second = Client::connect_with_map(&cluster.url(), options, first.map()).unwrap();
    let adopted = second.adopt(&file.pass(), "/passed", false).unwrap();
    first.unlink("/passed").unwrap();
    adopted.write_at(b" and after", 6).unwrap();
    let mut back = [0; 16];
    assert_eq!(file.read_at(&mut back, 0).unwrap(), 16);
    assert_eq!(&back, b"before and after");
    let nonsense = second.adopt(b"nonsense", "/passed", false).unwrap_err();
    assert_eq!(nonsense.kind(), ErrorKind::Invalid);
    drop((file, adopted));
    assert_eq!(first.stat("/passed", true).unwrap_err().errno(), libc::ENOENT);
}
