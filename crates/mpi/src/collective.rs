//! Collective accesses: what all processes access is known from one reduction, and decides whether they
//! exchange data (NC 2.3).
//!
//! ```text
//!   carry_out ─┬─► needs no agreement ─────────────────┬─► list      each process by itself
//!              └─► Summary, one reduction ─► choose ───┤
//!                                                      └─► two-phase weft-collective, over peers and store
//! ```
//!
//! The choice is made alike in all processes, from the same numbers: the reduction has also how long the
//! access before took, so that what was measured corrects what is expected.
//!
//! Where list I/O is the choice whatever they access, they tell each other nothing. That is known from what
//! was agreed before: hints, atomic mode, and whether a view shows small pieces to any process. Nothing else
//! may decide it: a process that would wait for an agreement of which others know nothing waits for ever.

use std::sync::Arc;
use std::time::Instant;

use weft_client::Direction;
use weft_collective::{CollectiveError, Conditions, Costs, Method, Request, Summary, choose};
use weft_layout::Regions;

use crate::engine::{Engine, options};
use crate::error::{Class, MpiError, Result};
use crate::file::{self, MpiFile};
use crate::hints::{self, Hints, Switch};
use crate::job::Job;
use crate::peers::MpiPeers;
use crate::report;
use crate::store::{FileStore, StoreError};
use crate::sync::lock;

/// Whether processes may, or must, exchange data in an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exchange {
    Never,
    IfFaster,
    Always,
}

fn exchange(hints: &Hints, direction: Direction) -> Exchange {
    let switch = match direction {
        Direction::Read => hints.cb_read,
        Direction::Write => hints.cb_write,
    };
    match (hints.method, switch) {
        (hints::Method::TwoPhase, _) => Exchange::Always,
        (hints::Method::Auto, Switch::Enable) => Exchange::Always,
        (hints::Method::Auto, Switch::Automatic) => Exchange::IfFaster,
        _ => Exchange::Never,
    }
}

/// Whether processes have to tell each other what they access; from what is the same in all of them. `is_single`:
/// each process accesses the file by itself anyway, in atomic mode or where a view overlaps itself.
fn needs_agreement(exchange: Exchange, processes: usize, is_single: bool, is_fine: bool) -> bool {
    match exchange {
        _ if processes == 1 || is_single => false,
        Exchange::Never => false,
        Exchange::IfFaster => is_fine,
        Exchange::Always => true,
    }
}

/// Carries out a collective access: the bytes of the program's data. `job` is an error where this process's
/// arguments are wrong; it takes part all the same.
///
/// # Errors
/// That of the job, or of any process where they have exchanged data.
pub fn carry_out(file: &Arc<MpiFile>, direction: Direction, job: Result<Job>) -> Result<u64> {
    let hints = lock(&file.hints).clone();
    let exchange = exchange(&hints, direction);
    let (is_fine, overlaps) = {
        let view = file.view();
        (view.is_fine, view.overlaps)
    };
    if !needs_agreement(exchange, file.size, file.is_atomic() || overlaps, is_fine) {
        if file.rank == 0 && (hints.explain || report::is_on()) {
            let path = &file.place.path;
            report::say(&format!(
                "weft-mpi: {path}: this collective access goes by list, without an agreement"
            ));
        }
        let begin = Instant::now();
        let bytes = job?.run(file)?;
        file.stats.note_collective(false, begin.elapsed().as_nanos() as u64);
        return Ok(bytes);
    }
    let (mut engine, mut team) = (lock(&file.engine), lock(&file.team));
    let peers = file::peers(&mut team)?;
    let engine = &mut *engine;
    // Hints may have changed since the access before.
    engine.collective.set_options(options(&hints));
    file.stats.note_agreement();
    let nothing = Regions::default();
    let (memory, regions) = job.as_ref().map_or((&nothing, &nothing), |job| (&job.memory, &job.file));
    let last_ns = engine.last.as_ref().map_or(0, |(_, ns)| *ns);
    let totals = Summary::new(memory, regions, last_ns, file.size as u32).reduce(peers)?;
    if let Some((choice, _)) = engine.last.take()
        && totals.last_ns > 0
    {
        engine.learned.observe(&choice, totals.last_ns);
    }
    if totals.active == 0 {
        return job.map(|_| 0);
    }
    let conditions = conditions(file, (&*engine, &*peers), &hints, direction, exchange);
    let choice = choose(&totals, &conditions, &Costs::default(), &engine.learned);
    if file.rank == 0 && (hints.explain || report::is_on()) {
        report::say(&format!("weft-mpi: {}: ways of this collective access:\n{choice}", file.place.path));
    }
    engine.miss(&choice, conditions.setup_ns);
    let begin = Instant::now();
    let result = match choice.method {
        Method::TwoPhase => two_phase(file, (engine, peers), direction, job, &totals),
        _ => job.and_then(|job| job.run(file)),
    };
    let spent_ns = begin.elapsed().as_nanos() as u64;
    file.stats.note_collective(choice.method == Method::TwoPhase, spent_ns);
    engine.last = Some((choice, spent_ns.max(1)));
    result
}

