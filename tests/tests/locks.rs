//! Locks between processes on different mounts, and programs that use the library.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weft_client::{
    Client, ConnectOptions, File, LockKind, LockOwner, LockTarget, LockWait, OpenOptions, Transport, Url,
};
use weft_tests::{Cluster, Locker, Mount, Served, freeze, gauge, processes_naming, signal, wait_until};
use weft_wire::Status;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server that was started again waits for clients that do not come back.
const GRACE_OF_RESTART: Duration = Duration::from_secs(20);

#[track_caller]
fn wait_for_waits(client: &Client, waits: u64) {
    wait_until(&format!("{waits} wait for a lock"), PATIENCE, || gauge(client, "lock_waits") == waits);
}

#[track_caller]
fn wait_for_held(client: &Client, held: u64) {
    wait_until(&format!("{held} locks are held"), PATIENCE, || gauge(client, "locks_held") == held);
}

/// A process with a file of a mount open.
#[track_caller]
fn locker(mount: &Mount, path: &str) -> Locker {
    let mut locker = Locker::start();
    locker.must(&format!("open 0 {}", mount.join(path).display()));
    locker
}

fn open(client: &Client, path: &str) -> File {
    client.open(path, &OpenOptions::new().read(true).write(true).create(true)).expect("a file")
}

fn library_locker(url: &str, key_file: &Path, path: &str) -> Locker {
    let mut locker = Locker::start();
    locker.must(&format!("weft 0 {url} {} {path}", key_file.display()));
    locker
}

#[test]
fn ranges_hold_between_mounts_and_clients() {
    let cluster = Cluster::start(2);
    let (one, two, client) = (cluster.mount(), cluster.mount(), cluster.client());
    let (mut here, mut there) = (locker(&one, "f"), locker(&two, "f"));
    let file = open(&client, "/f");
    here.must("fcntl 0 w 0 10 try");
    here.must("fcntl 0 r 20 10 try");
    for (order, errno) in [
        ("fcntl 0 r 9 1 try", libc::EAGAIN),
        ("fcntl 0 w 29 5 try", libc::EAGAIN),
        ("ofd 0 w 0 0 try", libc::EAGAIN),
    ] {
        there.must_fail(order, errno);
    }
    there.must("fcntl 0 r 25 10 try");
    there.must("fcntl 0 w 10 10 try");
    assert_eq!(there.ask("getlk 0 w 0 5"), format!("w 0 10 {}", here.pid()), "the hosts are one");
    assert_eq!(there.ask("getlk 0 r 20 10"), "free");
    let mut neighbour = locker(&one, "f");
    assert_eq!(neighbour.ask("getlk 0 r 0 0"), format!("w 0 10 {}", here.pid()));
    let refused = file.lock(LockTarget::range(5..7), LockKind::Shared, LockWait::Never).unwrap_err();
    assert_eq!((refused.status(), refused.errno()), (Some(Status::Locked), libc::EAGAIN));
    let held = file.lock_test(LockTarget::range(..), LockKind::Exclusive).unwrap().expect("a lock");
    assert_eq!((held.exclusive, held.first, held.last), (true, 0, 9));
    // The middle is given back: two ends are left.
    here.must("fcntl 0 u 3 4 try");
    file.lock(LockTarget::range(3..7), LockKind::Exclusive, LockWait::Never).unwrap();
    here.must_fail("fcntl 0 w 0 10 try", libc::EAGAIN);
    there.must_fail("fcntl 0 r 2 1 try", libc::EAGAIN);
    file.close().unwrap();
    here.must("fcntl 0 w 0 10 try");
    drop((here, there, neighbour));
    wait_for_held(&client, 0);
}

