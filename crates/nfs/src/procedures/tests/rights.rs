//! Who may do what.

use super::files::{create, create_as};
use super::*;
use crate::place::Place;
use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    createhow3, nfstime3, set_atime, set_mtime, stable_how,
};

const ALL: u32 = 63;

async fn allowed(gateway: &Gateway, who: &Sender, object: &[u8]) -> u32 {
    gateway.files.access(who, object, ALL).await.unwrap().access
}

#[test]
fn rights_are_those_that_the_servers_give() {
    let cluster = Cluster::start(1, 4096);
    cluster.client().mkdir("/d", 0o777).unwrap();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let who = sender(USER);
        let file = create_as(&gateway, &who, &dir, "f", createhow3::GUARDED(mode(0o640))).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().uid, USER);
        let write = ACCESS3_MODIFY | ACCESS3_EXTEND;
        assert_eq!(allowed(&gateway, &who, &file).await, ACCESS3_READ | write);
        assert_eq!(allowed(&gateway, &sender(USER + 1), &file).await, 0);
        assert_eq!(allowed(&gateway, &root(), &file).await & write, write);
        let all = ACCESS3_READ | ACCESS3_LOOKUP | write | ACCESS3_DELETE;
        assert_eq!(allowed(&gateway, &who, &dir).await, all);
        assert_eq!(allowed(&gateway, &who, &top).await, ACCESS3_READ | ACCESS3_LOOKUP);
        let script = create_as(&gateway, &who, &dir, "s", createhow3::GUARDED(mode(0o711))).await.unwrap();
        assert_eq!(allowed(&gateway, &sender(USER + 1), &script).await, ACCESS3_EXECUTE);
        let other = sender(USER + 1);
        assert!(
            gateway.files.read(&other, &script, (0, 1), &Buffers::default()).await.is_ok(),
            "who executes, reads"
        );
        let written = gateway.files.write(&other, &script, 0, stable_how::UNSTABLE, vec![1].into()).await;
        assert_eq!(status(&written), nfsstat3::NFS3ERR_ACCES);
        assert_eq!(
            gateway.files.read(&other, &file, (0, 1), &Buffers::default()).await.map(|done| done.eof),
            Err(nfsstat3::NFS3ERR_ACCES)
        );
    });
}

#[test]
fn an_owner_reads_and_writes_whatever_the_mode() {
    let cluster = Cluster::start(1, 4096);
    cluster.client().mkdir("/d", 0o777).unwrap();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let who = sender(USER);
        let file = create_as(&gateway, &who, &dir, "f", createhow3::GUARDED(mode(0o444))).await.unwrap();
        let write = async |who: &Sender| {
            status(&gateway.files.write(who, &file, 0, stable_how::UNSTABLE, b"abc".to_vec().into()).await)
        };
        assert_eq!(write(&who).await, nfsstat3::NFS3_OK);
        gateway.files.opens.close_everything().await;
        assert_eq!(write(&who).await, nfsstat3::NFS3_OK, "not only while it is open from the creation");
        assert_eq!(write(&sender(USER + 1)).await, nfsstat3::NFS3ERR_ACCES);
        gateway.files.setattr(&who, &file, &mode(0), None).await.unwrap();
        assert_eq!(
            gateway.files.read(&who, &file, (0, 9), &Buffers::default()).await.unwrap().data[..],
            b"abc"[..]
        );
        assert!(gateway.files.read(&sender(USER + 1), &file, (0, 9), &Buffers::default()).await.is_err());
    });
}

#[test]
fn rights_that_were_taken_away_end_at_once() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let file = create(&gateway, &top, "f", createhow3::GUARDED(mode(0o666))).await.unwrap();
        let who = sender(USER);
        let read =
            async || gateway.files.read(&who, &file, (0, 1), &Buffers::default()).await.map(|done| done.eof);
        assert_eq!(read().await, Ok(true));
        gateway.files.setattr(&root(), &file, &mode(0o600), None).await.unwrap();
        assert_eq!(read().await, Err(nfsstat3::NFS3ERR_ACCES));
    });
}

#[test]
fn a_write_ends_set_id_bits() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let file = create(&gateway, &top, "f", createhow3::GUARDED(mode(0o4777))).await.unwrap();
        let who = sender(USER);
        gateway.files.write(&who, &file, 0, stable_how::UNSTABLE, vec![1].into()).await.unwrap();
        assert_eq!(gateway.attr(&file).await.unwrap().mode, 0o777);
    });
}

/// What a kernel sends for truncate(2).
fn size_as_of_truncate(bytes: u64) -> sattr3 {
    sattr3 { size: Nfs3Option::Some(bytes), mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() }
}

