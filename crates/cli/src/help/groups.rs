//! The commands of `weft`, in groups, as its help lists them.

use clap::Command;

/// Headings, each with its commands in reading order.
const GROUPS: &[(&str, &[&str])] = &[
    ("Look at files", &["ls", "tree", "stat", "cat", "dump", "du", "df", "explain"]),
    ("Change files", &["cp", "sync", "mv", "rm", "mkdir", "ln", "touch", "chmod", "chown", "stripe"]),
    ("Use files with programs", &["mount", "umount", "run", "nfs"]),
    ("Start and stop", &["up", "down", "job", "init", "serve"]),
    ("Administer", &["key", "quota", "server", "meta", "fsck", "scrub", "calibrate"]),
    ("Watch and measure", &["status", "stats", "top", "dashboard", "doctor", "bench"]),
    ("Get help", &["help", "version", "completions", "man"]),
];

/// The command line whose help lists its commands in groups.
pub fn grouped(weft: Command) -> Command {
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        text(&weft)
    );
    weft.help_template(template)
}

fn text(weft: &Command) -> String {
    let width = weft.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let line = |name: &&str| {
        let about = weft.find_subcommand(name).and_then(Command::get_about);
        format!("  {name:width$}  {}\n", about.map(ToString::to_string).unwrap_or_default())
    };
    let group = |(heading, names): &(&str, &[&str])| {
        format!("{heading}:\n{}\n", names.iter().map(line).collect::<String>())
    };
    GROUPS.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group() {
        let weft = Cli::command();
        let shown = weft.get_subcommands().filter(|command| !command.is_hide_set());
        let mut known: Vec<&str> = shown.map(Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        known.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, known);
    }

    #[test]
    fn the_help_has_every_heading_and_fits_a_terminal() {
        let help = grouped(Cli::command()).render_long_help().to_string();
        for (heading, _) in GROUPS {
            assert!(help.contains(&format!("\n{heading}:\n")), "{help}");
        }
        assert!(help.contains("Usage: weft") && help.contains("--version"), "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 90, "{line}");
        }
    }
}
