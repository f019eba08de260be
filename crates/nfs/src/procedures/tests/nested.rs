//! Exports that lie in other exports: the longest one counts, whichever way a client comes.

use super::files::create;
use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{createhow3, mknoddata3, stable_how};
use weft_client::OpenOptions;

/// `/out` for reading and writing as root, and in it `mid/in` for reading only.
fn exports() -> Vec<ExportOptions> {
    let mut inner = export("/out/mid/in", Squash::All);
    inner.rules[0].read_only = true;
    vec![export("/out", Squash::None), inner]
}

fn cluster() -> Cluster {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    for path in ["/out", "/out/d", "/out/d/e", "/out/mid", "/out/mid/in", "/out/mid/in/sub"] {
        client.mkdir(path, 0o777).unwrap();
    }
    for path in ["/out/f", "/out/d/e/f", "/out/mid/in/f", "/out/mid/in/sub/f"] {
        let file = client.open(path, &OpenOptions::new().write(true).create(true).mode(0o666)).unwrap();
        file.write_at(b"data", 0).unwrap();
        file.close().unwrap();
    }
    cluster
}

impl Gateway {
    fn export(&self, path: &str) -> Rc<Export> {
        let exports = self.files.exports.borrow();
        exports.iter().find(|export| export.path == path).unwrap().clone()
    }

    /// The handle at the end of a path in `/out`, by LOOKUPs from its root.
    async fn walk(&self, path: &str) -> Vec<u8> {
        let mut at = self.root().await;
        for name in path.split('/') {
            at = self.find(&at, name).await.unwrap().0;
        }
        at
    }

    /// The statuses of all that could change something in a directory that has a file `f`.
    async fn changes(&self, dir: &[u8], file: &[u8]) -> Vec<(&'static str, nfsstat3)> {
        let (files, who) = (&self.files, root());
        let place = |name: &'static str| Place { dir, name: name.as_bytes() };
        let how = createhow3::UNCHECKED(mode(0o600));
        let fifo = mknoddata3::NF3FIFO(mode(0o600));
        vec![
            ("CREATE", status(&files.create(&who, place("n"), &how).await)),
            ("CREATE of a file that is there", status(&files.create(&who, place("f"), &how).await)),
            ("MKDIR", status(&files.mkdir(&who, place("n"), &mode(0o700)).await)),
            ("SYMLINK", status(&files.symlink(&who, place("n"), b"f").await)),
            ("MKNOD", status(&files.mknod(&who, place("n"), &fifo).await)),
            ("REMOVE", status(&files.remove(&who, place("f")).await)),
            ("RMDIR", status(&files.rmdir(&who, place("f")).await)),
            ("RENAME", status(&files.rename(&who, place("f"), place("n")).await)),
            ("LINK", status(&files.link(&who, file, place("n")).await)),
            ("SETATTR of the directory", status(&files.setattr(&who, dir, &mode(0o700), None).await)),
            ("SETATTR", status(&files.setattr(&who, file, &mode(0o600), None).await)),
            ("WRITE", status(&files.write(&who, file, 0, stable_how::UNSTABLE, vec![1].into()).await)),
            ("COMMIT", status(&files.commit(&who, file).await)),
        ]
    }
}

#[test]
fn a_read_only_export_in_another_one_is_read_only_by_every_way() {
    let cluster = cluster();
    with_exports(&cluster, &exports(), async |gateway| {
        let (out, inner) = (gateway.export("/out"), gateway.export("/out/mid/in"));
        let ino = |path: &str| cluster.client().stat(path, false).unwrap().ino;
        let seal =
            |export: &Export, path: &str, kind| bytes(&export.handle(&gateway.files.keys, ino(path), kind));
        let (dir, file) = (gateway.walk("mid/in").await, gateway.walk("mid/in/f").await);
        assert_eq!(
            dir,
            seal(&inner, "/out/mid/in", FileKind::Directory),
            "LOOKUP leads into the other export"
        );
        let (sub, sub_file) = (gateway.walk("mid/in/sub").await, gateway.walk("mid/in/sub/f").await);
        let old = |path: &str| bytes(&gateway.files.keys.seal(crate::handle::Handle::new(out.id, ino(path))));
        for (way, dir, file) in [
            ("LOOKUP", dir.clone(), file.clone()),
            ("LOOKUP below it", sub.clone(), sub_file.clone()),
            (
                "a directory's handle in the outer export",
                seal(&out, "/out/mid/in", FileKind::Directory),
                file,
            ),
            (
                "a handle of a directory below",
                seal(&out, "/out/mid/in/sub", FileKind::Directory),
                sub_file.clone(),
            ),
            ("a handle of before", old("/out/mid/in/sub"), sub_file),
        ] {
            for (call, status) in gateway.changes(&dir, &file).await {
                assert_eq!(status, nfsstat3::NFS3ERR_ROFS, "{call} by {way}");
            }
        }
        let stale = old("/out/mid/in/f");
        assert_eq!(
            gateway.attr(&stale).await.unwrap_err(),
            nfsstat3::NFS3ERR_STALE,
            "who knows where it is?"
        );
        assert_eq!(cluster.client().stat("/out/mid/in/f", false).unwrap().size, 4);

        // Directories beside it can be changed.
        let (d, f) = (gateway.walk("d/e").await, gateway.walk("d/e/f").await);
        let wrong = gateway.changes(&d, &f).await;
        let refused = |(_, status): &&(_, nfsstat3)| *status == nfsstat3::NFS3ERR_ROFS;
        assert_eq!(wrong.iter().find(refused), None);
    });
}

