//! What the gateway knows without asking again, and when it asks.

use super::files::{create, create_as};
use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ, createhow3, stable_how};
use std::time::Duration;
use weft_client::{OpenOptions, SetAttr};
use weft_reactor::sleep;

async fn made(gateway: &Gateway, dir: &[u8], name: &str) -> Vec<u8> {
    create(gateway, dir, name, createhow3::GUARDED(mode(0o644))).await.unwrap()
}

fn ino_of(gateway: &Gateway, object: &[u8]) -> u64 {
    gateway.files.keys.open(object).unwrap().ino
}

/// Waits until attributes, rights and the name are known that `look` asks for: the watch may not stand yet.
pub(super) async fn settled(gateway: &Gateway, object: &[u8], look: impl AsyncFn()) {
    for _ in 0..500 {
        look().await;
        if gateway.files.known.attr(ino_of(gateway, object)).is_some() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing is kept of what is asked for again and again");
}

#[test]
fn what_is_known_is_told_while_the_metadata_server_is_away() {
    let mut cluster = Cluster::start(1, 4096);
    let key = cluster.key.clone();
    let client = cluster.client();
    with_client(client, &key, async |gateway| {
        let dir = gateway.root().await;
        let file = made(&gateway, &dir, "f").await;
        let look = async || {
            gateway.find(&dir, "f").await.unwrap();
            gateway.files.access(&root(), &file, ACCESS3_READ).await.unwrap();
        };
        settled(&gateway, &file, look).await;
        look().await;
        cluster.stop_server(0);
        let (handle, attributes) = gateway.find(&dir, "f").await.unwrap();
        assert_eq!((handle, attributes.mode), (file.clone(), 0o644));
        assert_eq!(gateway.attr(&file).await.unwrap().mode, 0o644);
        let access = gateway.files.access(&root(), &file, ACCESS3_READ | ACCESS3_MODIFY).await.unwrap();
        assert_eq!(access.access, ACCESS3_READ | ACCESS3_MODIFY);
        cluster.start_server(0, [1; 16]);
    });
}

#[test]
fn what_others_change_is_told_as_soon_as_their_call_has_returned() {
    let cluster = Cluster::start(2, 4096);
    let other = cluster.client();
    with_gateway(&cluster, async |gateway| {
        let dir = gateway.root().await;
        let workers = gateway.files.workers.clone();
        let who = sender(USER);
        for round in 0..20 {
            let name = format!("f{round}");
            let file = made(&gateway, &dir, &name).await;
            settled(&gateway, &file, async || {
                gateway.find(&dir, &name).await.unwrap();
                gateway.files.access(&who, &file, ACCESS3_READ).await.unwrap();
            })
            .await;
            // Another changes it, and may wait for this gateway's word: in a thread.
            let change = |change: fn(&Client, &str)| {
                let (other, path) = (other.clone(), format!("/{name}"));
                workers.run(move || change(&other, &path))
            };
            change(|other, path| {
                let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                other.setattr(path, false, &mode).unwrap();
            })
            .await;
            assert_eq!(gateway.attr(&file).await.unwrap().mode, 0o600);
            let access = gateway.files.access(&who, &file, ACCESS3_READ).await.unwrap().access;
            assert_eq!(access, 0, "a right that was taken away");
            change(|other, path| {
                let file = other.open(path, &OpenOptions::new().write(true)).unwrap();
                file.write_at(&[7; 10_000], 0).unwrap();
                file.close().unwrap();
            })
            .await;
            assert_eq!(gateway.attr(&file).await.unwrap().size, 10_000);
            gateway.find(&dir, &name).await.unwrap();
            change(|other, path| other.rename(path, "/elsewhere", 0).unwrap()).await;
            assert_eq!(gateway.find(&dir, &name).await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
            assert_eq!(gateway.find(&dir, "elsewhere").await.unwrap().0, file);
            gateway.attr(&file).await.unwrap();
            change(|other, _| other.unlink("/elsewhere").unwrap()).await;
            assert_eq!(gateway.find(&dir, "elsewhere").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
        }
    });
}

#[test]
fn what_is_changed_here_is_told_at_once() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let files = &gateway.files;
        let dir = gateway.root().await;
        let place = |name: &'static str| Place { dir: &dir, name: name.as_bytes() };
        let file = made(&gateway, &dir, "f").await;
        let known = async |object: &[u8]| {
            settled(&gateway, object, async || assert!(gateway.attr(object).await.is_ok())).await;
        };
        known(&file).await;
        files.setattr(&root(), &file, &mode(0o400), None).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().mode, 0o400);
        for bytes in 1..50 {
            let data = vec![1; bytes * 100];
            files.write(&root(), &file, 0, stable_how::UNSTABLE, data.into()).await.unwrap();
            assert_eq!(gateway.attr(&file).await.unwrap().size, bytes as u64 * 100);
        }
        known(&file).await;
        let cut = sattr3 { size: Nfs3Option::Some(7), ..sattr3::default() };
        files.setattr(&root(), &file, &cut, None).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().size, 7);

        known(&file).await;
        files.link(&root(), &file, place("other")).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().nlink, 2);
        // By a name that was looked up, and by one that nobody has asked for.
        for is_known in [true, false] {
            files.link(&root(), &file, place("more")).await.unwrap();
            if is_known {
                gateway.find(&dir, "more").await.unwrap();
            } else {
                files.known.forget_everything();
            }
            known(&file).await;
            files.remove(&root(), place("more")).await.unwrap();
            assert_eq!(gateway.attr(&file).await.unwrap().nlink, 2);
            assert_eq!(gateway.find(&dir, "more").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
        }
        // What a rename replaces has a link less.
        let third = made(&gateway, &dir, "third").await;
        for is_known in [true, false] {
            known(&file).await;
            if !is_known {
                files.known.forget_everything();
                known(&file).await;
            }
            let name = if is_known { "other" } else { "f" };
            files.rename(&root(), place("third"), place(name)).await.unwrap();
            // What lost its last name is there for a moment, without links.
            let links = gateway.attr(&file).await.map_or(0, |attr| attr.nlink);
            assert_eq!(links, u32::from(is_known));
            assert_eq!(gateway.find(&dir, name).await.unwrap().0, third);
            assert_eq!(gateway.find(&dir, "third").await.unwrap_err(), nfsstat3::NFS3ERR_NOENT);
            files.link(&root(), &third, place("third")).await.unwrap();
        }
    });
}

