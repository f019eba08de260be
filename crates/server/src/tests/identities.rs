//! For whom a connection acts, and what that keeps from others.

use super::support::*;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weft_layout::Regions;
use weft_transport::Link;
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};
use weft_wire::messages::*;
use weft_wire::security::Capability;
use weft_wire::{Added, Header, Request, Status};

const ALICE: u32 = 1000;
const BOB: u32 = 1001;

fn user(uid: u32) -> IssuedKey {
    issue(KeyKind::User { uid, gids: vec![uid] }, uid as u8)
}

/// A connection in the session `[7; 16]`, which all of this file's clients name.
fn with_key<L: Link>(link: L, key: &IssuedKey) -> Client<L> {
    let mut client = Client::new(link);
    prove(&mut client, key).unwrap();
    client
}

fn prove<L: Link>(client: &mut Client<L>, key: &IssuedKey) -> Result<ProveReply, Refused> {
    let hello = HelloRequest { key: Some(key.info.clone()), ..hello(peer_role::CLIENT, [7; 16]) };
    client.prove(&key.secret, &hello)
}

fn open(path: &str, access: u32) -> OpenRequest {
    OpenRequest {
        caller: ROOT,
        at: at(path),
        follow: true,
        access,
        small: Added(true),
        execute: Added(false),
        append: Added(false),
    }
}

fn set_mode(mode: u32) -> SetAttrRequest {
    let time = Time { seconds: 0, nanoseconds: 0 };
    SetAttrRequest {
        caller: ROOT,
        at: at(""),
        follow: true,
        valid: attr_valid::MODE,
        mode,
        uid: 0,
        gid: 0,
        atime: time.clone(),
        mtime: time,
        report: None,
    }
}

fn the_holder_of_a_user_key_is_that_user_whatever_it_says<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut root = cluster.meta();
    root.call(&set_mode(0o777)).unwrap();
    root.call(&CreateRequest { mode: 0o600, ..create("roots", rights::WRITE) }).unwrap();
    let mut alice = with_key(W::connect(&cluster.meta), &user(ALICE));
    let refused = alice.call(&open("roots", rights::READ)).unwrap_err();
    assert_eq!(refused.status, Status::Access);
    assert_eq!(alice.call(&unlink("nothing")).unwrap_err().status, Status::NotFound);
    let made = alice.call(&create("hers", rights::WRITE)).unwrap();
    assert_eq!((made.attr.uid, made.attr.gid), (ALICE, ALICE));
    let check = CheckRequest { caller: ROOT, check: 1, known: 0 };
    assert_eq!(alice.call(&check).unwrap_err().status, Status::NotPermitted);
    let measure = CalibrateRequest { measure: true };
    let mut io = with_key(W::connect(&cluster.io[0]), &user(ALICE));
    assert_eq!(io.call(&measure).unwrap_err().status, Status::NotPermitted);
    let status = alice.call(&StatusRequest { with_clients: true }).unwrap();
    assert_eq!((status.clients, status.client_list.len()), (2, 0));
}

fn the_root_of_a_squashed_host_is_nobody<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    cluster.meta().call(&set_mode(0o777)).unwrap();
    let squashed = issue(KeyKind::Host { squash_root: true }, 9);
    let mut host = with_key(W::connect(&cluster.meta), &squashed);
    let made = host.call(&create("by-root", rights::WRITE)).unwrap().attr;
    assert_eq!((made.uid, made.gid), (65_534, 65_534));
    let caller = Caller { uid: ALICE, gid: 0, groups: vec![0, 5] };
    let made = host.call(&CreateRequest { caller, ..create("by-alice", rights::WRITE) }).unwrap().attr;
    assert_eq!((made.uid, made.gid), (ALICE, 65_534));
    assert_eq!(
        host.call(&SetAttrRequest { valid: attr_valid::UID, ..set_mode(0) }).unwrap_err().status,
        Status::NotPermitted
    );
    assert_eq!(host.call(&ListKeysRequest { after: [0; 16] }).unwrap_err().status, Status::NotPermitted);
}

