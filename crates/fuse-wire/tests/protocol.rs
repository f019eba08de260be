//! The protocol against bytes written down from the kernel's definitions, and against hostile ones.

use proptest::prelude::*;
use std::time::Duration;
use weft_fuse_wire::init::{Agreement, Offer, capability};
use weft_fuse_wire::ring::{Arrived, HEADERS_BYTES, command, put_reply};
use weft_fuse_wire::{
    Attributes, Body, CopyRange, DirectoryEntry, Entry, FileTime, Header, LockFound, LockRequest, OpenReply,
    ReplyHeader, Request, SetAttributes, SetTime, Space, WriteManner, notes, open_flags, split,
};

/// Numbers of 64 and 32 bits, and bytes, one behind the other.
enum Field<'a> {
    D(u64),
    W(u32),
    H(u16),
    B(&'a [u8]),
}
use Field::{B, D, H, W};

const EIO: i32 = 5;

fn ignore<T>(_: T) {}

fn bytes(fields: &[Field<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for field in fields {
        match field {
            D(number) => all.extend(number.to_ne_bytes()),
            W(number) => all.extend(number.to_ne_bytes()),
            H(number) => all.extend(number.to_ne_bytes()),
            B(bytes) => all.extend(*bytes),
        }
    }
    all
}

fn header(opcode: u32, body_bytes: usize) -> Header {
    let length = (Header::BYTES + body_bytes) as u32;
    Header { length, opcode, unique: 6, node: 7, uid: 1000, gid: 100, pid: 4711 }
}

/// Decodes a request as it comes through the device.
#[track_caller]
fn decoded<'a>(opcode: u32, body: &'a [u8]) -> Request<'a> {
    let (arguments, data) = split(opcode, body);
    Request::decode(&header(opcode, body.len()), arguments, data).unwrap()
}

#[test]
fn a_header_is_read() {
    let raw = bytes(&[W(52), W(1), D(6), D(7), W(1000), W(100), W(4711), H(0), H(0)]);
    assert_eq!(Header::decode(&raw).unwrap(), header(1, 12));
    assert!(Header::decode(&raw[..39]).is_err());
}

