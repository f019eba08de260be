//! `weft scrub`

use crate::exit::{Code, Failures};
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_cli_common::connections::{ConnectArgs, Connections, at};
use weft_cli_common::launch::CLUSTER_FILE;
use weft_cli_common::place::WeftPath;
use weft_cli_common::tree::{self, Visit};
use weft_cli_common::{output, size};
use weft_client::Client;
use weft_layout::Layout;
use weft_server::ClusterConfig;
use weft_wire::messages::{ScrubFinding, scrub_action, scrub_found};

/// How often the servers are polled.
const POLL: Duration = Duration::from_millis(100);
/// Exit codes, as in `weft fsck`.
const FOUND: u8 = 4;
const FAILED: u8 = 8;

/// Verifies the checksums of all file data while the file system is in use, and lists what is damaged.
///
/// Every I/O server reads all of its data from its disk. Only root and the owner of the root directory can
/// use this command, with an administrator's key (`weft help keys`).
///
/// Damaged data is never returned: reading it fails with EIO. Restore such files from a copy, or overwrite
/// the damaged blocks of 4 KiB entirely. Data that has no checksums, such as files written by versions
/// without checksums, gets them.
///
/// Servers also scrub on their own, weekly by default (`weft help cluster-file`: data_scrub_interval_s). This
/// command starts a new scrub, and stops it if it is interrupted. `weft fsck` checks names and sizes instead,
/// and reads no data.
///
/// Exit codes: 0 no damage, 4 damage found, 8 the scrub could not be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file system.
    #[arg(value_name = "URL", env = "WEFT_URL", required_unless_present = "dir")]
    url: Option<String>,
    /// The cluster's directory, as given to `weft up`, instead of a URL.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Limit of the bytes read per second on each server; 0: no limit [default: as in the cluster file].
    #[arg(long, value_name = "BYTES", value_parser = weft_cli_common::size::parse_bytes)]
    rate: Option<u64>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// The scrub of one server.
#[derive(Default)]
struct Scrub {
    server: u16,
    name: String,
    number: u64,
    files: u64,
    bytes: u64,
    adopted_blocks: u64,
    readopted_blocks: u64,
    is_over: bool,
    failure: String,
    found: u32,
    findings: Vec<ScrubFinding>,
}

/// Scrubs all I/O servers.
pub fn run(args: Args) -> Result<()> {
    match scrub(args) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Code(code).into()),
        Err(error) => {
            eprintln!("weft: {}", output::error_text(&error));
            Err(Code(FAILED).into())
        }
    }
}

fn scrub(mut args: Args) -> Result<u8> {
    let url = match (&args.dir, &args.url) {
        (Some(dir), _) => url_of(dir, &mut args.connect)?,
        (None, Some(url)) => WeftPath::from_argument(url)?.url,
        (None, None) => bail!("give the URL of a file system, or --dir"),
    };
    let client = Connections::new(&args.connect).client(&url)?;
    let mut failures = Failures::default();
    let bytes_per_s = match args.rate {
        None => 0,
        Some(0) => u64::MAX,
        Some(rate) => rate,
    };
    let mut scrubs = Vec::new();
    for (server, answer) in client.scrub(scrub_action::BEGIN, bytes_per_s, &[]) {
        let mut scrub = Scrub { server: server.id, name: server.name, ..Scrub::default() };
        match answer {
            Ok(begun) => scrub.number = begun.number,
            Err(error) => {
                (scrub.is_over, scrub.failure) = (true, error.to_string());
                failures.report(&error.into());
            }
        }
        scrubs.push(scrub);
    }
    let progress = ProgressBar::new_spinner();
    while scrubs.iter().any(|scrub| !scrub.is_over) {
        std::thread::sleep(POLL);
        look(&client, &mut scrubs, &mut failures);
        let (files, bytes) = sums(&scrubs);
        let found: u32 = scrubs.iter().map(|scrub| scrub.found).sum();
        progress
            .set_message(format!("{files} data files, {} read, {found} found", size::format_bytes(bytes)));
        progress.tick();
    }
    progress.finish_and_clear();
    let files = name_files(&client, &scrubs, &mut failures)?;
    for scrub in &mut scrubs {
        // A crash in the middle of a removal leaves traces of a data file whose file is gone.
        let all = scrub.findings.len();
        scrub.findings.retain(|found| found.kind != scrub_found::MISSING || files.contains_key(&found.ino));
        scrub.found = scrub.found.saturating_sub((all - scrub.findings.len()) as u32);
    }
    print_outcome(&args, &url, &scrubs, &files)?;
    let failed = failures.result().is_err() || scrubs.iter().any(|scrub| !scrub.failure.is_empty());
    Ok(match (failed, scrubs.iter().any(|scrub| scrub.found > 0)) {
        (true, _) => FAILED,
        (false, true) => FOUND,
        (false, false) => 0,
    })
}

