//! Measures the costs of registering memory with an adapter, and of single operations. Thresholds and
//! grouping are based on them.
//!
//! ```text
//!   T = a·pages + b      fitted to the times of 1 … 4096 pages, for registering and deregistering (NC 4.3)
//! ```

use super::super::amounts::{Amounts, Took};
use super::super::figure::{Figure, Line, Origin, Panel};
use super::super::numbers::median;
use super::adapter::{self, Adapter};
use super::operations::{Operation, Pair, registration_times};
use super::pinning::Pinning;
use anyhow::Result;
use weft_bench_args::RegistrationCostsArgs;
use weft_cli_common::size::format_bytes;
use weft_verbs::Device;

const PAGE_BYTES: usize = 4096;
/// Buffers that are registered at once (NC 4.2 has 100).
const BUFFERS: [usize; 4] = [1, 10, 30, 100];
/// Sizes of operations.
const OPERATION_BYTES: [usize; 9] = [4, 128, 512, 2 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// NC 4.3: a and b in microseconds, of registering and of deregistering.
const PAPER: [[f64; 2]; 2] = [[0.77, 7.42], [0.23, 1.1]];
const BEGIN_AND_END: [&str; 2] = ["register", "deregister"];

/// Times in microseconds: for each place, for registering and deregistering, every repetition.
type Times = Vec<[Vec<f64>; 2]>;

/// Runs the measurement.
pub fn run(args: RegistrationCostsArgs) -> Result<()> {
    let parameters = serde_json::json!({ "rounds": args.rounds, "pages": args.pages });
    let paper = [
        "NC 4.3: a = 0.77 us and b = 7.42 us to register, a = 0.23 us and b = 1.1 us to deregister (its lines below are these).",
        "NC 4.2: 1020 us to register and deregister 100 buffers of 4 KiB.",
        "IB table 2, 4 bytes one way: Send/Recv 9.2 us, RDMA Write 6.0 us, RDMA Read 12.4 us.",
    ];
    let title = "Costs of registration and of single operations";
    let mut figure = Figure::new("registration-costs", title, "µs", parameters, &paper);
    figure.took_of = "T = a x pages + b, µs".into();
    let pages: Vec<usize> = std::iter::successors(Some(1), |pages| Some(pages * 2))
        .take_while(|pages| *pages <= args.pages as usize)
        .collect();
    let mut panels = [pages_panel(&pages), buffers_panel()];
    match adapter::first() {
        Ok(adapter) => {
            let name = format!("{} ({})", adapter.device.name(), adapter.device.limits().link_layer);
            measure(&*adapter.device, &name, &pages, &args, &mut panels, &mut figure)?;
            figure.panels.push(operations(&adapter, &args)?);
        }
        Err(reason) => figure.notes.push(format!("No adapter was measured: {reason}.")),
    }
    match Pinning::new() {
        Ok(pinning) => {
            measure(&pinning, "io_uring fixed buffers", &pages, &args, &mut panels, &mut figure)?;
            figure.notes.push(
                "io_uring fixed buffers: pages are pinned as for RDMA, without an adapter; a proxy, not RDMA.".into(),
            );
        }
        Err(reason) => figure.notes.push(format!("Pinning of pages was not measured: {reason}.")),
    }
    for (number, panel) in panels.into_iter().enumerate() {
        figure.panels.insert(number, panel);
    }
    figure.finish(&args.figure)
}

fn pages_panel(pages: &[usize]) -> Panel {
    let line = |which: usize| {
        let [a, b] = PAPER[which];
        let values = pages.iter().map(|pages| Some(a * *pages as f64 + b)).collect();
        Line::known(format!("paper, {}", BEGIN_AND_END[which]), Origin::Paper, values)
    };
    Panel {
        title: "One registration".into(),
        of: "pages".into(),
        places: pages.iter().map(usize::to_string).collect(),
        lines: vec![line(0), line(1)],
    }
}

fn buffers_panel() -> Panel {
    let model = |buffers: &usize| {
        let one: f64 = PAPER.iter().flatten().sum();
        Some(one * *buffers as f64)
    };
    Panel {
        title: "So many buffers of a page, registered and deregistered".into(),
        of: "buffers".into(),
        places: BUFFERS.iter().map(usize::to_string).collect(),
        lines: vec![Line::known(
            "paper, both by a and b",
            Origin::Paper,
            BUFFERS.iter().map(model).collect(),
        )],
    }
}

/// Measures a device. Adds its lines to both panels, and its a and b.
fn measure<D: Device>(
    device: &D,
    name: &str,
    pages: &[usize],
    args: &RegistrationCostsArgs,
    panels: &mut [Panel; 2],
    figure: &mut Figure,
) -> Result<()> {
    let most = pages.iter().copied().max().unwrap_or(1).max(2 * BUFFERS[BUFFERS.len() - 1]);
    let memory = vec![1u8; (most + 1) * PAGE_BYTES];
    let timed = |buffers: usize, pages: usize| -> Result<[Vec<f64>; 2]> {
        let mut samples = [Vec::new(), Vec::new()];
        for _ in 0..args.figure.common.runs {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..args.rounds {
                let bytes = pages * PAGE_BYTES;
                let (begin, end) = registration_times(device, &memory, buffers, bytes, 2 * PAGE_BYTES)?;
                times[0].push(begin.as_nanos() as f64 / 1e3);
                times[1].push(end.as_nanos() as f64 / 1e3);
            }
            samples.iter_mut().zip(times).for_each(|(samples, times)| samples.push(median(&times)));
        }
        Ok(samples)
    };
    let by_pages: Times = pages.iter().map(|pages| timed(1, *pages)).collect::<Result<_>>()?;
    let by_buffers: Times = BUFFERS.iter().map(|buffers| timed(*buffers, 1)).collect::<Result<_>>()?;
    for (which, what) in BEGIN_AND_END.into_iter().enumerate() {
        let samples: Vec<Vec<f64>> = by_pages.iter().map(|times| times[which].clone()).collect();
        let points: Vec<_> =
            pages.iter().zip(&samples).map(|(pages, times)| (*pages as f64, median(times))).collect();
        let (a, b) = line_through(&points);
        let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
        let amounts: Amounts = [("a, each page", a), ("b, each call", b)]
            .map(|(name, value)| (name.to_string(), rounded(value)))
            .into();
        figure.took.push(Took { what: format!("{name}, {what}"), amounts });
        panels[0].lines.push(Line::measured(format!("{name}, {what}"), samples));
    }
    let sum =
        |times: &[Vec<f64>; 2]| times[0].iter().zip(&times[1]).map(|(begin, end)| begin + end).collect();
    panels[1].lines.push(Line::measured(format!("{name}, both"), by_buffers.iter().map(sum).collect()));
    Ok(())
}

/// Fits the line with the least sum of squares of relative errors, so that small numbers of pages count as
/// much as large ones.
fn line_through(points: &[(f64, f64)]) -> (f64, f64) {
    let (mut s, mut sx, mut sy, mut sxx, mut sxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, y) in points.iter().filter(|(_, y)| *y > 0.0) {
        let weight = 1.0 / (y * y);
        s += weight;
        sx += weight * x;
        sy += weight * y;
        sxx += weight * x * x;
        sxy += weight * x * y;
    }
    let spread = s * sxx - sx * sx;
    if spread <= 0.0 {
        return (0.0, if s > 0.0 { sy / s } else { 0.0 });
    }
    let a = (s * sxy - sx * sy) / spread;
    (a, (sy - a * sx) / s)
}

fn operations(adapter: &Adapter, args: &RegistrationCostsArgs) -> Result<Panel> {
    let most = OPERATION_BYTES[OPERATION_BYTES.len() - 1];
    let mut pair = Pair::connect(&adapter.fabric, adapter.address, most)?;
    let mut lines = Vec::new();
    for operation in Operation::ALL {
        let mut samples = Vec::new();
        for bytes in OPERATION_BYTES {
            let mut medians = Vec::new();
            for _ in 0..args.figure.common.runs {
                let mut times = Vec::new();
                for _ in 0..args.rounds {
                    times.extend(pair.once(operation, bytes)?.map(|took| took.as_nanos() as f64 / 1e3));
                }
                medians.extend((!times.is_empty()).then(|| median(&times)));
            }
            samples.push(medians);
        }
        lines.push(Line::measured(operation.name(), samples));
    }
    Ok(Panel {
        title: "Single operations, both ends here".into(),
        of: "bytes".into(),
        places: OPERATION_BYTES.iter().map(|bytes| format_bytes(*bytes as u64)).collect(),
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_and_b_come_back() {
        let points: Vec<_> = [1.0, 2.0, 64.0, 4096.0].map(|pages| (pages, 0.77 * pages + 7.42)).into();
        let (a, b) = line_through(&points);
        assert!((a - 0.77).abs() < 1e-9 && (b - 7.42).abs() < 1e-9, "{a} {b}");
        assert_eq!(line_through(&[(1.0, 5.0)]), (0.0, 5.0));
        assert_eq!(line_through(&[]), (0.0, 0.0));
    }

    #[test]
    fn the_papers_hundred_buffers_take_a_millisecond() {
        let panel = buffers_panel();
        let hundred = panel.lines[0].values[3].unwrap();
        assert!((900.0..1100.0).contains(&hundred), "{hundred}");
    }
}