#[test]
fn every_request_is_read_as_the_kernel_lays_it_out() {
    let lock = LockRequest { handle: 1, owner: 2, first: 3, last: 4, kind: 5, pid: 6, flock: true };
    let lock_bytes = bytes(&[D(1), D(2), D(3), D(4), W(5), W(6), W(1), W(0)]);
    let time = |seconds, nanoseconds| Some(SetTime::To(FileTime { seconds, nanoseconds }));
    let copy = |wide| Request::CopyRange(CopyRange { from: (1, 2), to: (4, 5), bytes: 6, wide });
    let copy_bytes = bytes(&[D(1), D(2), D(3), D(4), D(5), D(6), D(0)]);
    let set = |valid, atime: i64| {
        let times = [D(atime as u64), D(31), D(32)];
        let mut fields = vec![W(valid), W(0), D(1), D(2), D(3)];
        fields.extend(times);
        fields.extend([W(40), W(41), W(42), W(0o640), W(0), W(50), W(60), W(0)]);
        bytes(&fields)
    };
    let cases: Vec<(u32, Vec<u8>, Request<'_>)> = vec![
        (1, bytes(&[B(b"name\0")]), Request::Lookup { name: b"name" }),
        (2, bytes(&[D(3)]), Request::Forget { lookups: 3 }),
        (3, bytes(&[W(0), W(0), D(0)]), Request::GetAttributes),
        (5, vec![], Request::ReadLink),
        (6, bytes(&[B(b"link\0there\0")]), Request::Symlink { name: b"link", target: b"there" }),
        (
            8,
            bytes(&[W(0o644), W(0x103), W(0o22), W(0), B(b"dev\0")]),
            Request::MakeNode { name: b"dev", mode: 0o644, umask: 0o22, device: 0x103 },
        ),
        (
            9,
            bytes(&[W(0o755), W(0o22), B(b"dir\0")]),
            Request::MakeDirectory { name: b"dir", mode: 0o755, umask: 0o22 },
        ),
        (10, bytes(&[B(b"a\0")]), Request::Unlink { name: b"a" }),
        (11, bytes(&[B(b"a\0")]), Request::RemoveDirectory { name: b"a" }),
        (
            12,
            bytes(&[D(9), B(b"old\0new\0")]),
            Request::Rename { name: b"old", new_dir: 9, new_name: b"new", flags: 0 },
        ),
        (
            45,
            bytes(&[D(9), W(2), W(0), B(b"old\0new\0")]),
            Request::Rename { name: b"old", new_dir: 9, new_name: b"new", flags: 2 },
        ),
        (13, bytes(&[D(9), B(b"n\0")]), Request::Link { node: 9, name: b"n" }),
        (14, bytes(&[W(0o100001), W(0)]), Request::Open { flags: 0o100001 }),
        (
            35,
            bytes(&[W(0o102), W(0o600), W(0o77), W(0), B(b"n\0")]),
            Request::Create { name: b"n", flags: 0o102, mode: 0o600, umask: 0o77 },
        ),
        (
            15,
            bytes(&[D(1), D(2), W(3), W(0), D(0), W(0o42000), W(0)]),
            Request::Read { handle: 1, offset: 2, bytes: 3, flags: 0o42000 },
        ),
        (
            16,
            bytes(&[D(1), D(2), W(4), W(4), D(0), W(0o2001), W(0), B(b"data")]),
            Request::Write {
                handle: 1,
                offset: 2,
                data: b"data",
                manner: WriteManner { clear_set_id: true, written_back: false, flags: 0o2001 },
            },
        ),
        (17, vec![], Request::StatFs),
        (18, bytes(&[D(1), W(2), W(0), D(3)]), Request::Release { handle: 1 }),
        (20, bytes(&[D(1), W(1), W(0)]), Request::Fsync { handle: 1 }),
        (
            21,
            bytes(&[W(3), W(1), B(b"user.a\0val")]),
            Request::SetXattr { name: b"user.a", value: b"val", flags: 1 },
        ),
        (22, bytes(&[W(9), W(0), B(b"user.a\0")]), Request::GetXattr { name: b"user.a", bytes: 9 }),
        (23, bytes(&[W(9), W(0)]), Request::ListXattrs { bytes: 9 }),
        (24, bytes(&[B(b"user.a\0")]), Request::RemoveXattr { name: b"user.a" }),
        (25, bytes(&[D(1), W(0), W(0), D(2)]), Request::Flush { handle: 1, owner: 2 }),
        (27, bytes(&[W(0), W(0)]), Request::OpenDirectory),
        (
            28,
            bytes(&[D(1), D(2), W(3), W(0), D(0), W(0), W(0)]),
            Request::ReadDirectory { handle: 1, position: 2, bytes: 3, with_attributes: false },
        ),
        (
            44,
            bytes(&[D(1), D(2), W(3), W(0), D(0), W(0), W(0)]),
            Request::ReadDirectory { handle: 1, position: 2, bytes: 3, with_attributes: true },
        ),
        (29, bytes(&[D(1), W(0), W(0), D(0)]), Request::ReleaseDirectory { handle: 1 }),
        (30, bytes(&[D(1), W(0), W(0)]), Request::FsyncDirectory),
        (31, lock_bytes.clone(), Request::GetLock(lock)),
        (32, lock_bytes.clone(), Request::SetLock { lock, wait: false }),
        (33, lock_bytes, Request::SetLock { lock, wait: true }),
        (34, bytes(&[W(4), W(0)]), Request::Access { mask: 4 }),
        (36, bytes(&[D(6)]), Request::Interrupt { unique: 6 }),
        (38, vec![], Request::Destroy),
        (
            43,
            bytes(&[D(1), D(2), D(3), W(1), W(0)]),
            Request::Fallocate { handle: 1, offset: 2, bytes: 3, mode: 1 },
        ),
        (
            39,
            bytes(&[D(1), W(0), W(0x4008_6602), D(9), W(4), W(0), W(0x10)]),
            Request::Ioctl { command: 0x4008_6602, data: &[0x10, 0, 0, 0] },
        ),
        (46, bytes(&[D(1), D(2), W(3), W(0)]), Request::Seek { handle: 1, offset: 2, whence: 3 }),
        (47, copy_bytes.clone(), copy(false)),
        (53, copy_bytes, copy(true)),
        (37, vec![], Request::Other),
        (
            4,
            set(0x7f, -2),
            Request::SetAttributes(SetAttributes {
                mode: Some(0o640),
                uid: Some(50),
                gid: Some(60),
                size: Some(2),
                atime: time(-2, 40),
                mtime: time(31, 41),
                handle: Some(1),
            }),
        ),
        (
            4,
            set(0x1b0, 5),
            Request::SetAttributes(SetAttributes {
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ..SetAttributes::default()
            }),
        ),
    ];
    for (opcode, raw, request) in cases {
        assert_eq!(decoded(opcode, &raw), request, "operation {opcode}");
        // Whatever is missing at the end is noticed, and nothing is read behind it.
        let (arguments, data) = split(opcode, &raw);
        for cut in 0..data.len() {
            let cut = Request::decode(&header(opcode, raw.len()), arguments, &data[..cut]);
            assert!(cut.is_err(), "operation {opcode} without its end");
        }
    }
    // Whatever name there is, if any.
    let unnamed = [W(0o20200002), W(0o600), W(0o77), W(0)];
    for raw in [bytes(&unnamed), [bytes(&unnamed), b"/\0".to_vec()].concat()] {
        let request = Request::CreateUnnamed { flags: 0o20200002, mode: 0o600, umask: 0o77 };
        assert_eq!(decoded(51, &raw), request);
    }
    let forgets = bytes(&[W(2), W(0), D(7), D(1), D(8), D(2)]);
    let Request::ForgetMany(forgets) = decoded(42, &forgets) else { panic!("many are forgotten") };
    assert_eq!(forgets.collect::<Vec<_>>(), [(7, 1), (8, 2)]);
}

