//! One open for many processes, and its counter: what is asked of the metadata server, what is known of the file afterwards, and
//! what becomes of both when servers and processes are killed.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};
use weft_client::{
    Client, ConnectOptions, ErrorKind, File, LockKind, LockTarget, LockWait, OpenOptions, Transport,
    WrittenEnd,
};
use weft_tests::{Served, asked, gauge, wait_until};
use weft_wire::{Op, Status};

const SHARERS: usize = 15;
const PART_BYTES: usize = 100_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

fn part(number: usize) -> Vec<u8> {
    vec![b'a' + number as u8; PART_BYTES]
}

/// A file that is there, open by one client and shared with others, each of a session of its own.
fn share(cluster: &Served, path: &str, sharers: usize) -> (Client, File, Vec<(Client, File)>) {
    let owner = cluster.client(Transport::Auto);
    owner.open(path, &read_write().create(true)).unwrap().close().unwrap();
    let file = owner.open(path, &read_write()).unwrap();
    let shared = file.share().unwrap();
    let import = |_| {
        let client = cluster.client(Transport::Auto);
        let file = client.import_shared(&shared).unwrap();
        (client, file)
    };
    let others = (0..sharers).map(import).collect();
    (owner, file, others)
}

/// Each writes its part, beginning with part 1; what all of them wrote.
fn write_parts(others: &[(Client, File)]) -> WrittenEnd {
    let write = |(number, (_, file)): (usize, &(Client, File))| {
        file.write_at(&part(number + 1), ((number + 1) * PART_BYTES) as u64).unwrap();
        file.written_end()
    };
    others.iter().enumerate().map(write).fold(WrittenEnd::default(), WrittenEnd::and)
}

/// What the metadata server was asked so far of these.
fn counts(client: &Client) -> [u64; 4] {
    [Op::Open, Op::Reopen, Op::Report, Op::Close].map(|op| asked(client, op))
}

fn check_parts(client: &Client, path: &str, parts: usize) {
    let file = client.open(path, &OpenOptions::new().read(true)).unwrap();
    let mut data = vec![0; (parts + 1) * PART_BYTES];
    assert_eq!(file.read_at(&mut data, 0).unwrap(), parts * PART_BYTES);
    for number in 1..parts {
        assert!(data[number * PART_BYTES..][..PART_BYTES] == part(number), "part {number}");
    }
}

#[test]
fn sixteen_processes_write_under_one_open_and_one_close() {
    let cluster = Served::start(2);
    let watcher = cluster.client(Transport::Auto);
    let begin = SystemTime::now();
    let before = counts(&watcher);
    let (owner, file, others) = share(&cluster, "/shared", SHARERS);
    let all = write_parts(&others);
    assert_eq!(all, WrittenEnd { end_bytes: (16 * PART_BYTES) as u64, touch: true, unsure: false });
    assert_eq!(others[3].1.stat().unwrap().size, all.end_bytes, "who writes asks the I/O servers");
    let during = counts(&watcher);
    assert_eq!(during[0] - before[0], 1, "one Open");
    others.into_iter().for_each(|(_, file)| file.close().unwrap());
    assert_eq!(watcher.stat("/shared", true).unwrap().size, all.end_bytes, "while it is open");
    let sizes_before = asked(&watcher, Op::Size);
    file.close_shared(&all).unwrap();
    assert_eq!(asked(&watcher, Op::Size), sizes_before, "the end is known");
    let after = counts(&watcher);
    // The first one made the file.
    assert_eq!((after[1] - before[1], after[2] - before[2], after[3] - before[3]), (0, 0, 2));
    let attr = watcher.stat("/shared", true).unwrap();
    assert_eq!((attr.size, attr.size_live), (all.end_bytes, false));
    let mtime = SystemTime::UNIX_EPOCH + Duration::new(attr.mtime.seconds as u64, attr.mtime.nanoseconds);
    assert!(mtime >= begin, "{mtime:?} is before {begin:?}");
    check_parts(&owner, "/shared", 16);
}

/// All have or make connections to the metadata server.
fn look(others: &[(Client, File)]) {
    others.iter().for_each(|(client, _)| assert!(client.stat("/", true).unwrap().nlink > 0));
}

#[test]
fn a_restart_of_the_metadata_server_brings_back_the_one_open() {
    let mut cluster = Served::start(2);
    let (owner, file, others) = share(&cluster, "/shared", SHARERS);
    look(&others);
    cluster.crash("meta0");
    let all = write_parts(&others);
    // They come back with nothing.
    look(&others);
    assert_eq!(file.stat().unwrap().size, all.end_bytes);
    let watcher = cluster.client(Transport::Auto);
    assert_eq!((asked(&watcher, Op::Reopen), gauge(&watcher, "open_files")), (1, 1));
    others.into_iter().for_each(|(_, file)| file.close().unwrap());
    file.close_shared(&all).unwrap();
    assert_eq!(asked(&watcher, Op::Close), 1);
    assert_eq!(
        (watcher.stat("/shared", true).unwrap().size, gauge(&watcher, "open_files")),
        (all.end_bytes, 0)
    );
    check_parts(&owner, "/shared", 16);
}

