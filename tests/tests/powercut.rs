//! Programs that make files durable, on a mount and under `weft run`, and the worst power cut right after that was acknowledged.
//!
//! ```text
//!   a cluster on a disk that knows what a cut would leave: `f` and `other`, durable
//!        │   one case of the table below, by system calls: on a mount, or in a process of its own under `weft run`
//!        ▼
//!   worst cut of the metadata server, of the I/O servers, of all ─► the servers start on it ─► all names, bytes and attributes are there
//! ```
//!
//! A cluster serves one case only: the sync of another file would make durable what this one has forgotten.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use weft_client::{Client, OpenOptions as WeftOptions, Transport};
use weft_test_cluster::cut::{Described, run_all};
use weft_test_cluster::pattern;
use weft_tests::{expect_success, mount_in, weft_bin};

const STRIP_BYTES: u32 = 4096;
const SMALL_BYTES: usize = 700;
const LARGE_BYTES: usize = 3 * STRIP_BYTES as usize + 5;
/// Name of the case that this process runs under `weft run`.
const CASE: &str = "WEFT_TEST_CASE";
/// Where Weft is for it.
const AT: &str = "/weft";

struct Case {
    name: &'static str,
    /// Only on a mount.
    on_mount: bool,
    run: fn(&Path),
}

const fn case(name: &'static str, run: fn(&Path)) -> Case {
    Case { name, on_mount: false, run }
}

const fn on_mount(name: &'static str, run: fn(&Path)) -> Case {
    Case { name, on_mount: true, run }
}

fn open(top: &Path, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(top.join(name)).unwrap()
}

fn open_with(top: &Path, name: &str, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    options.open(top.join(name)).unwrap()
}

/// fsync of a directory.
fn sync_names(top: &Path) {
    File::open(top).unwrap().sync_all().unwrap();
}

fn check(result: i32) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn c_string(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Changes the file through a mapping, and leaves the mapping to `sync`.
fn map_and_write(top: &Path, sync: fn(*mut libc::c_void, usize, &File)) {
    let file = open(top, "f");
    file.set_len(LARGE_BYTES as u64).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping that nobody else knows; the file is as long.
    unsafe {
        let mapped =
            libc::mmap(std::ptr::null_mut(), LARGE_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(mapped, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        std::ptr::write_bytes(mapped.cast::<u8>(), 7, LARGE_BYTES);
        sync(mapped, LARGE_BYTES, &file);
        check(libc::munmap(mapped, LARGE_BYTES));
    }
}

const TABLE: &[Case] = &[
    case("a new file and fsync", |top| open(top, "new").sync_all().unwrap()),
    case("a new small file and fsync", |top| {
        let mut file = open(top, "new");
        file.write_all(&pattern(3, SMALL_BYTES)).unwrap();
        file.sync_all().unwrap();
    }),
    case("a new large file and fdatasync", |top| {
        let mut file = open(top, "new");
        file.write_all(&pattern(3, LARGE_BYTES)).unwrap();
        file.sync_data().unwrap();
    }),
    case("a small write and fsync", |top| {
        let file = open(top, "f");
        file.write_all_at(&pattern(3, SMALL_BYTES), 10).unwrap();
        file.sync_all().unwrap();
    }),
    case("a large write and fdatasync", |top| {
        let file = open(top, "f");
        file.write_all_at(&pattern(3, LARGE_BYTES), 10).unwrap();
        file.sync_data().unwrap();
    }),
    case("a write that was closed, and fsync through another descriptor", |top| {
        open(top, "f").write_all_at(&pattern(3, LARGE_BYTES), 10).unwrap();
        File::open(top.join("f")).unwrap().sync_all().unwrap();
    }),
    case("a small write with O_SYNC", |top| {
        open_with(top, "f", libc::O_SYNC).write_all_at(&pattern(3, SMALL_BYTES), 10).unwrap();
    }),
    case("a large write with O_SYNC to a new file", |top| {
        open_with(top, "new", libc::O_SYNC).write_all(&pattern(3, LARGE_BYTES)).unwrap();
    }),
    case("a large write with O_DSYNC", |top| {
        open_with(top, "f", libc::O_DSYNC).write_all_at(&pattern(3, LARGE_BYTES), 10).unwrap();
    }),
    case("an append with O_SYNC", |top| {
        open_with(top, "f", libc::O_SYNC | libc::O_APPEND).write_all(&pattern(3, LARGE_BYTES)).unwrap();
    }),
    case("pages changed through a mapping, and msync", |top| {
        map_and_write(top, |mapped, bytes, _| {
            // SAFETY: the mapping is live.
            check(unsafe { libc::msync(mapped, bytes, libc::MS_SYNC) });
        });
    }),
    case("pages changed through a mapping, and fsync", |top| {
        map_and_write(top, |_, _, file| file.sync_all().unwrap());
    }),
    case("a file that is cut, and fsync", |top| {
        let file = open(top, "f");
        file.set_len(301).unwrap();
        file.sync_all().unwrap();
    }),
    case("a file that is made longer, and fsync", |top| {
        let file = open(top, "f");
        file.set_len(60_000).unwrap();
        file.sync_all().unwrap();
    }),
    case("an allocation and fsync", |top| {
        let file = open(top, "f");
        // SAFETY: no memory is passed.
        check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, 60_000) });
        file.sync_all().unwrap();
    }),
    case("chmod and fsync", |top| {
        let file = open(top, "f");
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        file.sync_all().unwrap();
    }),
    case("an extended attribute and fsync", |top| {
        let file = open(top, "f");
        let (name, value) = (c"user.x", b"value");
        // SAFETY: the name is a C string, and the value is live.
        let set = unsafe {
            libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        check(set);
        file.sync_all().unwrap();
    }),
    case("a copy and fsync", |top| {
        fs::copy(top.join("other"), top.join("new")).unwrap();
        File::open(top.join("new")).unwrap().sync_all().unwrap();
    }),
    case("a link, and fsync of the file", |top| {
        fs::hard_link(top.join("f"), top.join("linked")).unwrap();
        open(top, "f").sync_all().unwrap();
    }),
    case("a new file that replaces another, as editors do it", |top| {
        let mut file = open(top, "new");
        file.write_all(&pattern(3, LARGE_BYTES)).unwrap();
        file.sync_all().unwrap();
        fs::rename(top.join("new"), top.join("f")).unwrap();
        sync_names(top);
    }),
    case("a rename, and fsync of the directory", |top| {
        fs::rename(top.join("f"), top.join("renamed")).unwrap();
        sync_names(top);
    }),
    case("a removal, and fsync of the directory", |top| {
        fs::remove_file(top.join("f")).unwrap();
        sync_names(top);
    }),
    case("a directory, and fsync of the one above", |top| {
        fs::create_dir(top.join("new")).unwrap();
        sync_names(top);
    }),
    case("a symbolic link, and fsync of the directory", |top| {
        std::os::unix::fs::symlink("to/where", top.join("new")).unwrap();
        sync_names(top);
    }),
    case("a file that gets its name later, and fsync", |top| {
        let path = c_string(top);
        // SAFETY: a C string; the descriptor is new.
        let mut file = unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(fd)
        };
        file.write_all(&pattern(3, LARGE_BYTES)).unwrap();
        let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let to = c_string(&top.join("new"));
        // SAFETY: C strings.
        check(unsafe {
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        });
        file.sync_all().unwrap();
    }),
    on_mount("a write of another program, and fsync", |top| {
        let script = "head -c 20000 /dev/zero | tr '\\0' x > f";
        let wrote = Command::new("sh").arg("-c").arg(script).current_dir(top).status().unwrap();
        assert!(wrote.success());
        File::open(top.join("f")).unwrap().sync_all().unwrap();
    }),
];

