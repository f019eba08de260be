//! The metadata server: exactly once, open files, sizes, sessions.

use super::support::*;
use crate::config::SyncMode;
use crate::meta::SESSION_GRACE;
use weft_storage::FaultPlan;
use weft_wire::messages::*;
use weft_wire::security::Capability;
use weft_wire::{Added, Header, Op, Status};

fn a_repeated_request_is_answered_and_not_done_again<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let header = Header { slot: 3, ..Header::request(Op::Create, 41) };
    let request = create("f", rights::WRITE);
    let first = cluster.meta().call_as(header, &request).unwrap();
    let again = cluster.meta().call_as(header, &request).unwrap();
    assert!(first.created && again == first);
    let mut client = cluster.meta();
    let later = Header { slot: 3, ..Header::request(Op::Create, 42) };
    assert_eq!(client.call_as(later, &request).unwrap_err().status, Status::Exists);
    assert_eq!(client.call(&FileCountRequest { ino: Added(0) }).unwrap().files, 2);
    let header = |number| Header { slot: 3, ..Header::request(Op::Unlink, number) };
    let of_root = At { dir: ROOT_INO, path: b"f".to_vec() };
    let request = UnlinkRequest { caller: ROOT, at: of_root, with_dir: Added(true) };
    let first = cluster.meta().call_as(header(43), &request).unwrap();
    assert_eq!(first.dir.0.unwrap().after.size, 0);
    let again = cluster.meta().call_as(header(43), &request).unwrap();
    assert_eq!(again.dir.0, None, "that is not stored with every removal");
    assert_eq!(client.call_as(header(44), &request).unwrap_err().status, Status::NotFound);
}

fn names_are_made_found_listed_moved_and_removed<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let mkdir = |path, layout| MkdirRequest {
        caller: ROOT,
        at: at(path),
        mode: 0o755,
        layout,
        with_dir: Added(false),
    };
    let wish = LayoutWish { strip_bytes: 8192, server_count: 0, first_server_plus_1: 0 };
    client.call(&mkdir("d", Some(wish))).unwrap();
    assert_eq!(client.call(&lookup("d")).unwrap().attr.layout.unwrap().strip_bytes(), 8192);
    let file = client.call(&create("d/f", 0)).unwrap();
    assert_eq!(file.capability.unwrap().rights, 0, "only to ask for the size");
    assert_eq!(file.attr.layout.unwrap().strip_bytes(), 8192);
    let symlink =
        SymlinkRequest { caller: ROOT, at: at("l"), target: b"d/f".to_vec(), with_dir: Added(false) };
    client.call(&symlink).unwrap();
    assert_eq!(client.call(&lookup("l")).unwrap().attr.ino, file.attr.ino);
    let readlink = ReadlinkRequest { caller: ROOT, at: at("l") };
    assert_eq!(client.call(&readlink).unwrap().target, b"d/f");
    let rename = |from, to, flags| RenameRequest {
        caller: ROOT,
        from: at(from),
        to: at(to),
        flags,
        with_dirs: Added(false),
    };
    client.call(&rename("d/f", "g", 0)).unwrap();
    assert_eq!(client.call(&rename("g", "l", rename_flags::NOREPLACE)).unwrap_err().status, Status::Exists);
    let list = ReadDirRequest { caller: ROOT, ino: ROOT_INO, after: 0, entries_max: 2, with_attrs: true };
    let page = client.call(&list).unwrap();
    assert_eq!(page.entries.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [b"d", b"l"]);
    assert!(!page.end);
    let rest = client.call(&ReadDirRequest { after: page.entries[1].cookie, ..list }).unwrap();
    assert_eq!((&rest.entries[0].name[..], rest.end), (&b"g"[..], true));
    client.call(&unlink("g")).unwrap();
    assert_eq!(client.call(&lookup("g")).unwrap_err().status, Status::NotFound);
    client.call(&RmdirRequest { caller: ROOT, at: at("d"), with_dir: Added(false) }).unwrap();
}

fn in_sync_mode_changes_are_acknowledged_too<W: Way>() {
    let cluster = Cluster::<W>::start_with(1, SyncMode::Sync, FaultPlan::default());
    let mut client = cluster.meta();
    client.call(&create("f", rights::WRITE)).unwrap();
    client.call(&SyncMetaRequest {}).unwrap();
    client.call(&unlink("f")).unwrap();
}