#[test]
fn who_waits_is_granted_in_turn_or_ends_by_a_signal() {
    let cluster = Cluster::start(1);
    let (one, two, client) = (cluster.mount(), cluster.mount(), cluster.client());
    let file = open(&client, "/f");
    file.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
    let (mut first, mut second) = (locker(&one, "f"), locker(&two, "f"));
    first.send("fcntl 0 w 0 0 wait");
    wait_for_waits(&client, 1);
    second.send("fcntl 0 w 5 5 wait");
    wait_for_waits(&client, 2);
    assert!(first.is_busy() && second.is_busy());
    // Whoever waits does not keep the mount from serving others.
    std::fs::write(one.join("other"), "x").unwrap();
    let mut others: Vec<Locker> = (0..20).map(|_| locker(&one, "f")).collect();
    others.iter_mut().for_each(|other| other.send("ofd 0 r 0 1 wait"));
    wait_for_waits(&client, 22);
    assert_eq!(std::fs::read_to_string(one.join("other")).unwrap(), "x");
    // A signal with a handler ends a wait; one that kills ends the process.
    let mut prompt = 0;
    for other in &mut others[..15] {
        let begun = Instant::now();
        signal(other.pid(), libc::SIGUSR1);
        assert_eq!(other.answer(), format!("errno {}", libc::EINTR));
        prompt += usize::from(begun.elapsed() < Duration::from_secs(1));
    }
    assert!(prompt >= 12, "{prompt} of 15 waits ended within a second");
    others.into_iter().for_each(Locker::kill);
    wait_for_waits(&client, 2);
    file.unlock(LockTarget::range(..)).unwrap();
    assert_eq!(first.answer(), "ok");
    assert!(second.is_busy());
    first.must("close 0");
    assert_eq!(second.answer(), "ok");
    let mut library = library_locker(cluster.url(), &cluster.key_file(), "/f");
    library.send("lock 0 w 9 1 wait");
    wait_for_waits(&client, 1);
    signal(library.pid(), libc::SIGUSR1);
    assert_eq!(library.answer(), format!("errno {}", libc::EINTR));
    wait_for_waits(&client, 0);
    let give_up = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let until = || give_up.load(Ordering::Relaxed);
            file.lock(LockTarget::range(..), LockKind::Shared, LockWait::Until(&until))
        });
        wait_for_waits(&client, 1);
        give_up.store(true, Ordering::Relaxed);
        assert_eq!(wait.join().unwrap().unwrap_err().errno(), libc::EINTR);
    });
    second.must("fcntl 0 u 0 0 try");
    library.must("lock 0 w 0 100 wait");
}

#[test]
fn a_wait_that_would_never_end_is_refused() {
    let cluster = Cluster::start(1);
    let (one, two, client) = (cluster.mount(), cluster.mount(), cluster.client());
    let file = open(&client, "/f");
    let (mut first, mut second) = (locker(&one, "f"), locker(&two, "f"));
    first.must("fcntl 0 w 0 1 try");
    second.must("fcntl 0 w 1 1 try");
    file.lock(LockTarget::range(2..3), LockKind::Exclusive, LockWait::Never).unwrap();
    first.send("fcntl 0 w 1 1 wait");
    wait_for_waits(&client, 1);
    second.must_fail("fcntl 0 w 0 1 wait", libc::EDEADLK);
    second.send("fcntl 0 w 2 1 wait");
    wait_for_waits(&client, 2);
    let circle = file.lock(LockTarget::range(0..1), LockKind::Shared, LockWait::Forever).unwrap_err();
    assert_eq!((circle.status(), circle.errno()), (Some(Status::Deadlock), libc::EDEADLK));
    file.unlock(LockTarget::range(2..3)).unwrap();
    assert_eq!(second.answer(), "ok");
    second.must("close 0");
    assert_eq!(first.answer(), "ok");
}

