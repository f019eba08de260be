//! A large transfer in requests of several sizes (IB 6.6, figure 12).
//!
//! ```text
//!   one request   | file | network |              within it, the server's own units (1 MiB at most) overlap
//!   two requests  | file | network |
//!                 |      |  file   | network |    one is read while the other is sent
//! ```
//!
//! Within a request, servers move data in units of their own of at most 1 MiB, depending on the transport. So
//! one request at a time shows the cost of small requests, and two at a time show what overlapping gains.

use super::access::pattern::Pattern;
use super::repeated::task::Moving;
use super::repeated::{self, Contender, Measure, Place, Plan};
use anyhow::Result;
use weft_bench_args::{BulkArgs, How, Transport};
use weft_cli_common::size::format_bytes;

/// Transfers of a repetition.
const ROUNDS: u32 = 3;
const UNIT_BYTES_MIN: u64 = 64 << 10;

/// Runs the measurement.
pub fn run(args: BulkArgs) -> Result<()> {
    let bytes = args.bytes.max(1);
    let units = if args.unit.is_empty() {
        let doubled = |unit: &u64| Some(unit * 2);
        std::iter::successors(Some(UNIT_BYTES_MIN), doubled).take_while(|unit| *unit <= bytes).collect()
    } else {
        args.unit.clone()
    };
    let place = |unit: &u64| {
        let unit = (*unit).clamp(1, bytes);
        Place {
            name: format_bytes(unit),
            pattern: Pattern::Sequence { calls: bytes / unit, call_bytes: unit },
            rounds: ROUNDS,
        }
    };
    let plan = Plan {
        name: "bulk",
        title: "A large transfer in units",
        measure: Measure::Speed,
        of: "unit",
        places: units.iter().map(place).collect(),
        contenders: contenders(),
        io_servers: 1,
        paper: &[
            "IB figure 12 (32 MB; a graph without numbers): units below about 2 MB let file access and communication overlap completely; \
             a slight loss where they are very small.",
        ],
        parameters: serde_json::json!({ "bytes": bytes, "clients": 1, "io_servers": 1 }),
    };
    repeated::run(plan, &args.repeated)
}

fn contenders() -> Vec<Contender> {
    let two = Moving { depth: 2, ..Moving::by(How::List) };
    vec![
        Contender::new("rdma, one", Transport::Rdma),
        Contender::new("rdma, two", Transport::Rdma).moving(two),
        Contender::new("shm, one", Transport::Shm),
        Contender::new("shm, two", Transport::Shm).moving(two),
        Contender::new("tcp, one", Transport::Tcp),
        Contender::new("tcp, two", Transport::Tcp).moving(two),
    ]
}
