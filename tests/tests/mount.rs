//! What people do with a file system, on a mounted one: coreutils, tar, rsync, git, sqlite, and two mounts that watch each other.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
use weft_test_needs::Need;
use weft_tests::{Cluster, is_mounted, sh_in, wait_until};

/// Later than what is read ahead is valid.
const STALE_MAX: Duration = Duration::from_millis(1100);

/// A small tree with what trees have: sizes around strip and page bounds, links, modes, odd names, an empty directory.
const MAKE_TREE: &str = r#"
    mkdir -p tree/deep/er/still tree/empty
    for size in 0 1 4095 4096 65535 65536 65537 300000 3000000; do
        head -c $size /dev/urandom > tree/file-$size
    done
    echo text > 'tree/deep/a name with spaces and ü'
    echo deep > tree/deep/er/still/here
    ln -s ../file-1 tree/deep/link
    ln -s nowhere tree/dangling
    ln tree/file-4096 tree/deep/hard
    chmod 751 tree/deep; chmod 4755 tree/file-1; chmod 1777 tree/empty; chmod 400 tree/file-0
    touch -d '2001-02-03 04:05:06.789' tree/file-4095 tree/deep
    mkfifo tree/fifo
"#;

#[test]
fn coreutils_work() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    let outside = cluster.scratch("outside");
    sh_in(&outside, MAKE_TREE);
    let outside = outside.display();
    mount.sh(&format!("cp -a {outside}/tree ."));
    mount.sh(&format!("diff -r --no-dereference {outside}/tree tree -x fifo; test -p tree/fifo"));
    let list = "find . ! -type d -printf '%p %y %m %n %s %T@ %l\\n' | sort";
    assert_eq!(mount.sh(&format!("cd tree; {list}")), mount.sh(&format!("cd {outside}/tree; {list}")));
    mount.sh(
        r#"
        mv tree/file-300000 tree/deep/moved; test ! -e tree/file-300000; test $(stat -c %s tree/deep/moved) = 300000
        mv tree/deep deeper; test -L deeper/link; mv deeper tree/deep
        ln tree/file-65536 second; test $(stat -c %h second) = 2; test second -ef tree/file-65536
        chmod u=rw,go= second; test $(stat -c %a tree/file-65536) = 600
        chown 12:34 second; test $(stat -c %u:%g second) = 12:34
        touch -d @1000000000.123456789 second; test $(stat -c %.9Y second) = 1000000000.123456789
        dd if=/dev/urandom of=dd bs=100k count=7 conv=fsync status=none; test $(stat -c %s dd) = 716800
        dd if=/dev/zero of=dd bs=1k count=1 seek=3 conv=notrunc status=none; test $(stat -c %s dd) = 716800
        truncate -s 100 dd; test $(stat -c %s dd) = 100; truncate -s 5M dd; test $(stat -c %s dd) = 5242880
        tail -c 100 dd | cmp - <(head -c 100 /dev/zero)
        printf one > append; printf two >> append; test $(cat append) = onetwo
        seq 100000 > numbers; sort -R numbers > shuffled; sort -n shuffled | cmp - numbers
        wc -l < numbers | grep -qx 100000
        split -b 50000 numbers part.; cat part.* | cmp - numbers
        install -m 750 numbers installed; test $(stat -c %a installed) = 750
        du -s --apparent-size tree >/dev/null; df . | grep -q /
        test "$(readlink tree/dangling)" = nowhere; test "$(realpath tree/deep/link)" = "$PWD/tree/file-1"
        find tree -type f -name 'file-*' | wc -l | grep -qx 8
        cp --sparse=always dd sparse; cmp dd sparse
        tee -a append < numbers > /dev/null; test $(stat -c %s append) = $((6 + $(stat -c %s numbers)))
        sha256sum part.* > sums; sha256sum --quiet -c sums
        mkdir -m 700 private; rmdir private; if rmdir tree 2>/dev/null; then exit 1; fi
        rm -r tree; test ! -e tree
        rm *; test -z "$(ls -A)"
        "#,
    );
}

