//! Reads and writes of pieces through the C and Rust interfaces, on real servers, against a model that moves a byte at a time.
//!
//! ```text
//!   operation = (file pieces, memory pieces, front door, nonblocking?)        random; also overlapping, unsorted, empty, beyond the end
//!   model     : for every byte of the stream: file[f] ◄─► memory[m]
//!   a byte that several are meant for may be any of these; every other byte is exactly as the model says
//! ```

#[allow(dead_code)]
#[path = "../../layout/tests/models/generate.rs"]
mod generate;

use generate::{bytes_of, joined};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use weft::*;
use weft_client::{Client, ConnectOptions, File, OpenOptions, Transport, Url};
use weft_layout::{Extent, Region, Regions};
use weft_tests::Cluster;
use weft_wire::messages::LayoutWish;
use weft_wire::security::Key;

const CASES: u32 = 150;
const STRIP_BYTES: u32 = 4096;

/// How an operation is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// `weft_readv_list`, `weft_writev_list`.
    Lists,
    /// The same with allocations.
    ListsAlloc,
    /// `File::read_raw`, `File::write_raw`.
    Regions,
}

/// One side of an operation.
#[derive(Debug, Clone)]
struct Side {
    regions: Regions,
}

impl Side {
    fn bytes(&self) -> Vec<u64> {
        bytes_of(&self.regions)
    }
}

#[derive(Debug, Clone)]
struct Operation {
    write: bool,
    file: Side,
    memory: Side,
    door: Door,
    nonblocking: bool,
    /// Lists have pieces of at most this many bytes, in memory and file.
    piece_bytes_max: (u64, u64),
}

#[derive(Debug, Clone)]
struct Case {
    servers: u16,
    /// What is in the file before.
    file_bytes: usize,
    operations: Vec<Operation>,
}

fn side() -> impl Strategy<Value = Side> {
    generate::regions().prop_map(|regions| Side { regions })
}

