//! What servers count of themselves, as `weft status` has it.

use weft_client::Client;
use weft_wire::Op;

/// A number that the metadata server tells of itself.
#[track_caller]
pub fn gauge(client: &Client, name: &str) -> u64 {
    let status = client.server_status(false).swap_remove(0).1.expect("the metadata server answers");
    status.gauges.iter().find(|gauge| gauge.name == name).unwrap_or_else(|| panic!("no {name}")).value
}

/// How often servers were asked to do this.
#[track_caller]
pub fn asked(client: &Client, op: Op) -> u64 {
    let statuses = client.server_status(false);
    let operations = statuses.iter().flat_map(|(_, status)| &status.as_ref().expect("it answers").operations);
    operations.filter(|count| count.op == op as u16).map(|count| count.count).sum()
}