#[test]
fn tar_brings_back_what_it_took() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh(MAKE_TREE);
    mount.sh(r#"
        tar cf tree.tar tree
        mkdir out; tar xpf tree.tar -C out
        diff -r --no-dereference -x fifo tree out/tree
        tar df tree.tar -C out
        test -p out/tree/fifo; test out/tree/file-4096 -ef out/tree/deep/hard
        "#);
}

#[test]
fn rsync_transfers_nothing_the_second_time() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let outside = cluster.scratch("outside");
    sh_in(&outside, MAKE_TREE);
    let outside = outside.display();
    let sync = |from: &str, to: &str| mount.sh(&format!("rsync -aHAX --itemize-changes {from}/ {to}/"));
    let tree = format!("{outside}/tree");
    assert!(sync(&tree, "copy").lines().count() > 10);
    assert_eq!(sync(&tree, "copy"), "");
    assert!(sync("copy", &format!("{outside}/back")).lines().count() > 10);
    assert_eq!(sync("copy", &format!("{outside}/back")), "");
    mount.sh(&format!("diff -r --no-dereference -x fifo {outside}/tree {outside}/back"));
    mount.sh("rsync -a --inplace --append-verify copy/file-3000000 again; rsync -a copy/ moved/ --remove-source-files");
}

#[test]
fn git_keeps_a_repository() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    mount.sh(r#"
        git init -q -b main repo; cd repo
        git config user.name tester; git config user.email tester@localhost
        for n in $(seq 60); do mkdir -p d$((n % 7)); seq $n $((n * 50)) > d$((n % 7))/f$n; done
        git add .; git commit -q -m first
        test -z "$(git status --porcelain)"
        sed -i s/7/seven/ d1/f1; echo more >> d2/f2; git mv d3/f3 d4/f3; git rm -q d5/f5
        git commit -q -a -m second
        git checkout -q -b side HEAD~1; echo side > side; git add side; git commit -q -m side
        git merge -q -m merged main
        git gc -q; git fsck --full --strict
        cd ..; git clone -q repo clone; git clone -q --no-hardlinks --bare repo bare
        cd clone; git fsck --full; git log --oneline | wc -l | grep -qx 4
        git checkout -q main; git diff --exit-code origin/main
        "#);
}

#[test]
fn sqlite_keeps_a_database() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    for journal in ["delete", "truncate", "wal"] {
        let said = mount.sh(&format!(
            r#"
            sqlite3 {journal}.db 'pragma journal_mode = {journal}' 'create table t (id integer primary key, v text)' \
                'create index i on t (v)' > /dev/null
            sqlite3 {journal}.db "with recursive n(x) as (select 1 union all select x + 1 from n where x < 20000)
                insert into t select x, hex(randomblob(20)) from n"
            for n in 1 2 3 4 5; do sqlite3 {journal}.db "update t set v = 'round $n' where id % 10 = $n"; done
            sqlite3 {journal}.db "begin; delete from t; rollback"
            sqlite3 {journal}.db 'pragma integrity_check' "select count(*), sum(v like 'round%') from t" vacuum
            "#
        ));
        assert_eq!(said, "ok\n20000|10000\n", "journal mode {journal}");
    }
}

#[test]
fn what_one_mount_has_closed_another_one_that_opens_sees() {
    let cluster = Cluster::start(2);
    let (here, there) = (cluster.mount(), cluster.mount());
    for round in 0..20 {
        let contents = format!("round {round} ").repeat(1 + round * 1000);
        fs::write(here.join("shared"), &contents).unwrap();
        assert_eq!(fs::read_to_string(there.join("shared")).unwrap(), contents, "{round}");
        fs::write(there.join("shared"), contents.to_uppercase()).unwrap();
        assert_eq!(fs::read_to_string(here.join("shared")).unwrap(), contents.to_uppercase(), "{round}");
    }
}

