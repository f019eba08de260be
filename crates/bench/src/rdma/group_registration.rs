//! Compares ways of registering the rows of an array: already registered, one by one, as a group, as a group
//! with holes (NC 6.4, table 4).

use super::super::amounts::{Amounts, Took};
use super::super::figure::{Figure, Line, Origin, Panel};
use super::adapter;
use super::pinning::Pinning;
use super::scheme_trial::{SchemeTrials, paper_scheme_cost};
use anyhow::Result;
use std::sync::Arc;
use weft_bench_args::GroupRegistrationArgs;
use weft_transport::registration::{Scheme, SchemeCost};
use weft_verbs::Device;

const SCHEMES: [(Scheme, &str); 4] = [
    (Scheme::Ideal, "ideal"),
    (Scheme::Individual, "individual"),
    (Scheme::Group, "group"),
    (Scheme::GroupWithHoles, "group with holes"),
];
/// NC table 4: registrations, microseconds, and MB/s of a write without sync.
const PAPER: [[f64; 3]; 4] =
    [[0.0, 0.0, 1010.0], [1024.0, 5254.0, 424.0], [1.0, 227.0, 950.0], [11.0, 496.0, 879.0]];
/// Time of the transfer if nothing needs to be registered: 4 MiB at the paper's 1010 MB/s.
const TRANSFER_US: f64 = 4e6 / 1010.0;

/// Runs the measurement.
pub fn run(args: GroupRegistrationArgs) -> Result<()> {
    let paper = [
        "NC table 4: 0, 1024, 1 and 11 registrations; 0, 5254, 227 and 496 us; 1010, 424, 950 and 879 MB/s, which is 57 %, 6 % and \
         13 % less than ideal.",
    ];
    let mut figure = Figure::new(
        "group-registration",
        "Registering 1024 rows of an array",
        "µs",
        serde_json::json!({ "rows": 1024, "row_bytes": 4096, "stride_bytes": 8192 }),
        &paper,
    );
    figure.took_of = "Registrations, pages, and µs of both".into();
    let mut lines = vec![
        Line::known("paper", Origin::Paper, PAPER.iter().map(|[_, us, _]| Some(*us)).collect()),
        Line::known("paper's costs", Origin::Predicted, paper_costs()),
    ];
    let paper_took =
        SCHEMES.iter().map(|(scheme, name)| took("paper's costs", name, &paper_scheme_cost(*scheme)));
    figure.took.extend(paper_took);
    match adapter::first() {
        Ok(adapter) => try_all(adapter.device, &args, &mut lines, &mut figure)?,
        Err(reason) => figure.notes.push(format!("No adapter was measured: {reason}.")),
    }
    match Pinning::new() {
        Ok(pinning) => {
            try_all(Arc::new(pinning), &args, &mut lines, &mut figure)?;
            figure.notes.push(
                "io_uring: pages are pinned as for RDMA, without an adapter; a proxy, not RDMA.".into(),
            );
        }
        Err(reason) => figure.notes.push(format!("Pinning of pages was not measured: {reason}.")),
    }
    figure.panels.push(Panel {
        title: "To register and deregister the rows".into(),
        of: "scheme".into(),
        places: SCHEMES.iter().map(|(_, name)| name.to_string()).collect(),
        lines,
    });
    figure.finish(&args.figure)
}

fn paper_costs() -> Vec<Option<f64>> {
    SCHEMES.iter().map(|(scheme, _)| Some(paper_scheme_cost(*scheme).cost_ns as f64 / 1e3)).collect()
}

/// Adds the measured and the predicted costs of an adapter.
fn try_all<D: Device>(
    device: Arc<D>,
    args: &GroupRegistrationArgs,
    lines: &mut Vec<Line>,
    figure: &mut Figure,
) -> Result<()> {
    let name = device.name().to_string();
    let trials = SchemeTrials::new(device);
    let (page_ns, call_ns) = trials.cost_ns();
    let (mut samples, mut predicted) = (Vec::new(), Vec::new());
    for (scheme, scheme_name) in SCHEMES {
        let mut times = Vec::new();
        let mut counted = None;
        for _ in 0..args.figure.common.runs {
            let trial = trials.once(scheme)?;
            times.push((trial.register + trial.deregister).as_nanos() as f64 / 1e3);
            counted = Some(trial.counted);
        }
        if let Some(counted) = counted {
            figure.took.push(took(&name, scheme_name, &counted));
            predicted.push(Some(counted.cost_ns as f64 / 1e3));
        }
        samples.push(times);
    }
    lines.push(Line::measured(name.clone(), samples));
    lines.push(Line::known(format!("{name}, by its costs"), Origin::Predicted, predicted));
    figure.notes.push(format!(
        "{name}: a = {:.3} us and b = {:.3} us were measured for registration and deregistration together.",
        page_ns as f64 / 1e3,
        call_ns as f64 / 1e3
    ));
    Ok(())
}

fn took(adapter: &str, scheme: &str, counted: &SchemeCost) -> Took {
    let us = counted.cost_ns as f64 / 1e3;
    let amounts: Amounts = [
        ("registrations", counted.registrations as f64),
        ("refused", counted.refused as f64),
        ("pages", counted.pages as f64),
        ("predicted µs", us),
        ("% of 4 MiB at 1010 MB/s", 100.0 * us / TRANSFER_US),
    ]
    .map(|(name, amount)| (name.to_string(), amount))
    .into();
    Took { what: format!("{adapter}, {scheme}"), amounts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_as_many_as_the_papers() {
        for ((scheme, name), [registrations, ..]) in SCHEMES.into_iter().zip(PAPER) {
            assert_eq!(paper_scheme_cost(scheme).registrations as f64, registrations, "{name}");
        }
    }
}
