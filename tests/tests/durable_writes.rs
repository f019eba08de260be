//! Writes that ask for durability one by one (`RWF_DSYNC`, `RWF_SYNC`) have the servers sync, however the file is open.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use weft_client::Client;
use weft_tests::{Cluster, asked, expect_success, preload_library};
use weft_wire::Op;

const BYTES: usize = 4096;

#[repr(align(4096))]
struct Page([u8; BYTES]);

fn syncs(client: &Client) -> u64 {
    asked(client, Op::Sync) + asked(client, Op::SyncSmall)
}

fn write(file: &File, flags: i32) {
    let page = Page([b'x'; BYTES]);
    let piece = libc::iovec { iov_base: page.0.as_ptr() as *mut _, iov_len: BYTES };
    // SAFETY: the piece is a live page.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &piece, 1, 0, flags) };
    assert_eq!(written, BYTES as isize, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_write_on_a_mount_that_asks_for_it_is_durable() {
    let cluster = Cluster::start(2);
    let (mount, uncached) = (cluster.mount(), cluster.mount_with(cluster.url(), &["--cache", "never"]));
    let client = cluster.client();
    let mut wrong = Vec::new();
    for small in [true, false] {
        let path = if small { "small" } else { "large" };
        std::fs::write(mount.join(path), vec![0; if small { 100 } else { 4 << 20 }]).unwrap();
        for (how, mount, access, open_flags) in [
            ("to write", &mount, libc::O_WRONLY, 0),
            ("to read and write", &mount, libc::O_RDWR, 0),
            ("to append", &mount, libc::O_WRONLY, libc::O_APPEND),
            ("with O_DIRECT", &mount, libc::O_RDWR, libc::O_DIRECT),
            ("with O_DSYNC", &mount, libc::O_WRONLY, libc::O_DSYNC),
            ("with O_SYNC", &mount, libc::O_RDWR, libc::O_SYNC),
            ("without a cache", &uncached, libc::O_RDWR, 0),
        ] {
            let reads = access == libc::O_RDWR;
            let file =
                OpenOptions::new().read(reads).write(true).custom_flags(open_flags).open(mount.join(path));
            let file = file.unwrap();
            for (flags, asks) in
                [(0, open_flags & libc::O_DSYNC != 0), (libc::RWF_DSYNC, true), (libc::RWF_SYNC, true)]
            {
                let before = syncs(&client);
                write(&file, flags);
                let synced = syncs(&client) > before;
                // Writes that an open file makes durable need no request of their own.
                if open_flags & libc::O_DSYNC == 0 && synced != asks {
                    wrong.push(format!("{path}, open {how}, flags {flags}: synced is {synced}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_write_under_weft_run_that_asks_for_it_is_durable() {
    let cluster = Cluster::start(2);
    let client = cluster.client();
    let script = r#"
import os, sys
fd = os.open("/weft/f", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4 << 20)
os.write(fd, b"head")
flags = int(sys.argv[1])
print(os.pwritev(fd, [b"one", b"two"], 10, flags), os.lseek(fd, 0, os.SEEK_CUR), os.stat("/weft/f").st_size - (4 << 20))
"#;
    preload_library();
    for (flags, synced, grown) in [
        (0, false, 0),
        (libc::RWF_DSYNC, true, 0),
        (libc::RWF_SYNC, true, 0),
        (libc::RWF_APPEND, false, 6),
        (libc::RWF_APPEND | libc::RWF_DSYNC, true, 6),
    ] {
        let before = syncs(&client);
        let mut command = cluster.command(&["run", "--url", cluster.url(), "--", "python3", "-c", script]);
        let output = command.arg(flags.to_string()).output().expect("weft can be run");
        assert_eq!(expect_success(script, &output), format!("6 4 {grown}\n"), "flags {flags}");
        assert_eq!(syncs(&client) > before, synced, "flags {flags}");
    }
}
