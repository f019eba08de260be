//! `weft fsck`

use crate::exit::Code;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;
use weft_client::Client;
use weft_wire::messages::{CheckReply, FindingInfo, treatment};

/// How often the progress of a check is polled.
const POLL: Duration = Duration::from_millis(50);
/// Upper limit of rounds of check and repair. Each round treats what the previous one revealed.
const ROUNDS_MAX: u32 = 12;
/// Exit codes, as in fsck(8).
const REPAIRED: u8 = 1;
const LEFT: u8 = 4;
const FAILED: u8 = 8;

/// Checks a file system while it is in use.
///
/// It checks that names, inodes and counts agree, and that the data files on all I/O servers agree with them.
/// Servers keep serving, and concurrent changes by clients are not reported as errors. Only root and the
/// owner of the root directory can use it, with an administrator's key (`weft help keys`).
///
/// With --repair it repairs all errors that can be repaired. Each one is checked again just before its
/// repair, and the whole check is repeated until it finds nothing. Files and directories that have lost their
/// names, and data files that have lost their inodes, are moved to /lost+found, under their inode numbers.
///
/// A file that has lost data is not repaired, so that the loss stays an error for who reads it: restore the file
/// from a copy, or accept the loss with --accept-loss.
///
/// Exit codes: 0 no errors, 1 all errors repaired, 4 errors remain, 8 the check could not be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Repair what can be repaired.
    #[arg(long)]
    repair: bool,
    /// With --repair: also give up data that is lost. Files get the size of what is left, and zeros where data is missing.
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The result of a whole run.
#[derive(Default)]
struct Outcome {
    /// In the order of discovery, including what repairs revealed.
    repaired: Vec<FindingInfo>,
    /// What the last check found and no repair removed.
    left: Vec<FindingInfo>,
    records: u64,
    data_files: u64,
}

/// Checks, and repairs on request.
pub fn run(args: Args) -> Result<()> {
    match check(&args) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Code(code).into()),
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            Err(Code(FAILED).into())
        }
    }
}

fn check(args: &Args) -> Result<u8> {
    let place = WeftPath::from_argument(&args.url)?;
    let client = Connections::new(&args.connect).client(&place.url)?;
    let progress = ProgressBar::new_spinner();
    let mut outcome = Outcome::default();
    for _ in 0..ROUNDS_MAX {
        let (check, findings) = look(&client, &progress, &mut outcome)?;
        let repaired_before = outcome.repaired.len();
        outcome.left.clear();
        for (number, finding) in (0..).zip(findings) {
            match treat(&client, args, check, number, &finding)? {
                treatment::REPAIRED => outcome.repaired.push(finding),
                treatment::GONE => {}
                _ => outcome.left.push(finding),
            }
        }
        if outcome.repaired.len() == repaired_before {
            break;
        }
    }
    progress.finish_and_clear();
    print_outcome(args, &place.url.to_string(), &outcome)?;
    Ok(match (outcome.left.is_empty(), outcome.repaired.is_empty()) {
        (true, true) => 0,
        (true, false) => REPAIRED,
        (false, _) => LEFT,
    })
}

/// Runs one check to its end.
fn look(client: &Client, progress: &ProgressBar, outcome: &mut Outcome) -> Result<(u64, Vec<FindingInfo>)> {
    let check = RandomState::new().hash_one(std::process::id());
    let mut findings: Vec<FindingInfo> = Vec::new();
    loop {
        let reply = client.check(check, findings.len() as u32)?;
        findings.extend(reply.findings.iter().cloned());
        show(progress, &reply);
        if !reply.failure.is_empty() {
            bail!("the check was aborted: {}", reply.failure);
        }
        if reply.finished && findings.len() as u32 >= reply.found {
            (outcome.records, outcome.data_files) = (reply.records, reply.data_files);
            return Ok((check, findings));
        }
        if !reply.finished {
            std::thread::sleep(POLL);
        }
    }
}

/// Repairs one finding, if requested. The server checks it again first.
fn treat(client: &Client, args: &Args, check: u64, number: u32, finding: &FindingInfo) -> Result<u8> {
    if !args.repair {
        return Ok(treatment::LEFT);
    }
    let treated = client
        .treat(check, number, args.accept_loss)
        .with_context(|| format!("cannot repair: {}", finding.text))?;
    Ok(treated.treatment)
}

fn show(progress: &ProgressBar, reply: &CheckReply) {
    let text = format!(
        "{} records of names, {} data files looked at, {} findings",
        reply.records, reply.data_files, reply.found
    );
    progress.set_message(text);
    progress.tick();
}

fn print_outcome(args: &Args, url: &str, outcome: &Outcome) -> Result<()> {
    let texts =
        |findings: &[FindingInfo]| findings.iter().map(|found| found.text.clone()).collect::<Vec<_>>();
    if args.json {
        return output::print_json(&json!({
            "url": url,
            "records": outcome.records,
            "data_files": outcome.data_files,
            "repaired": texts(&outcome.repaired),
            "left": texts(&outcome.left),
        }));
    }
    for text in texts(&outcome.repaired) {
        output::print_line(format!("repaired: {text}"))?;
    }
    for finding in &outcome.left {
        let hint = match (args.repair, finding.repairable) {
            (false, true) => "",
            (true, true) => " (not repaired)",
            (_, false) => " (cannot be repaired automatically)",
        };
        output::print_line(format!("found: {}{hint}", finding.text))?;
    }
    let end = match (outcome.left.len(), outcome.repaired.len()) {
        (0, 0) => "nothing is wrong".to_string(),
        (0, repaired) => format!("{repaired} repaired, nothing is wrong now"),
        (left, 0) if !args.repair => format!("{left} found; weft fsck --repair repairs what can be"),
        (left, repaired) => format!("{repaired} repaired, {left} left"),
    };
    let (records, data_files) = (outcome.records, outcome.data_files);
    output::print_line(format!("{records} records of names and {data_files} data files checked: {end}"))
}