/// The URL of a cluster that was started in a directory; selects its key.
fn url_of(dir: &Path, connect: &mut ConnectArgs) -> Result<String> {
    let config = ClusterConfig::load(&dir.join(CLUSTER_FILE))?;
    let address = config.meta_servers().next().and_then(|server| server.addresses.first());
    let address = address.context("the cluster file has no metadata server")?;
    let key = dir.join("client.key");
    if connect.key.key.is_none() && key.exists() {
        connect.key.key = Some(key);
    }
    Ok(format!("weft://{address}/"))
}

fn sums(scrubs: &[Scrub]) -> (u64, u64) {
    (scrubs.iter().map(|scrub| scrub.files).sum(), scrubs.iter().map(|scrub| scrub.bytes).sum())
}

/// Polls the progress of all servers.
fn look(client: &Client, scrubs: &mut [Scrub], failures: &mut Failures) {
    let known: Vec<u32> = scrubs.iter().map(|scrub| scrub.findings.len() as u32).collect();
    let answers = client.scrub(scrub_action::REPORT, 0, &known);
    for (scrub, (_, answer)) in scrubs.iter_mut().zip(answers).filter(|(scrub, _)| !scrub.is_over) {
        match answer {
            Ok(reply) if reply.number == scrub.number => {
                (scrub.files, scrub.bytes) = (reply.files, reply.bytes);
                (scrub.adopted_blocks, scrub.failure) = (reply.adopted_blocks, reply.failure);
                scrub.readopted_blocks = reply.readopted_blocks.0;
                scrub.found = reply.found;
                let is_all = reply.findings.is_empty();
                scrub.findings.extend(reply.findings);
                scrub.is_over = !reply.is_running && is_all;
            }
            Ok(_) => {
                scrub.is_over = true;
                scrub.failure = "the server was restarted, or another scrub was started".into();
                failures.report(&anyhow::anyhow!("{}: {}", scrub.name, scrub.failure));
            }
            Err(error) => {
                (scrub.is_over, scrub.failure) = (true, error.to_string());
                failures.report(&error.into());
            }
        }
    }
}

/// Names and layout of a file.
#[derive(Default)]
struct File {
    paths: Vec<PathBuf>,
    layout: Option<Layout>,
}

/// The names of files with findings, by inode number, from one walk through all names.
fn name_files(client: &Client, scrubs: &[Scrub], failures: &mut Failures) -> Result<BTreeMap<u64, File>> {
    let findings = scrubs.iter().flat_map(|scrub| &scrub.findings);
    let wanted: BTreeSet<u64> = findings.map(|finding| finding.ino).collect();
    let mut files: BTreeMap<u64, File> = BTreeMap::new();
    if wanted.is_empty() {
        return Ok(files);
    }
    let root = Path::new("/");
    let attr = client.stat(at(root), false)?;
    let mut visit = |visit: Visit<'_>| {
        if let Visit::Enter(path, attr) = visit
            && wanted.contains(&attr.ino)
        {
            let file = files.entry(attr.ino).or_default();
            file.paths.push(path.to_owned());
            file.layout = attr.layout;
        }
        Ok(())
    };
    tree::walk(client, root, &attr, &mut visit, &mut |_, error| failures.report(&error))?;
    Ok(files)
}

/// Where a finding is in its file, or in the data file if the layout is not known.
fn place(finding: &ScrubFinding, server: u16, file: Option<&File>) -> Option<(u64, u64)> {
    let layout = file?.layout?;
    let slot = layout.slot_of_chain(weft_layout::ChainId::of_single(server))?;
    let begin = layout.logical_size(slot, finding.offset + 1) - 1;
    Some((begin, layout.logical_size(slot, finding.offset + finding.bytes.max(1)) - begin))
}

fn kind_name(kind: u8) -> &'static str {
    match kind {
        scrub_found::DATA => "data",
        scrub_found::SHORT => "short",
        scrub_found::SUMS => "checksums",
        scrub_found::NO_SUMS => "no checksums",
        scrub_found::MISSING => "missing",
        scrub_found::FOREIGN => "another file's",
        _ => "other",
    }
}

fn kind_text(kind: u8) -> &'static str {
    match kind {
        scrub_found::DATA => "data is damaged",
        scrub_found::SHORT => "data is missing: the data file ends before it",
        scrub_found::SUMS => "checksums are damaged; the data may be intact",
        scrub_found::NO_SUMS => "checksums are missing; the data may be intact",
        scrub_found::MISSING => "data is missing: there is no data file",
        scrub_found::FOREIGN => "data or checksums are those of another file: they were swapped",
        _ => "damaged",
    }
}

