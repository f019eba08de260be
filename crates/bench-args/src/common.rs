//! Options of every measurement.

use std::path::PathBuf;
use weft_cli_common::connections::KeyArgs;

/// Options of every measurement.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// Repetitions; the median is reported.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Where to create the scratch directory [default: /dev/shm if there is room, else the directory for
    /// temporary files].
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Also write the results as JSON to FILE.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// Options of measurements of a cluster.
#[derive(Debug, Clone, clap::Args)]
pub struct TestbedArgs {
    /// Measure this cluster instead of starting one.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Options of every measurement.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The key.
    #[command(flatten)]
    pub connect: KeyArgs,
}