fn a_session_of_the_same_name_is_another_for_every_key<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    cluster.meta().call(&set_mode(0o777)).unwrap();
    let mut alice = with_key(W::connect(&cluster.meta), &user(ALICE));
    let create = CreateRequest { mode: 0o600, ..create("f", rights::READ | rights::WRITE) };
    let header = Header { slot: 1, ..Header::request(CreateRequest::OP, 77) };
    let opened = alice.call_as(header, &create).unwrap();
    let (ino, lock) = (opened.attr.ino, |ino| FileLock {
        ino,
        owner: 1,
        whole: false,
        exclusive: true,
        first: 0,
        last: 9,
        pid: 1,
    });
    let take = LockRequest { lock: lock(ino), wait: false, hold_ms: 0 };
    assert_eq!(alice.call(&take).unwrap().state, LockState::Granted);
    // Bob knows the id of her session, and the number of her request.
    let mut bob = with_key(W::connect(&cluster.meta), &user(BOB));
    assert_eq!(bob.call_as(header, &create).unwrap_err().status, Status::Exists);
    assert_eq!(bob.call(&take).unwrap_err().status, Status::Stale, "the file is not open in his session");
    let claim = ClaimLocksRequest { locks: vec![lock(ino)] };
    assert_eq!(bob.call(&claim).unwrap().lost, [0]);
    let report = ReportRequest { ino, report: WriteReport { end_bytes: 99, touch: false } };
    assert_eq!(bob.call(&report).unwrap_err().status, Status::Stale);
    bob.close(ino, rights::WRITE, None);
    let append = AppendRequest { ino, bytes: 1, file_bytes: 0, epoch: opened.attr.epoch };
    alice.call(&append).unwrap();
    assert_eq!(bob.call(&append).unwrap_err().status, Status::Stale);
    // Nor does anybody see the id.
    let status = cluster.meta().call(&StatusRequest { with_clients: true }).unwrap();
    assert!(status.clients >= 2 && status.client_list.iter().all(|client| client.session != [7; 16]));
}

fn a_capability_is_of_use_to_whom_it_was_given_only<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    cluster.meta().call(&set_mode(0o777)).unwrap();
    let mut alice = with_key(W::connect(&cluster.meta), &user(ALICE));
    let opened =
        alice.call(&CreateRequest { mode: 0o600, ..create("f", rights::READ | rights::WRITE) }).unwrap();
    let capability = opened.capability.unwrap();
    let regions = Regions::contiguous(0, 6);
    let mut alices = with_key(W::connect(&cluster.io[0]), &user(ALICE));
    alices.write(&capability, 0, &regions, b"secret").unwrap();
    let mut bobs = with_key(W::connect(&cluster.io[0]), &user(BOB));
    let mut into = [0; 6];
    for refused in [
        bobs.read(&capability, 0, &regions, &mut into).map(drop),
        bobs.write(&capability, 0, &regions, b"broken").map(drop),
        bobs.call(&SizeRequest { capability: capability.clone() }).map(drop),
        bobs.call(&TruncateRequest { capability: capability.clone(), slot: 0, file_bytes: 0 }).map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.status, Status::Capability);
        assert!(refused.text.contains("another key"), "{}", refused.text);
    }
    // Whether data is lost is no secret, its size is.
    let inos = vec![opened.attr.ino];
    let told = bobs.call(&StatObjectsRequest { inos: inos.clone() }).unwrap();
    assert_eq!(told, StatObjectsReply { objects: vec![], lost: Added(vec![]) });
    let mut server = Client::new(W::connect(&cluster.io[0]));
    server.prove(&cluster_key().server_key(), &hello(peer_role::SERVER, [2; 16])).unwrap();
    assert_eq!(server.call(&StatObjectsRequest { inos }).unwrap().objects[0].bytes, 6);
    let mut bob = with_key(W::connect(&cluster.meta), &user(BOB));
    let id = OpenId { run: 1, number: 1 };
    for refused in [
        bob.call(&ReopenRequest { capability: capability.clone(), id, small: Added(true) }).map(drop),
        bob.call(&SettleRequest { capability: capability.clone(), file_bytes: 0, epoch: opened.attr.epoch })
            .map(drop),
        bob.call(&TruncateBeginRequest {
            caller: ROOT,
            at: At { dir: capability.ino, path: Vec::new() },
            held: Some(capability.clone()),
            file_bytes: 0,
        })
        .map(drop),
        bob.call(&TruncateCommitRequest {
            capability: capability.clone(),
            file_bytes: 0,
            epoch: opened.attr.epoch,
        })
        .map(drop),
    ] {
        assert_eq!(refused.unwrap_err().status, Status::Capability);
    }
    assert_eq!(alices.read(&capability, 0, &regions, &mut into).unwrap().filled_bytes, 6);
    assert_eq!(&into, b"secret");
}

