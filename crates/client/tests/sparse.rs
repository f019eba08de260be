//! Data, holes, space and copies of striped files, against real servers.

use weft_client::{Client, File, OpenOptions, Transport};
use weft_test_cluster::{Cluster, pattern};
use weft_wire::messages::LayoutWish;

const STRIP_BYTES: u32 = 64 << 10;
const STRIP: u64 = STRIP_BYTES as u64;
const SERVERS: u16 = 3;
const STRIPE: u64 = SERVERS as u64 * STRIP;
/// No local file system has larger blocks.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

fn begun() -> (Cluster, Client) {
    let cluster = Cluster::start(SERVERS, STRIP_BYTES);
    let client = cluster.client(Transport::Tcp);
    (cluster, client)
}

fn create(client: &Client, name: &str, first_server: u16) -> File {
    let layout = LayoutWish { strip_bytes: 0, server_count: 0, first_server_plus_1: first_server + 1 };
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).layout(layout);
    client.open(name, &options).unwrap()
}

fn contents(file: &File) -> Vec<u8> {
    let mut all = vec![7; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len());
    all
}

/// All ranges with data.
fn data_of(file: &File) -> Vec<(u64, u64)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(data) = file.seek_data(at).unwrap() {
        let hole = file.seek_hole(data).unwrap().expect("behind data there is a hole, or the end");
        assert!(hole > data);
        all.push((data, hole));
        at = hole;
    }
    all
}

#[test]
fn data_and_holes_of_striped_files_are_found() {
    let (_cluster, client) = begun();
    let file = create(&client, "/sparse", 1);
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(0).unwrap()), (None, None), "empty");
    file.truncate(100 * STRIPE).unwrap();
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(5).unwrap()), (None, Some(5)), "a hole");
    // Strip 10, and parts of strips 20 to 22, so on all servers.
    file.write_at(&pattern(1, STRIP_BYTES as usize), 10 * STRIP).unwrap();
    file.write_at(&pattern(2, 2 * STRIP_BYTES as usize), 20 * STRIP + STRIP / 2).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some(10 * STRIP));
    assert_eq!(file.seek_hole(10 * STRIP + 9).unwrap(), Some(11 * STRIP));
    let data = file.seek_data(11 * STRIP).unwrap().unwrap();
    assert!((20 * STRIP..=20 * STRIP + STRIP / 2).contains(&data), "{data}");
    let hole = file.seek_hole(data).unwrap().unwrap();
    assert!((22 * STRIP + STRIP / 2..=23 * STRIP).contains(&hole), "{hole}");
    assert_eq!(file.seek_hole(99 * STRIPE).unwrap(), Some(99 * STRIPE));
    for offset in [100 * STRIPE, 100 * STRIPE + 1, 1 << 50] {
        assert_eq!((file.seek_data(offset).unwrap(), file.seek_hole(offset).unwrap()), (None, None));
    }
    let allocated = file.allocated_bytes().unwrap();
    assert!((3 * STRIP..=4 * STRIP + BLOCK_BYTES_MAX).contains(&allocated), "{allocated}");

    file.punch(9 * STRIP, 3 * STRIP).unwrap();
    assert_eq!(file.seek_data(0).unwrap(), Some(data));
    assert!(file.allocated_bytes().unwrap() < allocated);
    let attr = file.stat().unwrap();
    assert_eq!(client.blocks(&attr).unwrap() * 512, file.allocated_bytes().unwrap());
    file.close().unwrap();
    let attr = client.stat("/sparse", true).unwrap();
    assert!(client.allocated_bytes([&attr]).unwrap()[0] >= 2 * STRIP, "also where it is not open");
}

