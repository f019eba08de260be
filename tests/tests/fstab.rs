//! Mounting as administrators do: mount(8), /etc/fstab, and the options that other file systems have.
//!
//! mount(8) looks for its helpers in /sbin. Where a test needs `mount.weft` there, it runs in a mount namespace of its own, in
//! which /sbin holds nothing else; so the machine's own /sbin stays as it is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_test_needs::Need;
use weft_tests::{
    Cluster, expect_success, free_ports, is_mounted, processes_naming, sh_in, signal, temporary_dir,
    wait_until, weft_bin,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// A user of no rights.
const USER: u32 = 65534;

/// Runs a script in a namespace of its own, with `$helper` as /sbin/mount.weft; returns what it printed.
#[track_caller]
fn with_helper(dir: &Path, script: &str) -> String {
    let sbin = fs::canonicalize("/sbin").expect("/sbin is there");
    let script = format!(
        "not() {{ if \"$@\"; then echo \"$* succeeds\"; exit 1; fi; }}
        mount -t tmpfs none {sbin}; ln -s {weft} {sbin}/mount.weft\n{script}",
        sbin = sbin.display(),
        weft = weft_bin().display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "bash", "-euo", "pipefail", "-c", &script]).current_dir(dir).env("LC_ALL", "C");
    expect_success(&script, &unshare.output().expect("unshare (package util-linux) can be run"))
}

fn as_user(id: u32, script: &str, dir: &Path) -> bool {
    let id = id.to_string();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", &id, "--regid", &id, "--clear-groups", "bash", "-c", script]).current_dir(dir);
    setpriv.stderr(Stdio::null()).status().expect("setpriv (package util-linux) can be run").success()
}

#[test]
fn mount_and_fstab_take_weft_as_a_type() {
    let cluster = Cluster::start(2);
    let scratch = cluster.scratch("fstab");
    let (key, url) = (cluster.key_file(), cluster.url().trim_end_matches('/'));
    let short = url.trim_start_matches("weft://");
    fs::create_dir_all(scratch.join("mnt")).unwrap();
    let line = format!(
        "{short}:/ {dir}/mnt weft noexec,cache=never,key={key},_netdev,noauto,x-test 0 0\n",
        dir = scratch.display(),
        key = key.display()
    );
    fs::write(scratch.join("fstab"), line).unwrap();
    let said = with_helper(
        &scratch,
        &format!(
            r#"
            mount --fstab fstab mnt
            grep " $PWD/mnt fuse.weft " /proc/self/mounts
            echo hello > mnt/file; printf '#!/bin/sh\necho ran' > mnt/program; chmod 755 mnt/program
            not mnt/program 2>/dev/null
            umount mnt
            mount -t weft {url}/ mnt -o ro,key={key}
            test "$(cat mnt/file)" = hello
            test "$(mnt/program)" = ran
            not touch mnt/new 2>/dev/null
            umount mnt
            mount -t weft -f {url}/ mnt
            not grep " $PWD/mnt fuse.weft " /proc/self/mounts
            status=0; mount -t weft {url}/nowhere mnt -o key={key} 2> said || status=$?
            cat said; echo "status $status"
            status=0; mount -t weft {url}/ mnt -o softer,key={key} 2> said || status=$?
            cat said; echo "status $status"
            "#,
            key = key.display()
        ),
    );
    assert!(said.contains("noexec"), "{said}");
    assert!(said.contains("/nowhere") && said.contains("status 32"), "{said}");
    assert!(said.contains("-o softer: no such mount option") && said.contains("status 1"), "{said}");
    let name = scratch.display().to_string();
    wait_until("no mount process is left", PATIENCE, || processes_naming(&name).is_empty());
}

