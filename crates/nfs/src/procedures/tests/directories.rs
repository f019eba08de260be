//! Names: listing, looking up, removing, moving.

use super::files::create;
use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{createhow3, createverf3, ftype3, mknoddata3, nfstime3, wcc_data};

async fn mkdir(gateway: &Gateway, dir: &[u8], name: &str) -> Vec<u8> {
    let place = Place { dir, name: name.as_bytes() };
    bytes(&gateway.files.mkdir(&root(), place, &mode(0o755)).await.unwrap().obj.unwrap())
}

/// All names, by replies of `count` bytes.
async fn names(gateway: &Gateway, dir: &[u8], count: u32, plus: bool) -> Vec<(String, u64)> {
    let (mut found, mut cookie, mut verifier) = (Vec::new(), 0, 0);
    loop {
        let eof;
        let before = found.len();
        if plus {
            let page =
                gateway.files.readdirplus(&root(), dir, (cookie, verifier), (count, count)).await.unwrap();
            verifier = u64::from_be_bytes(page.cookieverf.0);
            assert!(nfs3_types::xdr_codec::Pack::packed_size(&page) <= count as usize);
            eof = page.reply.eof;
            for entry in page.reply.entries.0 {
                cookie = entry.cookie;
                let name = String::from_utf8(entry.name.0.to_vec()).unwrap();
                if !name.starts_with('.') {
                    assert_eq!(entry.name_attributes.unwrap().fileid, entry.fileid);
                    let handle = entry.name_handle.unwrap();
                    assert_eq!(gateway.files.keys.open(&handle.data).unwrap().ino, entry.fileid);
                }
                found.push((name, entry.fileid));
            }
        } else {
            let page = gateway.files.readdir(&root(), dir, (cookie, verifier), count).await.unwrap();
            verifier = u64::from_be_bytes(page.cookieverf.0);
            assert!(nfs3_types::xdr_codec::Pack::packed_size(&page) <= count as usize);
            eof = page.reply.eof;
            for entry in page.reply.entries.0 {
                cookie = entry.cookie;
                found.push((String::from_utf8(entry.name.0.to_vec()).unwrap(), entry.fileid));
            }
        }
        if eof {
            return found;
        }
        assert!(found.len() > before, "a page without names is the last one");
    }
}

#[test]
fn every_name_is_listed_once_whatever_the_size_of_replies() {
    const FILES: usize = 2000;
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    client.mkdir("/d", 0o755).unwrap();
    let calls = (0..FILES)
        .map(|at| client.start_mkdir(format!("/d/{at:0>width$}", width = 1 + at % 60).as_str(), 0o755));
    let mut calls: Vec<_> = calls.collect();
    weft_client::finish_all(&mut calls);
    let made: std::collections::HashSet<u64> =
        calls.into_iter().filter_map(|call| call.wait().ok()).map(|made| made.attr.ino).collect();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, attr) = gateway.find(&top, "d").await.unwrap();
        let top_ino = gateway.attr(&top).await.unwrap().fileid;
        for (count, plus) in
            [(512, false), (4096, false), (1 << 20, false), (1024, true), (8192, true), (1 << 20, true)]
        {
            let found = names(&gateway, &dir, count, plus).await;
            assert_eq!(found[0], (".".into(), attr.fileid));
            assert_eq!(found[1], ("..".into(), top_ino));
            assert_eq!(found.len(), made.len() + 2, "{count} {plus}");
            let inos: std::collections::HashSet<u64> = found[2..].iter().map(|(_, ino)| *ino).collect();
            assert_eq!(inos, made);
        }
        let small = gateway.files.readdir(&root(), &dir, (0, 0), 130).await;
        assert_eq!(status(&small), nfsstat3::NFS3ERR_TOOSMALL);
        let small = gateway.files.readdirplus(&root(), &dir, (2, 0), (4096, 200)).await;
        assert_eq!(status(&small), nfsstat3::NFS3ERR_TOOSMALL);
    });
}

