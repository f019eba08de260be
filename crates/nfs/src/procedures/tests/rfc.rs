//! What RFC 1813 promises of each reply, as far as a client can see it.

use super::files::create;
use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{
    FSF3_CANSETTIME, FSF3_HOMOGENEOUS, FSF3_LINK, FSF3_SYMLINK, createhow3, mknoddata3, nfstime3, set_mtime,
    stable_how,
};
use weft_client::OpenOptions;
use weft_wire::Op;

fn place<'a>(dir: &'a [u8], name: &'a str) -> Place<'a> {
    Place { dir, name: name.as_bytes() }
}

fn new_file() -> createhow3 {
    createhow3::GUARDED(mode(0o644))
}

async fn write(gateway: &Gateway, file: &[u8], offset: u64, bytes: usize, stable: stable_how) {
    gateway.files.write(&root(), file, offset, stable, vec![7; bytes].into()).await.unwrap();
}

/// A directory `d` with a file `f`, and a link `s`.
struct Tree {
    top: Vec<u8>,
    dir: Vec<u8>,
    file: Vec<u8>,
    link: Vec<u8>,
}

async fn tree(gateway: &Gateway) -> Tree {
    let top = gateway.root().await;
    let made = gateway.files.mkdir(&root(), place(&top, "d"), &mode(0o755)).await.unwrap();
    let file = create(gateway, &top, "f", new_file()).await.unwrap();
    let link = gateway.files.symlink(&root(), place(&top, "s"), b"f").await.unwrap();
    Tree { dir: bytes(&made.obj.unwrap()), file, link: bytes(&link.obj.unwrap()), top }
}

#[test]
fn a_read_says_where_the_file_ends() {
    const SIZE: u64 = 10_000;
    for stable in [stable_how::UNSTABLE, stable_how::FILE_SYNC] {
        let cluster = Cluster::start(2, 4096);
        with_gateway(&cluster, async |gateway| {
            let top = gateway.root().await;
            let file = create(&gateway, &top, "f", new_file()).await.unwrap();
            write(&gateway, &file, 0, SIZE as usize, stable).await;
            // Offset, count, bytes that come, end of file.
            for (offset, count, expected, eof) in [
                (0, SIZE, SIZE, true),
                (0, SIZE - 1, SIZE - 1, false),
                (0, SIZE + 1, SIZE, true),
                (SIZE - 1, 1, 1, true),
                (SIZE - 2, 1, 1, false),
                (SIZE, 1, 0, true),
                (SIZE, 0, 0, true),
                (SIZE - 1, 0, 0, false),
                (SIZE + 1, 1, 0, true),
                (SIZE + 1, 0, 0, true),
                (0, 0, 0, false),
                (i64::MAX as u64, 9, 0, true),
                (u64::MAX, 9, 0, true),
            ] {
                let (who, part) = (root(), (offset, count as u32));
                let done = gateway.files.read(&who, &file, part, &Buffers::default()).await.unwrap();
                let case = format!("{count} at {offset} after {stable:?}");
                assert_eq!((done.data.len() as u64, done.eof), (expected, eof), "{case}");
            }
            // A truncation and a longer write move it.
            let cut = sattr3 { size: Nfs3Option::Some(100), ..sattr3::default() };
            gateway.files.setattr(&root(), &file, &cut, None).await.unwrap();
            let eof = async |count| {
                gateway.files.read(&root(), &file, (0, count), &Buffers::default()).await.unwrap().eof
            };
            assert_eq!((eof(99).await, eof(100).await), (false, true));
            write(&gateway, &file, 100, 10, stable).await;
            assert_eq!((eof(100).await, eof(110).await), (false, true));
        });
    }
}