#[test]
fn two_mounts_write_disjoint_parts_of_a_file_at_once() {
    const PART: usize = 3_000_001;
    let cluster = Cluster::start(3);
    let mounts = [cluster.mount(), cluster.mount()];
    fs::write(mounts[0].join("parts"), b"").unwrap();
    std::thread::scope(|scope| {
        for (writer, mount) in mounts.iter().enumerate() {
            scope.spawn(move || {
                for part in (writer..4).step_by(2) {
                    let file = OpenOptions::new().write(true).open(mount.join("parts")).unwrap();
                    file.write_all_at(&vec![b'a' + part as u8; PART], (part * PART) as u64).unwrap();
                    // What this mount wrote it sees at once, whatever the other one does.
                    assert!(fs::metadata(mount.join("parts")).unwrap().len() >= ((part + 1) * PART) as u64);
                }
            });
        }
    });
    for mount in &mounts {
        let data = fs::read(mount.join("parts")).unwrap();
        assert_eq!(data.len(), 4 * PART);
        assert!(
            data.chunks(PART)
                .enumerate()
                .all(|(part, chunk)| chunk.iter().all(|byte| *byte == b'a' + part as u8))
        );
    }
}

#[test]
fn changes_by_another_mount_are_seen_at_once() {
    let cluster = Cluster::start(2);
    let (here, there) = (cluster.mount(), cluster.mount());
    fs::create_dir(here.join("dir")).unwrap();
    fs::write(here.join("dir/file"), "short").unwrap();
    assert_eq!(fs::metadata(there.join("dir/file")).unwrap().len(), 5);
    let mut reader = File::open(there.join("dir/file")).unwrap();
    fs::write(here.join("dir/file"), "rather longer").unwrap();
    fs::set_permissions(here.join("dir/file"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::write(here.join("dir/new"), "").unwrap();
    assert!(there.join("dir/new").exists());
    let status = fs::metadata(there.join("dir/file")).unwrap();
    assert_eq!((status.len(), status.mode() & 0o777), (13, 0o640));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "rather longer");
    fs::rename(here.join("dir"), here.join("moved")).unwrap();
    assert!(!there.join("dir").exists() && there.join("moved/file").exists());
}

#[test]
fn appends_of_a_mounts_processes_are_all_there() {
    const LINES: usize = 200;
    let cluster = Cluster::start(2);
    let mount = &cluster.mount();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(mount.join("log")).unwrap();
                for line in 0..LINES {
                    log.write_all(format!("{writer} {line}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = fs::read_to_string(mount.join("log")).unwrap();
    for writer in 0..2 {
        let lines = log.lines().filter(|line| line.starts_with(&writer.to_string()));
        assert_eq!(lines.count(), LINES);
    }
}

#[test]
fn times_and_sizes_of_a_file_being_written_are_right_at_once() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    let mut file = File::create(mount.join("growing")).unwrap();
    let mut size = 0;
    for step in 1..40u64 {
        let before = SystemTime::now() - Duration::from_millis(50);
        file.write_all(&vec![7; (step * 9973) as usize]).unwrap();
        size += step * 9973;
        let status = fs::metadata(mount.join("growing")).unwrap();
        assert_eq!(status.len(), size);
        assert!(status.modified().unwrap() >= before, "step {step}");
    }
    // A time that was set stays, although the file is closed after it.
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 1);
    file.write_all(b"more").unwrap();
    file.set_modified(then).unwrap();
    drop(file);
    assert_eq!(fs::metadata(mount.join("growing")).unwrap().modified().unwrap(), then);
    std::thread::sleep(STALE_MAX);
    let status = fs::metadata(mount.join("growing")).unwrap();
    assert_eq!((status.modified().unwrap(), status.len()), (then, size + 4));
}

#[test]
fn sparse_files_and_punched_holes_read_as_zeros() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("sparse")).unwrap();
    file.write_all_at(b"end", 10 << 30).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (10 << 30) + 3);
    let mut data = vec![1; 1 << 20];
    file.read_exact_at(&mut data, 5 << 30).unwrap();
    assert!(data.iter().all(|byte| *byte == 0));
    mount.sh(r#"
        head -c 1000000 /dev/urandom > holes; cp holes before
        fallocate -p -o 100000 -l 200000 holes
        cmp -n 100000 holes before; cmp -i 300000 holes before
        cmp -n 200000 -i 100000:0 holes /dev/zero; test $(stat -c %s holes) = 1000000
        fallocate -l 2000000 holes; test $(stat -c %s holes) = 2000000
        fallocate -n -o 0 -l 3000000 holes; test $(stat -c %s holes) = 2000000
        fallocate -z -o 0 -l 10 holes; cmp -n 10 holes /dev/zero
        if fallocate -c -o 0 -l 4096 holes 2> /dev/null; then exit 1; fi
        "#);
}