/// Two files, durable.
fn prepare(client: &Client, bytes: usize) {
    for (path, seed) in [("/f", 1), ("/other", 2)] {
        let file = client.open(path, &WeftOptions::new().write(true).create(true)).unwrap();
        file.write_at(&pattern(seed, bytes), 0).unwrap();
        file.close().unwrap();
    }
    client.sync_all().unwrap();
}

/// A cluster for each case, on which `run` runs it. It returns `None` if the case is not for it.
fn survive(run: impl Fn(&Case, &str, &Path) -> Option<Box<dyn std::any::Any>> + Sync) {
    run_all(TABLE, |case, random| {
        let bytes = if random.one_in(2) { SMALL_BYTES } else { LARGE_BYTES };
        let described = Described::new(STRIP_BYTES, false);
        let cluster = described.start();
        prepare(&cluster.cluster().client(Transport::Tcp), bytes);
        let url = cluster.cluster().url().to_string();
        let Some(mount) = run(case, &url, &described.key_file()) else { return Vec::new() };
        let image = cluster.image(random);
        drop(mount);
        let of_file = |lost| format!("{}, with files of {bytes} bytes: {lost}", case.name);
        described.lost(cluster, &image).into_iter().map(of_file).collect()
    });
}

#[test]
fn what_is_durable_on_a_mount_survives_the_worst_cut() {
    let scratch = weft_tests::temporary_dir();
    survive(|case, url, key| {
        let command = |arguments: &[&str]| {
            let mut command = Command::new(weft_bin());
            command.args(arguments).env("WEFT_KEY_FILE", key);
            command
        };
        let mount = mount_in(scratch.path(), command, url, &[]);
        (case.run)(mount.path());
        Some(Box::new(mount))
    });
}

#[test]
fn what_is_durable_under_run_survives_the_worst_cut() {
    let program = std::env::current_exe().unwrap();
    survive(|case, url, key| {
        if case.on_mount {
            return None;
        }
        let mut command = Command::new(weft_bin());
        command.args(["run", "--url", url, "--at", AT, "--"]).arg(&program);
        command.args(["--exact", "the_case_of_this_process", "--nocapture"]);
        command.env("WEFT_KEY_FILE", key).env(CASE, case.name);
        expect_success(case.name, &command.output().unwrap());
        Some(Box::new(()))
    });
}

/// The process that the test of `weft run` starts.
#[test]
fn the_case_of_this_process() {
    let Ok(name) = std::env::var(CASE) else { return };
    let case = TABLE.iter().find(|case| case.name == name).expect("it is in the table");
    (case.run)(&PathBuf::from(AT));
    // As if the power went: nothing that a process does at its end.
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) };
}
