//! Open files that are passed to other clients, and what reading into many buffers allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};

use weft_client::{Client, ConnectOptions, EXPORT_BYTES_MAX, ErrorKind, File, OpenOptions, Transport};
use weft_test_cluster::{Cluster, pattern};
use weft_wire::Status;
use weft_wire::keys::{IssuedKey, KeyInfo, KeyKind};

const STRIP_BYTES: u32 = 4096;

thread_local! {
    /// Allocations of this thread, and their bytes.
    static ALLOCATED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: usize) {
    let _ = ALLOCATED.try_with(|allocated| {
        let (number, sum) = allocated.get();
        allocated.set((number + 1, sum + bytes));
    });
}

// SAFETY: it is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, bytes) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn create() -> OpenOptions {
    OpenOptions::new().read(true).write(true).create(true).truncate(true)
}

fn read_all(file: &File) -> Vec<u8> {
    let mut data = vec![0; 1 << 20];
    let bytes = file.read_at(&mut data, 0).unwrap();
    data.truncate(bytes);
    data
}

#[test]
fn an_exported_file_is_open_for_whoever_imports_it() {
    let cluster = Cluster::start(3, STRIP_BYTES);
    let (first, second) = (cluster.client(Transport::Tcp), cluster.client(Transport::Tcp));
    let file = first.open("/shared", &create().append(true)).unwrap();
    let data = pattern(1, 100_000);
    file.write_at(&data, 0).unwrap();
    let mut exported = file.export().unwrap();
    assert!(exported.len() <= EXPORT_BYTES_MAX);
    exported.resize(EXPORT_BYTES_MAX, 0x55);

    let imported = second.import(&exported).unwrap();
    assert!(read_all(&imported) == data, "what was written and not yet reported");
    assert_eq!(imported.write(b"more").unwrap(), 4);
    assert!(read_all(&file)[100_000..] == *b"more", "it appends, as the handle that was exported");

    // The name, and the handle that was exported, may go: the file stays open.
    file.close().unwrap();
    first.unlink("/shared").unwrap();
    assert_eq!(read_all(&imported).len(), 100_004);
    let again = second.import(&exported).unwrap();
    assert_eq!(again.write_at(b"x", 0).unwrap(), 1);
    again.close().unwrap();
    assert_eq!(read_all(&imported)[..1], *b"x");
    imported.close().unwrap();
    let gone = second.import(&exported).unwrap_err();
    assert!(matches!(gone.status(), Some(Status::Stale)), "{gone}");
    assert!(gone.to_string().contains("/shared"), "{gone}");
}

#[test]
fn a_file_that_was_exported_to_read_is_not_written_and_its_size_is_reported() {
    let cluster = Cluster::start(2, STRIP_BYTES);
    let (first, second) = (cluster.client(Transport::Tcp), cluster.client(Transport::Tcp));
    first.open("/sizes", &create()).unwrap().close().unwrap();
    let reader = first.open("/sizes", &OpenOptions::new().read(true)).unwrap().export().unwrap();
    let error = second.import(&reader).unwrap().write_at(b"x", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOpenForThis);

    let writer = first.open("/sizes", &OpenOptions::new().write(true)).unwrap();
    let imported = second.import(&writer.export().unwrap()).unwrap();
    writer.close().unwrap();
    imported.write_at(&[1; 5000], 20_000).unwrap();
    assert_eq!(first.stat("/sizes", true).unwrap().size, 25_000, "of an open that only the importer has");
    imported.close().unwrap();
    let attr = first.stat("/sizes", true).unwrap();
    assert_eq!((attr.size, attr.size_live), (25_000, false));
}

/// What importing these bytes fails with.
fn refusal(client: &Client, exported: &[u8]) -> weft_client::Error {
    client.import(exported).map(|file| file.ino()).unwrap_err()
}