fn the_last_report_settles_the_size<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::READ | rights::WRITE)).unwrap();
    assert!(made.attr.size_live);
    let report = Some(WriteReport { end_bytes: 12345, touch: true });
    let both = rights::READ | rights::WRITE;
    client.close(made.attr.ino, both, report);
    let attr = client.call(&lookup("f")).unwrap().attr;
    assert_eq!((attr.size, attr.size_live), (12345, false));
    assert_eq!(client.gauge("open_files"), Some(0));
}

fn many_opens_end_together<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let both = rights::READ | rights::WRITE;
    let mut made = |name, access| client.call(&create(name, access)).unwrap().attr.ino;
    let inos = [made("a", both), made("wrong", rights::WRITE), made("b", rights::WRITE)];
    let id = OpenId { run: client.run, number: 0 };
    let closed = |ends: [u64; 3]| CloseRequest {
        files: (0..3)
            .map(|at| ClosedFile {
                ino: inos[at],
                access: if at == 0 { both } else { rights::WRITE },
                report: Some(WriteReport { end_bytes: ends[at], touch: true }),
                id: id.clone(),
            })
            .collect(),
    };
    let unknown = closed([1, 2, 3]).files.into_iter().map(|file| ClosedFile { access: 4, ..file });
    for wrong in [Vec::new(), vec![closed([1; 3]).files[0].clone(); 65], unknown.collect()] {
        let refused = client.call(&CloseRequest { files: wrong }).unwrap_err();
        assert_eq!(refused.status, Status::Invalid);
    }
    assert_eq!(client.gauge("open_files"), Some(3), "what makes no sense ends nothing");
    let header = Header { slot: 1, ..Header::request(Op::Close, client.fresh_id()) };
    let refused = client.call_as(header, &closed([10, u64::MAX, 20])).unwrap_err();
    assert_eq!(refused.status, Status::Invalid);
    assert!(refused.text.contains(&format!("inode {}:", inos[1])), "{}", refused.text);
    assert_eq!(client.gauge("open_files"), Some(0));
    let sizes = ["a", "wrong", "b"].map(|name| {
        let attr = client.call(&lookup(name)).unwrap().attr;
        (attr.size, attr.size_live)
    });
    assert_eq!(sizes, [(10, false), (0, true), (20, false)]);
    // The repetition of a request of before ends no open of after.
    client
        .call(&OpenRequest {
            caller: ROOT,
            at: at("a"),
            follow: true,
            access: both,
            small: Added(true),
            execute: Added(false),
            append: Added(false),
        })
        .unwrap();
    client.call_as(header, &closed([10, 0, 20])).unwrap();
    assert_eq!(client.gauge("open_files"), Some(1));
}

fn a_file_without_a_name_is_open_or_is_not_made<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let unnamed = |access| CreateUnnamedRequest {
        caller: ROOT,
        dir: at("/"),
        follow: true,
        mode: 0o600,
        exclusive: false,
        layout: None,
        access,
        small: true,
    };
    assert_eq!(client.call(&unnamed(0)).unwrap_err().status, Status::Invalid);
    let made = client.call(&unnamed(rights::READ | rights::WRITE)).unwrap();
    assert_eq!((made.created, made.attr.nlink, made.run), (true, 0, client.run));
    assert!(made.capability.is_some() && made.small_bytes.0 > 0);
    assert_eq!(client.gauge("open_files"), Some(1));
    let from = At { dir: made.attr.ino, path: Vec::new() };
    let link = LinkRequest { caller: ROOT, from, follow: false, to: at("f"), with_dir: Added(true) };
    let linked = client.call(&link).unwrap();
    assert_eq!((linked.attr.nlink, linked.dir.0.is_some()), (1, true));
    assert_eq!(client.call(&lookup("f")).unwrap().attr.ino, made.attr.ino);
}

