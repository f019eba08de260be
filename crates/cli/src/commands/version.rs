//! `weft version`

use crate::exit::Failures;
use anyhow::Result;
use serde_json::json;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;
use weft_wire::VERSIONS;

/// Shows the version of this program and of the servers of a file system.
///
/// Programs and servers of different versions work together where they have a version of the protocol in
/// common.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system whose servers are asked [default: that of WEFT_URL, if it answers].
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The program's own line.
pub fn line() -> String {
    format!(
        "weft {} for {}-{}, protocol versions {} to {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        VERSIONS.0,
        VERSIONS.1
    )
}

/// Shows versions.
pub fn run(args: Args) -> Result<()> {
    let mut failures = Failures::default();
    let asked = args.url.clone().or_else(|| std::env::var("WEFT_URL").ok().filter(|url| !url.is_empty()));
    let mut servers = Vec::new();
    if let Some(url) = asked {
        let place = WeftPath::from_argument(&url)?;
        match Connections::new(&args.connect).client(&place.url) {
            Ok(client) => servers = client.server_status(false),
            // Of a variable it is no failure: the version of this program was asked for.
            Err(error) if args.url.is_some() => failures.report(&error),
            Err(_) => {}
        }
    }
    let answers = servers.iter().map(|(server, answer)| {
        (server.name.as_str(), answer.as_ref().ok().map(|status| status.version.as_str()))
    });
    if args.json {
        let version = env!("CARGO_PKG_VERSION");
        let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        let servers: Vec<_> =
            answers.map(|(name, version)| json!({ "name": name, "version": version })).collect();
        let protocol = json!({ "oldest": VERSIONS.0, "newest": VERSIONS.1 });
        output::print_json(
            &json!({ "version": version, "target": target, "protocol": protocol, "servers": servers }),
        )?;
        return failures.result();
    }
    output::print_line(line())?;
    for (name, version) in answers {
        output::print_line(format!("{name}: {}", version.unwrap_or("does not answer")))?;
    }
    failures.result()
}
