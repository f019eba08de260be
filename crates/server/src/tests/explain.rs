//! Plans told without touching data, and the cost model behind them.

use super::support::*;
use weft_layout::{Layout, Level, Regions};
use weft_wire::Status;
use weft_wire::messages::*;

fn ask(rights: u32, slot: u16, write: bool, regions: &Regions) -> ExplainRequest {
    let layout = Layout::new(4096, 0, 2, 2).unwrap();
    let capability = sign(7, rights, layout);
    ExplainRequest { capability, slot, write, flags: 0, regions: regions.clone() }
}

/// 64 bytes of every 256, over 64 strips.
fn column() -> Regions {
    Regions::strided(0, 64, vec![Level { count: 1024, stride_bytes: 256 }])
}

fn a_plan_counts_the_pieces_of_its_share<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let mut io = cluster.io();
    let both = rights::READ | rights::WRITE;
    let empty = io[0].call(&ask(both, 0, false, &column())).unwrap();
    assert_eq!((empty.pieces, empty.bytes, empty.windows, empty.local_bytes), (0, 512 * 64, 0, 0));

    let first_write = io[0].call(&ask(both, 0, true, &column())).unwrap();
    assert_eq!((first_write.pieces, first_write.windows, first_write.groups), (512, 1, 1));
    let methods: Vec<u32> = first_write.plans.iter().map(|plan| plan.method).collect();
    assert_eq!(methods, [io_flags::ACCESS_EACH, io_flags::ACCESS_SIEVE, io_flags::ACCESS_MAPPED]);
    let [each, sieve, mapped] = &first_write.plans[..] else { panic!("three ways") };
    assert_eq!((each.accesses, each.accessed_bytes), (512, 512 * 64));
    assert_eq!(sieve.accesses, 1, "nothing is there to be read before it is written");
    assert_eq!(mapped.possible_windows, 0);
    assert_eq!(sieve.chosen_windows, 1);
    assert_eq!(first_write.chosen_cost_ns, sieve.cost_ns);
    assert!(sieve.cost_ns < each.cost_ns);

    let capability = ask(both, 0, true, &column()).capability;
    io[0].write(&capability, 0, &column(), &[1; 1024 * 64]).unwrap();
    let read = io[0].call(&ask(both, 0, false, &column())).unwrap();
    assert_eq!((read.pieces, read.single_windows), (512, 0));
    assert_eq!(read.cached_bytes, 512 * 64);
    assert_eq!(
        io[1].call(&ask(both, 1, false, &column())).unwrap().local_bytes,
        0,
        "nothing was written there"
    );
    let again = io[0].call(&ask(both, 0, true, &column())).unwrap();
    assert_eq!(again.plans[1].accesses, 2, "read, then written");
}

fn one_piece_leaves_nothing_to_choose<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let told = cluster.io()[1].call(&ask(rights::WRITE, 1, true, &Regions::contiguous(4096, 4096))).unwrap();
    assert_eq!((told.pieces, told.windows, told.single_windows), (1, 1, 1));
    assert_eq!(told.plans[0].chosen_windows, 1);
}

fn what_is_explained_needs_the_right_to_do_it<W: Way>() {
    let cluster = Cluster::<W>::start(2);
    let io = &mut cluster.io()[0];
    let status = |io: &mut Client<_>, request: ExplainRequest| io.call(&request).unwrap_err().status;
    assert_eq!(status(io, ask(rights::READ, 0, true, &column())), Status::Capability);
    assert_eq!(status(io, ask(rights::WRITE, 0, false, &column())), Status::Capability);
    assert_eq!(status(io, ask(rights::READ, 1, false, &column())), Status::WrongServer);
    let odd = ExplainRequest { flags: io_flags::ACCESS_EACH, ..ask(rights::READ, 0, false, &column()) };
    assert_eq!(status(io, odd), Status::Invalid);
}

fn the_cost_model_is_told_and_cannot_be_measured_without_a_directory<W: Way>() {
    let cluster = Cluster::<W>::start(1);
    let io = &mut cluster.io()[0];
    let model = io.call(&CalibrateRequest { measure: false }).unwrap();
    assert_eq!((model.measured_s, model.curves.len()), (0, 8));
    assert!(model.read_gap_device_bytes > model.read_gap_cached_bytes);
    assert_eq!(io.call(&CalibrateRequest { measure: true }).unwrap_err().status, Status::Unsupported);
    assert_eq!(
        cluster.meta().call(&CalibrateRequest { measure: false }).unwrap_err().status,
        Status::WrongServer
    );
}

over_all_ways! {
    a_plan_counts_the_pieces_of_its_share one_piece_leaves_nothing_to_choose what_is_explained_needs_the_right_to_do_it the_cost_model_is_told_and_cannot_be_measured_without_a_directory
}