fn an_open_counts_once_however_often_it_is_told<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::WRITE)).unwrap();
    assert_eq!(made.run, client.run);
    let capability = made.capability.unwrap();
    let reopen = |client: &mut Client<W::Link>, run, number| {
        let id = OpenId { run, number };
        let reopened =
            client.call(&ReopenRequest { capability: capability.clone(), id, small: Added(true) }).unwrap();
        assert_eq!((reopened.run, reopened.attr.ino), (client.run, made.attr.ino));
        assert!(reopened.capability.is_some());
    };
    let close = |client: &mut Client<W::Link>, run, number| {
        let id = OpenId { run, number };
        let file = ClosedFile { ino: made.attr.ino, access: rights::WRITE, report: None, id };
        client.call(&CloseRequest { files: vec![file] }).unwrap();
        client.gauge("open_files")
    };
    let run = client.run;
    reopen(&mut client, run, 1);
    reopen(&mut client, run - 1, 2);
    reopen(&mut client, run - 1, 2);
    // Of the present run and of the one before: two are open. What was never open here does not end one of them.
    assert_eq!(close(&mut client, run - 1, 3), Some(1));
    assert_eq!(close(&mut client, run, 1), Some(1));
    assert_eq!(close(&mut client, run - 1, 3), Some(1));
    assert_eq!(close(&mut client, run - 1, 2), Some(0));
}

fn a_counter_is_changed_by_whoever_has_a_capability_and_ends_with_its_open<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::WRITE)).unwrap();
    let (capability, run) = (made.capability.unwrap(), client.run);
    let session = capability.holder.session(&[7; 16]);
    let request = |capability: &Capability, session, change, amount| FetchAddRequest {
        capability: capability.clone(),
        session,
        open: OpenId { run, number: 3 },
        change,
        amount,
    };
    let add = |amount| request(&capability, session, CounterChange::Add, amount);
    assert_eq!(client.call(&add(10)).unwrap().before, 0);
    let mut other = Client::proven(W::connect(&cluster.meta), [8; 16]);
    assert_eq!(other.call(&add(5)).unwrap().before, 10);
    let set = request(&capability, session, CounterChange::Set, 7);
    assert_eq!(other.call(&set).unwrap().before, 15);
    assert_eq!(client.gauge("file_counters"), Some(1));

    // A repeated request gets its first reply.
    let header = Header { slot: 9, ..Header::request(Op::FetchAdd, 700) };
    let replies = [(); 2].map(|()| client.call_as(header, &add(1)).unwrap().before);
    assert_eq!((replies, client.call(&add(0)).unwrap().before), ([7, 7], 8));

    let mut refused = |request: FetchAddRequest| client.call(&request).unwrap_err();
    assert_eq!(refused(add(-9)).status, Status::Invalid);
    assert!(refused(add(-9)).text.contains("the counter is 8, and adding -9"));
    assert_eq!(refused(request(&capability, session, CounterChange::Set, -1)).status, Status::Invalid);
    let forged = Capability { ino: capability.ino + 1, ..capability.clone() };
    assert_eq!(refused(request(&forged, session, CounterChange::Add, 1)).status, Status::Capability);
    assert_eq!(refused(request(&capability, [1; 16], CounterChange::Add, 1)).status, Status::Stale);
    let id = OpenId { run: client.run, number: 3 };
    let file = ClosedFile { ino: made.attr.ino, access: rights::WRITE, report: None, id };
    client.call(&CloseRequest { files: vec![file] }).unwrap();
    assert_eq!(client.gauge("file_counters"), Some(0));
    let ended = client.call(&add(1)).unwrap_err();
    assert!(ended.status == Status::Stale && ended.text.contains("has ended"), "{}", ended.text);
}

fn a_change_of_attributes_has_a_report_with_it<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::WRITE)).unwrap().attr;
    let zero = Time { seconds: 0, nanoseconds: 0 };
    let change = |at, caller, end_bytes| SetAttrRequest {
        caller,
        at,
        follow: false,
        valid: attr_valid::MODE,
        mode: 0o640,
        uid: 0,
        gid: 0,
        atime: zero.clone(),
        mtime: zero.clone(),
        report: Some(WriteReport { end_bytes, touch: true }),
    };
    let itself = At { dir: made.ino, path: Vec::new() };
    let changed = client.call(&change(itself.clone(), ROOT, 500)).unwrap().attr;
    assert_eq!((changed.size, changed.mode & 0o777), (500, 0o640));
    assert_ne!(changed.mtime, made.mtime);
    let stranger = Caller { uid: 5, gid: 5, groups: Vec::new() };
    let refused = client.call(&change(itself, stranger, 900)).unwrap_err();
    assert_eq!(refused.status, Status::NotPermitted);
    let attr = client.call(&lookup("f")).unwrap().attr;
    assert_eq!((attr.size, &attr.mtime), (500, &changed.mtime), "neither of the two was done");
    assert_eq!(client.call(&change(at("f"), ROOT, 900)).unwrap_err().status, Status::Invalid);
    // Who does not write has nothing to report.
    client.close(made.ino, rights::WRITE, None);
    let itself = At { dir: made.ino, path: Vec::new() };
    assert_eq!(client.call(&change(itself, ROOT, 900)).unwrap_err().status, Status::Stale);
}

