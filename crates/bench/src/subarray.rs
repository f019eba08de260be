//! A part of an array, by scheme (NC 4.1, figure 3), and list I/O with hints about its memory (IB 6.8, figure
//! 14).
//!
//! ```text
//!   the array in memory   ▄▄▄▄····     multiple messages   one message per row
//!                         ▄▄▄▄····     pack                rows copied into one piece, one message
//!                         ········     gather              the rows themselves; the server's adapter gathers
//!                         ········     lend                the client's adapter gathers into lent buffers
//!                         ········     contiguous          as many bytes in one piece: the upper limit
//! ```
//!
//! Over RDMA, rows must be registered: each by itself for every transfer (*multiple reg*; rows whose pages
//! touch, up to 1024², are still one registration), in groups for every transfer (*one reg*), or in advance
//! (*no reg*). Shared memory and TCP register nothing. Memory from weft_mem_alloc is shared with the servers.

use super::access::pattern::Pattern;
use super::repeated::task::Moving;
use super::repeated::{self, Contender, Measure, Place, Plan};
use anyhow::Result;
use weft_bench_args::{How, Side, SubarrayArgs, Transport};

/// Transfers of a repetition.
const ROUNDS: u32 = 10;
/// Nothing stays registered, and no hole is worth registering.
const EACH_ROW: &str = "rdma-foreign=not-cached&rdma-cost=1:0&rdma-mechanism=remote";
/// Nothing stays registered.
const EACH_TRANSFER: &str = "rdma-foreign=not-cached&rdma-mechanism=remote";
const KNOWN: &str = "rdma-mechanism=remote";
/// The client moves the data, to and from buffers that the server lends.
const LENT: &str = "rdma-mechanism=lend";
const LENT_EACH_TRANSFER: &str = "rdma-foreign=not-cached&rdma-mechanism=lend";

/// Runs the measurement.
pub fn run(args: SubarrayArgs) -> Result<()> {
    let plan = args.tile.map_or_else(|| quarters(&args.array), tile);
    repeated::run(plan, &args.repeated)
}

fn quarters(arrays: &[u64]) -> Plan {
    let arrays = if arrays.is_empty() { vec![512, 1024, 2048, 4096] } else { arrays.to_vec() };
    let place = |size: &u64| Place {
        name: format!("{size}²"),
        pattern: Pattern::Quarter { size: size / 2 * 2 },
        rounds: ROUNDS,
    };
    let rdma = |name| Contender::new(name, Transport::Rdma);
    let direct = Moving::by(How::Direct);
    let mut contenders = vec![
        rdma("rdma contiguous, no reg").options(KNOWN).known_memory().in_one_piece(),
        rdma("rdma multiple messages, no reg")
            .options(KNOWN)
            .known_memory()
            .moving(Moving::by(How::Messages)),
        rdma("rdma pack").options("rdma-foreign=not-cached").moving(Moving::by(How::Pack)),
        rdma("rdma gather, multiple reg").options(EACH_ROW).moving(direct),
        rdma("rdma gather, one reg").options(EACH_TRANSFER).moving(direct),
        rdma("rdma gather, no reg").options(KNOWN).known_memory().moving(direct),
        rdma("rdma lend, one reg").options(LENT_EACH_TRANSFER).moving(direct),
        rdma("rdma lend, no reg").options(LENT).known_memory().moving(direct),
        rdma("rdma"),
    ];
    contenders.extend(["shm", "tcp"].into_iter().flat_map(streams));
    Plan {
        name: "subarray",
        title: "The quarter of an array of integers by scheme",
        measure: Measure::Speed,
        of: "array",
        places: arrays.iter().map(place).collect(),
        contenders,
        io_servers: 1,
        paper: &[
            "NC figure 3 (a graph without numbers): contiguous and gather without registration are the fastest, gather with one registration \
             next; with a registration for each row gather is slow. Pack is better than gather with registrations up to 1024² (256 KiB).",
        ],
        parameters: serde_json::json!({ "clients": 1, "io_servers": 1 }),
    }
}

/// The schemes over a transport without registration.
fn streams(transport: &'static str) -> Vec<Contender> {
    let of = |names: [&'static str; 4], transport| {
        let [contiguous, messages, pack, gather] = names;
        vec![
            Contender::new(contiguous, transport).in_one_piece(),
            Contender::new(messages, transport).moving(Moving::by(How::Messages)),
            Contender::new(pack, transport).moving(Moving::by(How::Pack)),
            Contender::new(gather, transport).moving(Moving::by(How::Direct)),
        ]
    };
    match transport {
        "shm" => {
            let names = ["shm contiguous", "shm multiple messages", "shm pack", "shm gather"];
            let known = Contender::new("shm gather, weft_mem_alloc", Transport::Shm);
            let mut all = of(names, Transport::Shm);
            all.push(known.known_memory().moving(Moving::by(How::Direct)));
            all
        }
        _ => {
            let names = ["tcp contiguous", "tcp multiple messages", "tcp pack", "tcp gather"];
            of(names, Transport::Tcp)
        }
    }
}

fn tile([columns, rows]: [u64; 2]) -> Plan {
    let hinted = Moving { with_hint: true, ..Moving::by(How::List) };
    let rdma = |name| Contender::new(name, Transport::Rdma);
    Plan {
        name: "subarray tile",
        title: "Tiles in noncontiguous memory, with and without a hint about the allocation",
        measure: Measure::Speed,
        of: "element",
        places: vec![Place {
            name: "64 B".into(),
            pattern: Pattern::Tile {
                grid: [2, 2],
                rows,
                columns,
                element_bytes: 64,
                memory: Side::Noncontiguous,
            },
            rounds: ROUNDS,
        }],
        contenders: vec![
            rdma("rdma, each row registered").options(EACH_ROW),
            rdma("rdma, grouped").options(EACH_TRANSFER),
            rdma("rdma, lent").options(LENT),
            rdma("rdma, with a hint").options(EACH_TRANSFER).moving(hinted),
            rdma("rdma, cached"),
            rdma("rdma, weft_mem_alloc").known_memory(),
            Contender::new("shm", Transport::Shm),
            Contender::new("shm, weft_mem_alloc", Transport::Shm).known_memory(),
            Contender::new("tcp", Transport::Tcp),
        ],
        io_servers: 4,
        paper: &[
            "IB figure 14 (a graph without numbers) and 6.8: with a hint 6 registrations instead of 768 for each process, 5 of them cached; \
             85 % more bandwidth for reads and 71 % for writes.",
        ],
        parameters: serde_json::json!({ "clients": 4, "io_servers": 4, "rows": rows, "columns": columns }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_name_of_its_own() {
        for plan in [quarters(&[]), tile([1024, 768])] {
            let mut names: Vec<_> = plan.contenders.iter().map(|one| one.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), plan.contenders.len());
        }
    }
}
