//! `weft doctor`

use crate::doctor::cluster::ClusterFacts;
use crate::doctor::host::HostFacts;
use crate::doctor::system::SystemFacts;
use crate::doctor::{Finding, Findings, Level};
use crate::exit::Code;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use weft_cli_common::connections::{ConnectArgs, Connections};
use weft_cli_common::launch::CLUSTER_FILE;
use weft_cli_common::output;
use weft_cli_common::place::WeftPath;

/// Lines of each log in a report.
const LOG_LINES: usize = 60;

/// Looks for what is wrong, and says what to do.
///
/// It looks at this host: kernel, FUSE, limits, memory, RDMA, clock. With --dir or --config it looks at a cluster
/// file and its servers on this host, also if they do not run. With a URL, or WEFT_URL, it looks at that file
/// system: its servers, versions, space, clocks, transports. With a directory it looks at the mount there.
///
/// docs/doctor.md lists all findings. The exit code is 1 if there is a problem. It changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft doctor                                       this host, and the file system of WEFT_URL
  weft doctor weft://node1:7400/                    the file system, as this host reaches it
  weft doctor --config /etc/weft/weft.toml          the servers of this host
  weft doctor --dir ~/weft-demo --report -          everything, for a bug report")]
pub struct Args {
    /// A file system, or the directory of a mount [default: the file system of WEFT_URL, if it is set].
    #[arg(value_name = "URL")]
    place: Option<String>,
    /// Look at the cluster in the directory of `weft up`.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Look at this cluster file, and its servers on this host.
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
    /// Look at this server only, which is on this host.
    #[arg(long, value_name = "SERVER", requires = "config")]
    name: Option<String>,
    /// Print what is not ok only.
    #[arg(short, long)]
    quiet: bool,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    /// Write a report for a bug report to this file (-: standard output): the findings, this host, the cluster
    /// file and the ends of logs. No keys are in it.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    report: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Findings of a subject.
struct Group {
    subject: String,
    findings: Vec<Finding>,
}

/// Looks.
pub fn run(args: Args) -> Result<()> {
    let mut groups = Vec::new();
    let mut look = |subject: String, judge: &dyn Fn(&mut Findings)| {
        let mut findings = Findings::default();
        judge(&mut findings);
        groups.push(Group { subject, findings: findings.0 });
    };
    let host = HostFacts::gather();
    look(format!("host {}", weft_host::name()), &|findings| host.judge(findings));
    let file = args.config.clone().or_else(|| args.dir.as_ref().map(|dir| dir.join(CLUSTER_FILE)));
    if let Some(file) = &file {
        let cluster = ClusterFacts::gather(file, args.name.as_deref());
        look(format!("cluster {}", file.display()), &|findings| cluster.judge(findings));
    }
    let url = url_of(&args)?;
    if let Some(url) = &url {
        let system = SystemFacts::gather(&Connections::new(&args.connect), url);
        look(format!("file system {url}"), &|findings| system.judge(findings));
    }
    let count = |level: Level| {
        groups.iter().flat_map(|group| &group.findings).filter(|finding| finding.level == level).count()
    };
    let (problems, warnings, notes) = (count(Level::Problem), count(Level::Warning), count(Level::Note));
    if args.json {
        let group = |group: &Group| json!({ "subject": group.subject, "findings": group.findings });
        let groups: Vec<_> = groups.iter().map(group).collect();
        output::print_json(
            &json!({ "problems": problems, "warnings": warnings, "notes": notes, "groups": groups }),
        )?;
    } else {
        let mut text = as_text(&groups, args.quiet);
        let _ = writeln!(text, "{problems} problems, {warnings} warnings, {notes} notes");
        match &args.report {
            None => write!(output::stdout(), "{text}")?,
            Some(to) => write_report(to, &text, file.as_deref())?,
        }
    }
    if problems > 0 { Err(Code(1).into()) } else { Ok(()) }
}

/// The file system to look at.
fn url_of(args: &Args) -> Result<Option<String>> {
    let of_variable = || std::env::var("WEFT_URL").ok().filter(|url| !url.is_empty());
    let Some(place) = args.place.clone().or_else(of_variable) else { return Ok(None) };
    let path = Path::new(&place);
    if !place.contains("://") && !place.starts_with("weft:") {
        let dir = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mounted = weft_host::mounts().into_iter().find(|mount| mount.is_weft() && mount.dir == dir);
        let Some(mount) = mounted else {
            bail!("{place} is no mount of Weft; weft doctor takes a URL, or the directory of a mount")
        };
        return Ok(Some(WeftPath::from_argument(&mount.source)?.url));
    }
    Ok(Some(WeftPath::from_argument(&place)?.url))
}

fn as_text(groups: &[Group], quiet: bool) -> String {
    let mut text = String::new();
    for group in groups {
        let shown: Vec<_> =
            group.findings.iter().filter(|finding| !quiet || finding.level != Level::Ok).collect();
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}", group.subject);
        for finding in shown {
            let (word, name, found) =
                (finding.level.word(), finding.name, output::visible_lines(&finding.found));
            let _ = writeln!(text, "  {word:8} {name}: {found}");
            if !finding.cure.is_empty() {
                let _ = writeln!(text, "           do: {}", finding.cure);
            }
        }
    }
    text
}

fn write_report(to: &Path, findings: &str, file: Option<&Path>) -> Result<()> {
    let mut text = format!("weft {} doctor\n\n{findings}\n", env!("CARGO_PKG_VERSION"));
    let mut section = |title: &str, body: &str| {
        let _ = writeln!(text, "== {title}\n{}\n", body.trim_end());
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    section("kernel", &read("/proc/version"));
    section("limits", &read("/proc/self/limits"));
    let mounts = read("/proc/self/mounts");
    let ours: Vec<&str> = mounts.lines().filter(|line| line.contains("weft")).collect();
    section("mounts", &ours.join("\n"));
    if let Some(file) = file {
        section(
            &file.display().to_string(),
            &std::fs::read_to_string(file).unwrap_or_else(|error| error.to_string()),
        );
        let logs = file.parent().map(|dir| dir.join("log"));
        let mut logs: Vec<PathBuf> =
            logs.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|entry| entry.path()).collect();
        logs.sort();
        for log in logs {
            let lines = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = lines.lines().collect();
            section(&log.display().to_string(), &lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
        }
    }
    if to == Path::new("-") {
        return Ok(write!(output::stdout(), "{text}")?);
    }
    std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))?;
    write!(output::stdout(), "{findings}")?;
    output::print_line(format!("the report is in {}; look through it before you give it away", to.display()))
}