#[test]
fn space_is_reserved_freed_and_zeroed_by_all_modes_that_make_sense() {
    let (_cluster, client) = begun();
    let file = create(&client, "/modes", 0);
    let mut model = pattern(3, 5 * STRIPE as usize + 100);
    file.write_at(&model, 0).unwrap();
    let size = model.len() as u64;
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let zero = libc::FALLOC_FL_ZERO_RANGE;

    file.fallocate(libc::FALLOC_FL_PUNCH_HOLE | keep, 1000, 2 * STRIPE).unwrap();
    model[1000..1000 + 2 * STRIPE as usize].fill(0);
    assert!(contents(&file) == model);
    file.fallocate(zero | keep, 3 * STRIPE + 7, 100 * STRIPE).unwrap();
    model[3 * STRIPE as usize + 7..].fill(0);
    assert!(contents(&file) == model && file.stat().unwrap().size == size);
    file.fallocate(zero, 100, size).unwrap();
    model[100..].fill(0);
    model.resize(size as usize + 100, 0);
    assert!(contents(&file) == model, "zeroing extends the file unless told not to");
    file.fallocate(keep, 0, 50 * STRIPE).unwrap();
    assert!(contents(&file) == model);
    assert!(file.allocated_bytes().unwrap() >= 50 * STRIPE);
    file.fallocate(0, 0, 10 * STRIPE).unwrap();
    model.resize(10 * STRIPE as usize, 0);
    assert!(contents(&file) == model);

    for mode in [
        libc::FALLOC_FL_PUNCH_HOLE,
        libc::FALLOC_FL_COLLAPSE_RANGE,
        libc::FALLOC_FL_INSERT_RANGE,
        libc::FALLOC_FL_UNSHARE_RANGE,
        zero | libc::FALLOC_FL_PUNCH_HOLE | keep,
        1 << 20,
    ] {
        assert_eq!(file.fallocate(mode, 0, STRIPE).unwrap_err().errno(), libc::EOPNOTSUPP, "{mode:#x}");
    }
    assert_eq!(file.fallocate(0, 0, 0).unwrap_err().errno(), libc::EINVAL);
    let read_only = client.open("/modes", &OpenOptions::new().read(true)).unwrap();
    assert_eq!(read_only.fallocate(0, 0, 1).unwrap_err().errno(), libc::EBADF);
    assert!(contents(&file) == model);
}

#[test]
fn servers_copy_what_lies_alike_and_no_byte_comes_to_the_client() {
    let (_cluster, client) = begun();
    let from = create(&client, "/from", 1);
    let data = pattern(4, 7 * STRIPE as usize);
    from.write_at(&data, 0).unwrap();
    from.write_at(&data[..100], 40 * STRIPE).unwrap();
    from.truncate(50 * STRIPE + 5).unwrap();
    let moved_before = from.io_stats().moved_bytes;

    let same = create(&client, "/same", 1);
    assert_eq!(client.copy_range(&from, 0, &same, 0, u64::MAX >> 2).unwrap(), 50 * STRIPE + 5);
    // The next server's file, one strip before; and the same file, whole stripes on.
    let next = create(&client, "/next", 2);
    assert_eq!(client.copy_range(&from, STRIP + 9, &next, 9, 3 * STRIPE).unwrap(), 3 * STRIPE);
    assert_eq!(client.copy_range(&from, 1, &from, 60 * STRIPE + 1, STRIPE).unwrap(), STRIPE);
    let moved: u64 = [&from, &same, &next].iter().map(|file| file.io_stats().moved_bytes).sum();
    assert_eq!(moved, moved_before, "bytes went through the client");

    let size = 50 * STRIPE as usize + 5;
    let all = contents(&from);
    assert!(contents(&same)[..] == all[..size]);
    assert!(contents(&next)[9..] == data[STRIP as usize + 9..][..3 * STRIPE as usize]);
    assert!(all[60 * STRIPE as usize + 1..] == data[1..][..STRIPE as usize]);
    assert!(same.allocated_bytes().unwrap() <= from.allocated_bytes().unwrap(), "holes are kept");
    assert_eq!(data_of(&same), data_of(&from)[..data_of(&same).len()]);

    // Over data that was there, holes are punched.
    same.write_at(&data, 20 * STRIPE).unwrap();
    client.copy_range(&from, 20 * STRIPE, &same, 20 * STRIPE, 10 * STRIPE).unwrap();
    assert!(contents(&same)[..] == all[..size]);
    for file in [same, next] {
        let size = file.stat().unwrap().size;
        let name = if file.layout().first_server() == 1 { "/same" } else { "/next" };
        file.close().unwrap();
        assert_eq!(client.stat(name, true).unwrap().size, size, "{name}");
    }
}