#[test]
fn nothing_moves_between_exports_and_an_inner_one_stays_where_it_is() {
    let cluster = cluster();
    let mut exports = exports();
    exports[1].rules[0].read_only = false;
    with_exports(&cluster, &exports, async |gateway| {
        let (files, who) = (&gateway.files, root());
        let (top, mid) = (gateway.root().await, gateway.walk("mid").await);
        let (dir, f) = (gateway.walk("mid/in").await, gateway.walk("f").await);
        let out = |name: &'static str| Place { dir: &top, name: name.as_bytes() };
        let inside = |name: &'static str| Place { dir: &dir, name: name.as_bytes() };
        let in_mid = |name: &'static str| Place { dir: &mid, name: name.as_bytes() };
        let xdev = nfsstat3::NFS3ERR_XDEV;
        assert_eq!(status(&files.rename(&who, out("f"), inside("g")).await), xdev);
        assert_eq!(status(&files.rename(&who, inside("f"), out("g")).await), xdev);
        assert_eq!(status(&files.rename(&who, out("d"), inside("g")).await), xdev);
        assert_eq!(status(&files.link(&who, &f, inside("g")).await), xdev);
        let file = gateway.walk("mid/in/f").await;
        assert_eq!(status(&files.link(&who, &file, out("g")).await), xdev);

        let denied = nfsstat3::NFS3ERR_ACCES;
        assert_eq!(status(&files.rename(&who, in_mid("in"), in_mid("x")).await), denied);
        assert_eq!(status(&files.rename(&who, out("mid"), out("x")).await), denied, "nor with what it is in");
        assert_eq!(status(&files.rename(&who, out("d"), in_mid("in")).await), denied, "nor is it replaced");
        assert_eq!(status(&files.rmdir(&who, in_mid("in")).await), denied);
        assert_eq!(status(&files.remove(&who, in_mid("in")).await), denied);
        files.rename(&who, out("d"), out("x")).await.unwrap();

        // To go up leads to the root of the export, as everywhere.
        assert_eq!(gateway.find(&dir, "..").await.unwrap().0, dir);
        let sub = gateway.walk("mid/in/sub").await;
        assert_eq!(gateway.find(&sub, "..").await.unwrap().0, dir);
        assert_eq!(gateway.find(&mid, "..").await.unwrap().0, top);
        // Users are the inner export's.
        let made = create(&gateway, &dir, "made", createhow3::GUARDED(mode(0o600))).await.unwrap();
        assert_eq!(gateway.attr(&made).await.unwrap().uid, weft_gateway::Identities::NOBODY);
        let made = create(&gateway, &mid, "made", createhow3::GUARDED(mode(0o600))).await.unwrap();
        assert_eq!(gateway.attr(&made).await.unwrap().uid, 0);
    });
}

#[test]
fn a_directory_that_is_moved_has_the_options_of_where_it_is() {
    let cluster = cluster();
    let client = cluster.client();
    with_exports(&cluster, &exports(), async |gateway| {
        let (workers, e) = (gateway.files.workers.clone(), gateway.walk("d/e").await);
        let moves = |from: &'static str, to: &'static str| {
            let client = client.clone();
            workers.run(move || client.rename(from, to, 0).unwrap())
        };
        let make = async |name: &str| create(&gateway, &e, name, createhow3::GUARDED(mode(0o600))).await;
        for round in 0..5 {
            make(&format!("before{round}")).await.unwrap();
            moves("/out/d", "/out/mid/in/d").await;
            assert_eq!(make("inside").await, Err(nfsstat3::NFS3ERR_ROFS), "round {round}");
            moves("/out/mid/in/d", "/out/d").await;
        }
        make("after").await.unwrap();
    });
}

