//! Reading and writing over several servers, against a model of bytes.

use super::support::*;
use crate::config::SyncMode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use weft_layout::{Extent, Layout, Level, Regions, memory_runs, share_has};
use weft_storage::FaultPlan;
use weft_transport::Link;
use weft_wire::Status;
use weft_wire::messages::*;
use weft_wire::security::{Capability, Holder, WriteBound};

fn capability(rights: u32, layout: Layout) -> Capability {
    sign(99, rights, layout)
}

fn writable(layout: Layout) -> Capability {
    capability(rights::READ | rights::WRITE, layout)
}

fn slots(layout: &Layout, regions: &Regions) -> Vec<u16> {
    (0..layout.server_count()).filter(|slot| share_has(layout, *slot, regions)).collect()
}

/// A file over the cluster's servers, and what it should hold.
struct Checked<L: Link> {
    io: Vec<Client<L>>,
    capability: Capability,
    model: Vec<u8>,
}

impl<L: Link> Checked<L> {
    fn write(&mut self, regions: &Regions, from: &[u8]) {
        let layout = self.capability.layout;
        for slot in slots(&layout, regions) {
            let io = &mut self.io[usize::from(layout.chain(slot).single_server())];
            let written = io.write(&self.capability, slot, regions, from).unwrap();
            assert_eq!(written.written_bytes, weft_layout::share_bytes(&layout, slot, regions));
        }
        let mut at = 0;
        for extent in regions.extents() {
            let (begin, end) = (extent.offset as usize, extent.end() as usize);
            if self.model.len() < end {
                self.model.resize(end, 0);
            }
            self.model[begin..end].copy_from_slice(&from[at..at + extent.bytes as usize]);
            at += extent.bytes as usize;
        }
    }

    /// What the servers do not deliver lies beyond their files' ends; clients make zeros of it.
    fn read_and_compare(&mut self, regions: &Regions) {
        let layout = self.capability.layout;
        let mut into = vec![0u8; regions.total_bytes() as usize];
        let mut end_of_file = 0;
        for slot in slots(&layout, regions) {
            let io = &mut self.io[usize::from(layout.chain(slot).single_server())];
            let read = io.read(&self.capability, slot, regions, &mut into).unwrap();
            end_of_file = end_of_file.max(layout.logical_size(slot, read.local_bytes));
            let mut at = 0;
            for piece in
                memory_runs(&layout, slot, regions, &Regions::contiguous(0, into.len() as u64)).unwrap()
            {
                let filled_bytes = read.filled_bytes.saturating_sub(at).min(piece.bytes);
                into[(piece.offset + filled_bytes) as usize..piece.end() as usize].fill(0);
                at += piece.bytes;
            }
            assert!(read.filled_bytes <= at);
        }
        assert!(end_of_file <= self.model.len() as u64);
        let expected: Vec<u8> = regions
            .extents()
            .flat_map(|extent| extent.offset..extent.end())
            .map(|at| self.model.get(at as usize).copied().unwrap_or(0))
            .collect();
        assert!(into == expected, "{regions:?}");
    }
}

fn noise(bytes: u64, seed: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ seed ^ at as u8 | 1).collect()
}

fn regions() -> impl Strategy<Value = Regions> {
    let offset = 0u64..60_000;
    prop_oneof![
        (offset.clone(), 1u64..40_000).prop_map(|(offset, bytes)| Regions::contiguous(offset, bytes)),
        (offset.clone(), 1u64..3000, 1u64..20, 0i64..5000).prop_map(|(offset, block, count, gap)| {
            let level = Level { count, stride_bytes: block as i64 + gap };
            Regions::strided(offset, block, vec![level])
        }),
        proptest::collection::vec((0u64..30, 1u64..2000), 1..12).prop_map(|extents| {
            let extents = extents.iter().enumerate();
            Regions::list(
                extents
                    .map(|(at, (gap, bytes))| Extent::new(at as u64 * 9000 + gap * 200, *bytes))
                    .collect::<Vec<_>>(),
            )
        }),
    ]
}