#[test]
fn a_reply_has_the_attributes_that_it_can_have() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let Tree { top, dir, file, link } = tree(&gateway).await;
        let (files, who) = (&gateway.files, root());
        let unstable = files.write(&who, &file, 0, stable_how::UNSTABLE, vec![7; 100].into()).await.unwrap();
        assert!(unstable.file_wcc.after.is_none(), "unstable WRITE of a striped file");
        let committed = files.commit(&who, &file).await.unwrap();
        assert_eq!(committed.file_wcc.after.unwrap().size, 100, "COMMIT");
        let stable = files.write(&who, &file, 100, stable_how::FILE_SYNC, vec![1; 50].into()).await.unwrap();
        assert_eq!((stable.count, stable.committed), (50, stable_how::FILE_SYNC));
        assert_eq!(stable.file_wcc.after.unwrap().size, 150, "stable WRITE");
        assert_eq!(stable.verf.0, committed.verf.0);
        let read = files.read(&who, &file, (0, 10), &Buffers::default()).await.unwrap();
        assert_eq!(read.attributes.unwrap().size, 150, "READ");
        assert_eq!(files.access(&who, &file, 63).await.unwrap().obj_attributes.unwrap().size, 150, "ACCESS");
        assert!(files.readlink(&who, &link).await.unwrap().symlink_attributes.is_some(), "READLINK");
        super::known::settled(&gateway, &top, async || assert!(gateway.attr(&top).await.is_ok())).await;
        let found = files.lookup(&who, &top, b"f").await.unwrap();
        assert!(found.obj_attributes.is_some() && found.dir_attributes.is_some(), "LOOKUP");
        let listed = files.readdir(&who, &dir, (0, 0), 4096).await.unwrap();
        assert!(listed.dir_attributes.is_some() && listed.reply.eof, "READDIR");
        let listed = files.readdirplus(&who, &top, (0, 0), (4096, 4096)).await.unwrap();
        assert!(listed.dir_attributes.is_some() && listed.reply.eof, "READDIRPLUS");
        for entry in listed.reply.entries.0.iter().skip(2) {
            assert!(entry.name_attributes.is_some() && entry.name_handle.is_some(), "READDIRPLUS");
        }
        assert!(files.fsstat(&who, &file).await.unwrap().obj_attributes.is_some(), "FSSTAT");
        let info = files.fsinfo(&who, &top).await.unwrap();
        assert!(info.obj_attributes.is_some(), "FSINFO");
        assert_eq!(info.maxfilesize, i64::MAX as u64);
        assert_eq!(info.properties, FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME);
        assert!(info.rtpref <= info.rtmax && info.wtpref <= info.wtmax && info.rtmult > 0 && info.wtmult > 0);
        let limits = files.pathconf(&who, &top).await.unwrap();
        assert!(limits.obj_attributes.is_some(), "PATHCONF");
        assert_eq!(limits.name_max, 255);
        assert!(limits.no_trunc && limits.chown_restricted && limits.case_preserving);
        assert!(!limits.case_insensitive);

        // A failure has the attributes of the directory or the object.
        let Nfs3Result::Err((_, failed)) = files.lookup(&who, &top, b"none").await else { panic!("LOOKUP") };
        assert!(failed.dir_attributes.is_some(), "LOOKUP");
        let Nfs3Result::Err((_, failed)) = files.readlink(&who, &file).await else { panic!("READLINK") };
        assert!(failed.symlink_attributes.is_some(), "READLINK");
        let Nfs3Result::Err((_, failed)) = files.readdir(&who, &file, (0, 0), 4096).await else {
            panic!("READDIR")
        };
        assert!(failed.dir_attributes.is_some(), "READDIR");
        let Nfs3Result::Err((_, failed)) = files.mkdir(&who, place(&top, "d"), &mode(0o755)).await else {
            panic!("MKDIR")
        };
        assert!(failed.dir_wcc.after.is_some(), "MKDIR");
        let written = files.write(&who, &dir, 0, stable_how::UNSTABLE, vec![1].into()).await;
        let Nfs3Result::Err((_, failed)) = written else { panic!("WRITE") };
        assert!(failed.file_wcc.after.is_some(), "WRITE");
        let Nfs3Result::Err((_, failed)) = files.link(&who, &file, place(&top, "s")).await else {
            panic!("LINK")
        };
        assert!(failed.file_attributes.is_some() && failed.linkdir_wcc.after.is_some(), "LINK");
        let Nfs3Result::Err((_, failed)) = files.rename(&who, place(&top, "no"), place(&dir, "x")).await
        else {
            panic!("RENAME")
        };
        assert!(failed.fromdir_wcc.after.is_some() && failed.todir_wcc.after.is_some(), "RENAME");
    });
}