/// lseek(2), or its errno.
fn seek(file: &File, offset: u64, whence: i32) -> Result<u64, i32> {
    use std::os::fd::AsRawFd;
    // SAFETY: no memory is passed.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    u64::try_from(found).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[test]
fn holes_are_found_and_space_is_told_as_it_is() {
    const MIB: u64 = 1 << 20;
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("sparse")).unwrap();
    file.set_len(100 * MIB).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    file.write_all_at(&vec![5; 3 << 20], 50 * MIB).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(50 * MIB));
    assert_eq!(seek(&file, 50 * MIB + 5, libc::SEEK_HOLE), Ok(53 * MIB));
    assert_eq!(seek(&file, 60 * MIB, libc::SEEK_DATA), Err(libc::ENXIO));
    assert_eq!(seek(&file, 60 * MIB, libc::SEEK_HOLE), Ok(60 * MIB));
    assert_eq!(seek(&file, 100 * MIB, libc::SEEK_HOLE), Err(libc::ENXIO));
    let blocks = |mib: u64| (mib * MIB / 512)..=((mib + 1) * MIB / 512);
    assert!(blocks(3).contains(&file.metadata().unwrap().blocks()));
    drop(file);
    let other = cluster.mount();
    assert!(blocks(3).contains(&fs::metadata(other.join("sparse")).unwrap().blocks()));
    mount.sh(r#"
        du=$(du -k sparse | cut -f1); test $du -ge 3072 -a $du -lt 4096
        cp --sparse=auto sparse copy; cmp sparse copy; test $(du -k copy | cut -f1) -lt 4096
        fallocate -p -o 50MiB -l 2MiB sparse; test $(du -k sparse | cut -f1) -lt 2048
        fallocate -l 10MiB sparse; test $(du -k sparse | cut -f1) -ge 10240
        : > reserved; fallocate -n -l 10MiB reserved; test $(stat -c %s reserved) = 0; test $(du -k reserved | cut -f1) -ge 10240
        "#);
    let url = |name: &str| format!("{}{name}", cluster.url());
    let sum = cluster.weft(&["du", "--json", &url("copy")]);
    let sum: serde_json::Value = serde_json::from_str(&sum).unwrap();
    assert_eq!(sum[0]["bytes"], 100 * MIB);
    assert!((3 * MIB..4 * MIB).contains(&sum[0]["allocated_bytes"].as_u64().unwrap()), "{sum}");
    let status: serde_json::Value =
        serde_json::from_str(&cluster.weft(&["stat", "--json", &url("copy")])).unwrap();
    assert_eq!(status[0]["allocated_bytes"], sum[0]["allocated_bytes"]);
}