fn attributes() -> Attributes {
    let time = |seconds| FileTime { seconds, nanoseconds: seconds as u32 + 100 };
    Attributes {
        ino: 1,
        size: 2,
        blocks: 3,
        atime: time(4),
        mtime: time(5),
        ctime: time(6),
        mode: 0o100644,
        links: 8,
        uid: 9,
        gid: 10,
        device: 0x1234_5678,
        block_bytes: 11,
    }
}

fn attribute_fields() -> Vec<Field<'static>> {
    let times = [D(4), D(5), D(6), W(104), W(105), W(106)];
    let mut fields = vec![D(1), D(2), D(3)];
    fields.extend(times);
    fields.extend([W(0o100644), W(8), W(9), W(10), W(0x1234_5678), W(11), W(0)]);
    fields
}

#[track_caller]
fn expect(write: impl FnOnce(&mut Body<'_>), fields: &[Field<'_>]) {
    let mut memory = [0xee; 1024];
    let mut body = Body::new(&mut memory);
    write(&mut body);
    assert!(body.fits());
    let length = body.length();
    assert_eq!(memory[..length], bytes(fields));
}

#[test]
fn every_reply_is_laid_out_as_the_kernel_reads_it() {
    let valid = Duration::new(20, 21);
    let header = ReplyHeader { unique: 6, errno: EIO, body_bytes: 0 };
    assert_eq!(header.encode()[..], bytes(&[W(16), W(-EIO as u32), D(6)]));
    let header = ReplyHeader { unique: 6, errno: 0, body_bytes: 8 };
    assert_eq!(header.encode()[..], bytes(&[W(24), W(0), D(6)]));

    let mut fields = vec![D(20), W(21), W(0)];
    fields.extend(attribute_fields());
    expect(|body| ignore(body.attributes(&attributes(), valid)), &fields);

    let entry = Entry {
        node: 30,
        generation: 31,
        entry_valid: Duration::new(32, 34),
        attr_valid: Duration::new(33, 35),
        attributes: attributes(),
    };
    let mut entry_fields = vec![D(30), D(31), D(32), D(33), W(34), W(35)];
    entry_fields.extend(attribute_fields());
    expect(|body| ignore(body.entry(&entry)), &entry_fields);

    let opened = OpenReply { handle: 1, flags: open_flags::DIRECT_IO | open_flags::KEEP_CACHE };
    expect(|body| ignore(body.opened(&opened)), &[D(1), W(3), W(0)]);
    expect(|body| ignore(body.count(5)), &[W(5), W(0)]);
    let found = LockFound { first: 1, last: 2, kind: 3, pid: 4 };
    expect(|body| ignore(body.lock(&found)), &[D(1), D(2), W(3), W(4)]);
    let space = Space {
        block_bytes: 4096,
        blocks: 1,
        free: 2,
        available: 3,
        files: 4,
        files_free: 5,
        name_bytes_max: 255,
    };
    let fields = [D(1), D(2), D(3), D(4), D(5), W(4096), W(255), W(4096), B(&[0; 28])];
    expect(|body| ignore(body.space(&space)), &fields);

    let name = DirectoryEntry { ino: 1, position: 2, mode: 0o040000, name: b"abc" };
    let name_fields = [D(1), D(2), W(3), W(4), B(b"abc\0\0\0\0\0")];
    expect(|body| assert!(body.directory_entry(&name, None)), &name_fields);
    entry_fields.extend(name_fields);
    expect(|body| assert!(body.directory_entry(&name, Some(&entry))), &entry_fields);
}