/// How often the servers were asked for each of these.
fn asked(cluster: &Cluster) -> Vec<u64> {
    let ops =
        [Op::GetAttr, Op::Open, Op::Access, Op::Report, Op::Size, Op::ReadSmall, Op::SyncSmall, Op::SyncMeta];
    let statuses = cluster.client().server_status(false);
    let counts: Vec<_> = statuses.into_iter().flat_map(|(_, status)| status.unwrap().operations).collect();
    let of = |op: Op| counts.iter().filter(|count| count.op == op as u16).map(|count| count.count).sum();
    ops.into_iter().chain([Op::WriteSmall, Op::Write]).map(of).collect()
}

#[test]
fn an_unstable_write_has_the_attributes_that_cost_no_message() {
    const WRITES: u64 = 5;
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        // Files that are made by NFS are striped from the beginning.
        let native = cluster.client();
        native.open("/f", &OpenOptions::new().write(true).create(true)).unwrap().close().unwrap();
        let file = gateway.files.lookup(&root(), &top, b"f").await.unwrap().object.data.to_vec();
        let write = async |offset, bytes| {
            let data = vec![7; bytes].into();
            gateway.files.write(&root(), &file, offset, stable_how::UNSTABLE, data).await.unwrap().file_wcc
        };
        write(0, 10).await;
        let before = asked(&cluster);
        for at in 1..=WRITES {
            let wcc = write(at * 10, 10).await;
            assert!(wcc.before.is_none(), "it would have to be of the same transaction");
            let after = wcc.after.unwrap();
            assert_eq!((after.size, after.used), ((at + 1) * 10, 4096), "write {at}");
        }
        let mut expected = before;
        expected[8] += WRITES;
        assert_eq!(asked(&cluster), expected, "one message for each");
        let told = gateway.files.getattr(&root(), &file).await.unwrap().obj_attributes;
        assert_eq!((told.size, told.used), ((WRITES + 1) * 10, 4096));
        // The last small write is as GETATTR says, to the nanosecond.
        let last = write(0, 10).await.after.unwrap();
        let told = gateway.files.getattr(&root(), &file).await.unwrap().obj_attributes;
        assert_eq!(format!("{last:?}"), format!("{told:?}"));
        let large = 2 << 20;
        assert!(write(0, large).await.after.is_none(), "the I/O servers do not know all attributes");
        let told = gateway.files.getattr(&root(), &file).await.unwrap().obj_attributes;
        assert_eq!(told.size, large as u64);
    });
}