#[test]
fn who_may_write_a_file_of_another_truncates_it() {
    let cluster = Cluster::start(2, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let file = create(&gateway, &top, "f", createhow3::GUARDED(mode(0o666))).await.unwrap();
        let (who, other) = (sender(USER), sender(USER + 1));
        gateway.files.write(&who, &file, 0, stable_how::UNSTABLE, vec![1; 10_000].into()).await.unwrap();
        let past = nfstime3 { seconds: 77, nseconds: 0 };
        let old = sattr3 { mtime: set_mtime::SET_TO_CLIENT_TIME(past), ..sattr3::default() };
        for bytes in [5000, 5000, 0] {
            gateway.files.setattr(&root(), &file, &old, None).await.unwrap();
            let set = gateway.files.setattr(&who, &file, &size_as_of_truncate(bytes), None).await;
            assert_eq!(status(&set), nfsstat3::NFS3_OK, "{bytes}");
            let attr = gateway.attr(&file).await.unwrap();
            assert_eq!((attr.size, attr.mtime == past), (bytes, false));
        }
        gateway.files.setattr(&root(), &file, &mode(0o644), None).await.unwrap();
        let set = gateway.files.setattr(&other, &file, &size_as_of_truncate(9), None).await;
        assert_eq!(status(&set), nfsstat3::NFS3ERR_ACCES);
        assert_eq!(gateway.attr(&file).await.unwrap().size, 0);
    });
}

#[test]
fn an_owner_truncates_whatever_the_mode() {
    let cluster = Cluster::start(2, 4096);
    cluster.client().mkdir("/d", 0o777).unwrap();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let who = sender(USER);
        let file = create_as(&gateway, &who, &dir, "f", createhow3::GUARDED(mode(0o444))).await.unwrap();
        let truncate = async |who: &Sender, bytes| {
            status(&gateway.files.setattr(who, &file, &size_as_of_truncate(bytes), None).await)
        };
        assert_eq!(truncate(&who, 10).await, nfsstat3::NFS3_OK);
        gateway.files.opens.close_everything().await;
        assert_eq!(truncate(&who, 5).await, nfsstat3::NFS3_OK);
        assert_eq!(gateway.attr(&file).await.unwrap().size, 5);
        assert_eq!(truncate(&sender(USER + 1), 0).await, nfsstat3::NFS3ERR_ACCES);
    });
}

#[test]
fn who_may_write_sets_both_times_to_now_and_only_the_owner_others() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let file = create(&gateway, &top, "f", createhow3::GUARDED(mode(0o622))).await.unwrap();
        let (now, to) = (set_atime::SET_TO_SERVER_TIME, nfstime3 { seconds: 77, nseconds: 0 });
        let set = async |atime, mtime| {
            let wanted = sattr3 { atime, mtime, ..sattr3::default() };
            status(&gateway.files.setattr(&sender(USER), &file, &wanted, None).await)
        };
        assert_eq!(set(now, set_mtime::SET_TO_SERVER_TIME).await, nfsstat3::NFS3_OK);
        let given = set_mtime::SET_TO_CLIENT_TIME(to);
        assert_eq!(set(set_atime::DONT_CHANGE, given).await, nfsstat3::NFS3ERR_PERM);
        assert_eq!(set(now, set_mtime::DONT_CHANGE).await, nfsstat3::NFS3ERR_PERM);
        gateway.files.setattr(&root(), &file, &mode(0o644), None).await.unwrap();
        assert_eq!(set(now, set_mtime::SET_TO_SERVER_TIME).await, nfsstat3::NFS3ERR_ACCES);
    });
}

#[test]
fn who_may_write_an_empty_file_of_another_opens_it_to_truncate() {
    let cluster = Cluster::start(1, 4096);
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let file = create(&gateway, &top, "f", createhow3::GUARDED(mode(0o666))).await.unwrap();
        let past = nfstime3 { seconds: 77, nseconds: 0 };
        let times = (set_atime::SET_TO_CLIENT_TIME(past), set_mtime::SET_TO_CLIENT_TIME(past));
        let old = sattr3 { atime: times.0, mtime: times.1, ..sattr3::default() };
        gateway.files.setattr(&root(), &file, &old, None).await.unwrap();
        // What Linux sends where the file is empty already.
        let truncate = async || {
            let wanted = sattr3 { mtime: set_mtime::SET_TO_SERVER_TIME, ..sattr3::default() };
            status(&gateway.files.setattr(&sender(USER), &file, &wanted, None).await)
        };
        assert_eq!(truncate().await, nfsstat3::NFS3_OK);
        let attr = gateway.attr(&file).await.unwrap();
        assert_eq!((attr.size, attr.atime, attr.mtime == past), (0, past, false));
        gateway.files.setattr(&root(), &file, &mode(0o644), None).await.unwrap();
        assert_eq!(truncate().await, nfsstat3::NFS3ERR_ACCES);
    });
}

