//! Quotas on real servers: whatever way a file grows, a limit is never exceeded, and what is given back can be used again.

use std::sync::atomic::{AtomicU64, Ordering};

use weft_client::{Client, Error, File, OpenOptions, Transport};
use weft_test_cluster::{Cluster, eventually, pattern};
use weft_wire::Status;
use weft_wire::messages::{Caller, QuotaLimits, QuotaRow, quota_kind};

const STRIP_BYTES: u32 = 64 << 10;
const ALICE: u32 = 1000;
const MIB: u64 = 1 << 20;

fn limits() -> QuotaLimits {
    QuotaLimits {
        hard_bytes: 0,
        soft_bytes: 0,
        hard_files: 0,
        soft_files: 0,
        grace_s: 3600,
        in_statfs: false,
    }
}

fn limit(client: &Client, uid: u32, limits: QuotaLimits) {
    client.set_quota(quota_kind::USER, uid.into(), Some(limits)).unwrap();
    eventually("usage is counted", || client.quotas(None).unwrap().counting.is_none());
}

fn row(client: &Client, uid: u32) -> QuotaRow {
    client.quota(quota_kind::USER, uid.into()).unwrap().unwrap()
}

/// The client as a user who is not root; what it makes lies in `/`, which all may write to.
fn user(client: &Client, uid: u32) -> Client {
    client.with_caller(Caller { uid, gid: uid, groups: Vec::new() })
}

fn open_to_all(client: &Client) {
    let all = weft_client::SetAttr { mode: Some(0o777), ..Default::default() };
    client.setattr("/", true, &all).unwrap();
}

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true)
}

fn is_quota<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    let error = result.unwrap_err();
    assert_eq!((error.status(), error.errno()), (Some(Status::Quota), libc::EDQUOT), "{error}");
    true
}

#[test]
fn eight_writers_on_four_servers_never_exceed_a_limit() {
    let cluster = Cluster::start(4, STRIP_BYTES);
    let root = cluster.client(Transport::Tcp);
    open_to_all(&root);
    const LIMIT: u64 = 64 * MIB;
    limit(&root, ALICE, QuotaLimits { hard_bytes: LIMIT, ..limits() });
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let transport = [Transport::Tcp, Transport::Shm, Transport::Rdma][writer % 3];
            let (client, written) = (user(&cluster.client(transport), ALICE), &written);
            scope.spawn(move || {
                // Two of them write to the same file.
                let file = client.open(&*format!("/w{}", writer.max(1)), &create()).unwrap();
                let piece = pattern(writer as u64, 48 << 10);
                for at in (0..).map(|number| number * piece.len() as u64) {
                    if let Err(error) = file.write_at(&piece, at) {
                        is_quota::<()>(Err(error));
                        break;
                    }
                    written.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    let row = row(&client, ALICE);
                    assert!(row.used_bytes + row.reserved_bytes <= LIMIT, "{row:?}");
                }
                file.close().unwrap();
            });
        }
    });
    let sizes: u64 = (1..8).map(|writer| root.stat(&*format!("/w{writer}"), true).unwrap().size).sum();
    let row = row(&root, ALICE);
    assert_eq!((row.used_bytes, row.reserved_bytes), (sizes, 0));
    assert!(sizes <= LIMIT, "{sizes}");
    assert!(sizes > LIMIT / 4 * 3, "what is left is small: {sizes}");
    root.unlink("/w1").unwrap();
    let file = user(&root, ALICE).open("/again", &create()).unwrap();
    file.write_at(&pattern(9, 100 << 10), 0).unwrap();
}

/// Extends the first file, perhaps from the second.
type Way = fn(&Client, &File, &File) -> Result<(), Error>;

