//! `weft chown`

use crate::args::LongHelp;
use crate::change::{ActArgs, Found, Reach};
use anyhow::{Result, bail};
use weft_cli_common::connections::ConnectArgs;
use weft_cli_common::output;
use weft_cli_common::told::Told;
use weft_client::{At, SetAttr};

/// Changes the owner and the group of files.
///
/// Only root gives files away. An owner may pass his files to a group that he is in. An operator who is not root
/// on this host, but has client.key, adds --as-root.
///
/// As with chown, a symbolic link that is given stands for what it points to. With -R, or with -h, the links
/// themselves are changed. The set-id bits of files are cleared.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "\
Examples:
  weft chown alice weft:/home/alice           the owner
  weft chown -R alice:chem weft:/home/alice   owner and group, of everything
  weft chown 1000: weft:/home/alice           the owner, and his group at login
  weft chown :chem weft:/project              the group"
)]
pub struct Args {
    /// OWNER, OWNER:GROUP, OWNER: (with his login group) or :GROUP, each a name or a number.
    #[arg(value_name = "OWNER[:GROUP]", value_parser = Owner::parse)]
    owner: Owner,
    /// Files and directories.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Also change everything below directories.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links themselves.
    #[arg(short = 'h', long)]
    no_dereference: bool,
    #[command(flatten)]
    help: LongHelp,
    #[command(flatten)]
    act: ActArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

const WHAT: &str = "change the owner of";

/// A new owner, a new group, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

/// A number, perhaps behind a plus sign, which says that it is not a name.
fn number(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| all_digits && *number != u32::MAX)
}

impl Owner {
    /// Parses `OWNER[:[GROUP]]` or `:GROUP`.
    fn parse(text: &str) -> Result<Owner, String> {
        let (owner, group) = match text.split_once(':') {
            Some((owner, group)) => (owner, Some(group)),
            None => (text, None),
        };
        let none =
            |what: &str, name: &str| format!("there is no {what} `{name}` on this host; give the number");
        let uid = match owner {
            "" => None,
            _ => Some(output::user_id(owner).or_else(|| number(owner)).ok_or_else(|| none("user", owner))?),
        };
        let gid = match (group, uid) {
            (None, _) | (Some(""), None) => None,
            (Some(""), Some(uid)) => Some(output::login_group(uid).ok_or_else(|| {
                format!("user {owner} has no login group on this host; write {owner}:GROUP")
            })?),
            (Some(group), _) => {
                Some(output::group_id(group).or_else(|| number(group)).ok_or_else(|| none("group", group))?)
            }
        };
        Ok(Owner { uid, gid })
    }
}

/// Changes the owners of all arguments, and reports those that could not be changed.
pub fn run(args: Args) -> Result<()> {
    let reach = Reach {
        places: &args.places,
        recursive: args.recursive,
        follow: !args.no_dereference && !args.recursive,
        what: WHAT,
        act: &args.act,
        connect: &args.connect,
    };
    reach.each(&mut |found| change(args.owner, &args.act, found))
}

fn change(owner: Owner, act: &ActArgs, found: &Found<'_>) -> Result<()> {
    let changes = SetAttr { uid: owner.uid, gid: owner.gid, ..SetAttr::default() };
    let changed = found.client.setattr(At::ino(found.attr.ino), false, &changes);
    let is_refused = changed.as_ref().is_err_and(|error| error.errno() == libc::EPERM);
    let changed = changed.told(WHAT, found.place);
    match changed {
        Err(error) if is_refused && !act.is_root() => {
            bail!("{error}; only root gives files away: with client.key, add --as-root")
        }
        changed => changed.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_and_numbers() {
        let parsed = |text| Owner::parse(text).map(|owner| (owner.uid, owner.gid)).ok();
        for (text, owner) in [
            ("root", Some((Some(0), None))),
            ("root:", Some((Some(0), Some(0)))),
            (":root", Some((None, Some(0)))),
            ("4000000001:+7", Some((Some(4_000_000_001), Some(7)))),
            ("", Some((None, None))),
            (":", Some((None, None))),
            ("4294967295", None),
            ("4000000001:", None),
            ("no such user", None),
            ("0:no such group", None),
            ("-1", None),
            ("++1", None),
        ] {
            assert_eq!(parsed(text), owner, "{text}");
        }
    }
}