#[test]
fn each_misuse_has_its_error() {
    use nfsstat3::*;
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let Tree { top, dir, file, link } = tree(&gateway).await;
        let (files, who) = (&gateway.files, root());
        create(&gateway, &dir, "inside", new_file()).await.unwrap();
        let long = "n".repeat(256);
        let never = sattr3 {
            mtime: set_mtime::SET_TO_CLIENT_TIME(nfstime3 { seconds: 1, nseconds: 1_000_000_000 }),
            ..sattr3::default()
        };
        let huge = sattr3 { size: Nfs3Option::Some(1 << 63), ..sattr3::default() };
        let sized = sattr3 { size: Nfs3Option::Some(0), ..sattr3::default() };
        let write = async |object: &[u8], offset| {
            status(&files.write(&who, object, offset, stable_how::UNSTABLE, vec![1].into()).await)
        };
        let read = async |object: &[u8]| {
            files
                .read(&who, object, (0, 1), &Buffers::default())
                .await
                .map_or_else(|status| status, |_| NFS3_OK)
        };
        let bad = vec![1; 36];
        let fifo = mknoddata3::NF3FIFO(mode(0o600));
        let found = [
            ("GETATTR by no handle", status(&files.getattr(&who, &bad).await), NFS3ERR_BADHANDLE),
            ("GETATTR by a short handle", status(&files.getattr(&who, &bad[..8]).await), NFS3ERR_BADHANDLE),
            ("LOOKUP in a file", status(&files.lookup(&who, &file, b"x").await), NFS3ERR_NOTDIR),
            ("LOOKUP of nothing", status(&files.lookup(&who, &top, b"x").await), NFS3ERR_NOENT),
            (
                "LOOKUP of a long name",
                status(&files.lookup(&who, &top, long.as_bytes()).await),
                NFS3ERR_NAMETOOLONG,
            ),
            ("READLINK of a file", status(&files.readlink(&who, &file).await), NFS3ERR_INVAL),
            ("READLINK of a directory", status(&files.readlink(&who, &dir).await), NFS3ERR_INVAL),
            ("READ of a directory", read(&dir).await, NFS3ERR_ISDIR),
            ("READ of a link", read(&link).await, NFS3ERR_INVAL),
            ("WRITE of a directory", write(&dir, 0).await, NFS3ERR_ISDIR),
            ("WRITE of a link", write(&link, 0).await, NFS3ERR_INVAL),
            ("WRITE past the longest file", write(&file, i64::MAX as u64).await, NFS3ERR_FBIG),
            (
                "SETATTR of a time that is none",
                status(&files.setattr(&who, &file, &never, None).await),
                NFS3ERR_INVAL,
            ),
            (
                "SETATTR of a size beyond",
                status(&files.setattr(&who, &file, &huge, None).await),
                NFS3ERR_FBIG,
            ),
            (
                "SETATTR of a directory's size",
                status(&files.setattr(&who, &dir, &sized, None).await),
                NFS3ERR_ISDIR,
            ),
            (
                "SETATTR of a link's size",
                status(&files.setattr(&who, &link, &sized, None).await),
                NFS3ERR_INVAL,
            ),
            (
                "CREATE of a name that is there",
                status(&files.create(&who, place(&top, "f"), &new_file()).await),
                NFS3ERR_EXIST,
            ),
            (
                "CREATE in a file",
                status(&files.create(&who, place(&file, "x"), &new_file()).await),
                NFS3ERR_NOTDIR,
            ),
            (
                "CREATE of a long name",
                status(&files.create(&who, place(&top, &long), &new_file()).await),
                NFS3ERR_NAMETOOLONG,
            ),
            (
                "MKDIR of a name that is there",
                status(&files.mkdir(&who, place(&top, "f"), &mode(0o755)).await),
                NFS3ERR_EXIST,
            ),
            (
                "MKDIR in a file",
                status(&files.mkdir(&who, place(&file, "x"), &mode(0o755)).await),
                NFS3ERR_NOTDIR,
            ),
            ("SYMLINK to nothing", status(&files.symlink(&who, place(&top, "x"), b"").await), NFS3ERR_INVAL),
            (
                "SYMLINK of a name that is there",
                status(&files.symlink(&who, place(&top, "f"), b"x").await),
                NFS3ERR_EXIST,
            ),
            (
                "MKNOD of a file",
                status(&files.mknod(&who, place(&top, "x"), &mknoddata3::default).await),
                NFS3ERR_BADTYPE,
            ),
            (
                "MKNOD of a name that is there",
                status(&files.mknod(&who, place(&top, "f"), &fifo).await),
                NFS3ERR_EXIST,
            ),
            ("REMOVE of nothing", status(&files.remove(&who, place(&top, "x")).await), NFS3ERR_NOENT),
            ("REMOVE of a directory", status(&files.remove(&who, place(&top, "d")).await), NFS3ERR_ISDIR),
            ("REMOVE in a file", status(&files.remove(&who, place(&file, "x")).await), NFS3ERR_NOTDIR),
            ("RMDIR of a file", status(&files.rmdir(&who, place(&top, "f")).await), NFS3ERR_NOTDIR),
            ("RMDIR of what has names", status(&files.rmdir(&who, place(&top, "d")).await), NFS3ERR_NOTEMPTY),
            ("RMDIR of .", status(&files.rmdir(&who, place(&top, ".")).await), NFS3ERR_INVAL),
            ("RMDIR of ..", status(&files.rmdir(&who, place(&top, "..")).await), NFS3ERR_EXIST),
            (
                "RENAME of nothing",
                status(&files.rename(&who, place(&top, "x"), place(&top, "y")).await),
                NFS3ERR_NOENT,
            ),
            (
                "RENAME of a file to a directory",
                status(&files.rename(&who, place(&top, "f"), place(&top, "d")).await),
                NFS3ERR_ISDIR,
            ),
            (
                "RENAME of a directory to a file",
                status(&files.rename(&who, place(&top, "d"), place(&top, "f")).await),
                NFS3ERR_NOTDIR,
            ),
            (
                "RENAME into itself",
                status(&files.rename(&who, place(&top, "d"), place(&dir, "x")).await),
                NFS3ERR_INVAL,
            ),
            (
                "RENAME of .",
                status(&files.rename(&who, place(&top, "."), place(&top, "x")).await),
                NFS3ERR_INVAL,
            ),
            (
                "LINK to a name that is there",
                status(&files.link(&who, &file, place(&top, "s")).await),
                NFS3ERR_EXIST,
            ),
            ("LINK of a directory", status(&files.link(&who, &dir, place(&top, "x")).await), NFS3ERR_ISDIR),
            ("LINK in a file", status(&files.link(&who, &file, place(&file, "x")).await), NFS3ERR_NOTDIR),
            ("READDIR of a file", status(&files.readdir(&who, &file, (0, 0), 4096).await), NFS3ERR_NOTDIR),
            ("READDIR in no room", status(&files.readdir(&who, &top, (0, 0), 8).await), NFS3ERR_TOOSMALL),
            (
                "READDIRPLUS of a file",
                status(&files.readdirplus(&who, &file, (0, 0), (4096, 4096)).await),
                NFS3ERR_NOTDIR,
            ),
        ];
        let wrong: Vec<_> = found.into_iter().filter(|(_, found, expected)| found != expected).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_handle_of_a_removed_file_is_stale_also_while_it_is_open() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (files, who) = (&gateway.files, root());
        for (way, is_known) in
            [("REMOVE", true), ("REMOVE of a name nobody asked for", false), ("RENAME", true)]
        {
            let file = create(&gateway, &top, "f", new_file()).await.unwrap();
            write(&gateway, &file, 0, 100, stable_how::UNSTABLE).await;
            files.read(&who, &file, (0, 10), &Buffers::default()).await.unwrap();
            if is_known {
                gateway.find(&top, "f").await.unwrap();
            } else {
                files.known.forget_everything();
            }
            if way == "RENAME" {
                create(&gateway, &top, "g", new_file()).await.unwrap();
                files.rename(&who, place(&top, "g"), place(&top, "f")).await.unwrap();
                files.remove(&who, place(&top, "f")).await.unwrap();
            } else {
                files.remove(&who, place(&top, "f")).await.unwrap();
            }
            let written = files.write(&who, &file, 0, stable_how::UNSTABLE, vec![1].into()).await;
            let read = files.read(&who, &file, (0, 1), &Buffers::default()).await.map(|done| done.eof);
            let stale = nfsstat3::NFS3ERR_STALE;
            assert_eq!((status(&written), read), (stale, Err(stale)), "{way}");
            for (call, found) in [
                ("GETATTR", status(&files.getattr(&who, &file).await)),
                ("SETATTR", status(&files.setattr(&who, &file, &mode(0o600), None).await)),
                ("ACCESS", status(&files.access(&who, &file, 63).await)),
                ("FSSTAT", status(&files.fsstat(&who, &file).await)),
                ("LINK", status(&files.link(&who, &file, place(&top, "again")).await)),
            ] {
                assert_eq!(found, stale, "{call} after {way}");
            }
        }
    });
}