fn operation() -> impl Strategy<Value = Operation> {
    let door = prop_oneof![Just(Door::Lists), Just(Door::ListsAlloc), Just(Door::Regions)];
    let piece_bytes_max = (20u64..9000, 20u64..9000);
    (any::<bool>(), side(), side(), door, any::<bool>(), piece_bytes_max).prop_map(
        |(write, file, memory, door, nonblocking, piece_bytes_max)| Operation {
            write,
            file,
            memory,
            door,
            nonblocking,
            piece_bytes_max,
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let file_bytes = prop_oneof![Just(0), 1..300_000usize];
    (1u16..=3, file_bytes, proptest::collection::vec(operation(), 1..6))
        .prop_map(|(servers, file_bytes, operations)| Case { servers, file_bytes, operations })
}

/// Both interfaces to one cluster.
struct World {
    fs: *mut weft_fs,
    client: Client,
    files: Cell<u32>,
}

impl World {
    fn connect(cluster: &Cluster, transport: Transport) -> World {
        let name = if transport == Transport::Tcp { "tcp" } else { "shm" };
        let url = CString::new(format!("{}?transport={name}", cluster.url())).unwrap();
        let key_file = cluster.key_file();
        let key_path = CString::new(key_file.to_str().unwrap()).unwrap();
        let options = weft_connect_options { key_file: key_path.as_ptr(), timeout_ms: 0, reserved: [0; 6] };
        // SAFETY: the strings live through the call.
        let fs = unsafe { weft_connect(url.as_ptr(), &options) };
        assert!(!fs.is_null(), "{}", last_error());
        let key = Key::from_hex(&std::fs::read_to_string(key_file).unwrap()).unwrap();
        let options =
            ConnectOptions { key: Some(key), transport: Some(transport), ..ConnectOptions::default() };
        let client = Client::connect(&Url::parse(cluster.url()).unwrap(), options).unwrap();
        World { fs, client, files: Cell::new(0) }
    }

    fn create(&self, servers: u16) -> Opened {
        self.files.set(self.files.get() + 1);
        let path = format!("/model-{}-{}", std::process::id(), self.files.get());
        let wish = LayoutWish { strip_bytes: STRIP_BYTES, server_count: servers, first_server_plus_1: 0 };
        let options = OpenOptions::new().read(true).write(true).create(true).layout(wish);
        let rust = self.client.open(path.as_str(), &options).unwrap();
        let c_path = CString::new(path.as_str()).unwrap();
        // SAFETY: the handle is open, and the path lives through the call.
        let c = unsafe { weft_open(self.fs, c_path.as_ptr(), libc::O_RDWR, 0) };
        assert!(!c.is_null(), "{}", last_error());
        self.client.unlink(path.as_str()).unwrap();
        Opened { rust, c }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: it was connected, and nothing uses it any more.
        unsafe { weft_disconnect(self.fs) };
    }
}

fn last_error() -> String {
    // SAFETY: the text ends with a zero and lives until this thread's next failure.
    unsafe { CStr::from_ptr(weft_last_error()) }.to_string_lossy().into_owned()
}

/// The same file through both interfaces.
struct Opened {
    rust: File,
    c: *mut weft_file,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it is open, and nothing uses it any more.
        unsafe { weft_close(self.c) };
    }
}

/// Two arrays as C has them.
struct Lists<Offset, Length> {
    offsets: Vec<Offset>,
    lengths: Vec<Length>,
}

/// Pieces of at most `bytes_max` bytes, with empty ones among them.
fn pieces(bytes: &[u64], bytes_max: u64) -> Vec<Extent> {
    let mut pieces = Vec::new();
    for extent in joined(bytes) {
        for offset in (extent.offset..extent.end()).step_by(bytes_max as usize) {
            pieces.push(Extent::new(offset, bytes_max.min(extent.end() - offset)));
            if offset % 7 == 0 {
                pieces.push(Extent::new(offset * 3, 0));
            }
        }
    }
    pieces
}

/// What a call returned, whichever it was.
fn ended(bytes: isize) -> Result<u64, String> {
    u64::try_from(bytes).map_err(|_| last_error())
}

/// Waits for what was started.
fn waited(mut op: *mut weft_op) -> Result<u64, String> {
    assert!(!op.is_null(), "{}", last_error());
    // SAFETY: it was started, and is not used behind this.
    ended(unsafe { weft_wait(&mut op) })
}

impl Opened {
    /// Does it; the bytes that it says were moved.
    fn perform(&self, operation: &Operation, memory: &mut [u8], bytes: usize) -> Result<u64, String> {
        match operation.door {
            Door::Lists | Door::ListsAlloc => self.perform_lists(operation, memory, bytes),
            Door::Regions => {
                let window = |side: &Side| side.regions.window(0, bytes as u64);
                self.perform_regions(operation, memory, &window(&operation.memory), &window(&operation.file))
            }
        }
    }

    fn perform_lists(&self, operation: &Operation, memory: &mut [u8], bytes: usize) -> Result<u64, String> {
        let base = memory.as_mut_ptr();
        let (memory_max, file_max) = operation.piece_bytes_max;
        let extents = pieces(&operation.memory.bytes()[..bytes], memory_max);
        let addresses = Lists {
            offsets: extents.iter().map(|e| base.wrapping_add(e.offset as usize) as *const c_void).collect(),
            lengths: extents.iter().map(|extent| extent.bytes as usize).collect(),
        };
        let extents = pieces(&operation.file.bytes()[..bytes], file_max);
        let file: Lists<i64, i64> = Lists {
            offsets: extents.iter().map(|extent| extent.offset as i64).collect(),
            lengths: extents.iter().map(|extent| extent.bytes as i64).collect(),
        };
        let (count, addresses, lengths) =
            (addresses.offsets.len(), addresses.offsets.as_ptr(), addresses.lengths.as_ptr());
        let (file_count, offsets, file_lengths) =
            (file.offsets.len(), file.offsets.as_ptr(), file.lengths.as_ptr());
        let (parent, parent_bytes) = ([base as *const c_void], [memory.len()]);
        let (parent, parent_bytes) = (parent.as_ptr(), parent_bytes.as_ptr());
        macro_rules! call {
            ($plain:ident, $alloc:ident) => {
                match operation.door {
                    Door::ListsAlloc => $alloc(
                        self.c,
                        count,
                        addresses,
                        lengths,
                        1,
                        parent,
                        parent_bytes,
                        file_count,
                        offsets,
                        file_lengths,
                    ),
                    _ => $plain(self.c, count, addresses, lengths, file_count, offsets, file_lengths),
                }
            };
        }
        // SAFETY: the arrays and the memory live until the call, or the wait behind it, is over.
        unsafe {
            match (operation.write, operation.nonblocking) {
                (false, false) => ended(call!(weft_readv_list, weft_readv_list_alloc)),
                (true, false) => ended(call!(weft_writev_list, weft_writev_list_alloc)),
                (false, true) => waited(call!(weft_start_readv_list, weft_start_readv_list_alloc)),
                (true, true) => waited(call!(weft_start_writev_list, weft_start_writev_list_alloc)),
            }
        }
    }

    fn perform_regions(
        &self,
        operation: &Operation,
        memory: &mut [u8],
        memory_regions: &Regions,
        file: &Regions,
    ) -> Result<u64, String> {
        let base = memory.as_mut_ptr();
        // SAFETY: the memory lives until the call, or the wait behind it, is over.
        let result = unsafe {
            match (operation.write, operation.nonblocking) {
                (false, false) => self.rust.read_raw(base, memory_regions, file),
                (true, false) => self.rust.write_raw(base, memory_regions, file),
                (false, true) => self.rust.start_read_raw(base, memory_regions, file).wait(),
                (true, true) => self.rust.start_write_raw(base, memory_regions, file).wait(),
            }
        };
        result.map_err(|error| error.to_string())
    }
}

/// For every place that is written, all that it may hold afterwards.
type Meant = BTreeMap<u64, Vec<u8>>;

/// Compares with what is meant, and with what was there where nothing is.
fn check(what: &str, found: &[u8], before: &[u8], meant: &Meant) -> Result<(), TestCaseError> {
    for (at, byte) in found.iter().enumerate() {
        let old = [before.get(at).copied().unwrap_or(0)];
        let allowed = meant.get(&(at as u64)).map_or(&old[..], Vec::as_slice);
        prop_assert!(allowed.contains(byte), "{} at {}: {} is none of {:?}", what, at, byte, allowed);
    }
    Ok(())
}

fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| ((at + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

/// Everything that is in the file.
fn contents(file: &File) -> Vec<u8> {
    let mut all = vec![0x55; file.stat().unwrap().size as usize + 10];
    let bytes = file.read_at(&mut all, 0).unwrap();
    all.truncate(bytes);
    all
}

/// Whether a read leaves the memory for bytes beyond the end of the file as it was.
fn leaves_the_rest(operation: &Operation, bytes: usize) -> bool {
    let window = operation.file.regions.window(0, bytes as u64);
    operation.door == Door::Regions && matches!(window.parts.as_slice(), [Region::Contiguous(_)])
}

fn run(world: &World, case: &Case) -> Result<(), TestCaseError> {
    let opened = world.create(case.servers);
    let mut file = noise(1, case.file_bytes);
    opened.rust.write_at(&file, 0).unwrap();
    for (index, operation) in case.operations.iter().enumerate() {
        let (mut places, mut addresses) = (operation.file.bytes(), operation.memory.bytes());
        let bytes = places.len().min(addresses.len());
        places.truncate(bytes);
        addresses.truncate(bytes);
        let arena_bytes = operation.memory.bytes().into_iter().max().map_or(1, |last| last as usize + 100);
        let before = noise(2 + index as u64, arena_bytes);
        let mut memory = before.clone();
        let moved = opened.perform(operation, &mut memory, bytes).map_err(TestCaseError::fail)?;
        let mut meant = Meant::new();
        if operation.write {
            for (place, address) in places.iter().zip(&addresses) {
                meant.entry(*place).or_default().push(before[*address as usize]);
            }
            prop_assert_eq!(moved, bytes as u64, "operation {}", index);
            let found = contents(&opened.rust);
            let end = places.iter().max().map_or(0, |last| *last as usize + 1).max(file.len());
            prop_assert_eq!(found.len(), end, "size of the file behind operation {}", index);
            check(&format!("file behind operation {index}"), &found, &file, &meant)?;
            prop_assert!(memory == before, "a write changed the memory of operation {}", index);
            file = found;
            continue;
        }
        let rest = leaves_the_rest(operation, bytes);
        for (place, address) in places.iter().zip(&addresses) {
            let byte = match file.get(*place as usize) {
                Some(byte) => *byte,
                None if rest => before[*address as usize],
                None => 0,
            };
            meant.entry(*address).or_default().push(byte);
        }
        let below_end = places.iter().filter(|place| **place < file.len() as u64).count();
        prop_assert_eq!(moved, below_end as u64, "bytes read by operation {}", index);
        check(&format!("memory behind operation {index}"), &memory, &before, &meant)?;
    }
    Ok(())
}

fn compare(transport: Transport) {
    let cluster = Cluster::start(3);
    let world = World::connect(&cluster, transport);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&case(), |case| run(&world, &case)).unwrap_or_else(|error| panic!("{error}"));
    let used: Vec<_> = world.client.transports().into_iter().filter_map(|server| server.transport).collect();
    let name = if transport == Transport::Tcp { "tcp" } else { "shm" };
    assert!(!used.is_empty() && used.iter().all(|used| used.starts_with(name)), "{used:?}");
}

#[test]
fn every_byte_is_where_the_model_has_it_over_tcp() {
    compare(Transport::Tcp);
}

#[test]
fn every_byte_is_where_the_model_has_it_over_shared_memory() {
    compare(Transport::Shm);
}
/// A request of so many pieces that it is sent as several, the last of which is one contiguous range.
#[test]
fn the_end_of_a_long_list_beyond_the_end_of_the_file_is_zeros() {
    let cluster = Cluster::start(2);
    let world = World::connect(&cluster, Transport::Shm);
    let opened = world.create(2);
    opened.rust.write_at(&noise(1, 100_000), 0).unwrap();
    let list: Vec<Extent> = (0..4096).map(|at| Extent::new(at * 20, 7)).collect();
    let file = Regions::list(list).then(Regions::contiguous(99_000, 5000));
    let mut memory = vec![0x55; 4096 * 7 + 5000];
    // SAFETY: the memory lives through the call.
    let read = unsafe {
        opened.rust.read_raw(memory.as_mut_ptr(), &Regions::contiguous(0, memory.len() as u64), &file)
    };
    assert_eq!(read.unwrap(), 4096 * 7 + 1000);
    assert!(memory[4096 * 7 + 1000..].iter().all(|byte| *byte == 0));
}