fn a_truncation_is_begun_and_committed<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::WRITE)).unwrap();
    let held = made.capability;
    let begin = TruncateBeginRequest {
        caller: ROOT,
        at: At { dir: made.attr.ino, path: Vec::new() },
        held,
        file_bytes: 77,
    };
    let begun = client.call(&begin).unwrap();
    let commit = TruncateCommitRequest {
        capability: begun.capability.unwrap(),
        file_bytes: 77,
        epoch: begun.attr.epoch,
    };
    assert_eq!(client.call(&commit).unwrap().attr.size, 77);
    let stranger = Caller { uid: 5, gid: 5, groups: Vec::new() };
    let refused = client.call(&TruncateBeginRequest { caller: stranger, at: at("f"), held: None, ..begin });
    assert_eq!(refused.unwrap_err().status, Status::Access);
}

fn what_a_client_held_that_stays_away_is_given_back<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut watcher = Client::proven(W::connect(&cluster.meta), [8; 16]);
    let mut client = cluster.meta();
    let made = client.call(&create("f", rights::WRITE)).unwrap();
    client.call(&unlink("f")).unwrap();
    let inode = InodeRequest { caller: ROOT, ino: made.attr.ino };
    watcher.call(&inode).unwrap();
    drop(client);
    // A client that comes back within the grace finds its file open.
    drop(cluster.meta());
    std::thread::sleep(SESSION_GRACE / 4);
    watcher.call(&inode).unwrap();
    eventually("the end of the session", || watcher.call(&inode).is_err());
}

fn what_was_replaced_can_be_opened_by_number_for_a_moment<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut client = cluster.meta();
    let begin = WatchRequest { epoch: 0, acknowledged: 0, at_once: true, end: false };
    client.call(&begin).unwrap();
    let mut open = |name: &str| {
        let replaced = client.call(&create(name, 0)).unwrap().attr.ino;
        client.call(&create("new", 0)).unwrap();
        client.call(&lookup(name)).unwrap();
        client
            .call(&RenameRequest {
                caller: ROOT,
                from: at("new"),
                to: at(name),
                flags: 0,
                with_dirs: Added(false),
            })
            .unwrap();
        let by_number = At { dir: replaced, path: Vec::new() };
        let open = OpenRequest {
            caller: ROOT,
            at: by_number,
            access: rights::READ,
            follow: true,
            small: Added(true),
            execute: Added(false),
            append: Added(false),
        };
        let opened = client.call(&open).map(|opened| opened.attr.ino == replaced);
        if opened.is_ok() {
            client.close(replaced, rights::READ, None);
        }
        (replaced, opened)
    };
    // Not seen where this process is stopped for that moment.
    let (mut tries, mut replaced) = (0, 0);
    eventually("opening what was replaced", || {
        tries += 1;
        let (ino, opened) = open(&format!("f{tries}"));
        replaced = ino;
        opened == Ok(true)
    });
    let inode = InodeRequest { caller: ROOT, ino: replaced };
    eventually("the end of the moment", || {
        client.call(&inode).is_err_and(|refused| refused.status == Status::Stale)
    });
}

over_all_ways! {
    a_repeated_request_is_answered_and_not_done_again names_are_made_found_listed_moved_and_removed in_sync_mode_changes_are_acknowledged_too the_last_report_settles_the_size many_opens_end_together a_file_without_a_name_is_open_or_is_not_made an_open_counts_once_however_often_it_is_told a_counter_is_changed_by_whoever_has_a_capability_and_ends_with_its_open a_change_of_attributes_has_a_report_with_it a_truncation_is_begun_and_committed what_a_client_held_that_stays_away_is_given_back what_was_replaced_can_be_opened_by_number_for_a_moment
}
