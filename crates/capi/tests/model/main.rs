//! Reads and writes of pieces through the C and Rust interfaces, on real servers, against a model that moves
//! a byte at a time.
//!
//! ```text
//!   operation = (file pieces, memory pieces, front door, method of access, nonblocking?)
//!               random; pieces also overlap, are unsorted or empty, and lie beyond the end
//!   model     : for every byte of the stream: file[f] ◄─► memory[m]
//!   a byte that several are meant for may be any of these; every other byte is exactly as the model says
//! ```

#[allow(dead_code)]
#[path = "../../../layout/tests/models/generate.rs"]
mod generate;
mod types;

use generate::{bytes_of, joined};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null;
use types::Tree;
use weft::*;
use weft_client::{
    AccessOptions, Client, ConnectOptions, Elements, File, Method, Movement, OpenOptions, PendingRaw, Place,
    Sieving, Transport, Url,
};
use weft_layout::{Extent, Region, Regions, View};
use weft_tests::Cluster;
use weft_wire::messages::LayoutWish;

/// Unless `$PROPTEST_CASES` says otherwise.
const CASES: u32 = 100;
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
    /// `weft_read_typed`, `weft_write_typed`.
    TypedC,
    /// `File::read_typed`, `File::write_typed`.
    TypedRust,
    /// `weft_set_view`, `weft_lseek`, and `weft_read` or `weft_write`: memory is one range.
    Cursor,
}

/// One side of an operation.
#[derive(Debug, Clone)]
enum Side {
    Regions(Regions),
    Elements {
        tree: Tree,
        count: u64,
        offset: u64,
    },
    /// Of the file.
    View {
        tree: Tree,
        displacement: u64,
        position: u64,
        bytes: u64,
    },
}

impl Side {
    /// The offset of every byte, in order.
    fn bytes(&self) -> Vec<u64> {
        match self {
            Side::Regions(regions) => bytes_of(regions),
            Side::Elements { tree, count, offset } => {
                let map = tree.map().repeated(*count);
                map.displacements.iter().map(|at| (*offset as i64 + at) as u64).collect()
            }
            Side::View { position, bytes, .. } => {
                self.seen().skip(*position as usize).take(*bytes as usize).collect()
            }
        }
    }

    /// Every byte of a view, without end.
    fn seen(&self) -> Box<dyn Iterator<Item = u64>> {
        let Side::View { tree, displacement, .. } = self else { panic!("{self:?} is no view") };
        let (map, displacement) = (tree.map(), *displacement as i64);
        let extent = map.extent();
        Box::new((0..).flat_map(move |tile: i64| {
            let at: Vec<u64> =
                map.displacements.iter().map(|at| (displacement + tile * extent + at) as u64).collect();
            at
        }))
    }

