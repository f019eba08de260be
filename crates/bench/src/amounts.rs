//! What transfers cost: amounts by name.

use super::numbers::count;
use serde::Serialize;
use std::collections::BTreeMap;
use weft_cli_common::output;

/// Amounts by name.
pub type Amounts = BTreeMap<String, f64>;

/// What a transfer cost.
#[derive(Debug, Clone, Serialize)]
pub struct Took {
    /// The transfer.
    pub what: String,
    /// The amounts by name.
    pub amounts: Amounts,
}

/// A table of costs. Columns without amounts are left out.
pub fn table(all: &[Took]) -> comfy_table::Table {
    let amounts = all.iter().flat_map(|took| &took.amounts).filter(|(_, amount)| **amount != 0.0);
    let mut names: Vec<&str> = amounts.map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let headings: Vec<&str> = std::iter::once("").chain(names.iter().copied()).collect();
    let mut table = output::table(&headings, &(1..headings.len()).collect::<Vec<_>>());
    for took in all {
        let amount = |name: &&str| took.amounts.get(*name).map_or(String::new(), |amount| count(*amount));
        table.add_row(std::iter::once(took.what.clone()).chain(names.iter().map(amount)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_nothing_has_no_column() {
        let amounts = [("sends", 1.0), ("reads", 0.0), ("writes", 2.5)];
        let amounts = amounts.map(|(name, amount)| (name.to_string(), amount)).into();
        let table = table(&[Took { what: "mine, 1".into(), amounts }]).to_string();
        assert!(table.contains("sends") && table.contains("2.50") && !table.contains("reads"), "{table}");
    }
}
