//! A mount whose requests come through an io_uring. The kernel has to offer that; root can make it, and every test of this program is
//! one, so that nothing else changes the kernel's setting meanwhile.

use std::os::unix::fs::FileExt;
use std::time::Duration;
use weft_test_needs::Need;
use weft_test_random::Random;
use weft_tests::suite::{ON_THE_MOUNT, all_hold};
use weft_tests::{Cluster, Locker, Mount, gauge, signal, temporary_dir, wait_until};

const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";
const PATIENCE: Duration = Duration::from_secs(60);

/// As long as it lives, the kernel offers FUSE over io_uring.
struct Offered(String);

impl Offered {
    /// `None` where this kernel cannot.
    fn new() -> Option<Offered> {
        if !Need::FuseOverIoUring.is_met() {
            return None;
        }
        let before = std::fs::read_to_string(SETTING).unwrap();
        std::fs::write(SETTING, "Y").unwrap_or_else(|error| panic!("{SETTING}: {error}"));
        Some(Offered(before))
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        let _ = std::fs::write(SETTING, &self.0);
    }
}

#[test]
fn a_mount_over_an_io_uring_is_like_any_other() {
    let Some(offered) = Offered::new() else { return };
    let cluster = Cluster::start(3);
    let mount = cluster.mount_with(cluster.url(), &["--ring", "require"]);
    all_hold(mount.path(), ON_THE_MOUNT, &[]);
    bytes_of_all_sizes_come_back(&mount);
    more_wait_for_a_lock_than_there_are_threads(&cluster, &mount);
    mount.sh("tar -C /usr/include -cf - linux | tar -xf - ; diff -r linux /usr/include/linux; rm -r linux");
    drop(mount);
    drop(offered);
    // Where it is off, who asks for it is told what to do, and who does not gets a mount all the same.
    if std::fs::read_to_string(SETTING).is_ok_and(|setting| setting.starts_with('N')) {
        let dir = temporary_dir();
        let refused = cluster
            .command(&["mount", cluster.url(), &dir.path().display().to_string(), "--ring", "require"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("enable_uring"), "{said}");
        cluster.mount().sh("echo x > here; test $(cat here) = x");
    }
}

/// Reads and writes from one byte to more than a request can carry, cached and not.
fn bytes_of_all_sizes_come_back(mount: &Mount) {
    let bytes = Random(weft_test_random::seed()).bytes(3 << 20);
    let path = mount.join("sizes");
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    let (mut offset, mut length) = (0, 1);
    while offset < bytes.len() {
        let end = (offset + length).min(bytes.len());
        file.write_all_at(&bytes[offset..end], offset as u64).unwrap();
        (offset, length) = (end, length * 3);
    }
    file.sync_all().unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes, "what was written is read");
    mount.sh("dd if=sizes of=copy bs=1M iflag=direct oflag=direct status=none; cmp sizes copy");
    // A value that is larger than what is put aside.
    mount.sh("python3 -c \"import os; os.setxattr('sizes', 'user.a', b'a' * 12000); assert os.getxattr('sizes', 'user.a') == b'a' * 12000\"");
}

/// All entries of the ring are waited with at once; yet everybody's request gets to the server, and others are served.
fn more_wait_for_a_lock_than_there_are_threads(cluster: &Cluster, mount: &Mount) {
    let client = cluster.client();
    let mut holder = Locker::start();
    holder.must(&format!("open 0 {}", mount.join("sizes").display()));
    holder.must("fcntl 0 w 0 0 try");
    let mut waiting: Vec<Locker> = (0..40).map(|_| Locker::start()).collect();
    for locker in &mut waiting {
        locker.must(&format!("open 0 {}", mount.join("sizes").display()));
    }
    waiting.iter_mut().for_each(|locker| locker.send("ofd 0 r 0 1 wait"));
    wait_until("40 wait for a lock", PATIENCE, || gauge(&client, "lock_waits") == 40);
    std::fs::write(mount.join("meanwhile"), "x").unwrap();
    signal(waiting[0].pid(), libc::SIGUSR1);
    assert_eq!(waiting[0].answer(), format!("errno {}", libc::EINTR));
    holder.must("fcntl 0 u 0 0 try");
    waiting[1..].iter_mut().for_each(|locker| assert_eq!(locker.answer(), "ok"));
}