#[test]
fn a_creators_writes_and_truncations_end_set_id_bits() {
    let cluster = Cluster::start(2, 4096);
    cluster.client().mkdir("/d", 0o777).unwrap();
    with_gateway(&cluster, async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let who = sender(USER);
        let file = create_as(&gateway, &who, &dir, "f", createhow3::GUARDED(mode(0o6555))).await.unwrap();
        let write = async |who: &Sender| {
            gateway.files.write(who, &file, 0, stable_how::UNSTABLE, vec![1; 9].into()).await.unwrap();
            gateway.attr(&file).await.unwrap().mode
        };
        let truncate = async |who: &Sender, bytes| {
            gateway.files.setattr(who, &file, &size_as_of_truncate(bytes), None).await.unwrap();
            gateway.attr(&file).await.unwrap().mode
        };
        let again = async |bits| gateway.files.setattr(&who, &file, &mode(bits), None).await.unwrap();
        assert_eq!(write(&who).await, 0o555);
        again(0o6755).await;
        assert_eq!(write(&who).await, 0o755, "also of a file that is open");
        again(0o4755).await;
        assert_eq!(truncate(&who, 3).await, 0o755);
        again(0o2755).await;
        assert_eq!(truncate(&who, 3).await, 0o755, "also to the size that it has");
        again(0o6755).await;
        assert_eq!((write(&root()).await, truncate(&root(), 0).await), (0o6755, 0o6755), "root's do not");
        assert_eq!(write(&who).await, 0o755);
    });
}

#[test]
fn root_is_nobody_where_it_is_squashed() {
    let cluster = Cluster::start(1, 4096);
    let client = cluster.client();
    client.mkdir("/d", 0o777).unwrap();
    client.setattr("/d", true, &weft_client::SetAttr { mode: Some(0o777), ..Default::default() }).unwrap();
    client.mkdir("/secret", 0o700).unwrap();
    with_exports(&cluster, &[export("/", Squash::Root)], async |gateway| {
        let top = gateway.root().await;
        let (dir, _) = gateway.find(&top, "d").await.unwrap();
        let file = create(&gateway, &dir, "f", createhow3::GUARDED(mode(0o600))).await.unwrap();
        let attr = gateway.attr(&file).await.unwrap();
        assert_eq!((attr.uid, attr.gid), (65534, 65534));
        let (secret, _) = gateway.find(&top, "secret").await.unwrap();
        assert_eq!(gateway.find(&secret, "x").await.unwrap_err(), nfsstat3::NFS3ERR_ACCES);
        let made = create(&gateway, &top, "x", createhow3::GUARDED(mode(0o600))).await;
        assert_eq!(made, Err(nfsstat3::NFS3ERR_ACCES));
        let nobody = Sender { credential: None, ..root() };
        let made = create_as(&gateway, &nobody, &dir, "g", createhow3::GUARDED(mode(0o600))).await.unwrap();
        assert_eq!(gateway.attr(&made).await.unwrap().uid, 65534);
    });
}

#[test]
fn a_client_outside_has_nothing_and_a_read_only_export_stays_as_it_is() {
    let cluster = Cluster::start(1, 4096);
    let mut only = export("/", Squash::None);
    only.rules[0].clients = "127.0.0.1".parse().unwrap();
    only.rules[0].read_only = true;
    with_exports(&cluster, &[only], async |gateway| {
        let top = gateway.root().await;
        let from = |address: &str| Sender { peer: address.parse().unwrap(), ..root() };
        for (address, wanted) in [
            ("127.0.0.1:700", nfsstat3::NFS3_OK),
            ("127.0.0.1:7000", nfsstat3::NFS3ERR_ACCES),
            ("127.0.0.2:700", nfsstat3::NFS3ERR_ACCES),
        ] {
            assert_eq!(status(&gateway.files.getattr(&from(address), &top).await), wanted, "{address}");
        }
        let place = Place { dir: &top, name: b"x" };
        assert_eq!(status(&gateway.files.mkdir(&root(), place, &mode(0o755)).await), nfsstat3::NFS3ERR_ROFS);
        assert_eq!(status(&gateway.files.remove(&root(), place).await), nfsstat3::NFS3ERR_ROFS);
        assert_eq!(
            status(&gateway.files.setattr(&root(), &top, &mode(0), None).await),
            nfsstat3::NFS3ERR_ROFS
        );
        assert_eq!(allowed(&gateway, &root(), &top).await, ACCESS3_READ | ACCESS3_LOOKUP);
        let forged = vec![0; 36];
        assert_eq!(status(&gateway.files.getattr(&root(), &forged).await), nfsstat3::NFS3ERR_BADHANDLE);
    });
}
