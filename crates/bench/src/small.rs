//! Small transfers by mechanism (IB 6.5, figure 11).
//!
//! | | the client | the data | the server |
//! | --- | --- | --- | --- |
//! | inline | copies | in the request or the reply | copies |
//! | fast | copies, unless its memory is registered | one RDMA Write to a buffer of the connection | copies |
//! | remote | registers its memory, if it is not | the server's RDMA Reads or Writes | |
//!
//! "registered": memory from weft_mem_alloc, 100 % hits; "not": registered for every request, 0 % hits.

use super::access::pattern::Pattern;
use super::repeated::{self, Contender, Measure, Place, Plan};
use anyhow::Result;
use weft_bench_args::{SmallArgs, Transport};
use weft_cli_common::size::format_bytes;

/// Transfers of a repetition.
const ROUNDS: u32 = 1000;

/// Runs the measurement.
pub fn run(args: SmallArgs) -> Result<()> {
    let sizes =
        if args.size.is_empty() { (7..=16).map(|shift| 1 << shift).collect() } else { args.size.clone() };
    let place = |bytes: &u64| Place {
        name: format_bytes(*bytes),
        pattern: Pattern::Blocks { ranks: 1, blocks: 1, block_bytes: (*bytes).max(1) },
        rounds: ROUNDS,
    };
    let plan = Plan {
        name: "small",
        title: "Small transfers, one after the other",
        measure: Measure::Time,
        of: "bytes",
        places: sizes.iter().map(place).collect(),
        contenders: contenders(),
        io_servers: 1,
        paper: &[
            "IB figure 11 (writes; a graph without numbers): Fast RDMA is the fastest with 0 % and with 100 % hits, inline nearly as fast \
             where messages are small, server-based slower, and with 0 % hits by far the slowest.",
            "IB 6.5 takes from it: inline below 4 KiB, Fast RDMA up to 64 KiB, server-based above.",
        ],
        parameters: serde_json::json!({ "clients": 1, "io_servers": 1 }),
    };
    repeated::run(plan, &args.repeated)
}

fn contenders() -> Vec<Contender> {
    let rdma = |name| Contender::new(name, Transport::Rdma);
    vec![
        rdma("rdma inline").options("rdma-mechanism=inline&rdma-foreign=not-cached"),
        rdma("rdma fast, not registered").options("rdma-mechanism=fast&rdma-foreign=not-cached"),
        rdma("rdma fast, registered").options("rdma-mechanism=fast").known_memory(),
        rdma("rdma remote, not registered").options("rdma-mechanism=remote&rdma-foreign=not-cached"),
        rdma("rdma remote, registered").options("rdma-mechanism=remote").known_memory(),
        rdma("rdma"),
        Contender::new("shm, any memory", Transport::Shm),
        Contender::new("shm, weft_mem_alloc", Transport::Shm).known_memory(),
        Contender::new("tcp", Transport::Tcp),
    ]
}
