//! Attributes, contents, creation, durability.

use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{
    createhow3, createverf3, devicedata3, ftype3, mknoddata3, nfstime3, set_atime, set_mtime, specdata3,
    stable_how,
};
use weft_client::OpenOptions;
use weft_wire::messages::{QuotaLimits, quota_kind};

pub(super) async fn create(
    gateway: &Gateway,
    dir: &[u8],
    name: &str,
    how: createhow3,
) -> Result<Vec<u8>, nfsstat3> {
    create_as(gateway, &root(), dir, name, how).await
}

pub(super) async fn create_as(
    gateway: &Gateway,
    sender: &Sender,
    dir: &[u8],
    name: &str,
    how: createhow3,
) -> Result<Vec<u8>, nfsstat3> {
    match gateway.files.create(sender, Place { dir, name: name.as_bytes() }, &how).await {
        Nfs3Result::Ok(made) => Ok(bytes(&made.obj.unwrap())),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

async fn write(gateway: &Gateway, file: &[u8], offset: u64, data: &[u8], stable: stable_how) -> [u8; 8] {
    let written = gateway.files.write(&root(), file, offset, stable, data.to_vec().into()).await.unwrap();
    assert_eq!(written.count as usize, data.len());
    let least = if stable == stable_how::UNSTABLE { stable_how::UNSTABLE } else { stable_how::FILE_SYNC };
    assert_eq!(written.committed, least);
    written.verf.0
}

async fn read(gateway: &Gateway, file: &[u8], offset: u64, count: u32) -> (Vec<u8>, bool) {
    let done = gateway.files.read(&root(), file, (offset, count), &Buffers::default()).await.unwrap();
    (done.data.to_vec(), done.eof)
}

#[test]
fn what_was_written_is_read_and_seen_by_others_at_once() {
    let cluster = Cluster::start(3, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let file = create(&gateway, &dir, "f", createhow3::GUARDED(mode(0o640))).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().mode, 0o640);
        write(&gateway, &file, 0, &[7; 30_000], stable_how::UNSTABLE).await;
        write(&gateway, &file, 50_000, &[8; 10], stable_how::FILE_SYNC).await;
        let native = cluster.client().open("/f", &OpenOptions::new().read(true)).unwrap();
        let mut seen = vec![1; 60_000];
        assert_eq!(native.read_at(&mut seen, 0).unwrap(), 50_010);
        let attr = gateway.attr(&file).await.unwrap();
        assert_eq!((attr.size, attr.type_), (50_010, ftype3::NF3REG));
        assert_eq!(gateway.find(&dir, "f").await.unwrap().1.size, 50_010);
        let (data, eof) = read(&gateway, &file, 29_999, 3).await;
        assert_eq!((data, eof), (vec![7, 0, 0], false));
        assert_eq!(read(&gateway, &file, 50_009, 100).await, (vec![8], true));
        assert_eq!(read(&gateway, &file, 50_010, 100).await, (vec![], true));
        assert_eq!(read(&gateway, &file, u64::MAX, 100).await, (vec![], true));
        assert_eq!(read(&gateway, &file, 0, 0).await, (vec![], false));
        let far =
            gateway.files.write(&root(), &file, u64::MAX - 1, stable_how::UNSTABLE, vec![1; 4].into()).await;
        assert_eq!(status(&far), nfsstat3::NFS3ERR_FBIG);
    });
}

