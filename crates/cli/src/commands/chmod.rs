//! `weft chmod`

use crate::change::{ActArgs, Found, Reach};
use crate::modes::Mode;
use crate::new_files::umask;
use anyhow::{Result, bail};
use weft_cli_common::connections::ConnectArgs;
use weft_cli_common::output::mode_text;
use weft_cli_common::told::Told;
use weft_client::{At, SetAttr};
use weft_wire::messages::FileKind;

/// Changes the permission bits of files.
///
/// As with chmod, a symbolic link that is given stands for what it points to. With -R, links below a directory
/// are left alone.
///
/// MODE is an octal number, or changes separated by commas. Each names whose bits (`u`, `g`, `o`, `a`), then
/// `+`, `-` or `=`, then letters of `rwxXst`, or one of `u`, `g` and `o` whose bits are copied. `X` is `x` for
/// directories and for files with an execute bit. Without `u`, `g`, `o` or `a` the umask protects bits.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  weft chmod 750 weft:/project
  weft chmod -R u+rwX,g+rX,o= weft:/project
  weft chmod -w weft:/data/final.bin")]
pub struct Args {
    /// The new mode, such as 755 or u+rw,g-w.
    #[arg(value_name = "MODE", value_parser = Mode::parse, allow_hyphen_values = true)]
    mode: Mode,
    /// Files and directories.
    #[arg(required = true, value_name = "URL")]
    places: Vec<String>,
    /// Also change everything below directories.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    act: ActArgs,
    #[command(flatten)]
    connect: ConnectArgs,
}

const WHAT: &str = "change the mode of";

/// Changes the modes of all arguments, and reports those that could not be changed.
pub fn run(args: Args) -> Result<()> {
    let reach = Reach {
        places: &args.places,
        recursive: args.recursive,
        follow: true,
        what: WHAT,
        act: &args.act,
        connect: &args.connect,
    };
    let mask = umask();
    reach.each(&mut |found| change(&args.mode, mask, found))
}

fn change(mode: &Mode, mask: u32, found: &Found<'_>) -> Result<()> {
    let attr = found.attr;
    if attr.kind == FileKind::Symlink {
        return Ok(());
    }
    let is_directory = attr.kind == FileKind::Directory;
    let set = mode.apply(attr.mode, is_directory, mask);
    let changes = SetAttr { mode: Some(set), ..SetAttr::default() };
    found.client.setattr(At::ino(attr.ino), false, &changes).told(WHAT, found.place)?;
    let meant = mode.apply(attr.mode, is_directory, 0);
    if mode.is_like_an_option() && set & !meant != 0 {
        let text = |mode| mode_text(attr.kind, mode)[1..].to_string();
        bail!(
            "{}: the mode is {}, not {}, because of the umask; write a{mode}",
            found.place.typed(),
            text(set),
            text(meant)
        );
    }
    Ok(())
}
