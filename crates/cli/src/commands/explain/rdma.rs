//! What a request needs over RDMA.

use anyhow::Result;
use serde_json::{Value, json};
use weft_cli_common::{output, size};
use weft_client::{RdmaPlan, RdmaServerPlan};

/// Prints the plan for RDMA: registrations, mechanisms, work requests.
pub fn print(plan: &RdmaPlan) -> Result<()> {
    let costs = match &plan.adapter {
        Some(adapter) => format!("the costs of {adapter}"),
        None => "the costs that NC 4.3 measured, since no adapter is in use".to_string(),
    };
    output::print_line(format!(
        "\nover RDMA, with {costs} ({} a page, {} a call):",
        size::format_ns(plan.page_ns),
        size::format_ns(plan.call_ns)
    ))?;
    output::print_line(format!(
        "  {} pieces of memory: {} registrations of {} pages, {} the first time (each piece by itself {})\n",
        plan.pieces,
        plan.registrations,
        plan.pages,
        size::format_ns(plan.cost_ns),
        size::format_ns(plan.individual_ns)
    ))?;
    let headings = [
        "server",
        "requests",
        "inline",
        "fast",
        "remote",
        "lent",
        "packed",
        "data",
        "pieces",
        "work requests",
    ];
    let mut table = output::table(&headings, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for one in &plan.servers {
        let counts = [one.requests, one.inline, one.fast, one.remote, one.lent, one.packed]
            .map(|count| count.to_string());
        let mut row = vec![one.server.clone()];
        row.extend(counts);
        row.extend([size::format_bytes(one.bytes), one.pieces.to_string(), one.work_requests.to_string()]);
        table.add_row(row);
    }
    output::print_table(&table)
}

/// The same as JSON.
pub fn as_json(plan: &RdmaPlan) -> Value {
    let server = |one: &RdmaServerPlan| {
        json!({
            "server": one.server,
            "slot": one.slot,
            "requests": one.requests,
            "inline": one.inline,
            "fast": one.fast,
            "remote": one.remote,
            "lent": one.lent,
            "packed": one.packed,
            "bytes": one.bytes,
            "pieces": one.pieces,
            "work_requests": one.work_requests,
        })
    };
    json!({
        "adapter": plan.adapter,
        "page_ns": plan.page_ns,
        "call_ns": plan.call_ns,
        "pieces": plan.pieces,
        "registrations": plan.registrations,
        "pages": plan.pages,
        "expected_ns": plan.cost_ns,
        "individual_ns": plan.individual_ns,
        "servers": plan.servers.iter().map(server).collect::<Vec<_>>(),
    })
}