fn what_is_read_is_what_was_written<W: Way>() {
    let steps = proptest::collection::vec((any::<bool>(), regions()), 1..24);
    let short = prop_oneof![Just(0u32), Just(300u32)];
    let mut runner = TestRunner::new(weft_test_random::cases(12));
    let outcome = runner.run(&(steps, 1u16..4, 0u16..4, short), |(steps, servers, first, short)| {
        let plan =
            FaultPlan { seed: weft_test_random::seed(), short_per_mille: short, ..FaultPlan::default() };
        let cluster = Cluster::<W>::start_with(4, SyncMode::Nosync, plan);
        let layout = Layout::new(4096, first, servers, 4).unwrap();
        let mut file = Checked { io: cluster.io(), capability: writable(layout), model: Vec::new() };
        for (step, (write, regions)) in steps.iter().enumerate() {
            if *write {
                file.write(regions, &noise(regions.total_bytes(), step as u8));
            } else {
                file.read_and_compare(regions);
            }
        }
        let end = file.model.len() as u64 + 5000;
        file.read_and_compare(&Regions::contiguous(0, end));
        Ok(())
    });
    outcome.unwrap();
}

fn long_transfers_go_through_several_buffers<W: Way>() {
    let cluster = Cluster::<W>::start_with(1, SyncMode::Sync, FaultPlan::default());
    let layout = Layout::new(65536, 0, 1, 1).unwrap();
    let mut file = Checked { io: cluster.io(), capability: writable(layout), model: Vec::new() };
    let whole = Regions::contiguous(100, 5 << 20);
    file.write(&whole, &noise(5 << 20, 9));
    file.read_and_compare(&whole);
    file.read_and_compare(&Regions::strided(0, 30_000, vec![Level { count: 170, stride_bytes: 31_000 }]));
}

fn holes_arrive_as_zeros_and_the_end_is_told<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let layout = Layout::new(4096, 0, 1, 1).unwrap();
    let capability = writable(layout);
    let mut io = cluster.io().remove(0);
    let mut into = vec![0xaa; 300];
    let missing = io.read(&capability, 0, &Regions::contiguous(0, 300), &mut into).unwrap();
    assert_eq!((missing.filled_bytes, missing.local_bytes, into[0]), (0, 0, 0xaa));
    io.write(&capability, 0, &Regions::contiguous(200, 10), &[7; 10]).unwrap();
    let read = io.read(&capability, 0, &Regions::contiguous(0, 300), &mut into).unwrap();
    assert_eq!((read.filled_bytes, read.local_bytes), (210, 210));
    assert!(
        into[..200].iter().all(|byte| *byte == 0) && into[200..210] == [7; 10] && into[210..] == [0xaa; 90]
    );
    let size = io.call(&SizeRequest { capability }).unwrap();
    assert_eq!(size.local_bytes, 210);
}

fn truncation_punching_and_allocation_are_local_parts_of_the_whole<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let capability = writable(layout);
    let mut file = Checked { io: cluster.io(), capability: capability.clone(), model: Vec::new() };
    let whole = Regions::contiguous(0, 5 * 4096);
    file.write(&whole, &noise(5 * 4096, 1));
    for slot in 0..2u16 {
        let io = &mut file.io[usize::from(slot)];
        io.call(&RangeRequest { capability: capability.clone(), slot, offset: 4000, bytes: 5000 }).unwrap();
        let cut = io
            .call(&TruncateRequest { capability: capability.clone(), slot, file_bytes: 3 * 4096 + 10 })
            .unwrap();
        assert_eq!(cut.local_bytes, [2 * 4096, 4096 + 10][usize::from(slot)]);
        let kept = AllocateRequest {
            capability: capability.clone(),
            slot,
            offset: 0,
            bytes: 9 * 4096,
            keep_size: true,
        };
        assert_eq!(io.call(&kept).unwrap().local_bytes, cut.local_bytes);
    }
    file.model[4000..9000].fill(0);
    file.model.truncate(3 * 4096 + 10);
    file.read_and_compare(&whole);
    let grown = AllocateRequest {
        capability: capability.clone(),
        slot: 0,
        offset: 0,
        bytes: 9 * 4096,
        keep_size: false,
    };
    assert_eq!(file.io[0].call(&grown).unwrap().local_bytes, 5 * 4096);
    let beyond = RangeRequest { capability: capability.clone(), slot: 0, offset: u64::MAX, bytes: 2 };
    assert_eq!(file.io[0].call(&beyond).unwrap_err().status, Status::FileTooBig);
}