#[test]
fn squashed_users_are_anonymous() {
    let cluster = Cluster::start(1);
    let plain = cluster.mount();
    plain.sh("mkdir open closed theirs; chmod 777 open; chmod 700 closed; chown 4001:4002 theirs; chmod 700 theirs");
    let ids = ["--anonuid", "4001", "--anongid", "4002", "--allow-other"];
    for words in [["-o", "root_squash"], ["--squash", "root"]] {
        let root = cluster.mount_with(cluster.url(), &[&ids[..], &words].concat());
        fs::write(root.join("open/by-root"), "x").unwrap();
        assert!(fs::write(root.join("closed/by-root"), "x").is_err(), "root is anonymous and may not");
    }
    let root = cluster.mount_with(cluster.url(), &[&ids[..], &["-o", "root_squash"]].concat());
    assert!(as_user(4003, "echo x > open/by-4003", root.path()));
    let owner = |path: &str| fs::metadata(plain.join(path)).map(|meta| (meta.uid(), meta.gid())).unwrap();
    assert_eq!(owner("open/by-root"), (4001, 4002));
    assert_eq!(owner("open/by-4003"), (4003, 4003));
    let all = cluster.mount_with(cluster.url(), &[&ids[..], &["-o", "all_squash"]].concat());
    assert!(as_user(4003, "echo x > theirs/by-4003", all.path()), "everybody is 4001, whose directory it is");
    assert_eq!(owner("theirs/by-4003"), (4001, 4002));
    assert!(!as_user(4001, "echo x > closed/by-4001", all.path()), "4001 is not root");
}

#[test]
fn users_with_other_numbers_are_mapped() {
    let cluster = Cluster::start(1);
    let plain = cluster.mount();
    plain.sh("mkdir home; chown 5001:6001 home; chmod 700 home");
    let maps = ["--map-users", "1000:5001", "--map-groups", "1000:6001+1001:6002", "--allow-other"];
    let mapped = cluster.mount_with(cluster.url(), &maps);
    let here = fs::metadata(mapped.join("home")).unwrap();
    assert_eq!((here.uid(), here.gid()), (1000, 1000));
    assert!(as_user(
        1000,
        "echo x > home/mine && test $(stat -c %u:%g home/mine) = 1000:1000",
        mapped.path()
    ));
    assert!(!as_user(5001, "ls home", mapped.path()), "5001 here is not 5001 there");
    chown(mapped.join("home/mine"), None, Some(1001)).unwrap();
    let there = fs::metadata(plain.join("home/mine")).unwrap();
    assert_eq!((there.uid(), there.gid()), (5001, 6002));
}

#[test]
fn device_files_and_set_id_bits_work_only_where_they_are_asked_for() {
    let cluster = Cluster::start(1);
    let plain = cluster.mount_with(cluster.url(), &["--allow-other"]);
    plain.sh("mknod null c 1 3; chmod 666 null; cp $(command -v id) id; chmod 4755 id");
    assert!(fs::write(plain.join("null"), "x").is_err());
    let run = |dir: &Path| sh_in(dir, "setpriv --reuid 4001 --regid 4001 --clear-groups ./id -u");
    assert_eq!(run(plain.path()).trim(), "4001");
    for words in [&["-o", "dev,suid,allow_other"][..], &["--dev", "--suid", "--allow-other"]] {
        let trusting = cluster.mount_with(cluster.url(), words);
        fs::write(trusting.join("null"), "x").unwrap();
        assert_eq!(run(trusting.path()).trim(), "0");
    }
    let careful = cluster.mount_with(cluster.url(), &["--noexec"]);
    let refused = Command::new(careful.join("id")).status().expect_err("nothing is executed from it");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn the_kernel_keeps_to_the_requests_that_a_mount_asks_for() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount_with(cluster.url(), &["--max-background", "20", "--threads", "2"]);
    // Connections are named by the device numbers of their mounts.
    let connection = fs::metadata(mount.path()).unwrap().dev().to_string();
    let said = with_fuse_connections(&format!("cat /sys/fs/fuse/connections/{connection}/max_background"));
    assert_eq!(said.trim(), "20");
    mount.sh("seq 100000 > f; seq 100000 | cmp - f");
}

/// Runs a script where the connections of all FUSE mounts are shown, as some machines do by themselves.
fn with_fuse_connections(script: &str) -> String {
    let script = format!(
        "mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections; {script}"
    );
    let mut unshare = Command::new("unshare");
    let output = unshare.args(["--mount", "bash", "-euc", &script]).output().expect("unshare can be run");
    expect_success(&script, &output)
}