#[test]
fn a_directory_is_told_with_every_change_of_its_names() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let files = &gateway.files;
        let dir = gateway.root().await;
        settled(&gateway, &dir, async || assert!(gateway.attr(&dir).await.is_ok())).await;
        let names = ["a", "b", "c", "d"];
        // All at once: replies of one are from before the others.
        let tasks = names.map(|name| create(&gateway, &dir, name, createhow3::GUARDED(mode(0o644))));
        let [a, b, c, d] = tasks;
        let ((a, b), (c, d)) = crate::weft::both(crate::weft::both(a, b), crate::weft::both(c, d)).await;
        [a, b, c, d].into_iter().for_each(|made| drop(made.unwrap()));
        let size = async || gateway.attr(&dir).await.unwrap().mtime;
        let mut before = size().await;
        for name in names {
            gateway.find(&dir, name).await.unwrap();
            sleep(Duration::from_millis(10)).await;
            files.remove(&root(), Place { dir: &dir, name: name.as_bytes() }).await.unwrap();
            let after = size().await;
            assert!((after.seconds, after.nseconds) > (before.seconds, before.nseconds), "{name}");
            before = after;
        }
    });
}

#[test]
fn a_known_name_is_only_for_those_who_may_search() {
    let cluster = Cluster::start(1, 4096);
    cluster.client().mkdir("/d", 0o777).unwrap();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let who = sender(USER);
        let file = create_as(&gateway, &who, &dir, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
        gateway.files.setattr(&root(), &dir, &mode(0o700), None).await.unwrap();
        settled(&gateway, &file, async || drop(gateway.find(&dir, "f").await.unwrap())).await;
        let found = gateway.files.lookup(&who, &dir, b"f").await;
        assert_eq!(status(&found), nfsstat3::NFS3ERR_ACCES);
        gateway.files.setattr(&root(), &dir, &mode(0o711), None).await.unwrap();
        assert_eq!(status(&gateway.files.lookup(&who, &dir, b"f").await), nfsstat3::NFS3_OK);
        let access = gateway.files.access(&who, &dir, ACCESS3_LOOKUP | ACCESS3_READ).await.unwrap().access;
        assert_eq!(access, ACCESS3_LOOKUP);
        gateway.files.setattr(&root(), &dir, &mode(0o700), None).await.unwrap();
        assert_eq!(status(&gateway.files.lookup(&who, &dir, b"f").await), nfsstat3::NFS3ERR_ACCES);
        let access = gateway.files.access(&who, &dir, ACCESS3_LOOKUP).await.unwrap().access;
        assert_eq!(access, 0);
    });
}