#[test]
fn copy_file_range_copies_and_refuses_what_overlaps() {
    use std::os::fd::AsRawFd;
    let cluster = Cluster::start(3);
    let mount = cluster.mount();
    let open = |name: &str| {
        OpenOptions::new().read(true).write(true).create_new(true).open(mount.join(name)).unwrap()
    };
    let copy = |from: &File, mut from_at: i64, to: &File, mut to_at: i64, bytes: usize| {
        // SAFETY: two live offsets.
        let copied = unsafe {
            libc::copy_file_range(from.as_raw_fd(), &mut from_at, to.as_raw_fd(), &mut to_at, bytes, 0)
        };
        usize::try_from(copied).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    };
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 7) as u8).collect();
    let (from, to) = (open("from"), open("to"));
    from.write_all_at(&data, 0).unwrap();
    // Pages of the target that were read before do not stay.
    to.write_all_at(&vec![1; data.len()], 0).unwrap();
    let mut back = vec![0; data.len()];
    to.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(copy(&from, 5, &to, 1005, 2_000_000), Ok(2_000_000));
    to.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..1005].iter().all(|byte| *byte == 1) && back[1005..2_001_005] == data[5..2_000_005]);
    assert!(back[2_001_005..].iter().all(|byte| *byte == 1));
    assert_eq!(copy(&from, 2_999_000, &to, 5_000_000, 10_000), Ok(1000));
    assert_eq!(to.metadata().unwrap().len(), 5_001_000);
    assert_eq!(copy(&from, 3_000_000, &to, 0, 10), Ok(0));
    assert_eq!(copy(&from, 0, &from, 999_999, 1_000_000), Err(libc::EINVAL));
    let read_only = File::open(mount.join("to")).unwrap();
    assert_eq!(copy(&from, 0, &read_only, 0, 10), Err(libc::EBADF));
}

#[test]
fn an_open_file_outlives_its_names() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mount.join("gone"))
        .unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(mount.join("gone")).unwrap();
    assert!(!mount.join("gone").exists());
    file.write_all(&vec![b'x'; 200_000]).unwrap();
    let mut data = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut data).unwrap();
    assert_eq!((data.len(), &data[..10]), (200_010, &b"still here"[..]));
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.set_len(4).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4);

    fs::write(mount.join("old"), "old contents").unwrap();
    fs::write(mount.join("new"), "new").unwrap();
    let mut old = File::open(mount.join("old")).unwrap();
    fs::rename(mount.join("new"), mount.join("old")).unwrap();
    assert_eq!(fs::read_to_string(mount.join("old")).unwrap(), "new");
    let mut text = String::new();
    old.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old contents");
}

#[test]
fn a_large_directory_is_listed_while_it_is_emptied() {
    const FILES: usize = 5000;
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    let dir = mount.join("many");
    fs::create_dir(&dir).unwrap();
    for file in 0..FILES {
        File::create(dir.join(format!("file-{file}"))).unwrap();
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), FILES);
    // Every second one is deleted while the listing runs: each of the others must be seen once.
    let mut seen = vec![0; FILES];
    for entry in fs::read_dir(&dir).unwrap() {
        let name = entry.unwrap().file_name();
        let number: usize = name.to_str().unwrap().strip_prefix("file-").unwrap().parse().unwrap();
        seen[number] += 1;
        if number % 2 == 1 {
            fs::remove_file(dir.join(name)).unwrap();
        }
    }
    assert!(seen.iter().all(|count| *count == 1));
    assert_eq!(mount.sh("ls many | wc -l").trim(), (FILES / 2).to_string());
    mount.sh("find many -name '*4' -delete; rm -rf many; test ! -e many");
}

#[test]
fn special_files_links_and_extended_attributes_are_kept() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    mount.sh(
        r#"
        mkfifo fifo; (echo through > fifo &); test "$(cat fifo)" = through
        mknod null c 1 3; test "$(stat -c %t:%T null)" = 1:3
        ln -s "$(printf 'x%.0s' $(seq 4000))" long; test $(readlink long | tr -d '\n' | wc -c) = 4000
        mkdir sticky; chmod 3770 sticky; chgrp 1234 sticky; touch sticky/inherits; test $(stat -c %g sticky/inherits) = 1234
        "#,
    );
    std::os::unix::net::UnixListener::bind(mount.join("socket")).unwrap();
    assert!(fs::symlink_metadata(mount.join("socket")).unwrap().file_type().is_socket());
    let said = mount.sh(
        r#"
        python3 - <<'PYTHON'
import os
open('f', 'w').close()
os.setxattr('f', 'user.one', b'1'); os.setxattr('f', 'user.empty', b''); os.setxattr('f', 'trusted.t', b't' * 5000)
print(sorted(os.listxattr('f')), os.getxattr('f', 'user.one'), len(os.getxattr('f', 'trusted.t')))
os.removexattr('f', 'user.one')
for wrong in (lambda: os.getxattr('f', 'user.one'), lambda: os.setxattr('f', 'user.empty', b'', os.XATTR_CREATE)):
    try: wrong(); print('no error')
    except OSError as error: print(error.errno)
PYTHON
        "#,
    );
    assert_eq!(said, "['trusted.t', 'user.empty', 'user.one'] b'1' 5000\n61\n17\n");
}