#[test]
fn whole_files_are_locked_by_open_file_and_apart_from_ranges() {
    let cluster = Cluster::start(1);
    let (one, two, client) = (cluster.mount(), cluster.mount(), cluster.client());
    let (mut here, mut there) = (locker(&one, "f"), locker(&two, "f"));
    let file = open(&client, "/f");
    here.must("flock 0 x try");
    there.must_fail("flock 0 s try", libc::EAGAIN);
    there.must("fcntl 0 w 0 0 try");
    let refused = file.lock(LockTarget::Whole, LockKind::Shared, LockWait::Never).unwrap_err();
    assert_eq!(refused.status(), Some(Status::Locked));
    here.must(&format!("open 1 {}", one.join("f").display()));
    here.must_fail("flock 1 s try", libc::EAGAIN);
    here.must("flock 0 s wait");
    here.must("flock 1 s try");
    there.must("flock 0 s wait");
    file.lock(LockTarget::Whole, LockKind::Shared, LockWait::Never).unwrap();
    file.unlock(LockTarget::Whole).unwrap();
    there.send("flock 0 x wait");
    wait_for_waits(&client, 1);
    here.must("flock 1 u try");
    assert!(there.is_busy());
    // The last close gives it back, without a word.
    here.must("close 0");
    assert_eq!(there.answer(), "ok");
    there.must("flock 0 u try");
    there.must("fcntl 0 u 0 0 try");
    wait_for_held(&client, 0);
    // Who cannot convert a lock has none any longer.
    here.must("flock 1 s try");
    there.must("flock 0 s try");
    here.must_fail("flock 1 x try", libc::EAGAIN);
    there.must("flock 0 x try");
    there.must("flock 0 u try");
    // As a program of everyday life uses it.
    let script = "exec 9> lock; flock 9; n=$(cat n); echo $((n + 1)) > n; cat n > /dev/null";
    one.sh("echo 0 > n");
    std::thread::scope(|scope| {
        for mount in [&one, &two, &one, &two] {
            scope.spawn(move || (0..10).for_each(|_| drop(mount.sh(script))));
        }
    });
    assert_eq!(two.sh("cat n"), "40\n");
}

#[test]
fn a_process_that_closes_any_descriptor_gives_its_locks_back_and_an_open_file_does_not() {
    let cluster = Cluster::start(1);
    let (one, two, client) = (cluster.mount(), cluster.mount(), cluster.client());
    let (mut here, mut there) = (locker(&one, "f"), locker(&two, "f"));
    here.must(&format!("open 1 {}", one.join("f").display()));
    here.must("fcntl 0 w 0 5 try");
    here.must("ofd 0 w 10 5 try");
    there.must_fail("fcntl 0 w 0 1 try", libc::EAGAIN);
    here.must("close 1");
    there.must("fcntl 0 w 0 5 try");
    there.must_fail("fcntl 0 w 10 1 try", libc::EAGAIN);
    here.must_fail("ofd 0 w 4 1 try", libc::EAGAIN);
    here.must("close 0");
    // The kernel tells of a last close when close(2) has returned.
    there.must("fcntl 0 w 10 1 wait");
    drop(there);
    wait_for_held(&client, 0);
}

#[test]
fn locks_of_a_killed_client_and_of_a_killed_mount_go() {
    let cluster = Cluster::start(1);
    let (one, client) = (cluster.mount(), cluster.client());
    let mut library = library_locker(cluster.url(), &cluster.key_file(), "/library");
    library.must("lock 0 w 0 10 try");
    library.must("lock 0 w 20 10 try");
    let mut on_mount = locker(&one, "f");
    on_mount.must("fcntl 0 w 0 0 try");
    on_mount.must("flock 0 x try");
    let file = open(&client, "/library");
    let in_way = file.lock(LockTarget::range(5..6), LockKind::Shared, LockWait::Never).unwrap_err();
    assert_eq!(in_way.errno(), libc::EAGAIN);
    let begun = Instant::now();
    library.kill();
    let servers = processes_naming(&one.path().display().to_string());
    assert_eq!(servers.len(), 1, "the mount has one process");
    signal(servers[0], libc::SIGKILL);
    file.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
    let other = open(&client, "/f");
    other.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
    other.lock(LockTarget::Whole, LockKind::Exclusive, LockWait::Forever).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "after 10 seconds, and what a busy machine takes");
    on_mount.must_fail("fcntl 0 w 0 1 try", libc::ENOTCONN);
    drop(on_mount);
    assert!(one.umount(&[]).status.success());
}