#[test]
fn a_size_is_set_and_times_that_are_set_stay() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let file = create(&gateway, &dir, "f", createhow3::UNCHECKED(mode(0o600))).await.unwrap();
        write(&gateway, &file, 0, &[7; 30_000], stable_how::UNSTABLE).await;
        let time = nfstime3 { seconds: 77, nseconds: 5 };
        let wanted = sattr3 {
            size: Nfs3Option::Some(100),
            mtime: set_mtime::SET_TO_CLIENT_TIME(time),
            atime: set_atime::SET_TO_SERVER_TIME,
            ..mode(0o644)
        };
        let set = gateway.files.setattr(&root(), &file, &wanted, None).await.unwrap();
        let after = set.obj_wcc.after.unwrap();
        assert_eq!((after.size, after.mtime, after.mode), (100, time, 0o644));
        gateway.files.commit(&root(), &file).await.unwrap();
        let attr = gateway.attr(&file).await.unwrap();
        assert_eq!((attr.size, attr.mtime), (100, time), "a sync does not touch it");
        let guarded = gateway.files.setattr(&root(), &file, &mode(0o600), Some(time)).await;
        let Nfs3Result::Err((nfsstat3::NFS3ERR_NOT_SYNC, fail)) = guarded else { panic!("{guarded:?}") };
        let (before, after) = (fail.obj_wcc.before.unwrap(), fail.obj_wcc.after.unwrap());
        assert_eq!((before.ctime, after.ctime), (attr.ctime, attr.ctime), "nothing was changed");
        let guarded = gateway.files.setattr(&root(), &file, &mode(0o600), Some(attr.ctime)).await.unwrap();
        assert!(guarded.obj_wcc.before.is_none(), "what the guard was read with is another transaction");
        let longer = sattr3 { size: Nfs3Option::Some(1 << 40), ..sattr3::default() };
        gateway.files.setattr(&root(), &file, &longer, None).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().size, 1 << 40);
        assert_eq!(read(&gateway, &file, 99, 2).await.0, [7, 0]);
    });
}

#[test]
fn a_file_is_created_as_asked() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let verifier = |byte| createhow3::EXCLUSIVE(createverf3([0xf0, 1, 2, 3, 0xff, 5, 6, byte]));
        let file = create(&gateway, &dir, "x", verifier(1)).await.unwrap();
        assert_eq!(create(&gateway, &dir, "x", verifier(1)).await, Ok(file.clone()), "a repetition");
        assert_eq!(create(&gateway, &dir, "x", verifier(2)).await, Err(nfsstat3::NFS3ERR_EXIST));
        let guarded = create(&gateway, &dir, "x", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(guarded, Err(nfsstat3::NFS3ERR_EXIST));
        write(&gateway, &file, 0, b"abc", stable_how::UNSTABLE).await;
        let same = create(&gateway, &dir, "x", createhow3::UNCHECKED(mode(0o600))).await;
        assert_eq!(same, Ok(file.clone()));
        assert_eq!(gateway.attr(&file).await.unwrap().size, 3);
        let cut = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
        assert_eq!(create(&gateway, &dir, "x", createhow3::UNCHECKED(cut)).await, Ok(file.clone()));
        assert_eq!(gateway.attr(&file).await.unwrap().size, 0);
        let long = sattr3 { size: Nfs3Option::Some(9), ..mode(0o600) };
        let long = create(&gateway, &dir, "long", createhow3::GUARDED(long)).await.unwrap();
        assert_eq!(gateway.attr(&long).await.unwrap().size, 9);
        for (name, wanted) in [
            ("", nfsstat3::NFS3ERR_INVAL),
            ("a/b", nfsstat3::NFS3ERR_INVAL),
            (".", nfsstat3::NFS3ERR_EXIST),
            ("..", nfsstat3::NFS3ERR_EXIST),
            (&"n".repeat(256), nfsstat3::NFS3ERR_NAMETOOLONG),
        ] {
            let made = create(&gateway, &dir, name, createhow3::GUARDED(mode(0o600))).await;
            assert_eq!(made, Err(wanted), "{name}");
        }
        let in_file = create(&gateway, &file, "y", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(in_file, Err(nfsstat3::NFS3ERR_NOTDIR));
    });
}

#[test]
fn a_creation_follows_no_symbolic_link() {
    let cluster = Cluster::start(1, 4096);
    cluster.client().mkdir("/export", 0o777).unwrap();
    with_exports(&cluster, &[export("/export", Squash::None)], async |gateway| {
        let dir = gateway.root().await;
        let place = Place { dir: &dir, name: b"link" };
        gateway.files.symlink(&root(), place, b"/outside").await.unwrap();
        let made = create(&gateway, &dir, "link", createhow3::UNCHECKED(mode(0o600))).await;
        assert_eq!(made, Err(nfsstat3::NFS3ERR_EXIST));
        assert!(cluster.client().stat("/outside", true).is_err());
    });
}