fn conditions(
    file: &MpiFile,
    (engine, peers): (&Engine, &MpiPeers),
    hints: &Hints,
    direction: Direction,
    exchange: Exchange,
) -> Conditions {
    let layout = file.file.layout();
    Conditions {
        processes: file.size as u32,
        nodes: peers.node_count(),
        processors: peers.processor_count(),
        servers: u32::from(layout.server_count()),
        strip_bytes: layout.strip_bytes(),
        direction: to_engine(direction),
        sieve_bytes: hints.sieve_bytes,
        setup_ns: engine.setup_ns(),
        options: engine.collective.options(),
        allowed: match exchange {
            Exchange::IfFaster => Method::AUTOMATIC,
            _ => Method::ALL.map(|method| method == Method::TwoPhase),
        },
    }
}

fn to_engine(direction: Direction) -> weft_collective::Direction {
    match direction {
        Direction::Read => weft_collective::Direction::Read,
        Direction::Write => weft_collective::Direction::Write,
    }
}

fn two_phase(
    file: &Arc<MpiFile>,
    (engine, peers): (&mut Engine, &mut MpiPeers),
    direction: Direction,
    job: Result<Job>,
    totals: &weft_collective::Totals,
) -> Result<u64> {
    let mut store = FileStore { file: &file.file };
    let request = match &job {
        Ok(job) => Ok(Request { base: std::ptr::null_mut(), memory: &job.memory, file: &job.file }),
        Err(error) => Err(StoreError(error.clone())),
    };
    engine.has_exchanged = true;
    let collective = &mut engine.collective;
    // SAFETY: the program's memory is this call's until it returns, by the rules of MPI; the windows are those
    // of the engine, which is locked.
    let moved =
        unsafe { collective.two_phase(peers, &mut store, to_engine(direction), request, totals, None) };
    match moved {
        Ok(bytes) => job?.finish(bytes),
        // All processes are told so, before anything was moved.
        Err(CollectiveError::Sparse { .. }) => job?.run(file),
        Err(error) => Err(translated(error)),
    }
}

fn translated(error: CollectiveError<StoreError, MpiError>) -> MpiError {
    match error {
        CollectiveError::Own(StoreError(error)) | CollectiveError::Peers(error) => error,
        CollectiveError::Other { rank, code } => {
            let text = format!("process {rank} failed in this collective access; its own error says why");
            MpiError::new(Class::from_u64(u64::from(code)), text)
        }
        error => MpiError::new(Class::Intern, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_say_whether_processes_exchange_data() {
        let of = |entries: &[(&str, &str)], direction| {
            let mut hints = Hints::default();
            for (key, value) in entries {
                hints.set(key, value).unwrap();
            }
            exchange(&hints, direction)
        };
        assert_eq!(of(&[], Direction::Read), Exchange::IfFaster);
        assert_eq!(of(&[("romio_cb_write", "disable")], Direction::Write), Exchange::Never);
        assert_eq!(of(&[("romio_cb_write", "disable")], Direction::Read), Exchange::IfFaster);
        assert_eq!(of(&[("romio_cb_read", "enable")], Direction::Read), Exchange::Always);
        assert_eq!(of(&[("romio_no_indep_rw", "true")], Direction::Write), Exchange::Always);
        assert_eq!(of(&[("weft_method", "two_phase")], Direction::Write), Exchange::Always);
        let list = [("weft_method", "list"), ("romio_cb_write", "enable")];
        assert_eq!(of(&list, Direction::Write), Exchange::Never);
    }

    #[test]
    fn processes_agree_only_where_they_may_exchange() {
        for (exchange, is_fine, needs) in [
            (Exchange::Never, true, false),
            (Exchange::IfFaster, false, false),
            (Exchange::IfFaster, true, true),
            (Exchange::Always, false, true),
        ] {
            assert_eq!(needs_agreement(exchange, 4, false, is_fine), needs, "{exchange:?} {is_fine}");
            assert!(!needs_agreement(exchange, 1, false, is_fine));
            assert!(!needs_agreement(exchange, 4, true, is_fine));
        }
    }
}