/// Runs `run` in a forked child that is killed at its end.
fn killed(run: impl FnOnce()) {
    // SAFETY: the client library may be used in a forked child; nothing else of this process is.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: no memory is passed; what is left of the parent in here does not run.
        unsafe {
            if done.is_ok() {
                libc::kill(libc::getpid(), libc::SIGKILL);
            }
            libc::_exit(1)
        }
    }
    let mut status = 0;
    // SAFETY: the status is this function's.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status), "it was killed after it had done all: {status}");
}

#[test]
fn what_a_killed_process_wrote_is_found_by_the_close() {
    let cluster = Served::start(2);
    let (owner, file, others) = share(&cluster, "/shared", 1);
    let before = file.attr().mtime;
    let exported = file.share().unwrap();
    killed(|| {
        let imported = owner.import_shared(&exported).unwrap();
        assert_eq!(imported.write_at(&part(7), 7 * PART_BYTES as u64).unwrap(), PART_BYTES);
    });
    drop(others);
    file.close().unwrap();
    let attr = owner.stat("/shared", true).unwrap();
    assert_eq!((attr.size, attr.size_live), (8 * PART_BYTES as u64, false));
    assert!((attr.mtime.seconds, attr.mtime.nanoseconds) > (before.seconds, before.nanoseconds));
    cluster.weft(&["fsck", &cluster.url()]);

    // Nobody wrote: nothing changes.
    let file = owner.open("/shared", &read_write()).unwrap();
    let shared = file.share().unwrap();
    killed(|| assert_eq!(owner.import_shared(&shared).unwrap().read_at(&mut [0; 10], 0).unwrap(), 10));
    file.close().unwrap();
    let now = owner.stat("/shared", true).unwrap();
    assert_eq!((now.size, now.mtime), (attr.size, attr.mtime));
}