#[test]
fn a_copy_between_any_places_is_as_one_in_memory() {
    let (_cluster, client) = begun();
    let mut random = pattern(5, 100_000).into_iter().map(u64::from);
    let mut below = |most: u64| (0..4).fold(0, |sum, _| (sum << 8) | random.next().unwrap()) % most;
    let mut files: Vec<(File, Vec<u8>)> =
        (0..3).map(|index| (create(&client, &format!("/any{index}"), index), Vec::new())).collect();
    for round in 0..120 {
        let (from, to) = (below(3) as usize, below(3) as usize);
        let grain = [1, STRIP, STRIPE][below(3) as usize];
        let mut place = || below(12 * STRIPE) / grain * grain;
        let (from_offset, to_offset) = (place(), place());
        let bytes = below(4 * STRIPE) + 1;
        match below(4) {
            0 => {
                let data = pattern(round, bytes as usize);
                files[to].0.write_at(&data, to_offset).unwrap();
                let model = &mut files[to].1;
                model.resize(model.len().max(to_offset as usize + data.len()), 0);
                model[to_offset as usize..][..data.len()].copy_from_slice(&data);
            }
            1 if round % 2 == 0 => {
                files[to].0.punch(to_offset, bytes).unwrap();
                let size = files[to].1.len();
                let end = size.min((to_offset + bytes) as usize);
                files[to].1[size.min(to_offset as usize)..end].fill(0);
            }
            _ => {
                let copied = client.copy_range(&files[from].0, from_offset, &files[to].0, to_offset, bytes);
                if from == to && from_offset < to_offset + bytes && to_offset < from_offset + bytes {
                    assert_eq!(copied.unwrap_err().errno(), libc::EINVAL);
                    continue;
                }
                let source = files[from].1.get(from_offset as usize..).unwrap_or_default();
                let data = source[..source.len().min(bytes as usize)].to_vec();
                assert_eq!(copied.unwrap(), data.len() as u64);
                if data.is_empty() {
                    continue;
                }
                let model = &mut files[to].1;
                model.resize(model.len().max(to_offset as usize + data.len()), 0);
                model[to_offset as usize..][..data.len()].copy_from_slice(&data);
            }
        }
        let (file, model) = &files[to];
        assert!(contents(file) == *model, "round {round}");
        let in_data = data_of(file);
        let mut at = 0;
        for (data, hole) in in_data.into_iter().chain([(model.len() as u64, model.len() as u64)]) {
            assert!(
                model[at as usize..data as usize].iter().all(|byte| *byte == 0),
                "round {round}: {at}..{data}"
            );
            at = hole;
        }
    }
}

#[test]
fn a_copy_takes_the_right_to_read_and_the_right_to_write() {
    let (cluster, client) = begun();
    let (from, to) = (create(&client, "/from", 0), create(&client, "/to", 0));
    from.write_at(b"data", 0).unwrap();
    let write_only = client.open("/from", &OpenOptions::new().write(true)).unwrap();
    let read_only = client.open("/to", &OpenOptions::new().read(true)).unwrap();
    assert_eq!(client.copy_range(&write_only, 0, &to, 0, 4).unwrap_err().errno(), libc::EBADF);
    assert_eq!(client.copy_range(&from, 0, &read_only, 0, 4).unwrap_err().errno(), libc::EBADF);
    assert_eq!(client.copy_range(&from, u64::MAX, &to, 0, 4).unwrap_err().errno(), libc::EINVAL);
    let another = cluster.client(Transport::Tcp);
    assert_eq!(another.copy_range(&from, 0, &to, 0, 4).unwrap_err().errno(), libc::EXDEV);
    assert_eq!(client.copy_range(&from, 4, &to, 0, 4).unwrap(), 0, "at the end of the file");
    assert_eq!(client.copy_range(&from, 0, &from, 0, 0).unwrap(), 0, "nothing overlaps nothing");
    assert_eq!(to.stat().unwrap().size, 0);
}