#[test]
fn locks_survive_a_killed_metadata_server_for_who_comes_back_and_are_lost_for_who_does_not() {
    let mut cluster = Served::start(1);
    let (back, away) = (cluster.client(Transport::Auto), cluster.client(Transport::Auto));
    let mount = cluster.mount();
    let mut idle = locker(&mount, "mount");
    idle.must("fcntl 0 w 0 10 try");
    idle.must("flock 0 x try");
    let (kept, lost) = (open(&back, "/kept"), open(&away, "/lost"));
    kept.write_at(b"kept", 0).unwrap();
    kept.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
    lost.write_at(b"lost", 0).unwrap();
    lost.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
    let in_turn = cluster.client(Transport::Auto);
    let waiting = open(&in_turn, "/kept");
    std::thread::scope(|scope| {
        let wait =
            scope.spawn(|| waiting.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever));
        wait_for_waits(&back, 1);
        cluster.crash("meta0");
        back.keep_locks().unwrap();
        // These come when the time of grace is over; until then nobody knows who had what.
        let other = cluster.client(Transport::Auto);
        let refused = |path, target| {
            let file = open(&other, path);
            file.lock(target, LockKind::Exclusive, LockWait::Never).map_err(|error| error.errno())
        };
        assert_eq!(refused("/kept", LockTarget::range(3..4)), Err(libc::EAGAIN));
        assert_eq!(refused("/mount", LockTarget::range(9..10)), Err(libc::EAGAIN));
        assert_eq!(refused("/mount", LockTarget::Whole), Err(libc::EAGAIN));
        assert_eq!(refused("/mount", LockTarget::range(10..11)), Ok(()));
        let taken = open(&other, "/lost");
        taken.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
        taken.write_at(b"mine", 0).unwrap();
        wait_for_waits(&other, 1);
        kept.write_at(b"kept on", 0).unwrap();
        kept.unlock(LockTarget::range(..)).unwrap();
        wait.join().unwrap().unwrap();
        // The client that was away changes nothing. Its first call fails, whatever it is, so that it takes no later lock for the
        // one that it has lost.
        for error in [
            lost.lock(LockTarget::range(0..1), LockKind::Shared, LockWait::Never).unwrap_err(),
            lost.write_at(b"lost", 0).unwrap_err(),
            lost.read_at(&mut [0; 4], 0).unwrap_err(),
        ] {
            assert_eq!((error.status(), error.errno()), (Some(Status::LockLost), libc::EIO));
        }
        lost.close().unwrap();
        let again = open(&away, "/lost");
        let mut text = [0; 4];
        again.read_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"mine");
        let held = again.lock(LockTarget::range(0..1), LockKind::Shared, LockWait::Never).unwrap_err();
        assert_eq!(held.errno(), libc::EAGAIN);
    });
    idle.must("write 0 text");
    idle.must("fcntl 0 u 0 0 try");
}

#[test]
fn locks_are_given_again_as_soon_as_everybody_is_back_who_had_some() {
    let mut cluster = Served::start(1);
    let (had, never) = (cluster.client(Transport::Auto), cluster.client(Transport::Auto));
    let mount = cluster.mount();
    let mut idle = locker(&mount, "mount");
    idle.must("fcntl 0 w 0 10 try");
    let kept = open(&had, "/kept");
    kept.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
    let begun = Instant::now();
    cluster.crash("meta0");
    kept.stat().unwrap();
    let free = open(&never, "/free");
    free.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
    assert!(begun.elapsed() < GRACE_OF_RESTART, "{:?}", begun.elapsed());
    for path in ["/kept", "/mount"] {
        let refused = open(&never, path).lock(LockTarget::range(0..1), LockKind::Shared, LockWait::Never);
        assert_eq!(refused.unwrap_err().errno(), libc::EAGAIN, "{path}");
    }
    // Who has none any more when the server is stopped is not waited for.
    kept.unlock(LockTarget::range(..)).unwrap();
    idle.must("fcntl 0 u 0 0 try");
    cluster.stop("meta0");
    cluster.spawn("meta0");
    cluster.wait_ready("meta0");
    // Its lock is held still. (It may not have noticed yet that its connection is gone, until it asks for something.)
    free.stat().unwrap();
    let begun = Instant::now();
    let other = cluster.client(Transport::Auto);
    open(&other, "/kept").lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
    assert!(begun.elapsed() < GRACE_OF_RESTART, "{:?}", begun.elapsed());
}

