//! Calls as bytes.

use std::net::SocketAddr;

use nfs3_types::nfs3::{LOOKUP3res, MKDIR3res, READ3res, REMOVE3res, RMDIR3res, WRITE3res};
use nfs3_types::xdr_codec::Unpack;
use weft_reactor::{Reactor, ReactorOptions};

use super::*;
use crate::credential::Credential;
use crate::serving::options;
use crate::testing::Cluster;
use weft_onc_rpc::xdr::Writer;

fn sender() -> Sender {
    let peer = SocketAddr::from(([127, 0, 0, 1], 700));
    Sender { peer, credential: Some(Credential::new(0, 0, &[])) }
}

fn with_gateway(path: &str, test: impl AsyncFnOnce(&Cluster, &Gateway)) {
    let cluster = Cluster::start(2, 4096);
    let client = cluster.client();
    client.mkdir("/home", 0o755).unwrap();
    client.mkdir("/home/user", 0o755).unwrap();
    let reactor = Reactor::new(ReactorOptions::default()).unwrap();
    reactor.run(async {
        let gateway = Gateway::new(&options(cluster.client(), &cluster.key, path)).unwrap();
        test(&cluster, &gateway).await;
        gateway.close().await;
    });
}

async fn call(gateway: &Gateway, xid: u32, program: u32, procedure: u32, args: &[u8]) -> Outcome {
    let (payload, buffers) = (None, Buffers::default());
    let call = Call { xid, program, version: VERSION, procedure, args, payload, buffers };
    gateway.call(&sender(), call).await
}

fn bytes(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Done { mut head, data } => {
            head.extend_from_slice(&data);
            head.resize(head.len().next_multiple_of(4), 0);
            head
        }
        other => panic!("{other:?}"),
    }
}

fn result<T: Unpack>(outcome: Outcome) -> T {
    let bytes = bytes(outcome);
    let mut left = bytes.as_slice();
    let (value, _) = T::unpack(&mut left).unwrap();
    assert!(left.is_empty(), "there is more than the result");
    value
}

async fn mount(gateway: &Gateway, path: &str) -> Result<Vec<u8>, u32> {
    let args = Writer::new().opaque(path.as_bytes()).into_bytes();
    let reply = bytes(call(gateway, 1, MOUNT_PROGRAM, 1, &args).await);
    let mut from = Reader::new(&reply);
    match from.u32().unwrap() {
        0 => Ok(from.opaque(64).unwrap().to_vec()),
        status => Err(status),
    }
}

#[test]
fn directories_of_an_export_are_mounted() {
    with_gateway("/home", async |cluster, gateway| {
        let top = mount(gateway, "/home").await.unwrap();
        assert_eq!(mount(gateway, "/home/./").await, Ok(top.clone()));
        let user = mount(gateway, "/home/user").await.unwrap();
        let args = Writer::new().opaque(&top).opaque(b"user").into_bytes();
        let found: LOOKUP3res = result(call(gateway, 2, NFS_PROGRAM, 3, &args).await);
        assert_eq!(found.unwrap().object.data.to_vec(), user);
        assert_eq!(mount(gateway, "/").await, Err(13));
        assert_eq!(mount(gateway, "/homes").await, Err(13));
        assert_eq!(mount(gateway, "/home/user/../..").await, Err(13));
        assert_eq!(mount(gateway, "/home/nobody").await, Err(2));
        cluster.client().symlink("/home/out", b"/").unwrap();
        assert_eq!(mount(gateway, "/home/out").await, Err(20), "a link is not followed");
        let list = bytes(call(gateway, 3, MOUNT_PROGRAM, 5, &[]).await);
        let expected = Writer::new().u32(1).opaque(b"/home").u32(1).opaque(b"*").u32(0).u32(0);
        assert_eq!(list, expected.into_bytes());
        let mounted = bytes(call(gateway, 3, MOUNT_PROGRAM, 2, &[]).await);
        assert!(mounted.windows(9).any(|part| part == b"127.0.0.1"));
        assert_eq!(bytes(call(gateway, 3, MOUNT_PROGRAM, 4, &[]).await), []);
        assert_eq!(bytes(call(gateway, 3, MOUNT_PROGRAM, 2, &[]).await), [0; 4]);
        gateway.set_exports(&[]);
        let stale: LOOKUP3res = result(call(gateway, 4, NFS_PROGRAM, 3, &args).await);
        assert!(matches!(stale, Nfs3Result::Err((nfsstat3::NFS3ERR_STALE, _))));
        assert_eq!(mount(gateway, "/home").await, Err(13));
    });
}