/// Runs a script as another user with these groups; only root can.
fn as_user(uid: u32, groups: &str, dir: &Path, script: &str) -> bool {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), &format!("--groups={groups}")]);
    command.args(["bash", "-c", script]).current_dir(dir).status().unwrap().success()
}

#[test]
fn permissions_hold_for_other_users_and_their_groups() {
    if !Need::Root.is_met() {
        return;
    }
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    for path in mount.path().ancestors().take(2) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    mount.sh("mkdir -m 1777 tmp; echo secret > secret; chmod 640 secret; chgrp 4321 secret; mkdir -m 750 team; chgrp 4321 team");
    let allowed = |groups: &str, script: &str| as_user(1000, groups, mount.path(), script);
    assert!(!allowed("1000", "cat secret"));
    assert!(allowed("1000,4321", "cat secret"));
    assert!(!allowed("1000", "ls team") && allowed("4321", "ls team"));
    assert!(!allowed("4321", "touch team/mine") && !allowed("4321", "touch mine"));
    assert!(allowed("1000", "echo mine > tmp/mine && test $(stat -c %u:%g tmp/mine) = 1000:1000"));
    assert!(!as_user(1001, "1001", mount.path(), "rm -f tmp/mine"));
    assert!(!allowed("1000", "chown 1001 tmp/mine") && !allowed("1000", "chmod 600 secret"));
    mount.sh("cp /bin/true tmp/set-id; chown 1000 tmp/set-id; chmod 6777 tmp/set-id");
    assert!(as_user(1001, "1001", mount.path(), "echo >> tmp/set-id"));
    assert_eq!(mount.sh("stat -c %a tmp/set-id").trim(), "777");
    mount.sh("chmod 6777 tmp/set-id");
    assert!(as_user(1001, "1001", mount.path(), "fallocate -p -l 10 tmp/set-id"));
    assert_eq!(mount.sh("stat -c %a tmp/set-id").trim(), "777");
}

#[test]
fn a_subdirectory_can_be_mounted_and_a_mount_can_be_read_only() {
    let cluster = Cluster::start(1);
    let whole = cluster.mount();
    whole.sh("mkdir -p sub/dir; echo inside > sub/dir/file; echo outside > file");
    let url = format!("{}sub", cluster.url());
    let part = cluster.mount_with(&url, &["--read-only"]);
    part.sh("test \"$(cat dir/file)\" = inside; test $(stat -c %i .) = 1; test $(stat -c %i dir/..) = 1; test $(ls) = dir");
    let denied = fs::write(part.join("dir/file"), "").unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        table.lines().any(|line| line.starts_with(&format!("{url} ")) && line.contains(" fuse.weft ro,")),
        "{table}"
    );
}

/// Files in these tests that are read past the page cache, and ahead.
const STREAMED_BYTES: u64 = 64 << 20;
const STREAMING: [&str; 2] = ["--stream-from", "64M"];
const MIB: usize = 1 << 20;

/// A large file, open for reading, of which the first mebibytes were read in order.
fn read_in_order(path: &Path, mebibytes: usize) -> File {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; MIB];
    (0..mebibytes).for_each(|_| file.read_exact(&mut buffer).unwrap());
    file
}