    /// The first `bytes` bytes as the library has them.
    fn regions(&self, bytes: u64) -> Regions {
        match self {
            Side::Regions(regions) => regions.window(0, bytes),
            Side::Elements { tree, count, offset } => tree.datatype().regions(*offset, *count).unwrap(),
            Side::View { tree, displacement, position, bytes } => {
                View::new(*displacement, tree.datatype()).unwrap().regions(*position, *bytes).unwrap()
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Operation {
    write: bool,
    file: Side,
    memory: Side,
    door: Door,
    nonblocking: bool,
    access: AccessOptions,
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

/// Elements whose first byte, wherever in them it is, is at `first` or behind it.
fn elements(tree: Tree, count: u64, first: u64) -> Side {
    let lowest = tree.map().repeated(count).displacements.into_iter().min().unwrap_or(0);
    let offset = (first as i64 - lowest.min(0)) as u64;
    Side::Elements { tree, count, offset }
}

/// The same with `bytes` bytes more.
fn lengthened(tree: Tree, count: u64, bytes: u64) -> (Tree, u64) {
    if bytes == 0 {
        return (tree, count);
    }
    let behind = tree.map().repeated(count).displacements.into_iter().max().unwrap_or(0).max(0) + 14;
    (Tree::Struct(vec![(0, count, tree), (behind, 1, Tree::Bytes(bytes))]), 1)
}

/// Up to a few elements, and not too many bytes.
fn some_elements() -> impl Strategy<Value = (Tree, u64)> {
    (types::tree(), 0u64..4).prop_map(|(tree, count)| {
        let all = Tree::Contiguous(count, Box::new(tree.clone()));
        if all.is_small() { (tree, count) } else { (tree, 1) }
    })
}

/// Types on both sides, of equal size.
fn typed_sides() -> impl Strategy<Value = (Side, Side)> {
    (some_elements(), some_elements(), 0u64..60_000, 0u64..60_000).prop_map(
        |((file, file_count), (memory, memory_count), place, address)| {
            let bytes = |tree: &Tree, count: u64| tree.map().displacements.len() as u64 * count;
            let (file_bytes, memory_bytes) = (bytes(&file, file_count), bytes(&memory, memory_count));
            let (file, file_count) = lengthened(file, file_count, memory_bytes.saturating_sub(file_bytes));
            let (memory, memory_count) =
                lengthened(memory, memory_count, file_bytes.saturating_sub(memory_bytes));
            (elements(file, file_count, place), elements(memory, memory_count, address))
        },
    )
}

/// A view, and memory of as many bytes as are seen.
fn view_sides() -> impl Strategy<Value = (Side, Side)> {
    (types::view_tree(), some_elements(), 0u64..30_000, 0u64..3000, 0u64..60_000).prop_map(
        |(tree, (memory, count), displacement, position, address)| {
            let bytes = memory.map().displacements.len() as u64 * count;
            (Side::View { tree, displacement, position, bytes }, elements(memory, count, address))
        },
    )
}

fn regions_sides() -> impl Strategy<Value = (Side, Side)> {
    (generate::regions(), generate::regions())
        .prop_map(|(file, memory)| (Side::Regions(file), Side::Regions(memory)))
}

fn operation() -> impl Strategy<Value = Operation> {
    let any_door = |doors: &'static [Door]| proptest::sample::select(doors);
    let by_pieces = any_door(&[Door::Lists, Door::ListsAlloc, Door::Regions]);
    let by_type =
        any_door(&[Door::TypedC, Door::TypedRust, Door::Lists, Door::Regions, Door::TypedC, Door::TypedRust]);
    let by_view = any_door(&[Door::TypedC, Door::TypedRust]);
    let range = (types::view_tree(), 0u64..30_000, 0u64..3000, 0u64..20_000).prop_map(
        |(tree, displacement, position, bytes)| {
            let memory = Side::Regions(Regions::contiguous(500, bytes));
            (Side::View { tree, displacement, position, bytes }, memory)
        },
    );
    let sides = prop_oneof![
        4 => (regions_sides(), by_pieces),
        4 => (typed_sides(), by_type),
        2 => (view_sides(), by_view),
        1 => (range, any_door(&[Door::Cursor])),
    ];
    (any::<bool>(), sides, any::<bool>(), access(), (20u64..9000, 20u64..9000)).prop_map(
        |(write, ((file, memory), door), nonblocking, access, piece_bytes_max)| Operation {
            write,
            file,
            memory,
            door,
            nonblocking,
            access,
            piece_bytes_max,
        },
    )
}

/// Mostly the default; and one request for each of thousands of pieces only seldom.
fn access() -> impl Strategy<Value = AccessOptions> {
    let method = prop_oneof![10 => Just(Method::List), 3 => Just(Method::Sieve), 1 => Just(Method::Multiple)];
    let movement =
        proptest::sample::select(&[Movement::Auto, Movement::Auto, Movement::Pack, Movement::Direct][..]);
    let ways = [Sieving::Auto, Sieving::Auto, Sieving::Each, Sieving::Sieve, Sieving::Mapped];
    let sieving = proptest::sample::select(ways.to_vec());
    (method, movement, sieving, 4096u64..100_000).prop_map(|(method, movement, sieving, sieve_bytes)| {
        AccessOptions { method, movement, sieving, sieve_bytes }
    })
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
        let url = CString::new(format!("{}?transport={transport}", cluster.url())).unwrap();
        let key_file = cluster.key_file();
        let key_path = CString::new(key_file.to_str().unwrap()).unwrap();
        let options = weft_connect_options {
            key_file: key_path.as_ptr(),
            timeout_ms: 0,
            background: 0,
            reserved: [0; 5],
        };
        // SAFETY: the strings live through the call.
        let fs = unsafe { weft_connect(url.as_ptr(), &options) };
        assert!(!fs.is_null(), "{}", last_error());
        let key = weft_client::read_key_file(&key_file).unwrap();
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
        self.choose(operation.access);
        match operation.door {
            Door::Lists | Door::ListsAlloc => self.perform_lists(operation, memory, bytes),
            Door::Regions => {
                let (memory_regions, file) =
                    (operation.memory.regions(bytes as u64), operation.file.regions(bytes as u64));
                self.perform_regions(operation, memory, &memory_regions, &file)
            }
            Door::TypedC => self.perform_typed_in_c(operation, memory),
            Door::TypedRust => self.perform_typed_in_rust(operation, memory),
            Door::Cursor => self.perform_at_cursor(operation, memory, bytes),
        }
    }

    /// Chooses how pieces are accessed, on both handles.
    fn choose(&self, access: AccessOptions) {
        self.rust.set_access(access);
        let method = match access.method {
            Method::List => 0,
            Method::Multiple => 1,
            Method::Sieve => 2,
        };
        let movement = match access.movement {
            Movement::Auto => 0,
            Movement::Multiple => 1,
            Movement::Pack => 2,
            Movement::Direct => 3,
        };
        let sieving = match access.sieving {
            Sieving::Auto => 0,
            Sieving::Each => 1,
            Sieving::Sieve => 2,
            Sieving::Mapped => 3,
        };
        let access = weft_access { method, movement, sieving, reserved: 0, sieve_bytes: access.sieve_bytes };
        // SAFETY: the handle is open.
        assert_eq!(unsafe { weft_set_access(self.c, &access) }, 0, "{}", last_error());
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

    fn perform_typed_in_c(&self, operation: &Operation, memory: &mut [u8]) -> Result<u64, String> {
        let Side::Elements { tree, count, offset: address } = &operation.memory else {
            panic!("{operation:?} has no typed memory")
        };
        let memory_type = tree.handle();
        let base = memory.as_mut_ptr().wrapping_add(*address as usize).cast::<c_void>();
        let (offset, file_count, file_type) = match &operation.file {
            Side::Elements { tree, count, offset } => (*offset, *count, Some(tree.handle())),
            Side::View { tree, displacement, position, .. } => {
                // SAFETY: both are handles.
                let set = unsafe { weft_set_view(self.c, *displacement as i64, tree.handle().0) };
                assert_eq!(set, 0, "{}", last_error());
                (*position, 0, None)
            }
            Side::Regions(_) => panic!("{operation:?} has no typed file"),
        };
        let file_type = file_type.as_ref().map_or(null(), |handle| handle.0.cast_const());
        let (count, kind, offset) = (*count, memory_type.0.cast_const(), offset as i64);
        // SAFETY: the types and the memory live until the call, or the wait behind it, is over.
        unsafe {
            match (operation.write, operation.nonblocking) {
                (false, false) => {
                    ended(weft_read_typed(self.c, base, count, kind, offset, file_count, file_type))
                }
                (true, false) => {
                    ended(weft_write_typed(self.c, base, count, kind, offset, file_count, file_type))
                }
                (false, true) => {
                    waited(weft_start_read_typed(self.c, base, count, kind, offset, file_count, file_type))
                }
                (true, true) => {
                    waited(weft_start_write_typed(self.c, base, count, kind, offset, file_count, file_type))
                }
            }
        }
    }

    fn perform_typed_in_rust(&self, operation: &Operation, memory: &mut [u8]) -> Result<u64, String> {
        let Side::Elements { tree, count, offset: address } = &operation.memory else {
            panic!("{operation:?} has no typed memory")
        };
        let memory_type = tree.datatype();
        let elements = Elements { count: *count, datatype: &memory_type };
        let base = memory.as_mut_ptr().wrapping_add(*address as usize);
        let file_type;
        let place = match &operation.file {
            Side::Elements { tree, count, offset } => {
                file_type = tree.datatype();
                let elements = Elements { count: *count, datatype: &file_type };
                Place::Elements { offset: *offset, elements }
            }
            Side::View { tree, displacement, position, .. } => {
                self.rust.set_view(Some(View::new(*displacement, tree.datatype()).unwrap()));
                Place::View { position: *position }
            }
            Side::Regions(_) => panic!("{operation:?} has no typed file"),
        };
        // SAFETY: the memory lives until the call, or the wait behind it, is over.
        let result = unsafe {
            match (operation.write, operation.nonblocking) {
                (false, false) => self.rust.read_typed(base, elements, place),
                (true, false) => self.rust.write_typed(base, elements, place),
                (false, true) => self.rust.start_read_typed(base, elements, place).and_then(PendingRaw::wait),
                (true, true) => self.rust.start_write_typed(base, elements, place).and_then(PendingRaw::wait),
            }
        };
        result.map_err(|error| error.to_string())
    }

    fn perform_at_cursor(
        &self,
        operation: &Operation,
        memory: &mut [u8],
        bytes: usize,
    ) -> Result<u64, String> {
        let Side::View { tree, displacement, position, .. } = &operation.file else {
            panic!("{operation:?} has no view")
        };
        let base = memory[500..].as_mut_ptr().cast::<c_void>();
        // SAFETY: the handles are open, and the memory lives through the calls.
        let moved = unsafe {
            assert_eq!(weft_set_view(self.c, *displacement as i64, tree.handle().0), 0, "{}", last_error());
            assert_eq!(weft_lseek(self.c, *position as i64, libc::SEEK_SET), *position as i64);
            let moved = match operation.write {
                false => weft_read(self.c, base, bytes),
                true => weft_write(self.c, base, bytes),
            };
            assert_eq!(weft_lseek(self.c, 0, libc::SEEK_CUR), *position as i64 + moved as i64);
            moved
        };
        ended(moved)
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
    let by_list = matches!(operation.door, Door::Lists | Door::ListsAlloc);
    !by_list && matches!(operation.file.regions(bytes as u64).parts.as_slice(), [Region::Contiguous(_)])
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
        if operation.door == Door::Cursor {
            let written = if operation.write { places.last().map_or(0, |last| last + 1) } else { 0 };
            let end = written.max(file.len() as u64);
            let seen = operation.file.seen().take_while(|place| *place < end).count();
            // SAFETY: the handle is open.
            let found = unsafe { weft_lseek(opened.c, 0, libc::SEEK_END) };
            prop_assert_eq!(found, seen as i64, "end of the view of operation {}", index);
        }
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
    let mut runner = TestRunner::new(weft_test_random::cases(CASES));
    runner.run(&case(), |case| run(&world, &case)).unwrap_or_else(|error| panic!("{error}"));
    let used: Vec<_> = world.client.transports().into_iter().filter_map(|server| server.transport).collect();
    let name = if transport == Transport::Rdma { "verbs".to_string() } else { transport.to_string() };
    assert!(!used.is_empty() && used.iter().all(|used| used.starts_with(&name)), "{used:?}");
}

#[test]
fn every_byte_is_where_the_model_has_it_over_tcp() {
    compare(Transport::Tcp);
}

#[test]
fn every_byte_is_where_the_model_has_it_over_shared_memory() {
    compare(Transport::Shm);
}

#[test]
#[ignore = "needs an RDMA adapter; tests/rdma.rs runs it in a guest that has one"]
fn every_byte_is_where_the_model_has_it_over_rdma() {
    compare(Transport::Rdma);
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
