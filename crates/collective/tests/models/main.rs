//! Two-phase accesses of threads against a model that moves one byte at a time.

mod generate;
mod two_phase;