#[test]
fn what_is_read_ahead_is_not_older_than_a_change_through_the_same_mount() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount_with(cluster.url(), &STREAMING);
    let path = mount.join("large");
    File::create(&path).unwrap().set_len(STREAMED_BYTES).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut reader = read_in_order(&path, 4);
    let mut buffer = vec![0; MIB];
    for round in 4..22u8 {
        let at = u64::from(round) << 20;
        writer.write_all_at(&vec![round; MIB], at).unwrap();
        reader.read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == round), "written, {round}");
        // The next round's mebibytes are being read ahead now; every other kind of change comes in between as well.
        match round % 3 {
            0 => mount.sh(&format!("fallocate --punch-hole --offset {at} --length 1MiB large")),
            1 => mount.sh(&format!("truncate -s {at} large; truncate -s {STREAMED_BYTES} large")),
            _ => mount.sh(&format!("head -c {STREAMED_BYTES} /dev/zero > large")),
        };
        assert_eq!(reader.seek(SeekFrom::Start(at)).unwrap(), at);
        reader.read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0), "gone again, {round}");
    }
}

#[test]
fn what_another_mount_has_changed_is_seen_by_who_opens_and_soon_by_who_reads() {
    let cluster = Cluster::start(3);
    let (here, there) =
        (cluster.mount_with(cluster.url(), &STREAMING), cluster.mount_with(cluster.url(), &STREAMING));
    let path = here.join("large");
    File::create(&path).unwrap().set_len(STREAMED_BYTES).unwrap();
    let mut buffer = vec![0; MIB];
    for round in 1..4u8 {
        let mut early = read_in_order(&path, 8);
        let writer = OpenOptions::new().write(true).open(there.join("large")).unwrap();
        (0..32).for_each(|at| writer.write_all_at(&vec![round; MIB], at << 20).unwrap());
        drop(writer);
        let mut late = read_in_order(&path, 8);
        late.read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == round), "opened after the change");
        std::thread::sleep(STALE_MAX);
        early.read_exact(&mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == round), "open all the time");
    }
}

#[test]
fn a_large_file_is_read_in_any_order_and_to_its_moving_end() {
    let cluster = Cluster::start(3);
    let (here, there) =
        (cluster.mount_with(cluster.url(), &STREAMING), cluster.mount_with(cluster.url(), &STREAMING));
    let outside = cluster.scratch("outside");
    sh_in(&outside, &format!("head -c {} /dev/urandom > large", STREAMED_BYTES + 1_234_567));
    let outside = outside.join("large").display().to_string();
    here.sh(&format!("cp {outside} large"));
    for bytes in ["4095", "10000", "32k", "1000000", "1M", "3M"] {
        here.sh(&format!("dd if=large bs={bytes} status=none | cmp - {outside}"));
    }
    here.sh(&format!(
        "tac large | cmp - <(tac {outside}); tail -c 3000000 large | cmp - <(tail -c 3000000 {outside})"
    ));
    let mut reader = File::open(here.join("large")).unwrap();
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    there.sh("printf appended >> large");
    let mut more = String::new();
    reader.read_to_string(&mut more).unwrap();
    assert_eq!((all.len() as u64, more.as_str()), (STREAMED_BYTES + 1_234_567, "appended"));
}

#[test]
fn with_and_without_the_page_cache_the_bytes_are_the_same() {
    let cluster = Cluster::start(3);
    for which in ["never", "always"] {
        let mount = cluster.mount_with(cluster.url(), &["--cache", which]);
        mount.sh(
            r#"
        head -c 5000001 /dev/urandom > random; cp random copy; cmp random copy
        dd if=random of=dd bs=3M status=none; cmp random dd
        dd if=random of=direct bs=1M oflag=direct iflag=fullblock count=4 status=none; cmp -n 4194304 random direct
        cp /bin/true program; ./program
        "#,
        );
    }
}