#[test]
fn special_files_and_links_are_made() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let device =
            || devicedata3 { dev_attributes: mode(0o600), spec: specdata3 { specdata1: 8, specdata2: 300 } };
        let kinds = [
            ("char", mknoddata3::NF3CHR(device()), ftype3::NF3CHR),
            ("block", mknoddata3::NF3BLK(device()), ftype3::NF3BLK),
            ("socket", mknoddata3::NF3SOCK(mode(0o600)), ftype3::NF3SOCK),
            ("fifo", mknoddata3::NF3FIFO(mode(0o600)), ftype3::NF3FIFO),
        ];
        for (name, what, kind) in kinds {
            let place = Place { dir: &dir, name: name.as_bytes() };
            let made = gateway.files.mknod(&root(), place, &what).await.unwrap();
            let attr = gateway.attr(&bytes(&made.obj.unwrap())).await.unwrap();
            assert_eq!((attr.type_, attr.mode), (kind, 0o600));
            if matches!(kind, ftype3::NF3CHR | ftype3::NF3BLK) {
                assert_eq!(attr.rdev, specdata3 { specdata1: 8, specdata2: 300 });
            }
        }
        let bad = gateway.files.mknod(&root(), Place { dir: &dir, name: b"bad" }, &mknoddata3::default).await;
        assert_eq!(status(&bad), nfsstat3::NFS3ERR_BADTYPE);
        let place = Place { dir: &dir, name: b"link" };
        let link = gateway.files.symlink(&root(), place, b"some/where").await.unwrap();
        let link = bytes(&link.obj.unwrap());
        assert_eq!(gateway.files.readlink(&root(), &link).await.unwrap().data.0.as_ref(), b"some/where");
        assert_eq!(status(&gateway.files.readlink(&root(), &dir).await), nfsstat3::NFS3ERR_INVAL);
        assert_eq!(
            gateway.files.read(&root(), &link, (0, 1), &Buffers::default()).await.map(|done| done.eof),
            Err(nfsstat3::NFS3ERR_INVAL)
        );
        assert_eq!(
            gateway.files.read(&root(), &dir, (0, 1), &Buffers::default()).await.map(|done| done.eof),
            Err(nfsstat3::NFS3ERR_ISDIR)
        );
    });
}

#[test]
fn a_machine_that_was_started_again_changes_the_verifier() {
    let mut cluster = Cluster::start(1, 4096);
    let (stop, stopped) = std::sync::mpsc::channel::<[u8; 16]>();
    let (started, starts) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let gateway_cluster = cluster.client();
        let key = cluster.key.clone();
        scope.spawn(move || {
            for boot_id in stopped {
                cluster.stop_server(1);
                cluster.start_server(1, boot_id);
                started.send(()).unwrap();
            }
        });
        let restart = |boot_id| {
            stop.send(boot_id).unwrap();
            starts.recv().unwrap();
        };
        with_client(gateway_cluster, &key, async |gateway| {
            let dir = gateway.root().await;
            let file = create(&gateway, &dir, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
            let first = write(&gateway, &file, 0, b"abc", stable_how::UNSTABLE).await;
            restart([1; 16]);
            let second = write(&gateway, &file, 3, b"def", stable_how::UNSTABLE).await;
            assert_eq!(first, second, "only the process was started again");
            restart([2; 16]);
            let committed = gateway.files.commit(&root(), &file).await.unwrap();
            assert_ne!(committed.verf.0, second, "the client is to write again");
            let third = write(&gateway, &file, 0, b"abcdef", stable_how::UNSTABLE).await;
            assert_eq!(gateway.files.commit(&root(), &file).await.unwrap().verf.0, third);
            write(&gateway, &file, 6, b"ghi", stable_how::FILE_SYNC).await;
            assert_eq!(read(&gateway, &file, 0, 100).await, (b"abcdefghi".to_vec(), true));
        });
        drop(stop);
    });
}

#[test]
fn the_file_system_is_described() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let file = create(&gateway, &dir, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
        for object in [&dir, &file] {
            let space = gateway.files.fsstat(&root(), object).await.unwrap();
            assert!(space.tbytes >= space.fbytes && space.fbytes > 0 && space.tfiles > space.ffiles);
            let info = gateway.files.fsinfo(&root(), object).await.unwrap();
            assert_eq!((info.rtmax, info.wtmax), (1 << 20, 1 << 20));
            let conf = gateway.files.pathconf(&root(), object).await.unwrap();
            assert!(conf.name_max == 255 && conf.no_trunc && !conf.case_insensitive);
        }
    });
}