#[test]
fn a_failed_write_and_a_cut_leave_the_right_size() {
    let mut cluster = Served::start(2);
    let (owner, file, others) = share(&cluster, "/shared", 2);
    let all = write_parts(&others);
    file.truncate(1000).unwrap();
    others.iter().for_each(|(_, other)| other.note_size(1000));
    assert_eq!(others[1].1.written_end().end_bytes, 1000);
    assert!(all.end_bytes > 1000);

    // A share on io1 fails; the one on io0 is written.
    let client = cluster.client_with(ConnectOptions { retry_timeout_ms: 1500, ..Default::default() });
    let failing = client.import_shared(&file.share().unwrap()).unwrap();
    cluster.stop("io1");
    let error = failing.write_at(&vec![b'z'; 64 << 10 << 2], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(failing.written_end().unsure);
    cluster.spawn("io1");
    cluster.wait_ready("io1");
    let ends = others.iter().map(|(_, file)| file.written_end()).chain([failing.written_end()]);
    let all = ends.fold(WrittenEnd::default(), WrittenEnd::and);
    let live_bytes = file.stat().unwrap().size;
    assert!(live_bytes > 64 << 10, "some of it was written: {live_bytes}");
    file.close_shared(&all).unwrap();
    let attr = owner.stat("/shared", true).unwrap();
    assert_eq!((attr.size, attr.size_live), (live_bytes, false));
}

#[test]
fn locks_appends_and_syncs_work_through_a_shared_handle() {
    let cluster = Served::start(2);
    let (owner, file, others) = share(&cluster, "/shared", 2);
    let [(_, one), (_, two)] = &others[..] else { panic!() };
    one.write_at(b"0123456789", 0).unwrap();
    let metadata_before = asked(&owner, Op::SyncMeta);
    one.sync_contents().unwrap();
    assert_eq!((asked(&owner, Op::Reopen), asked(&owner, Op::SyncMeta)), (0, metadata_before));
    one.sync_data().unwrap();
    assert!(one.is_covered() && asked(&owner, Op::Report) == 0);

    let range = LockTarget::range(0..10);
    one.lock(range, LockKind::Exclusive, LockWait::Never).unwrap();
    assert!(two.lock_test(range, LockKind::Shared).unwrap().is_some());
    assert_eq!(
        two.lock(range, LockKind::Shared, LockWait::Never).unwrap_err().status(),
        Some(Status::Locked)
    );
    assert_eq!(
        file.lock(range, LockKind::Shared, LockWait::Never).unwrap_err().status(),
        Some(Status::Locked)
    );
    one.unlock(range).unwrap();
    two.lock(range, LockKind::Exclusive, LockWait::Never).unwrap();
    assert_eq!((one.append(b"abc").unwrap(), two.append(b"def").unwrap()), (10, 13));
    assert_eq!(asked(&owner, Op::Reopen), 2, "one for each, and once");
    let all = one.written_end().and(two.written_end());
    others.into_iter().for_each(|(_, file)| file.close().unwrap());
    file.close_shared(&all).unwrap();
    let attr = owner.stat("/shared", true).unwrap();
    assert_eq!((attr.size, attr.size_live, gauge(&owner, "open_files")), (16, false, 0));
    assert_eq!(gauge(&owner, "locks_held"), 0);
}

#[test]
fn a_removed_file_lasts_as_long_as_the_open_that_was_shared() {
    let cluster = Served::start(2);
    let (owner, file, others) = share(&cluster, "/shared", 1);
    let (_, other) = &others[0];
    other.write_at(&part(1), 0).unwrap();
    owner.unlink("/shared").unwrap();
    let mut data = vec![0; PART_BYTES];
    assert_eq!(other.read_at(&mut data, 0).unwrap(), PART_BYTES);
    assert!(data == part(1));
    assert_eq!(other.fetch_add(1).unwrap(), 0);
    file.close().unwrap();
    wait_until("the file is removed", PATIENCE, || gauge(&owner, "garbage_removed_files") == 1);
    assert_eq!(other.read_at(&mut data, 0).unwrap(), 0, "nothing is left of it");
    assert_eq!(other.fetch_add(1).unwrap_err().status(), Some(Status::Stale));
    assert_eq!(
        other.lock(LockTarget::Whole, LockKind::Shared, LockWait::Never).unwrap_err().status(),
        Some(Status::Stale)
    );
}

/// Adds so often, by 1 to 3; what each got.
fn add_often(file: &File, adds: usize, seed: usize) -> Vec<(u64, u64)> {
    let by = |at: usize| (at * 7 + seed) as u64 % 3 + 1;
    (0..adds).map(|at| (file.fetch_add(by(at) as i64).expect("it gets through"), by(at))).collect()
}

#[test]
fn sixteen_processes_share_a_counter_through_a_killed_metadata_server() {
    const ADDS: usize = 100;
    let mut cluster = Served::start(1);
    let (owner, file, others) = share(&cluster, "/counted", SHARERS);
    // One of them imports by an open of its own.
    let client = cluster.client(Transport::Auto);
    let imported = client.import(&file.export().unwrap()).unwrap();
    let another = owner.open("/counted", &read_write()).unwrap();
    let mut files: Vec<&File> = others.iter().skip(1).map(|(_, file)| file).collect();
    files.extend([&file, &imported]);
    assert_eq!(files.len(), 16);
    let got: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let adders: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(seed, file)| scope.spawn(move || add_often(file, ADDS, seed)))
            .collect();
        for part in 1..=3 {
            let so_far = || others[0].1.fetch_add(0).expect("it gets through");
            while so_far() < part * 700 && !adders.iter().all(|adder| adder.is_finished()) {
                std::thread::yield_now();
            }
            cluster.crash("meta0");
        }
        adders.into_iter().flat_map(|adder| adder.join().expect("it adds through all")).collect()
    });
    let numbers: BTreeSet<(u64, u64)> = got.iter().copied().collect();
    assert_eq!((got.len(), numbers.len()), (16 * ADDS, 16 * ADDS), "none twice");
    let end = numbers.iter().fold(0, |end, (before, by)| {
        assert_eq!(*before, end, "no gap and no overlap");
        end + by
    });
    assert_eq!((file.fetch_add(0).unwrap(), another.fetch_add(4).unwrap()), (end, 0));
    assert_eq!(file.fetch_add(-(end as i64) - 1).unwrap_err().status(), Some(Status::Invalid));
    assert_eq!(file.fetch_set(9).unwrap(), end);
    assert_eq!((imported.fetch_add(1).unwrap(), gauge(&owner, "file_counters")), (9, 2));

    drop(files);
    others.into_iter().for_each(|(_, file)| file.close().unwrap());
    imported.close().unwrap();
    another.close().unwrap();
    file.close().unwrap();
    // A close without a report is not waited for.
    wait_until("the opens have ended", PATIENCE, || gauge(&owner, "file_counters") == 0);
    cluster.weft(&["fsck", &cluster.url()]);
}

#[test]
fn the_counter_of_a_killed_process_ends_with_its_session() {
    let cluster = Served::start(1);
    let (owner, _file, others) = share(&cluster, "/counted", 1);
    drop(others);
    killed(|| {
        let own = owner.open("/counted", &read_write()).unwrap();
        assert_eq!((own.fetch_add(5).unwrap(), gauge(&owner, "file_counters")), (0, 1));
    });
    wait_until("its session ends", PATIENCE, || gauge(&owner, "file_counters") == 0);
}
