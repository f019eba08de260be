//! The subcommands. Each file has one command: its options, from which its help is generated, and its `run`.

pub mod bench;
pub mod calibrate;
pub mod cat;
pub mod completions;
pub mod cp;
pub mod df;
pub mod down;
pub mod du;
pub mod dump;
pub mod explain;
pub mod fsck;
pub mod help;
pub mod init;
pub mod key;
pub mod ls;
pub mod man;
pub mod meta;
pub mod mkdir;
pub mod mount;
pub mod mv;
mod processes;
pub mod rm;
pub mod run;
pub mod scrub;
pub mod serve;
pub mod server;
pub mod stat;
pub mod status;
pub mod stripe;
pub mod tree;
pub mod umount;
pub mod up;

use crate::args::Command;
use anyhow::Result;
use weft_cli_common::Reported;

/// Runs a command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(args) => up::run(args),
        Command::Down(args) => down::run(args),
        Command::Init(args) => init::run(args),
        Command::Key(command) => key::run(command),
        Command::Serve(args) => serve::run(args),
        Command::Server(command) => server::run(command),
        Command::Meta(command) => meta::run(command),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Run(args) => run::run(args),
        Command::Cp(args) => cp::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Mkdir(args) => mkdir::run(args),
        Command::Mv(args) => mv::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Du(args) => du::run(args),
        Command::Df(args) => df::run(args),
        Command::Tree(args) => tree::run(args),
        Command::Stripe(command) => stripe::run(command),
        Command::Status(args) => status::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Fsck(args) => fsck::run(args),
        Command::Scrub(args) => scrub::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Bench(_) => bench::run(),
        Command::Help(args) => help::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}

/// Counts failures while a command continues with the rest.
#[derive(Debug, Default)]
struct Failures {
    count: usize,
}

impl Failures {
    /// Reports one.
    fn report(&mut self, error: &anyhow::Error) {
        self.count += 1;
        eprintln!("weft: {}", weft_cli_common::output::error_text(error));
    }

    /// The command's result.
    fn result(self) -> Result<()> {
        if self.count == 0 { Ok(()) } else { Err(Reported.into()) }
    }
}

/// Layout of new files.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct LayoutArgs {
    /// Strip size: consecutive bytes on one server; a multiple of 4K.
    #[arg(long, value_name = "SIZE", value_parser = weft_cli_common::size::parse_bytes)]
    strip_bytes: Option<u64>,
    /// Number of I/O servers.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    servers: Option<u16>,
    /// Id of the first I/O server [default: the metadata server spreads files over all].
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(..65535))]
    first: Option<u16>,
}

impl LayoutArgs {
    /// The requested layout; `None` if no option was given.
    fn wish(&self) -> Result<Option<weft_wire::messages::LayoutWish>> {
        if self.strip_bytes.is_none() && self.servers.is_none() && self.first.is_none() {
            return Ok(None);
        }
        let strip_bytes = u32::try_from(self.strip_bytes.unwrap_or(0))
            .map_err(|_| anyhow::anyhow!("--strip-bytes is too large; at most 1G"))?;
        if self.strip_bytes == Some(0) {
            anyhow::bail!("--strip-bytes is 0; 256K is a good value");
        }
        Ok(Some(weft_wire::messages::LayoutWish {
            strip_bytes,
            server_count: self.servers.unwrap_or(0),
            first_server_plus_1: self.first.map_or(0, |first| first + 1),
        }))
    }
}