#[test]
fn what_has_no_room_is_left_out_whole() {
    let name = DirectoryEntry { ino: 1, position: 2, mode: 0o040000, name: b"abcdefgh" };
    let mut memory = [0; 63];
    let mut body = Body::new(&mut memory);
    assert!(body.directory_entry(&name, None));
    assert!(!body.directory_entry(&name, None));
    assert_eq!((body.length(), body.fits()), (32, true));
    body.bytes(&[0; 32]);
    assert_eq!((body.length(), body.fits()), (32, false));
}

#[test]
fn notes_are_laid_out_as_the_kernel_reads_them() {
    assert_eq!(notes::forget_inode(7, Some(0..u64::MAX)), bytes(&[W(40), W(2), D(0), D(7), D(0), D(0)]));
    assert_eq!(notes::forget_inode(7, Some(9..11)), bytes(&[W(40), W(2), D(0), D(7), D(9), D(2)]));
    assert_eq!(notes::forget_inode(7, None), bytes(&[W(40), W(2), D(0), D(7), D(u64::MAX), D(0)]));
    assert_eq!(notes::ask_again(7, b"ab"), bytes(&[W(35), W(3), D(0), D(7), W(2), W(1), B(b"ab\0")]));
    assert_eq!(notes::ask_all_again(), bytes(&[W(16), W(8), D(0)]));
}

#[test]
fn the_first_request_and_its_reply() {
    let low = (capability::INIT_EXT | capability::ASYNC_READ) as u32;
    let offer = bytes(&[W(7), W(45), W(131072), W(low), W(1 << 9), B(&[0; 44])]);
    let offer = Offer::decode(&offer).unwrap();
    assert_eq!((offer.version, offer.read_ahead_bytes_max), ((7, 45), 131072));
    assert_eq!(offer.capabilities, 1 | 1 << 30 | capability::OVER_IO_URING);
    // An older kernel sends less.
    let old = Offer::decode(&bytes(&[W(7), W(31), W(131072), W(1)])).unwrap();
    assert_eq!((old.version, old.capabilities), ((7, 31), 1));

    let agreement = Agreement {
        read_ahead_bytes_max: 131072,
        capabilities: capability::ASYNC_READ | capability::OVER_IO_URING,
        background_max: 64,
        request_bytes_max: 1 << 20,
    };
    let flags = 1 | 1 << 22 | 1 << 30;
    let limits = [H(64), H(48), W(1 << 20), W(1), H(256), H(0), W(1 << 9), B(&[0; 28])];
    let mut fields = vec![W(7), W(45), W(131072), W(flags)];
    fields.extend(limits);
    assert_eq!(agreement.encode((7, 46))[..], bytes(&fields));
    assert_eq!(agreement.encode((7, 31))[4..8], 31u32.to_ne_bytes());
}

