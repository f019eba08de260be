//! Checks that the repository keeps its own rules.
fn main() {}
