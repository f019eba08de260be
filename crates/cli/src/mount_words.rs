//! Mount options (`-o`), and the command line of `mount.weft`, as one of `weft mount`.
//!
//! ```text
//!   fstab      10.0.0.1:7400:/data  /mnt  weft  noexec,cache=never,_netdev  0 0
//!   mount(8)   /sbin/mount.weft 10.0.0.1:7400:/data /mnt -o rw,noexec,cache=never,_netdev
//!   here       weft mount 10.0.0.1:7400:/data /mnt --noexec --cache=never
//! ```
//!
//! Mount options are those of other file systems, those that mount(8) handles itself, and every long option
//! of `weft mount` without its dashes (`cache=never`, `stream-from=1G`). Of options that contradict each
//! other, the last one applies.

use anyhow::{Result, bail};
use clap::Command;
use std::ffi::OsString;
use std::path::Path;

/// The name by which mount(8) calls this program.
const HELPER: &str = "mount.weft";

/// Options that mount(8) or systemd handles, or that ask for what Weft does in any case. Access times change
/// only when they are set.
const NOTHING_TO_DO: [&str; 26] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "async",
    "noatime",
    "atime",
    "relatime",
    "norelatime",
    "nostrictatime",
    "nodiratime",
    "diratime",
    "nolazytime",
    "nosuid",
    "nodev",
    "exec",
    "rw",
    "no_root_squash",
    "soft",
    "default_permissions",
];

/// Options of other file systems, and the options of `weft mount` for them.
const MEANINGS: [(&str, &str); 5] = [
    ("ro", "--read-only"),
    ("direct", "--cache=never"),
    ("root_squash", "--squash=root"),
    ("all_squash", "--squash=all"),
    ("fg", "--foreground"),
];

/// Options that cancel an earlier option.
const OPPOSITES: [(&str, &str); 7] = [
    ("soft", "--hard"),
    ("rw", "--read-only"),
    ("nosuid", "--suid"),
    ("nodev", "--dev"),
    ("exec", "--noexec"),
    ("no_root_squash", "--squash"),
    ("defaults", "--read-only"),
];

/// Whether this program was called as `mount.weft`.
pub fn is_helper(program: Option<&OsString>) -> bool {
    program.is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == HELPER))
}

/// The command line for the parser: that of `mount.weft` becomes one of `weft mount`, and `-o` options become
/// long ones, of which `weft` is the whole. `None` if there is nothing to do (`mount --fake`).
pub fn command_line(given: Vec<OsString>, weft: fn() -> Command) -> Result<Option<Vec<OsString>>> {
    if is_helper(given.first()) {
        return helper(&given[1..], weft);
    }
    if given.get(1).is_none_or(|command| command != "mount") {
        return Ok(Some(given));
    }
    let (mut line, mut words) = (Vec::new(), Words::new(weft));
    let mut rest = given.into_iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("--") => {
                line.push(argument);
                line.extend(rest.by_ref());
            }
            Some("-o") => match rest.next() {
                Some(list) => words.add(&list, false)?,
                None => bail!("-o needs options, as in -o ro,cache=never"),
            },
            Some(list) if list.starts_with("-o") => words.add(list[2..].as_ref(), false)?,
            _ => line.push(argument),
        }
    }
    // Options come first here, so that those written out are the last ones, which apply.
    line.splice(2..2, words.options.into_iter().map(OsString::from));
    Ok(Some(line))
}

/// `SPEC DIR [-sfnvrw] [-N NAMESPACE] [-t TYPE] [-o WORDS]`, as in mount(8), "External helpers".
fn helper(given: &[OsString], weft: fn() -> Command) -> Result<Option<Vec<OsString>>> {
    let (mut places, mut words, mut sloppy, mut fake) = (Vec::new(), Words::new(weft), false, false);
    let mut lists = Vec::new();
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("-o") => lists.extend(rest.next()),
            Some("-t" | "-N") => drop(rest.next()),
            Some(flags) if flags.len() > 1 && flags.starts_with('-') => {
                for flag in flags[1..].chars() {
                    match flag {
                        's' => sloppy = true,
                        'f' => fake = true,
                        'r' => words.add("ro".as_ref(), false)?,
                        'w' => words.add("rw".as_ref(), false)?,
                        'n' | 'v' => {}
                        _ => bail!("{HELPER}: -{flag} is not an option of mount helpers"),
                    }
                }
            }
            _ => places.push(argument.clone()),
        }
    }
    for list in lists {
        words.add(list, sloppy)?;
    }
    let [what, dir] = places.as_slice() else {
        bail!("{HELPER} needs a file system and a directory: {HELPER} HOST:PORT:/PATH DIR [-o OPTIONS]");
    };
    let options = words.options.into_iter().map(OsString::from);
    let line = ["weft", "mount"].map(OsString::from).into_iter().chain(options);
    Ok((!fake).then(|| line.chain(["--".into(), what.clone(), dir.clone()]).collect()))
}