fn print_outcome(args: &Args, url: &str, scrubs: &[Scrub], files: &BTreeMap<u64, File>) -> Result<()> {
    if args.json {
        let server = |scrub: &Scrub| {
            let finding = |finding: &ScrubFinding| {
                let file = files.get(&finding.ino);
                let paths: Vec<String> = file
                    .map(|file| file.paths.iter().map(|path| path.display().to_string()).collect())
                    .unwrap_or_default();
                let place = place(finding, scrub.server, file);
                json!({
                    "inode": finding.ino,
                    "paths": paths,
                    "kind": kind_name(finding.kind),
                    "data_file_offset": finding.offset,
                    "bytes": finding.bytes,
                    "file_offset": place.map(|(begin, _)| begin),
                })
            };
            json!({
                "name": scrub.name,
                "data_files": scrub.files,
                "bytes": scrub.bytes,
                "adopted_bytes": scrub.adopted_blocks * 4096,
                "adopted_again_bytes": scrub.readopted_blocks * 4096,
                "found": scrub.found,
                "failure": scrub.failure,
                "findings": scrub.findings.iter().map(finding).collect::<Vec<_>>(),
            })
        };
        let servers: Vec<_> = scrubs.iter().map(server).collect();
        return output::print_json(&json!({ "url": url, "servers": servers }));
    }
    for scrub in scrubs {
        for finding in &scrub.findings {
            let file = files.get(&finding.ino);
            let name = match file.and_then(|file| file.paths.first()) {
                Some(path) => path.display().to_string(),
                None => format!("inode {} (no name)", finding.ino),
            };
            let place = match place(finding, scrub.server, file) {
                _ if finding.bytes == 0 => "all of it on this server".to_string(),
                Some((begin, bytes)) => format!("{bytes} bytes at offset {begin}"),
                None => format!("{} bytes at offset {} of its data file", finding.bytes, finding.offset),
            };
            let kind = kind_text(finding.kind);
            output::print_line(format!("{}: {name}: {place}: {kind}", scrub.name))?;
        }
        if !scrub.failure.is_empty() {
            output::print_line(format!("{}: the scrub is incomplete: {}", scrub.name, scrub.failure))?;
        }
        if scrub.found as usize > scrub.findings.len() {
            let more = scrub.found as usize - scrub.findings.len();
            output::print_line(format!("{}: and {more} more", scrub.name))?;
        }
    }
    output::print_line(summary(scrubs))
}

/// The last line: how much was compared, what got checksums and why, and how much is damaged.
fn summary(scrubs: &[Scrub]) -> String {
    let (data_files, bytes) = sums(scrubs);
    let adopted: u64 = scrubs.iter().map(|scrub| scrub.adopted_blocks).sum();
    let found: u32 = scrubs.iter().map(|scrub| scrub.found).sum();
    let again: u64 = scrubs.iter().map(|scrub| scrub.readopted_blocks).sum();
    let text_of = |blocks: u64, what: &str| match blocks {
        0 => String::new(),
        blocks => format!(", {} {what}", size::format_bytes(blocks * 4096)),
    };
    let adopted = text_of(adopted.saturating_sub(again), "received their first checksums")
        + &text_of(again, "got new checksums unverified, since theirs were lost by a crash or damage");
    let end = match found {
        0 => "nothing is damaged".to_string(),
        found => format!("{found} places are damaged"),
    };
    format!("{data_files} data files, {} compared{adopted}: {end}", size::format_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_tells_first_checksums_from_those_that_replace_lost_ones() {
        let scrub = |adopted_blocks, readopted_blocks, found| Scrub {
            files: 1,
            bytes: 8192,
            adopted_blocks,
            readopted_blocks,
            found,
            ..Scrub::default()
        };
        let again = "got new checksums unverified, since theirs were lost by a crash or damage";
        for (scrubs, wanted) in [
            (vec![scrub(0, 0, 0)], "1 data files, 8.0 KiB compared: nothing is damaged".to_string()),
            (
                vec![scrub(2, 0, 0), scrub(3, 0, 2)],
                "2 data files, 16 KiB compared, 20 KiB received their first checksums: 2 places are damaged"
                    .into(),
            ),
            (
                vec![scrub(2, 2, 0)],
                format!("1 data files, 8.0 KiB compared, 8.0 KiB {again}: nothing is damaged"),
            ),
            (
                vec![scrub(4, 1, 0), scrub(1, 0, 0)],
                format!(
                    "2 data files, 16 KiB compared, 16 KiB received their first checksums, 4.0 KiB {again}: nothing is \
                     damaged"
                ),
            ),
        ] {
            assert_eq!(summary(&scrubs), wanted);
        }
    }
}
