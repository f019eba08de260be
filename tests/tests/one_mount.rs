//! Processes of one mount that use the same files at once: what one has done, no reply that was on its way may hide from another.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_tests::{Cluster, SetAtEnd, expect_success, freeze, is_mounted, signal, wait_until};

const PAGE_BYTES: usize = 4096;

/// Every open finds a file that is being written, and has the kernel drop its pages, also those of a write on its way; every read
/// fills them again.
#[test]
fn a_write_is_read_back_while_others_open_and_read_the_file() {
    const PAGES: usize = 16;
    const WRITES: u64 = 300;
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    for round in 0..10 {
        let path = mount.join(format!("file {round}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(&[0; PAGES * PAGE_BYTES], 0).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ends = SetAtEnd(&done);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(fs::read(&path).unwrap().len(), PAGES * PAGE_BYTES);
                    }
                });
            }
            let written_and_read = (1..=WRITES).map(|write| {
                let offset = write % PAGES as u64 * PAGE_BYTES as u64;
                let mut page = [0; PAGE_BYTES];
                page[..8].copy_from_slice(&write.to_ne_bytes());
                file.write_all_at(&page, offset).unwrap();
                page.fill(0);
                let bytes = file.read_at(&mut page, offset).unwrap();
                (write, bytes, u64::from_ne_bytes(page[..8].try_into().unwrap()))
            });
            let wrong: Vec<_> = written_and_read
                .filter(|&(write, bytes, read)| (bytes, read) != (PAGE_BYTES, write))
                .collect();
            drop(ends);
            assert!(wrong.is_empty(), "round {round}: written, bytes read, read: {wrong:?}");
        });
    }
}

/// A page of a listing has more entries than the kernel takes at once, with attributes from when it was read.
#[test]
fn a_listing_tells_nothing_of_before_a_change() {
    const FILES: usize = 400;
    const CHANGED: usize = 50;
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let dir = mount.join("dir");
    fs::create_dir(&dir).unwrap();
    let files: Vec<_> = (0..FILES).map(|file| dir.join(format!("{file:04}"))).collect();
    files.iter().for_each(|path| drop(File::create(path).unwrap()));
    let last = |count: usize| &files[FILES - count * CHANGED..FILES - (count - 1) * CHANGED];
    let [grown, locked, removed, moved] = [1, 2, 3, 4].map(last);
    let elsewhere = |path: &PathBuf| path.with_extension("moved");
    for (listed, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        // Who looks at what is listed gets the next entries with attributes; what is gone by now may still be listed.
        let _ = fs::metadata(entry.unwrap().path());
        if listed == 5 {
            grown.iter().for_each(|path| fs::write(path, [7; 5000]).unwrap());
            locked.iter().for_each(|path| fs::set_permissions(path, Permissions::from_mode(0o400)).unwrap());
            removed.iter().for_each(|path| fs::remove_file(path).unwrap());
            moved.iter().for_each(|path| fs::rename(path, elsewhere(path)).unwrap());
        }
    }
    for path in grown {
        assert_eq!(fs::metadata(path).unwrap().len(), 5000, "{}", path.display());
        assert_eq!(fs::read(path).unwrap(), [7; 5000], "{}", path.display());
    }
    for path in locked {
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o400, "{}", path.display());
    }
    for path in removed.iter().chain(moved) {
        assert!(!path.exists(), "{}", path.display());
    }
    assert!(moved.iter().map(elsewhere).all(|path| path.exists()));
}

/// A page of a listing has attributes from before a file lost another name, or a directory got one.
#[test]
fn a_listing_tells_no_link_counts_of_before_a_change() {
    const NAMES: usize = 400;
    const LAST: usize = 50;
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let (dir, beside) = (mount.join("dir"), mount.join("beside"));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&beside).unwrap();
    let path = |name: usize| dir.join(format!("{name:04}"));
    let other = |name: usize| beside.join(format!("{name:04}"));
    for name in 0..NAMES {
        match name % 5 {
            0 => fs::create_dir(path(name)).unwrap(),
            1 => drop(File::create(path(name)).unwrap()),
            _ => {
                File::create(path(name)).unwrap();
                fs::hard_link(path(name), other(name)).unwrap();
            }
        }
    }
    let last = NAMES - LAST..NAMES;
    let open: Vec<_> = last.clone().map(|name| File::open(path(name)).unwrap()).collect();
    fs::write(beside.join("new"), "new").unwrap();
    for (listed, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        // Who looks at what is listed gets the next entries with attributes.
        let _ = fs::symlink_metadata(entry.unwrap().path());
        if listed != 5 {
            continue;
        }
        for name in last.clone() {
            match name % 5 {
                0 => fs::create_dir(path(name).join("sub")).unwrap(),
                1 | 2 => fs::remove_file(path(name)).unwrap(),
                3 => fs::remove_file(other(name)).unwrap(),
                _ => {
                    fs::write(beside.join("new"), "new").unwrap();
                    fs::rename(beside.join("new"), other(name)).unwrap();
                }
            }
        }
    }
    for (name, open) in last.zip(open) {
        let links = open.metadata().unwrap().nlink();
        assert_eq!(links, [3, 0, 1, 1, 1][name % 5], "{name}");
    }
}

/// The kernel gives the next mount the device number of the one that has just gone.
#[test]
fn a_mount_that_has_gone_does_not_take_the_next_one_away() {
    let cluster = Cluster::start(1);
    let first = cluster.mount();
    let pid = first.pid();
    freeze(pid);
    let path = CString::new(first.path().as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a string that ends with a zero.
    assert_eq!(unsafe { libc::umount2(path.as_ptr(), 0) }, 0, "{}", std::io::Error::last_os_error());
    let url = cluster.url();
    let dir = first.path().to_str().unwrap();
    expect_success("weft mount", &cluster.command(&["mount", url, dir]).output().unwrap());
    signal(pid, libc::SIGCONT);
    let ended = || !std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_until("the first one ends", Duration::from_secs(30), ended);
    fs::write(first.join("file"), "served").expect("the second one serves");
    assert!(is_mounted(first.path()));
}