#[test]
fn every_process_of_a_session_is_waited_for_that_has_locked_in_it() {
    let mut cluster = Served::start(1);
    let (url, map) = (Url::parse(&cluster.url()).unwrap(), cluster.client(Transport::Auto).map());
    let join = |member| {
        let options = ConnectOptions { key: Some(cluster.key()), ..ConnectOptions::default() };
        Client::join_session(&url, options, map.clone(), [7; 16], member).unwrap()
    };
    let owner = LockOwner::Other { id: 1, pid: 0 };
    let processes = [join(0), join(1)];
    let files = processes.each_ref().map(|process| open(process, "/f"));
    for (file, start) in files.iter().zip([0, 10]) {
        let target = LockTarget::range(start..start + 10);
        file.lock_as(owner, target, LockKind::Exclusive, LockWait::Never).unwrap();
    }
    cluster.crash("meta0");
    processes[0].keep_locks().unwrap();
    files[0].stat().unwrap();
    let other = cluster.client(Transport::Auto);
    let others = open(&other, "/f");
    std::thread::scope(|scope| {
        let wait = scope.spawn(|| {
            let target = LockTarget::range(10..11);
            others.lock(target, LockKind::Exclusive, LockWait::Never).map_err(|error| error.errno())
        });
        std::thread::sleep(Duration::from_secs(1));
        assert!(!wait.is_finished(), "the other process may have locked these bytes");
        processes[1].keep_locks().unwrap();
        files[1].stat().unwrap();
        assert_eq!(wait.join().unwrap(), Err(libc::EAGAIN));
    });
    files[1].unlock_as(owner, LockTarget::range(10..20)).unwrap();
    others.lock(LockTarget::range(10..11), LockKind::Exclusive, LockWait::Never).unwrap();
}

/// The server is hung when a process ends, and the mount has given its connection up. So the server never hears of the process's
/// last close, and the mount has the file open for another.
#[test]
fn locks_of_a_process_that_ends_while_the_server_is_hung_are_released_afterwards() {
    let cluster = Served::start(1);
    let (hung, other) = (cluster.mount_with(&["--retry-timeout-ms", "1000"]), cluster.mount());
    let (mut ended, mut neighbour) = (locker(&hung, "f"), locker(&hung, "f"));
    let mut there = locker(&other, "f");
    ended.must("fcntl 0 w 0 10 try");
    neighbour.must("fcntl 0 w 20 20 try");
    neighbour.must("flock 0 x try");
    let meta = cluster.pid("meta0");
    freeze(meta);
    neighbour.must_fail("getlk 0 w 0 10", libc::ETIMEDOUT);
    ended.kill();
    neighbour.must_fail("fcntl 0 u 30 10 try", libc::EHOSTDOWN);
    signal(meta, libc::SIGCONT);
    wait_until("what the process had is free", PATIENCE, || there.ask("fcntl 0 w 0 10 try") == "ok");
    // An unlock that was refused left the lock as it was.
    there.must_fail("fcntl 0 r 39 1 try", libc::EAGAIN);
    there.must_fail("flock 0 s try", libc::EAGAIN);
    neighbour.must("fcntl 0 u 30 10 try");
    there.must("fcntl 0 w 30 10 try");
}