fn a_capability_must_be_genuine_alive_sufficient_and_for_this_server<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let layout = Layout::new(4096, 0, 1, 2).unwrap();
    let mut io = cluster.io();
    let regions = Regions::contiguous(0, 8);
    let good = writable(layout);
    io[0].write(&good, 0, &regions, &[1; 8]).unwrap();
    let key = cluster_key().capability_key();
    let mut into = [0; 8];
    for bad in [
        Capability { ino: 100, ..good.clone() },
        Capability::sign(&client_key().secret, good.holder, 99, rights::READ, u64::MAX, layout),
        Capability::sign(&key, good.holder, 99, rights::READ, 1, layout),
        Capability::sign(&key, good.holder, 99, rights::WRITE, u64::MAX, layout),
        Capability::sign(&key, Holder::of_key(&[9; 16]), 99, rights::READ, u64::MAX, layout),
    ] {
        let refused = io[0].read(&bad, 0, &regions, &mut into).unwrap_err();
        assert_eq!(refused.status, Status::Capability);
        assert!(refused.text.contains("open the file again"));
    }
    assert_eq!(io[1].read(&good, 0, &regions, &mut into).unwrap_err().status, Status::WrongServer);
    assert_eq!(io[0].call(&SizeRequest { capability: good.clone() }).unwrap().local_bytes, 8);
    assert_eq!(io[1].call(&SizeRequest { capability: good }).unwrap_err().status, Status::WrongServer);
    let read_only = capability(rights::READ, layout);
    let refused = io[0].write(&read_only, 0, &regions, &[2; 8]).unwrap_err();
    assert_eq!(refused.status, Status::Capability);
    io[0].read(&read_only, 0, &regions, &mut into).unwrap();
    assert_eq!(into, [1; 8]);
}

fn copying_takes_the_rights_on_both_files_and_ranges_that_lie_alike<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let sign = |ino, rights| sign(ino, rights, layout);
    let mut io = cluster.io();
    let data = noise(5 * 4096, 7);
    let whole = Regions::contiguous(0, 5 * 4096);
    for slot in 0..2 {
        io[usize::from(slot)].write(&writable(layout), slot, &whole, &data).unwrap();
    }
    let good = CopyRangeRequest {
        from: sign(99, rights::READ),
        from_slot: 0,
        from_offset: 10,
        to: sign(98, rights::WRITE),
        to_slot: 0,
        to_offset: 2 * 4096 + 10,
        bytes: 4 * 4096,
    };
    let copied = io[0].call(&good).unwrap();
    assert_eq!((copied.copied_bytes, copied.local_bytes), (2 * 4096, 3 * 4096 + 10));
    let mut into = vec![9; 4096];
    io[0]
        .read(&sign(98, rights::READ), 0, &Regions::contiguous(2 * 4096 + 10, 4086), &mut into[..4086])
        .unwrap();
    assert!(into[..4086] == data[10..4096]);
    let forged = Capability { ino: 97, ..sign(99, rights::READ) };
    let other = sign(99, rights::READ | rights::WRITE);
    for (what, bad, status) in [
        (
            "no right to read",
            CopyRangeRequest { from: sign(99, rights::WRITE), ..good.clone() },
            Status::Capability,
        ),
        (
            "no right to write",
            CopyRangeRequest { to: sign(98, rights::READ), ..good.clone() },
            Status::Capability,
        ),
        ("forged", CopyRangeRequest { from: forged, ..good.clone() }, Status::Capability),
        (
            "another server",
            CopyRangeRequest { from_slot: 1, to_slot: 1, ..good.clone() },
            Status::WrongServer,
        ),
        ("a strip on", CopyRangeRequest { to_offset: 3 * 4096 + 10, ..good.clone() }, Status::Invalid),
        (
            "not within a strip",
            CopyRangeRequest { to_offset: 2 * 4096 + 11, ..good.clone() },
            Status::Invalid,
        ),
        ("overlap", CopyRangeRequest { from: other.clone(), to: other, ..good.clone() }, Status::Invalid),
        ("too far", CopyRangeRequest { bytes: u64::MAX, ..good.clone() }, Status::FileTooBig),
    ] {
        assert_eq!(io[0].call(&bad).unwrap_err().status, status, "{what}");
    }
}