/// The options of `weft mount` that stand for the mount options so far.
struct Words {
    options: Vec<String>,
    weft: fn() -> Command,
}

impl Words {
    fn new(weft: fn() -> Command) -> Words {
        Words { options: Vec::new(), weft }
    }

    /// Adds `a,b=c`. Unknown ones are skipped if `sloppy`.
    fn add(&mut self, list: &std::ffi::OsStr, sloppy: bool) -> Result<()> {
        let Some(list) = list.to_str() else { bail!("-o {}: not UTF-8", list.display()) };
        for word in list.split(',').filter(|word| !word.is_empty()) {
            self.add_one(word, sloppy)?;
        }
        Ok(())
    }

    fn add_one(&mut self, word: &str, sloppy: bool) -> Result<()> {
        for (_, option) in OPPOSITES.iter().filter(|(opposite, _)| *opposite == word) {
            self.take_back(option);
        }
        if NOTHING_TO_DO.contains(&word) || word.starts_with("x-") || word.starts_with("comment=") {
            return Ok(());
        }
        let meant = MEANINGS.iter().find(|(known, _)| *known == word).map(|(_, option)| option.to_string());
        match meant.or_else(|| long_option(word, (self.weft)())) {
            Some(option) => {
                self.take_back(&option);
                self.options.push(option);
            }
            None if sloppy => {}
            None => bail!(
                "-o {word}: no such mount option; there are ro, rw, noexec, suid, dev, direct, root_squash, all_squash, and every \
                 option of `weft mount --help` without its dashes"
            ),
        }
        Ok(())
    }

    fn take_back(&mut self, option: &str) {
        let name = |option: &str| option.split('=').next().unwrap_or_default().to_string();
        self.options.retain(|earlier| name(earlier) != name(option));
    }
}

/// `cache=never` as `--cache=never`, if `weft mount` has that option.
fn long_option(word: &str, weft: Command) -> Option<String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let name = name.replace('_', "-");
    let mount = weft.find_subcommand("mount")?;
    let option = mount.get_arguments().find(|argument| argument.get_long() == Some(&name))?;
    let takes_value = option.get_action().takes_values();
    match (takes_value, value) {
        (true, Some(value)) => Some(format!("--{name}={value}")),
        (false, None) => Some(format!("--{name}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    fn line(given: &str) -> Result<Option<String>> {
        let line = command_line(given.split(' ').map(OsString::from).collect(), Cli::command)?;
        Ok(line.map(|line| line.join(" ".as_ref()).into_string().unwrap()))
    }

    fn expect(given: &str, wanted: &str) {
        assert_eq!(line(given).unwrap().as_deref(), Some(wanted), "{given}");
    }

    #[test]
    fn other_commands_are_left_alone() {
        expect("weft ls -o x", "weft ls -o x");
        expect("weft", "weft");
    }

    #[test]
    fn words_become_options() {
        expect(
            "weft mount u d -o ro,noexec,cache=never",
            "weft mount --read-only --noexec --cache=never u d",
        );
        expect("weft mount -oallow_other u d", "weft mount --allow-other u d");
        expect("weft mount u d -o defaults,_netdev,x-systemd.automount,noatime", "weft mount u d");
        expect("weft mount u d -o direct,root_squash", "weft mount --cache=never --squash=root u d");
        expect("weft mount u -- -o", "weft mount u -- -o");
    }

    #[test]
    fn the_last_word_counts() {
        expect("weft mount u d -o ro,rw", "weft mount u d");
        expect("weft mount u d -o suid,dev,nosuid", "weft mount --dev u d");
        expect("weft mount u d -o cache=never,cache=auto", "weft mount --cache=auto u d");
        expect("weft mount u d -o all_squash,no_root_squash", "weft mount u d");
        expect("weft mount u d -o soft,hard", "weft mount --hard u d");
        expect("weft mount u d -o hard,soft", "weft mount u d");
    }

    #[test]
    fn unknown_words_are_refused() {
        for list in ["softer", "cache", "noexec=1", "ro,hard=1"] {
            let said = line(&format!("weft mount u d -o {list}")).unwrap_err().to_string();
            assert!(said.contains("no such mount option"), "{said}");
        }
    }

    #[test]
    fn the_helper_is_called_as_mount_calls_it() {
        expect("/sbin/mount.weft h:1:/ /mnt -n -o rw,noexec", "weft mount --noexec -- h:1:/ /mnt");
        expect("mount.weft h:1:/ /mnt -sv -t weft -r -o what", "weft mount --read-only -- h:1:/ /mnt");
        assert_eq!(line("mount.weft h:1:/ /mnt -f -o ro").unwrap(), None);
        assert!(line("mount.weft h:1:/").is_err());
        assert!(line("mount.weft a b -x").is_err());
    }
}