#[test]
fn a_mount_ends_with_its_process_where_it_is_asked_to() {
    let cluster = Cluster::start(1);
    // The end of the process, and what sees it, are in a race.
    for round in 0..2 {
        let mount = cluster.mount_with(cluster.url(), &["--auto-unmount"]);
        mount.sh("seq 100000 > f; seq 100000 | cmp - f");
        signal(mount.pid(), libc::SIGKILL);
        wait_until(&format!("it is unmounted (round {round})"), PATIENCE, || !is_mounted(mount.path()));
    }
    let busy = cluster.mount_with(cluster.url(), &["--auto-unmount"]);
    let open = fs::File::open(busy.join("f")).unwrap();
    signal(busy.pid(), libc::SIGKILL);
    wait_until("one with an open file is unmounted", PATIENCE, || !is_mounted(busy.path()));
    drop(open);
}

/// As on a usual machine, where anybody may open `/dev/fuse`.
#[test]
fn a_user_who_is_not_root_mounts_by_fusermount() {
    // To become another user, and for the namespace.
    if !Need::Root.is_met() {
        return;
    }
    let scratch = temporary_dir();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(weft_bin(), scratch.path().join("weft")).unwrap();
    fs::create_dir(scratch.path().join("home")).unwrap();
    chown(scratch.path().join("home"), Some(USER), Some(USER)).unwrap();
    let script = format!(
        r#"
        mkdir dev; mount -t tmpfs none dev; mknod -m 666 dev/fuse c 10 229; mount --bind dev/fuse /dev/fuse
        user() {{ setpriv --reuid {USER} --regid {USER} --clear-groups env -u XDG_CONFIG_HOME HOME="$PWD/home" "$@"; }}
        not() {{ if "$@"; then echo "$* succeeds"; exit 1; fi; }}
        mounted() {{ grep -q " $PWD/home/mnt fuse.weft " /proc/self/mounts; }}
        trap 'user ./weft umount --lazy home/mnt 2> umount.said || true; user ./weft down --dir home/storage' EXIT
        url=$(user ./weft up --detach --io 1 --port {port} --dir home/storage)
        user mkdir home/mnt
        user ./weft mount "$url" home/mnt
        mounted
        user sh -c 'seq 100000 > home/mnt/f; seq 100000 | cmp - home/mnt/f; test "$(stat -c %u home/mnt/f)" = {USER}'
        # It is the user's alone.
        not ls home/mnt 2> ls.said
        user ./weft umount home/mnt
        not mounted
        user ./weft mount --auto-unmount "$url" home/mnt
        mounted
        pkill -KILL -u {USER} -f 'weft mount --auto-unmount'
        for _ in $(seq 600); do if mounted; then sleep 0.1; fi; done
        not mounted
        echo all of it
        "#,
        port = free_ports(2)
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "bash", "-euo", "pipefail", "-c", &script]).current_dir(scratch.path());
    let said = expect_success(&script, &unshare.output().expect("unshare (package util-linux) can be run"));
    assert!(said.contains("all of it"), "{said}");
}

#[test]
fn a_mount_without_servers_can_be_taken_away() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount_with(cluster.url(), &["-o", "retry-timeout-ms=8000"]);
    fs::write(mount.join("file"), vec![1; 1 << 20]).unwrap();
    cluster.down();
    // Waits for the servers, which do not come back.
    let mut reader = Command::new("cat")
        .arg(mount.join("file"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let refused = mount.umount(&[]);
    if reader.try_wait().unwrap().is_none() {
        assert!(!refused.status.success(), "it is busy");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("--force"));
    }
    if is_mounted(mount.path()) {
        expect_success("weft umount --force", &mount.umount(&["--force"]));
    }
    wait_until("the reader gets its error", PATIENCE, || reader.try_wait().unwrap().is_some());
    assert!(!is_mounted(mount.path()));
    // What waited for the servers ends when it would have given up.
    let name = mount.path().display().to_string();
    wait_until("no process of the mount is left", PATIENCE, || processes_naming(&name).is_empty());
}