#[test]
fn what_is_exported_to_others_is_not_reached_through_an_outer_export() {
    let cluster = cluster();
    let mut exports = exports();
    exports[1].rules[0].clients = "10.0.0.0/8".parse().unwrap();
    with_exports(&cluster, &exports, async |gateway| {
        let (mid, out) = (gateway.walk("mid").await, gateway.export("/out"));
        assert_eq!(gateway.find(&mid, "in").await.unwrap_err(), nfsstat3::NFS3ERR_ACCES);
        let page = gateway.files.readdirplus(&root(), &mid, (0, 0), (65536, 65536)).await.unwrap();
        let entries = page.reply.entries.0;
        let entry = entries.iter().find(|entry| entry.name.0.as_ref() == b"in").unwrap();
        assert!(entry.name_handle.is_none() && entry.name_attributes.is_none());
        let ino = cluster.client().stat("/out/mid/in/sub", false).unwrap().ino;
        let direct = bytes(&out.handle(&gateway.files.keys, ino, FileKind::Directory));
        assert_eq!(gateway.attr(&direct).await.unwrap_err(), nfsstat3::NFS3ERR_ACCES);
        let listed = gateway.files.readdir(&root(), &direct, (0, 0), 4096).await;
        assert_eq!(status(&listed), nfsstat3::NFS3ERR_ACCES);
    });
}

#[test]
fn an_export_that_comes_later_counts_for_handles_of_before() {
    let cluster = cluster();
    let all = exports();
    with_exports(&cluster, &all[..1], async |gateway| {
        let replace = |exports: &[ExportOptions]| {
            *gateway.files.exports.borrow_mut() = Rc::new(Exports::new(&gateway.files.client, exports));
        };
        let (top, sub, file) =
            (gateway.root().await, gateway.walk("mid/in/sub").await, gateway.walk("mid/in/f").await);
        gateway.files.setattr(&root(), &file, &mode(0o666), None).await.unwrap();
        replace(&all);
        assert_eq!(gateway.attr(&file).await.unwrap_err(), nfsstat3::NFS3ERR_STALE);
        let made = create(&gateway, &sub, "n", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(made, Err(nfsstat3::NFS3ERR_ROFS));
        // The mount goes on, and finds the file by its name.
        create(&gateway, &top, "n", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let again = gateway.walk("mid/in/f").await;
        let read = gateway.files.read(&root(), &again, (0, 9), &Buffers::default()).await.unwrap();
        assert_eq!(read.data[..], b"data"[..]);
        let set = gateway.files.setattr(&root(), &again, &mode(0o600), None).await;
        assert_eq!(status(&set), nfsstat3::NFS3ERR_ROFS);
        replace(&all[..1]);
        gateway.files.setattr(&root(), &file, &mode(0o600), None).await.unwrap();
        assert_eq!(gateway.attr(&again).await.unwrap_err(), nfsstat3::NFS3ERR_STALE, "its export is gone");
    });
}

#[test]
fn an_export_begins_when_its_directory_is_made() {
    let cluster = cluster();
    let mut exports = exports();
    exports[1].path = "/out/late/in".into();
    with_exports(&cluster, &exports, async |gateway| {
        let (top, d) = (gateway.root().await, gateway.walk("d").await);
        create(&gateway, &d, "n", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let mkdir = async |dir: &[u8], name: &str| {
            let place = Place { dir, name: name.as_bytes() };
            bytes(&gateway.files.mkdir(&root(), place, &mode(0o777)).await.unwrap().obj.unwrap())
        };
        let late = mkdir(&top, "late").await;
        create(&gateway, &late, "n", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let inside = mkdir(&late, "in").await;
        let made = create(&gateway, &inside, "n", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(made, Err(nfsstat3::NFS3ERR_ROFS));
        // One that goes ends it.
        cluster.client().rename("/out/late/in", "/out/late/x", 0).unwrap();
        let x = gateway.walk("late/x").await;
        create(&gateway, &x, "n", createhow3::GUARDED(mode(0o600))).await.unwrap();
    });
}

#[test]
fn which_export_counts_is_known_without_asking_each_time() {
    let mut cluster = cluster();
    let key = cluster.key.clone();
    let client = cluster.client();
    run(client, &key, &exports(), async |gateway| {
        let sub = gateway.walk("mid/in/sub").await;
        let e = gateway.walk("d/e").await;
        for object in [&sub, &e] {
            super::known::settled(&gateway, object, async || assert!(gateway.attr(object).await.is_ok()))
                .await;
        }
        cluster.stop_server(0);
        assert!(gateway.attr(&sub).await.is_ok() && gateway.attr(&e).await.is_ok());
        cluster.start_server(0, [1; 16]);
    });
}