#[test]
fn what_was_written_under_a_lock_is_seen_by_who_gets_it_next() {
    let cluster = Cluster::start(2);
    let (one, two) = (cluster.mount(), cluster.mount());
    let (mut here, mut there) = (locker(&one, "f"), locker(&two, "f"));
    for round in 100..160 {
        let (writer, reader) = if round % 2 == 0 { (&mut here, &mut there) } else { (&mut there, &mut here) };
        writer.must("fcntl 0 w 0 0 wait");
        writer.must(&format!("write 0 round{round}"));
        writer.must("fcntl 0 u 0 0 try");
        reader.must("fcntl 0 r 0 0 wait");
        assert_eq!(reader.ask("read 0 100"), format!("round{round}"));
        reader.must("fcntl 0 u 0 0 try");
    }
}

#[test]
fn sqlite_keeps_a_database_that_two_mounts_write() {
    const ROUNDS: usize = 15;
    let cluster = Cluster::start(2);
    let mounts = [cluster.mount(), cluster.mount()];
    mounts[0].sh(
        "sqlite3 db 'create table t (id integer primary key, who text, v text); create index i on t (v)'",
    );
    std::thread::scope(|scope| {
        for (who, mount) in mounts.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    mount.sh(&format!(
                        "sqlite3 -cmd '.timeout 50000' db \"begin immediate; insert into t (who, v) values ('{who}', '{round}');
                         update t set v = v || 'x' where who = '{who}'; commit; select count(*) from t\""
                    ));
                }
            });
        }
    });
    for mount in &mounts {
        let said = mount.sh("sqlite3 -cmd '.timeout 50000' db 'pragma integrity_check' 'select count(*), count(distinct who) from t'");
        assert_eq!(said, format!("ok\n{}|2\n", 2 * ROUNDS));
    }
}

/// The rollback journal from two mounts, and the write-ahead log from two processes of one mount.
#[test]
fn sqlite_loses_no_commit_with_a_journal_on_two_mounts_or_a_log_on_one() {
    const COMMITS: usize = 30;
    let cluster = Cluster::start(2);
    let mounts = [cluster.mount(), cluster.mount()];
    for (db, mode, writers) in [("journal", "delete", [0, 1]), ("log", "wal", [0, 0])] {
        let made = format!("sqlite3 {db} 'pragma journal_mode={mode}' 'create table t (who int, v int)'");
        assert_eq!(mounts[0].sh(&made), format!("{mode}\n"));
        std::thread::scope(|scope| {
            for (who, mount) in writers.into_iter().enumerate() {
                let mount = &mounts[mount];
                // One process, so that it keeps what it has mapped.
                let inserts = format!("insert into t values ({who}, 0);\n").repeat(COMMITS);
                let script = format!("sqlite3 -bail -cmd '.timeout 50000' {db} <<< '{inserts}'");
                scope.spawn(move || mount.sh(&script));
            }
        });
        let counted =
            format!("sqlite3 {db} 'pragma integrity_check' 'select who, count(*) from t group by who'");
        assert_eq!(mounts[0].sh(&counted), format!("ok\n0|{COMMITS}\n1|{COMMITS}\n"), "{mode}");
    }
}

#[test]
fn more_threads_may_wait_than_a_connection_takes_requests() {
    const WAITS: usize = 50;
    let cluster = Cluster::start(1);
    let (client, other) = (cluster.client(), cluster.client());
    let file = open(&client, "/f");
    file.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Forever).unwrap();
    let granted = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..WAITS {
            let (other, granted) = (other.clone(), granted.clone());
            scope.spawn(move || {
                let file = open(&other, "/f");
                file.lock(LockTarget::range(..), LockKind::Shared, LockWait::Forever).unwrap();
                assert!(granted.load(Ordering::SeqCst));
            });
        }
        wait_for_waits(&client, WAITS as u64);
        // More wait than a connection takes requests; others of the same client go on.
        other.stat("/f", true).unwrap();
        granted.store(true, Ordering::SeqCst);
        file.unlock(LockTarget::range(..)).unwrap();
    });
    wait_for_held(&client, 0);
}
