//! RDMA over the pretended adapter: how little is asked of adapters, and what hostile peers can do.

mod common;

#[path = "verbs/counts.rs"]
mod counts;
#[path = "verbs/hostile.rs"]
mod hostile;
#[path = "verbs/lend.rs"]
mod lend;
#[path = "verbs/raw.rs"]
mod raw;
#[path = "verbs/windows.rs"]
mod windows;