#[test]
fn what_is_cut_forged_or_anothers_opens_nothing() {
    let (cluster, other) = (Cluster::start(1, STRIP_BYTES), Cluster::start(1, STRIP_BYTES));
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/secret", &create().mode(0o600)).unwrap();
    let exported = file.export().unwrap();
    for bytes in 0..exported.len() {
        assert_eq!(refusal(&client, &exported[..bytes]).kind(), ErrorKind::Invalid, "cut to {bytes} bytes");
    }
    // At the end there is the name, which is for errors only.
    let name = exported.len() - "/secret".len() - size_of::<u32>();
    let capability_end = 30 + 54;
    for at in 0..name {
        let mut changed = exported.clone();
        changed[at] ^= 1;
        // Flags are not signed: whoever imports a file may append to it or not. Nor is what is behind the capability.
        let is_signed = !(26..30).contains(&at) && at < capability_end;
        match client.import(&changed) {
            Ok(opened) => assert!(!is_signed && opened.ino() == file.ino(), "byte {at} was changed"),
            Err(error) => assert!(
                error.kind() == ErrorKind::Invalid || error.status() == Some(Status::Capability),
                "byte {at} was changed: {error}"
            ),
        }
    }
    let error = refusal(&other.client(Transport::Tcp), &exported);
    assert!(
        error.kind() == ErrorKind::Invalid && error.to_string().contains("of another cluster"),
        "{error}"
    );

    let key = IssuedKey::issue(
        &cluster.key,
        KeyInfo {
            id: [7; 16],
            issuer: Default::default(),
            kind: KeyKind::User { uid: 1001, gids: vec![1001] },
            expires_s: 0,
            name: "bob".into(),
        },
    );
    let bob = ConnectOptions { key: Some(key.unwrap()), ..cluster.options(Transport::Tcp) };
    let error = refusal(&cluster.client_with(bob), &exported);
    assert_eq!(error.status(), Some(Status::Capability));
    assert!(error.to_string().contains("given to the holder of another key"), "{error}");
}

/// Allocations that `run` makes in this thread, and their bytes.
fn allocations(run: impl FnOnce()) -> (usize, usize) {
    let before = ALLOCATED.get();
    run();
    let after = ALLOCATED.get();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn many_buffers_are_read_and_written_without_a_copy_of_them_or_of_their_list() {
    const BUFFERS: usize = 1000;
    const BYTES: usize = 16 << 10;
    let cluster = Cluster::start(1, 1 << 20);
    let client = cluster.client(Transport::Tcp);
    let file = client.open("/buffers", &create()).unwrap();
    let data = pattern(3, BUFFERS * BYTES);
    let mut back = vec![0; data.len()];
    let out: Vec<_> = data.chunks(BYTES).map(IoSlice::new).collect();
    let mut into: Vec<_> = back.chunks_mut(BYTES).map(IoSliceMut::new).collect();
    assert_eq!(file.writev_at(&out, 0).unwrap(), data.len());
    assert_eq!(file.readv_at(&mut into, 0).unwrap(), data.len());
    let mut measured = Vec::new();
    for buffers in [10, BUFFERS] {
        measured.push([
            allocations(|| assert!(file.writev_at(&out[..buffers], 0).is_ok())),
            allocations(|| assert!(file.readv_at(&mut into[..buffers], 0).is_ok())),
        ]);
    }
    drop(into);
    assert!(back == data);
    let list_bytes = (BUFFERS - 10) * size_of::<weft_layout::Extent>();
    for ((few, few_bytes), (many, many_bytes)) in measured[0].into_iter().zip(measured[1]) {
        let (more, bytes) = (many.saturating_sub(few), many_bytes.saturating_sub(few_bytes));
        assert!(bytes < list_bytes, "{bytes} bytes are a copy of the list, or of the data");
        assert!(more < BUFFERS, "{more} allocations for {BUFFERS} buffers");
    }

    // Buffers at any distances are described one by one to the connection, but not copied either.
    let uneven: Vec<_> =
        data.chunks(BYTES).enumerate().map(|(at, chunk)| IoSlice::new(&chunk[at % 7..])).collect();
    let (_, bytes) = allocations(|| assert!(file.writev_at(&uneven, 0).is_ok()));
    assert!(bytes < data.len() / 10, "{bytes} bytes allocated to write {}", data.len());
}