/// Whatever a file may grow by.
#[test]
fn every_way_to_extend_a_file_is_held_to_the_limit() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let root = cluster.client(Transport::Tcp);
    open_to_all(&root);
    limit(&root, ALICE, QuotaLimits { hard_bytes: MIB, ..limits() });
    let client = user(&root, ALICE);
    let source = root.open("/source", &create()).unwrap();
    source.write_at(&pattern(1, 2 << 20), 0).unwrap();
    let open = |name: &str| client.open(name, &create()).unwrap();
    let ways: [(&str, Way); 8] = [
        ("write", |_, file, _| file.write_at(&[1; 10], MIB).map(drop)),
        ("append", |_, file, _| file.append(&pattern(2, MIB as usize + 1)).map(drop)),
        ("truncate", |_, file, _| file.truncate(MIB + 1)),
        ("fallocate", |_, file, _| file.fallocate(0, 0, MIB + 1)),
        ("zero", |_, file, _| file.fallocate(libc::FALLOC_FL_ZERO_RANGE, 0, MIB + 1)),
        ("keep", |_, file, _| file.fallocate(libc::FALLOC_FL_KEEP_SIZE, 0, MIB + 1)),
        ("copy", |client, file, source| client.copy_range(source, 0, file, 0, MIB + 1).map(drop)),
        ("last byte", |_, file, _| file.write_at(&[1], MIB).map(drop)),
    ];
    for (name, way) in ways {
        let file = open(&format!("/{name}"));
        assert!(is_quota(way(&client, &file, &source)), "{name}");
        file.close().unwrap();
        let attr = client.stat(&*format!("/{name}"), true).unwrap();
        assert_eq!(attr.size, 0, "{name}");
        root.unlink(&*format!("/{name}")).unwrap();
    }
    let row = row(&root, ALICE);
    assert_eq!((row.used_bytes, row.reserved_bytes, row.used_files), (0, 0, 0));
    // The whole of it, in each way; root beyond it.
    let file = open("/all");
    file.truncate(MIB).unwrap();
    file.write_at(&pattern(3, MIB as usize), 0).unwrap();
    file.fallocate(0, 0, MIB).unwrap();
    file.close().unwrap();
    let file = root.open("/all", &create()).unwrap();
    file.write_at(&[1; 10], MIB).unwrap();
    file.close().unwrap();
    // Who is beyond the limit can write what is there, and make it shorter.
    let file = open("/all");
    file.write_at(&[2; 100], 5).unwrap();
    is_quota(file.write_at(&[1], MIB + 4096));
    file.truncate(MIB / 2).unwrap();
    file.write_at(&[1], MIB / 2 + 100).unwrap();
}

#[test]
fn files_and_small_files_count_and_limits_of_files_hold() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let root = cluster.client(Transport::Shm);
    open_to_all(&root);
    let client = user(&root, ALICE);
    client.mkdir("/before", 0o755).unwrap();
    limit(&root, ALICE, QuotaLimits { hard_files: 4, hard_bytes: 10_000, ..limits() });
    let file = client.open("/one", &create()).unwrap();
    file.write_at(&[1; 6000], 0).unwrap();
    is_quota(client.open("/two", &create()).unwrap().write_at(&[1; 6000], 0));
    client.symlink("/three", b"target").unwrap();
    is_quota(client.mkdir("/four", 0o755));
    is_quota(client.open("/four", &create()));
    assert_eq!(root.stat("/four", true).unwrap_err().errno(), libc::ENOENT);
    assert_eq!((row(&client, ALICE).used_files, row(&client, ALICE).used_bytes), (4, 6000));
    client.unlink("/three").unwrap();
    client.mkdir("/four", 0o755).unwrap();
    // A small file that becomes striped, and one that is within a limit only after another is shorter.
    file.truncate(0).unwrap();
    let two = client.open("/two", &create()).unwrap();
    two.write_at(&[1; 10_000], 0).unwrap();
    is_quota(two.write_at(&[1; 20_000], 0));
    // Another user is not concerned, and may not set limits nor see those of others.
    let bob = user(&root, 1001);
    bob.open("/bob", &create()).unwrap().write_at(&[1; 100_000], 0).unwrap();
    let rows = bob.quotas(Some(quota_kind::USER)).unwrap().rows;
    assert_eq!(
        rows.iter().map(|row| row.id).collect::<Vec<_>>(),
        [0, 1000, 1001],
        "with the key of a host that is trusted"
    );
}