#[test]
fn a_listing_goes_on_while_names_come_and_go() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        for at in 0..20 {
            mkdir(&gateway, &dir, &format!("d{at}")).await;
        }
        let page = gateway.files.readdir(&root(), &dir, (0, 0), 400).await.unwrap();
        let last = page.reply.entries.0.last().unwrap();
        let (name, cookie) = (last.name.0.to_vec(), last.cookie);
        assert!(!page.reply.eof);
        let (before, verifier) = (page.reply.entries.0.len(), u64::from_be_bytes(page.cookieverf.0));
        gateway.files.rmdir(&root(), Place { dir: &dir, name: &name }).await.unwrap();
        mkdir(&gateway, &dir, "new").await;
        let page = gateway.files.readdir(&root(), &dir, (cookie, verifier), 65536).await.unwrap();
        assert_eq!(
            before + page.reply.entries.0.len(),
            2 + 20,
            "what is made after the first page is left out"
        );
        let again = gateway.files.readdir(&root(), &dir, (cookie, 0), 65536).await.unwrap();
        assert_eq!(before + again.reply.entries.0.len(), 2 + 20 + 1, "who sends no verifier begins anew");
    });
}

#[test]
fn names_are_removed_moved_and_linked() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (a, b) = (mkdir(&gateway, &top, "a").await, mkdir(&gateway, &top, "b").await);
        let file = create(&gateway, &a, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let place = |dir, name: &'static str| Place { dir, name: name.as_bytes() };
        let files = &gateway.files;
        let linked = files.link(&root(), &file, place(&b, "g")).await.unwrap();
        assert_eq!(linked.file_attributes.unwrap().nlink, 2);
        assert_eq!(status(&files.link(&root(), &file, place(&b, "g")).await), nfsstat3::NFS3ERR_EXIST);
        let moved = files.rename(&root(), place(&a, "f"), place(&b, "h")).await.unwrap();
        assert!(moved.fromdir_wcc.after.is_some() && moved.todir_wcc.after.is_some());
        assert_eq!(gateway.find(&a, "f").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
        assert_eq!(gateway.find(&b, "h").await.unwrap().0, file);
        let missing = files.rename(&root(), place(&a, "f"), place(&b, "i")).await;
        assert_eq!(status(&missing), nfsstat3::NFS3ERR_NOENT);
        assert_eq!(status(&files.rmdir(&root(), place(&top, "b")).await), nfsstat3::NFS3ERR_NOTEMPTY);
        assert_eq!(status(&files.remove(&root(), place(&top, "b")).await), nfsstat3::NFS3ERR_ISDIR);
        assert_eq!(status(&files.rmdir(&root(), place(&b, "h")).await), nfsstat3::NFS3ERR_NOTDIR);
        assert_eq!(status(&files.rmdir(&root(), place(&b, ".")).await), nfsstat3::NFS3ERR_INVAL);
        assert_eq!(status(&files.rmdir(&root(), place(&b, "..")).await), nfsstat3::NFS3ERR_EXIST);
        files.remove(&root(), place(&b, "h")).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().nlink, 1);
        let removed = files.remove(&root(), place(&b, "g")).await.unwrap();
        assert!(removed.dir_wcc.after.is_some());
        files.rmdir(&root(), place(&top, "b")).await.unwrap();
        assert_eq!(gateway.attr(&b).await.unwrap_err(), nfsstat3::NFS3ERR_STALE);
        let made = create(&gateway, &b, "x", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(made, Err(nfsstat3::NFS3ERR_STALE), "its directory is gone");
    });
}