#[test]
fn a_call_that_comes_twice_is_done_once() {
    with_gateway("/", async |_, gateway| {
        let top = mount(gateway, "/").await.unwrap();
        let make =
            Writer::new().opaque(&top).opaque(b"d").u32(0).u32(0).u32(0).u32(0).u32(0).u32(0).into_bytes();
        let first = bytes(call(gateway, 7, NFS_PROGRAM, 9, &make).await);
        assert_eq!(bytes(call(gateway, 7, NFS_PROGRAM, 9, &make).await), first);
        let other: MKDIR3res = result(call(gateway, 8, NFS_PROGRAM, 9, &make).await);
        assert!(matches!(other, Nfs3Result::Err((nfsstat3::NFS3ERR_EXIST, _))));
        let name = Writer::new().opaque(&top).opaque(b"d").into_bytes();
        for _ in 0..3 {
            let removed: RMDIR3res = result(call(gateway, 9, NFS_PROGRAM, 13, &name).await);
            removed.unwrap();
        }
        let again: REMOVE3res = result(call(gateway, 9, NFS_PROGRAM, 12, &name).await);
        assert!(matches!(again, Nfs3Result::Err((nfsstat3::NFS3ERR_NOENT, _))), "another procedure");
    });
}

#[test]
fn a_write_that_comes_twice_is_done_once() {
    with_gateway("/", async |cluster, gateway| {
        let top = mount(gateway, "/").await.unwrap();
        let options = weft_client::OpenOptions::new().write(true).create(true);
        cluster.client().open("/f", &options).unwrap().close().unwrap();
        let args = Writer::new().opaque(&top).opaque(b"f").into_bytes();
        let found: LOOKUP3res = result(call(gateway, 2, NFS_PROGRAM, 3, &args).await);
        let file = found.unwrap().object.data.to_vec();
        let write =
            |text: &[u8]| Writer::new().opaque(&file).u32(0).u32(0).u32(5).u32(0).opaque(text).into_bytes();
        let (first, second) = (write(b"first"), write(b"again"));
        let twice = [3, 3].map(|xid| call(gateway, xid, NFS_PROGRAM, 7, &first));
        let [one, other] = twice;
        let (one, other) = crate::weft::both(one, other).await;
        assert_eq!((bytes(one), gateway.counts().written_bytes), (bytes(other), 5));
        bytes(call(gateway, 4, NFS_PROGRAM, 7, &second).await);
        bytes(call(gateway, 3, NFS_PROGRAM, 7, &first).await);
        let args = Writer::new().opaque(&file).u32(0).u32(0).u32(100).into_bytes();
        let read: READ3res<'static> = result(call(gateway, 5, NFS_PROGRAM, 6, &args).await);
        assert_eq!(read.unwrap().data.0.as_ref(), b"again", "an old repetition comes too late");
    });
}