#[test]
fn an_entry_of_a_ring_carries_a_request_there_and_a_reply_back() {
    let mut headers = [0; HEADERS_BYTES];
    let raw = bytes(&[W(88), W(15), D(6), D(7), W(1000), W(100), W(4711), W(0)]);
    headers[..40].copy_from_slice(&raw);
    headers[128..168].copy_from_slice(&bytes(&[D(1), D(2), W(3), W(0), D(0), W(0), W(0)]));
    headers[256..280].copy_from_slice(&bytes(&[D(0), D(77), W(8), W(0)]));
    let arrived = Arrived::decode(&headers).unwrap();
    assert_eq!((arrived.header, arrived.commit, arrived.payload_bytes), (header(15, 48), 77, 8));
    let request = Request::decode(&arrived.header, arrived.arguments, &[]).unwrap();
    assert_eq!(request, Request::Read { handle: 1, offset: 2, bytes: 3, flags: 0 });

    put_reply(&mut headers, &ReplyHeader { unique: 6, errno: 0, body_bytes: 3 });
    assert_eq!(headers[..16], bytes(&[W(19), W(0), D(6)]));
    assert_eq!(headers[264..276], bytes(&[D(77), W(3)]));

    let command = command(77, 3);
    assert_eq!(command[..24], bytes(&[D(0), D(77), H(3), H(0), W(0)]));
    assert!(command[24..].iter().all(|byte| *byte == 0));
}

/// In one piece, and as they lie in a ring.
#[test]
fn hostile_bytes_are_a_request_or_an_error() {
    let opcodes = 0..60;
    let right: Vec<_> =
        opcodes.map(|opcode| [&bytes(&[W(168), W(opcode)])[..], &[1; 160]].concat()).collect();
    weft_test_fuzz::run("fuse", &right, |bytes| {
        if let Ok(header) = Header::decode(bytes) {
            let body = &bytes[Header::BYTES..];
            let (arguments, data) = split(header.opcode, body);
            if let Ok(Request::ForgetMany(forgets)) = Request::decode(&header, arguments, data) {
                assert!(forgets.count() <= body.len() / 16);
            }
            let _ = Offer::decode(body);
        }
        if let Some((headers, payload)) = bytes.split_first_chunk::<HEADERS_BYTES>()
            && let Ok(arrived) = Arrived::decode(headers)
        {
            let _ = Request::decode(&arrived.header, arrived.arguments, payload);
        }
    });
}

proptest! {
    #![proptest_config(weft_test_random::cases(256))]
    #[test]
    fn a_listing_never_goes_beyond_its_memory(room in 0usize..200, names in prop::collection::vec("[a-z]{1,30}", 0..8)) {
        let mut memory = vec![0; room];
        let mut body = Body::new(&mut memory);
        let mut expected = 0;
        for name in &names {
            let bytes = (24 + name.len()).next_multiple_of(8);
            let entry = DirectoryEntry { ino: 1, position: 2, mode: 0o100000, name: name.as_bytes() };
            let fits = expected + bytes <= room;
            prop_assert_eq!(body.directory_entry(&entry, None), fits);
            expected += if fits { bytes } else { 0 };
        }
        prop_assert_eq!(body.length(), expected);
    }
}