#[test]
fn a_directory_tree_with_a_quota_has_its_limits_as_its_size() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    client.mkdir("/tree", 0o755).unwrap();
    let tree = client.mark_tree("/tree", true, |_| ()).unwrap();
    let limits = QuotaLimits {
        hard_bytes: 1 << 20,
        soft_bytes: 0,
        hard_files: 0,
        soft_files: 0,
        grace_s: 60,
        in_statfs: true,
    };
    client.set_quota(quota_kind::TREE, tree, Some(limits)).unwrap();
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let below = gateway.find(&dir, "tree").await.unwrap().0;
        let size = async |object: &[u8]| gateway.files.fsstat(&root(), object).await.unwrap().tbytes;
        assert_eq!(size(&below).await, 1 << 20);
        assert!(size(&dir).await > 1 << 20);
    });
}

#[test]
fn holes_take_no_space() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let file = create(&gateway, &dir, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let used = async || {
            let by_handle = gateway.attr(&file).await.unwrap();
            assert_eq!(gateway.find(&dir, "f").await.unwrap().1.used, by_handle.used, "by its name");
            let listed = gateway.files.readdirplus(&root(), &dir, (0, 0), (8192, 32768)).await.unwrap();
            let entry = listed.reply.entries.0.into_iter().find(|entry| entry.name.as_ref() == b"f").unwrap();
            assert_eq!(entry.name_attributes.unwrap().used, by_handle.used, "in a listing");
            (by_handle.size, by_handle.used)
        };
        assert_eq!(used().await, (0, 0));
        write(&gateway, &file, 0, b"small", stable_how::FILE_SYNC).await;
        assert_eq!(used().await, (5, 4096));
        let longer = sattr3 { size: Nfs3Option::Some(1 << 30), ..sattr3::default() };
        gateway.files.setattr(&root(), &file, &longer, None).await.unwrap();
        let (size, sparse_bytes) = used().await;
        assert_eq!((size, sparse_bytes < 1 << 20), (1 << 30, true), "{sparse_bytes}");
        write(&gateway, &file, 1 << 28, &vec![1; 8 << 20], stable_how::FILE_SYNC).await;
        let (_, with_data_bytes) = used().await;
        assert!((8 << 20..10 << 20).contains(&with_data_bytes), "{with_data_bytes}");
    });
}

#[test]
fn servers_are_asked_once_for_the_space_of_a_file_that_does_not_change() {
    let mut cluster = Cluster::start(1, 4096);
    let (client, native, key) = (cluster.client(), cluster.client(), cluster.key.clone());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (gone, is_gone) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            stopped.recv().unwrap();
            cluster.stop_server(1);
            gone.send(()).unwrap();
            // The metadata server stays until the test is over.
            let _ = stopped.recv();
        });
        with_client(client, &key, async |gateway| {
            let dir = gateway.root().await;
            let make = async |name| {
                let file = create(&gateway, &dir, name, createhow3::GUARDED(mode(0o600))).await.unwrap();
                let longer = sattr3 { size: Nfs3Option::Some(1 << 30), ..sattr3::default() };
                gateway.files.setattr(&root(), &file, &longer, None).await.unwrap();
                file
            };
            let (asked, not_asked) = (make("asked").await, make("not-asked").await);
            let known = gateway.attr(&asked).await.unwrap();
            gateway.files.opens.close_everything().await;
            // Another time: what is known of the file does not count any more.
            let changes = weft_client::SetAttr { mode: Some(0o640), ..Default::default() };
            native.setattr("/not-asked", false, &changes).unwrap();
            stop.send(()).unwrap();
            is_gone.recv().unwrap();
            assert_eq!(gateway.attr(&asked).await.unwrap().used, known.used, "as it was");
            assert_eq!(gateway.attr(&not_asked).await.unwrap().used, 1 << 30, "as much as its size needs");
        });
        drop(stop);
    });
}