#[test]
fn unmounting_a_busy_mount_says_who_uses_it() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    let user = File::create(mount.join("open")).unwrap();
    let output = mount.umount(&[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && is_mounted(mount.path()));
    assert!(said.contains("busy") && said.contains(&format!("({})", std::process::id())), "{said}");
    drop(user);
    assert!(mount.umount(&[]).status.success() && !is_mounted(mount.path()));
    let again = mount.umount(&[]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("not a Weft mount"));
}

#[test]
fn a_mount_whose_process_was_killed_can_be_unmounted() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount();
    let name = mount.path().to_string_lossy().into_owned();
    let pids = weft_tests::processes_naming(&name);
    assert!(!pids.is_empty());
    for pid in pids {
        // SAFETY: kill takes no pointers; the process was found by the name of this test's own directory.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    }
    wait_until("the mount is dead", Duration::from_secs(5), || fs::metadata(mount.path()).is_err());
    assert!(mount.umount(&[]).status.success() && !is_mounted(mount.path()));
}

#[test]
fn a_signal_ends_a_mount() {
    let cluster = Cluster::start(1);
    for (signal, busy) in [(libc::SIGTERM, false), (libc::SIGINT, true)] {
        let mount = cluster.mount();
        let mut file = File::create(mount.join("written")).unwrap();
        file.write_all(b"not closed yet").unwrap();
        let held = busy.then_some(file);
        let name = mount.path().to_string_lossy().into_owned();
        for pid in weft_tests::processes_naming(&name) {
            // SAFETY: kill takes no pointers; the process was found by the name of this test's own directory.
            unsafe { libc::kill(pid as i32, signal) };
        }
        let start = Instant::now();
        wait_until("the mount is gone", Duration::from_secs(10), || !is_mounted(mount.path()));
        wait_until("its process is gone", Duration::from_secs(10), || {
            weft_tests::processes_naming(&name).is_empty()
        });
        assert!(start.elapsed() < Duration::from_secs(10));
        drop(held);
        drop(mount);
        let again = cluster.mount();
        assert_eq!(fs::read_to_string(again.join("written")).unwrap(), "not closed yet");
    }
}

#[test]
fn a_mount_that_cannot_be_says_why() {
    let cluster = Cluster::start(1);
    let scratch = cluster.scratch("point");
    let fails = |url: &str, dir: &Path| {
        let output = cluster.command(&["mount", url]).arg(dir).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(fails(cluster.url(), &scratch.join("missing")).contains("does not exist"));
    assert!(fails(&format!("{}missing", cluster.url()), &scratch).contains("missing"));
    let mount = cluster.mount();
    assert!(fails(cluster.url(), mount.path()).contains("mounted there already"));
    mount.sh("echo > file");
    assert!(fails(&format!("{}file", cluster.url()), &scratch).contains("not a directory"));
}

/// Where other tests here run over RDMA, nothing else can be used; this says so by what servers have counted.
#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one, with WEFT_TRANSPORT=rdma"]
fn what_a_mount_moves_goes_over_rdma() {
    let cluster = Cluster::start(2);
    // Of requests that brought or took data, however it was moved.
    let moved = |server: &serde_json::Value| -> u64 {
        let counts = &server["rdma"]["adapters"][0]["counts"];
        let mechanisms = ["inline_requests", "fast_requests", "remote_requests", "lent_requests"];
        mechanisms.iter().map(|name| counts[name].as_u64().unwrap_or(0)).sum()
    };
    let mount = cluster.mount();
    mount.sh("head -c 3000000 /dev/urandom > file; cp file copy; sync; cmp file copy");
    let said = cluster.weft(&["status", "--json", cluster.url()]);
    let after: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let io_servers = after["servers"].as_array().expect("a list").iter().filter(|one| one["role"] == "io");
    let mut servers = 0;
    for server in io_servers {
        assert!(moved(server) > 0, "{server}");
        let clients = server["client_list"].as_array().expect("a list");
        assert!(!clients.is_empty(), "{server}");
        for client in clients {
            assert!(client["transport"].as_str().expect("a text").starts_with("verbs"), "{server}");
        }
        servers += 1;
    }
    assert_eq!(servers, 2);
}
