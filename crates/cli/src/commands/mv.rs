//! `weft mv`

use super::Failures;
use anyhow::{Context, Result, bail};
use weft_cli_common::place::{WeftPath, expand_all};
use weft_cli_common::session::{ConnectArgs, Session, at, is_directory};
use weft_wire::messages::rename_flags;

/// Moves or renames within a file system. Into a directory where the last argument is one. A file that has the new name already is
/// replaced, at once for everybody.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to move, and where to.
    #[arg(required = true, num_args = 2.., value_name = "URL")]
    places: Vec<String>,
    /// Fail where the new name exists.
    #[arg(short, long)]
    no_clobber: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Moves.
pub fn run(args: Args) -> Result<()> {
    let session = Session::new(&args.connect);
    let (last, first) = args.places.split_last().expect("two at least");
    let to = WeftPath::from_argument(last)?;
    let client = session.client(&to.url)?;
    let into_dir = is_directory(&client, &to.path);
    let sources = expand_all(&session, first)?;
    if sources.len() > 1 && !into_dir {
        bail!("{} is not a directory, and there are {} to move", to.display(), sources.len());
    }
    let mut failures = Failures::default();
    for (_, from) in sources {
        if from.url != to.url {
            bail!(
                "{} and {} are in different file systems; use weft cp and weft rm",
                from.display(),
                to.display()
            );
        }
        let target = if into_dir { to.path.join(from.name()) } else { to.path.clone() };
        let flags = if args.no_clobber { rename_flags::NOREPLACE } else { 0 };
        let moved = client.rename(at(&from.path), at(&target), flags);
        if let Err(error) = moved.with_context(|| format!("cannot move {}", from.display())) {
            failures.tell(&error);
        }
    }
    failures.result()
}