/// A writer that is gone leaves a size that the next one to ask may settle; not to what hides the data of another's file.
fn a_reader_with_a_user_key_does_not_settle_a_size<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let mut root = cluster.meta();
    let mut writer = Client::new(W::connect(&cluster.meta));
    writer.prove(&client_key().secret, &hello(peer_role::CLIENT, [8; 16])).unwrap();
    writer.call(&create("f", rights::WRITE)).unwrap();
    drop(writer);
    let mut alice = with_key(W::connect(&cluster.meta), &user(ALICE));
    let opened = alice.call(&open("f", rights::READ)).unwrap();
    let (capability, ino) = (opened.capability.unwrap(), opened.attr.ino);
    let settle = |capability: &Capability, epoch| SettleRequest {
        capability: capability.clone(),
        file_bytes: 5,
        epoch,
    };
    // Until the writer's session is over nobody can: root shows when it is.
    let begun = Instant::now();
    loop {
        let epoch = root.call(&lookup("f")).unwrap().attr.epoch;
        let by_alice = alice.call(&settle(&capability, epoch)).unwrap().attr;
        assert!(by_alice.size_live && by_alice.size == 0, "alice has settled the size of inode {ino}");
        let own = root.call(&open("f", rights::READ)).unwrap().capability.unwrap();
        let by_root = root.call(&settle(&own, epoch)).unwrap().attr;
        if !by_root.size_live {
            assert_eq!(by_root.size, 5);
            return;
        }
        assert!(begun.elapsed() < 3 * crate::meta::SESSION_GRACE, "the size was never settled");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn a_changed_expired_or_missing_key_is_refused<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let refused = |key: &IssuedKey, server: &W::Connector| {
        let mut client = Client::new(W::connect(server));
        let refused = prove(&mut client, key).unwrap_err();
        assert_eq!(refused.status, Status::Unauthenticated, "{}", refused.text);
        refused.text
    };
    let alice = user(ALICE);
    let with = |info: KeyInfo| IssuedKey { info, ..alice.clone() };
    for forged in [
        with(KeyInfo { kind: KeyKind::User { uid: 0, gids: vec![0] }, ..alice.info.clone() }),
        with(KeyInfo { kind: KeyKind::Host { squash_root: false }, ..alice.info.clone() }),
        with(KeyInfo { expires_s: u64::MAX, ..alice.info.clone() }),
        with(KeyInfo { id: [99; 16], ..alice.info.clone() }),
    ] {
        assert!(refused(&forged, &cluster.meta).contains("key file was changed"));
        refused(&forged, &cluster.io[0]);
    }
    let expired = KeyInfo { expires_s: 1000, ..alice.info.clone() };
    let expired = IssuedKey::issue(&cluster_key(), expired).unwrap();
    assert!(refused(&expired, &cluster.meta).contains("expired"));
    assert!(refused(&expired, &cluster.io[0]).contains("expired"));
    // Over these ways nobody tells who is at the other end.
    let mut client = Client::new(W::connect(&cluster.meta));
    let nobody = client.call(&hello(peer_role::PROCESS, [7; 16])).unwrap_err();
    assert_eq!(nobody.status, Status::Unauthenticated);
    let both = HelloRequest { role: peer_role::SERVER, ..hello(peer_role::CLIENT, [7; 16]) };
    assert_eq!(Client::new(W::connect(&cluster.meta)).call(&both).unwrap_err().status, Status::Invalid);
}

fn connections_end_with_their_keys<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let (alice, bob) = (user(ALICE), user(BOB));
    let mut meta = with_key(W::connect(&cluster.meta), &alice);
    let mut io = with_key(W::connect(&cluster.io[0]), &alice);
    let mut bobs = with_key(W::connect(&cluster.io[0]), &bob);
    let mut root = cluster.meta();
    let listed = root.call(&ListKeysRequest { after: [0; 16] }).unwrap();
    assert!(listed.end && listed.keys.iter().any(|record| record.key == alice.info && record.revoked_s == 0));
    root.call(&RevokeKeyRequest { id: alice.info.id }).unwrap();
    // An operation of servers, which the metadata server would send.
    let mut server = Client::new(W::connect(&cluster.io[0]));
    server.prove(&cluster_key().server_key(), &hello(peer_role::SERVER, [2; 16])).unwrap();
    server.call(&SetRevokedRequest { ids: vec![alice.info.id] }).unwrap();
    for client in [&mut meta, &mut io] {
        eventually("the end of the connection", || client.link.progress(&mut Vec::new()).is_err());
    }
    for place in [&cluster.meta, &cluster.io[0]] {
        let refused = prove(&mut Client::new(W::connect(place)), &alice).unwrap_err();
        assert!(refused.status == Status::Unauthenticated && refused.text.contains("revoked"), "{refused:?}");
    }
    bobs.call(&PingRequest { echo: vec![1] }).unwrap();
    assert_eq!(bobs.call(&SetRevokedRequest { ids: vec![] }).unwrap_err().status, Status::NotPermitted);
    assert!(
        root.call(&ListKeysRequest { after: [0; 16] })
            .unwrap()
            .keys
            .iter()
            .any(|record| record.revoked_s != 0)
    );
    let own = root.call(&RevokeKeyRequest { id: client_key().info.id }).unwrap_err();
    assert_eq!(own.status, Status::Invalid);
    assert_eq!(root.call(&RevokeKeyRequest { id: [77; 16] }).unwrap_err().status, Status::NotFound);
    // And one that expires while it is in use.
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_millis(3500);
    let short =
        IssuedKey::issue(&cluster_key(), KeyInfo { expires_s: now_s.as_secs(), ..bob.info.clone() }).unwrap();
    let mut brief = with_key(W::connect(&cluster.meta), &short);
    eventually("the end of the connection", || brief.link.progress(&mut Vec::new()).is_err());
}

over_all_ways! {
    the_holder_of_a_user_key_is_that_user_whatever_it_says the_root_of_a_squashed_host_is_nobody a_session_of_the_same_name_is_another_for_every_key a_capability_is_of_use_to_whom_it_was_given_only a_reader_with_a_user_key_does_not_settle_a_size a_changed_expired_or_missing_key_is_refused connections_end_with_their_keys
}