fn a_full_disk_is_told_and_earlier_data_stays<W: Way>() {
    let plan = FaultPlan { full_after_bytes: Some(1 << 20), ..FaultPlan::default() };
    let cluster = Cluster::<W>::start_with(1, SyncMode::Nosync, plan);
    let layout = Layout::new(65536, 0, 1, 1).unwrap();
    let mut file = Checked { io: cluster.io(), capability: writable(layout), model: Vec::new() };
    let first = Regions::contiguous(0, 700_000);
    file.write(&first, &noise(700_000, 3));
    let more = noise(2 << 20, 4);
    let refused =
        file.io[0].write(&writable(layout), 0, &Regions::contiguous(1 << 20, 2 << 20), &more).unwrap_err();
    assert_eq!(refused.status, Status::NoSpace);
    assert!(refused.text.contains("write data file"), "{}", refused.text);
    let mut into = vec![0; 700_000];
    file.io[0].read(&writable(layout), 0, &first, &mut into).unwrap();
    assert!(into == file.model);
}

fn a_bound_of_a_capability_holds_for_whatever_extends_a_file<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let io = &mut cluster.io()[0];
    let layout = Layout::new(4096, 0, 1, 1).unwrap();
    let bounded = |end| capability(rights::READ | rights::WRITE | WriteBound::End(end).bits(), layout);
    let good = bounded(8192);
    let refused = |result: Result<DataSize, Refused>| result.unwrap_err().status == Status::Quota;
    let (regions, data) = (Regions::contiguous(4096, 4096), [7; 4096]);
    io.write(&good, 0, &regions, &data).unwrap();
    // Pieces in any order: the last one of them counts.
    let beyond = Regions::list([Extent::new(8192, 1), Extent::new(0, 1)]);
    assert_eq!(io.write(&good, 0, &beyond, &[1, 2]).unwrap_err().status, Status::Quota);
    let truncate = |capability: &Capability, file_bytes| TruncateRequest {
        capability: capability.clone(),
        slot: 0,
        file_bytes,
    };
    assert!(refused(io.call(&truncate(&good, 8193))));
    assert_eq!(io.call(&truncate(&good, 8192)).unwrap().local_bytes, 8192);
    for keep_size in [false, true] {
        let allocate =
            AllocateRequest { capability: good.clone(), slot: 0, offset: 8000, bytes: 193, keep_size };
        assert!(refused(io.call(&allocate)));
        io.call(&AllocateRequest { bytes: 192, ..allocate }).unwrap();
        let zero = ZeroRequest { capability: good.clone(), slot: 0, offset: 8000, bytes: 193, keep_size };
        assert!(refused(io.call(&zero)));
        io.call(&ZeroRequest { bytes: 192, ..zero }).unwrap();
    }
    let from = writable(layout);
    let copy = CopyRangeRequest {
        from,
        from_slot: 0,
        from_offset: 0,
        to: Capability { ino: 98, ..good.clone() },
        to_slot: 0,
        to_offset: 8192,
        bytes: 4096,
    };
    let to = sign(98, good.rights, layout);
    assert_eq!(io.call(&CopyRangeRequest { to, ..copy }).unwrap_err().status, Status::Quota);
    // Root's has none, and nobody makes himself one.
    let exempt = capability(rights::WRITE | WriteBound::Exempt.bits(), layout);
    io.write(&exempt, 0, &beyond, &[1, 2]).unwrap();
    let forged = Capability { rights: good.rights & 3, ..good };
    assert_eq!(io.write(&forged, 0, &beyond, &[1, 2]).unwrap_err().status, Status::Capability);
}

over_all_ways! {
    what_is_read_is_what_was_written long_transfers_go_through_several_buffers holes_arrive_as_zeros_and_the_end_is_told truncation_punching_and_allocation_are_local_parts_of_the_whole a_capability_must_be_genuine_alive_sufficient_and_for_this_server copying_takes_the_rights_on_both_files_and_ranges_that_lie_alike a_bound_of_a_capability_holds_for_whatever_extends_a_file a_full_disk_is_told_and_earlier_data_stays
}