/// A client that was started anew may count its calls from where it did before.
#[test]
fn a_write_of_other_data_is_another_write() {
    with_gateway("/", async |cluster, gateway| {
        let top = mount(gateway, "/").await.unwrap();
        let options = weft_client::OpenOptions::new().write(true).create(true);
        cluster.client().open("/f", &options).unwrap().close().unwrap();
        let args = Writer::new().opaque(&top).opaque(b"f").into_bytes();
        let found: LOOKUP3res = result(call(gateway, 2, NFS_PROGRAM, 3, &args).await);
        let file = found.unwrap().object.data.to_vec();
        let args = Writer::new().opaque(&file).u32(0).u32(0).u32(5).u32(0).u32(5).into_bytes();
        for data in [b"first", b"again"] {
            let beside = Call {
                xid: 3,
                program: NFS_PROGRAM,
                version: VERSION,
                procedure: 7,
                args: &args,
                payload: Some(data.to_vec().into()),
                buffers: Buffers::default(),
            };
            bytes(gateway.call(&sender(), beside).await);
        }
        let args = Writer::new().opaque(&file).u32(0).u32(0).u32(100).into_bytes();
        let read: READ3res<'static> = result(call(gateway, 5, NFS_PROGRAM, 6, &args).await);
        assert_eq!(read.unwrap().data.0.as_ref(), b"again");
    });
}

#[test]
fn data_go_both_ways_whether_they_are_in_the_arguments_or_beside_them() {
    with_gateway("/", async |cluster, gateway| {
        let top = mount(gateway, "/").await.unwrap();
        let options = weft_client::OpenOptions::new().write(true).create(true);
        cluster.client().open("/f", &options).unwrap().close().unwrap();
        let args = Writer::new().opaque(&top).opaque(b"f").into_bytes();
        let found: LOOKUP3res = result(call(gateway, 2, NFS_PROGRAM, 3, &args).await);
        let file = found.unwrap().object.data.to_vec();
        let head = |count: u32| Writer::new().opaque(&file).u32(0).u32(0).u32(count).u32(0);
        let written: WRITE3res =
            result(call(gateway, 3, NFS_PROGRAM, 7, &head(5).opaque(b"abcde").into_bytes()).await);
        assert_eq!(written.unwrap().count, 5);
        let args = head(3).u32(5).into_bytes();
        let beside = Call {
            xid: 4,
            program: NFS_PROGRAM,
            version: VERSION,
            procedure: 7,
            args: &args,
            payload: Some(b"XYZxx".to_vec().into()),
            buffers: Buffers::default(),
        };
        let written: WRITE3res = result(gateway.call(&sender(), beside).await);
        assert_eq!(written.unwrap().count, 3);
        let args = Writer::new().opaque(&file).u32(0).u32(1).u32(100).into_bytes();
        let read: READ3res<'static> = result(call(gateway, 5, NFS_PROGRAM, 6, &args).await);
        let read = read.unwrap();
        assert_eq!((read.data.0.as_ref(), read.count, read.eof), (&b"YZde"[..], 4, true));
        let counts = gateway.counts();
        assert_eq!((counts.read_bytes, counts.written_bytes, counts.open_inodes), (4, 8, 1));
        let lie = head(6).opaque(b"abcde").into_bytes();
        assert_eq!(call(gateway, 6, NFS_PROGRAM, 7, &lie).await, Outcome::BadArguments);
    });
}

#[test]
fn what_is_not_served_is_said() {
    with_gateway("/", async |_, gateway| {
        assert_eq!(call(gateway, 1, 100_000, 0, &[]).await, Outcome::NoProgram);
        assert_eq!(call(gateway, 1, NFS_PROGRAM, 22, &[]).await, Outcome::NoProcedure);
        assert_eq!(call(gateway, 1, MOUNT_PROGRAM, 6, &[]).await, Outcome::NoProcedure);
        let old = Call {
            xid: 1,
            program: NFS_PROGRAM,
            version: 2,
            procedure: 0,
            args: &[],
            payload: None,
            buffers: Buffers::default(),
        };
        assert_eq!(gateway.call(&sender(), old).await, Outcome::Versions { low: VERSION, high: VERSION });
        for procedure in 1..22 {
            for args in [&[][..], &[0, 0, 0, 65], &[0xff; 40]] {
                assert_eq!(call(gateway, 1, NFS_PROGRAM, procedure, args).await, Outcome::BadArguments);
            }
        }
        for program in [NFS_PROGRAM, MOUNT_PROGRAM] {
            assert_eq!(bytes(call(gateway, 1, program, 0, &[]).await), []);
        }
    });
}
