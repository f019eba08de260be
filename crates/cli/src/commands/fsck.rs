//! `weft fsck`

use crate::Code;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;
use weft_cli_common::session::{ConnectArgs, Session};
use weft_client::Client;
use weft_wire::messages::{CheckReply, FindingInfo, treatment};

/// How often a running check is asked.
const POLL: Duration = Duration::from_millis(50);
/// Checks and repairs in turn; each round treats what the one before has brought to light.
const ROUNDS_MAX: u32 = 12;
/// Exit codes, as of fsck(8).
const REPAIRED: u8 = 1;
const LEFT: u8 = 4;
const FAILED: u8 = 8;

/// Checks a file system while it is in use: that names, inodes and counts agree, and that the data files on all I/O servers do. The
/// servers go on serving; what clients do meanwhile is no damage. For root, and for the owner of the root directory, with a key
/// that administers (`weft help keys`).
///
/// With --repair, everything that can be is repaired, each finding for itself and after another look, and the check is repeated
/// until it finds nothing. Files and directories that have lost their names, and data files that have lost their inodes, come to
/// /lost+found, named by their inode numbers.
///
/// Exit codes: 0 nothing was wrong, 1 all that was wrong is repaired, 4 something is wrong still, 8 the check could not be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL")]
    url: String,
    /// Repair what can be repaired.
    #[arg(long)]
    repair: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// What came of a whole run.
#[derive(Default)]
struct Outcome {
    /// In the order in which it was found; what a repair brought to light is among it.
    repaired: Vec<FindingInfo>,
    /// Of the last check.
    left: Vec<FindingInfo>,
    records: u64,
    data_files: u64,
}

/// Checks, and repairs if asked to.
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
    let client = Session::new(&args.connect).client(&place.url)?;
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
    tell(args, &place.url.to_string(), &outcome)?;
    Ok(match (outcome.left.is_empty(), outcome.repaired.is_empty()) {
        (true, true) => 0,
        (true, false) => REPAIRED,
        (false, _) => LEFT,
    })
}

/// One check, to its end.
fn look(client: &Client, progress: &ProgressBar, outcome: &mut Outcome) -> Result<(u64, Vec<FindingInfo>)> {
    let check = RandomState::new().hash_one(std::process::id());
    let mut findings: Vec<FindingInfo> = Vec::new();
    loop {
        let reply = client.check(check, findings.len() as u32)?;
        findings.extend(reply.findings.iter().cloned());
        show(progress, &reply);
        if !reply.failure.is_empty() {
            bail!("the check was given up: {}", reply.failure);
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

/// Treats one finding, if repairs are wanted; the server looks again first.
fn treat(client: &Client, args: &Args, check: u64, number: u32, finding: &FindingInfo) -> Result<u8> {
    if !args.repair {
        return Ok(treatment::LEFT);
    }
    let treated = client.treat(check, number).with_context(|| format!("cannot repair: {}", finding.text))?;
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

fn tell(args: &Args, url: &str, outcome: &Outcome) -> Result<()> {
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
            (_, false) => " (cannot be repaired by itself)",
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