#[test]
fn servers_that_are_restarted_go_on_with_usage_and_grants() {
    let mut cluster = Cluster::start(2, STRIP_BYTES);
    let root = cluster.client(Transport::Tcp);
    open_to_all(&root);
    limit(&root, ALICE, QuotaLimits { hard_bytes: 8 * MIB, ..limits() });
    let client = user(&root, ALICE);
    let file = client.open("/f", &create()).unwrap();
    file.write_at(&pattern(1, 3 << 20), 0).unwrap();
    let before = row(&root, ALICE);
    assert!(before.reserved_bytes >= 3 * MIB);
    for server in 0..3 {
        cluster.stop_server(server);
        cluster.start_server(server);
    }
    root.stat("/f", true).unwrap();
    eventually("the writer has come back", || row(&root, ALICE).reserved_bytes >= 3 * MIB);
    file.write_at(&pattern(2, 4 << 20), 3 * MIB).unwrap();
    is_quota(file.write_at(&pattern(2, 4 << 20), 7 * MIB));
    file.close().unwrap();
    // What it reported before the restart is not known any more: the next who looks settles the size.
    assert_eq!(root.stat("/f", true).unwrap().size, 7 * MIB);
    assert_eq!((row(&root, ALICE).used_bytes, row(&root, ALICE).used_files), (7 * MIB, 1));
}

#[test]
fn a_directory_tree_has_a_size_of_its_own() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let root = cluster.client(Transport::Tcp);
    for directory in ["/p", "/p/a", "/p/a/b"] {
        root.mkdir(directory, 0o777).unwrap();
        root.setattr(directory, true, &weft_client::SetAttr { mode: Some(0o777), ..Default::default() })
            .unwrap();
    }
    for number in 0..600 {
        root.open(&*format!("/p/a/{number}"), &create()).unwrap().close().unwrap();
    }
    let mut told = 0;
    let tree = root.mark_tree("/p", true, |entries| told = entries).unwrap();
    assert_eq!(told, 602);
    let limits = QuotaLimits { hard_bytes: 2 * MIB, hard_files: 700, in_statfs: true, ..limits() };
    root.set_quota(quota_kind::TREE, tree, Some(limits)).unwrap();
    eventually("usage is counted", || root.quotas(None).unwrap().counting.is_none());
    let row = || root.quota(quota_kind::TREE, tree).unwrap().unwrap();
    assert_eq!((row().used_files, row().path), (603, Some(b"/p".to_vec())));
    let client = user(&root, ALICE);
    let file = client.open("/p/a/b/f", &create()).unwrap();
    file.write_at(&pattern(1, MIB as usize), 0).unwrap();
    is_quota(file.write_at(&pattern(1, MIB as usize + 1), MIB));
    file.close().unwrap();
    let space = root.statfs_at(root.stat("/p/a", true).unwrap().ino).unwrap();
    assert_eq!((space.space_bytes, space.free_bytes, space.files, space.files_max), (2 * MIB, MIB, 604, 700));
    assert!(root.statfs().unwrap().space_bytes > 2 * MIB);
    let error = root.rename("/p/a", "/a", 0).unwrap_err();
    assert_eq!(error.errno(), libc::EXDEV, "{error}");
    assert_eq!(root.link("/p/a/1", false, "/one").unwrap_err().errno(), libc::EXDEV);
    root.rename("/p/a/1", "/one", 0).unwrap();
    assert_eq!(row().used_files, 603);
}

#[test]
fn a_soft_limit_is_a_hard_one_when_its_time_is_over() {
    let cluster = Cluster::start(1, STRIP_BYTES);
    let root = cluster.client(Transport::Tcp);
    open_to_all(&root);
    limit(&root, ALICE, QuotaLimits { soft_bytes: MIB, grace_s: 1, ..limits() });
    let client = user(&root, ALICE);
    let file = client.open("/f", &create()).unwrap();
    file.write_at(&pattern(1, 2 << 20), 0).unwrap();
    file.flush().unwrap();
    let grows = |client: &Client| {
        let file = client.open("/g", &create()).unwrap();
        file.write_at(&[1], file.attr().size)
    };
    grows(&client).unwrap();
    eventually("the time of grace is over", || {
        row(&root, ALICE).bytes_over_s > 0 && grows(&client).is_err_and(|error| is_quota::<()>(Err(error)))
    });
    file.close().unwrap();
    root.unlink("/f").unwrap();
    eventually("it is below the limit again", || row(&root, ALICE).bytes_over_s == 0);
    grows(&client).unwrap();
}