#[test]
fn nothing_leads_out_of_an_export() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    for path in ["/x", "/x/export", "/x/export/d", "/x/export/d/e", "/other"] {
        client.mkdir(path, 0o755).unwrap();
    }
    with_exports(&cluster, &[export("/x/export", Squash::None)], async |gateway| {
        let top = gateway.root().await;
        assert_eq!(gateway.find(&top, "..").await.unwrap().0, top);
        assert_eq!(gateway.find(&top, ".").await.unwrap().0, top);
        let (d, attr) = gateway.find(&top, "d").await.unwrap();
        let (e, _) = gateway.find(&d, "e").await.unwrap();
        assert_eq!(attr.type_, ftype3::NF3DIR);
        assert_eq!(gateway.find(&d, "..").await.unwrap().0, top);
        assert_eq!(gateway.find(&e, "..").await.unwrap().0, d);
        let listed = names(&gateway, &top, 4096, false).await;
        assert_eq!(listed[0].1, listed[1].1, "its parent is itself");
        client.rename("/x/export/d/e", "/other/e", 0).unwrap();
        assert_eq!(gateway.find(&e, "..").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
    });
}

/// A directory before and after, of a reply; both must be there.
fn change(wcc: &wcc_data) -> ((u64, nfstime3, nfstime3), (u64, nfstime3, nfstime3)) {
    let (Nfs3Option::Some(before), Nfs3Option::Some(after)) = (&wcc.before, &wcc.after) else {
        panic!("{wcc:?}")
    };
    ((before.size, before.mtime, before.ctime), (after.size, after.mtime, after.ctime))
}

#[test]
fn a_change_tells_its_directory_before_and_after() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let now = async || {
            let attr = gateway.attr(&top).await.unwrap();
            (attr.size, attr.mtime, attr.ctime)
        };
        let place = |name: &'static str| Place { dir: &top, name: name.as_bytes() };
        let mut known = now().await;
        // Each change begins where the one before ended: nobody else has changed anything.
        let mut follow = |wcc: &wcc_data, what: &str| {
            let (before, after) = change(wcc);
            assert_eq!(before, known, "before {what}");
            assert!(after.2 != before.2, "{what} moves the time");
            known = after;
        };
        let files = &gateway.files;
        let how = |bits| createhow3::GUARDED(mode(bits));
        let made = files.create(&root(), place("f"), &how(0o600)).await.unwrap();
        follow(&made.dir_wcc, "CREATE");
        let file = bytes(&made.obj.unwrap());
        let exclusive = createhow3::EXCLUSIVE(createverf3([7; 8]));
        follow(&files.create(&root(), place("x"), &exclusive).await.unwrap().dir_wcc, "exclusive CREATE");
        let made = files.mkdir(&root(), place("d"), &mode(0o755)).await.unwrap();
        follow(&made.dir_wcc, "MKDIR");
        let dir = bytes(&made.obj.unwrap());
        follow(&files.symlink(&root(), place("s"), b"f").await.unwrap().dir_wcc, "SYMLINK");
        let fifo = mknoddata3::NF3FIFO(mode(0o600));
        follow(&files.mknod(&root(), place("p"), &fifo).await.unwrap().dir_wcc, "MKNOD");
        follow(&files.link(&root(), &file, place("l")).await.unwrap().linkdir_wcc, "LINK");
        let inside = Place { dir: &dir, name: b"l" };
        let renamed = files.rename(&root(), place("l"), inside).await.unwrap();
        follow(&renamed.fromdir_wcc, "RENAME");
        let (before, after) = change(&renamed.todir_wcc);
        assert_ne!(before, after);
        files.remove(&root(), inside).await.unwrap();
        follow(&files.remove(&root(), place("f")).await.unwrap().dir_wcc, "REMOVE");
        follow(&files.rmdir(&root(), place("d")).await.unwrap().dir_wcc, "RMDIR");
        assert_eq!(now().await, known, "what was told last is what it is");
        let Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, failed)) = files.remove(&root(), place("f")).await
        else {
            panic!("there is no such name")
        };
        assert!(failed.dir_wcc.before.is_none() && failed.dir_wcc.after.is_some());
    });
}
