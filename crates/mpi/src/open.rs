//! Opening, collectively: process 0 finds out what the name means and opens the file; the others use it under
//! that open.
//!
//! ```text
//!   process 0   name ─► Weft's? ─► open at the metadata server ─┐
//!               broadcast: not Weft's │ error │ cluster, open file
//!   others      ◄───────────────────────────────────────────────┘ connect; no message to the metadata server
//!   all         a shadow each; agree whether all of them succeeded
//! ```
//!
//! The name may be another one in each process, as MPI allows. That of process 0 counts.

use std::ffi::c_int;

use weft_client::{Client, File, OpenOptions, Url};

use crate::abi::Handle;
use crate::clients::client;
use crate::error::{Class, MpiError, Result};
use crate::file::{self, MpiFile, Opened, agree};
use crate::hints::Hints;
use crate::mpi::Mpi;
use crate::place::{Place, Process, place_of};
use crate::report::{report, say};
use crate::stats::Stats;
use crate::sync::lock;
use crate::teams::{self, Chosen};

/// What a program asks for.
pub struct Asked {
    /// The processes that open together.
    pub comm: Handle,
    /// The name.
    pub name: Vec<u8>,
    /// The mode.
    pub amode: c_int,
    /// Hints.
    pub info: Handle,
}

/// What process 0 tells the others.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// The program's own MPI opens it.
    Other,
    /// It cannot be opened.
    Failed(Class, String),
    /// It is open.
    Open(Told),
}

/// What the others need of an open file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    cluster: String,
    path: String,
    amode: c_int,
    position: u64,
    /// See [`File::share`].
    exported: Vec<u8>,
    team: Chosen,
    /// As [`Hints::to_text`]. Those of process 0 count: others that choose differently would wait for ever.
    hints: String,
    shows_stats: bool,
}

/// Opens a file; `None` where the name is not Weft's.
///
/// # Errors
/// To be raised with the handler of `MPI_FILE_NULL`.
pub fn open(mpi: &'static Mpi, asked: &Asked) -> Result<Option<usize>> {
    if is_null(mpi, asked.comm) {
        return Err(MpiError::new(Class::Comm, "MPI_File_open with MPI_COMM_NULL: it needs a communicator"));
    }
    if mpi.is_inter(asked.comm) {
        // MPI refuses it in its own words.
        return Ok(None);
    }
    let (rank, size) = mpi.rank_and_size(asked.comm)?;
    let mut first = None;
    let answer = if rank == 0 {
        let (answer, opened) = match open_first(mpi, asked, &Hints::given(mpi, asked.info), (rank, size)) {
            Ok(Some((told, place, client, file))) => (Answer::Open(told), Some((place, client, file))),
            Ok(None) => (Answer::Other, None),
            Err(error) => (Answer::Failed(error.class, error.text), None),
        };
        first = opened;
        Some(answer)
    } else {
        None
    };
    let told = match broadcast(mpi, asked.comm, rank, size, answer)? {
        Answer::Other => return Ok(None),
        Answer::Failed(class, text) => return Err(MpiError::new(class, text)),
        Answer::Open(told) => told,
    };
    let team = teams::take(mpi, asked.comm, (rank, size), told.team)?;
    let here = || {
        check_same(asked.amode, told.amode)?;
        let (place, client, file) = match first {
            Some(first) => first,
            None => open_under(&told, (rank, size))?,
        };
        let shadow = mpi.open_shadow()?;
        let position = told.position as i64;
        let (rank_and_size, amode) = ((rank, size), asked.amode);
        let hints = Hints::from_text(&told.hints).in_force(&file.layout());
        let shows_stats = told.shows_stats;
        let opened =
            Opened { mpi, shadow, rank_and_size, amode, client, file, place, hints, position, shows_stats };
        opened.file.set_access(opened.hints.access());
        MpiFile::new(opened)
    };
    let (file, mut team) = (here(), team);
    let outcome = agree(&mut team.peers, file.as_ref().map(|_| ()).map_err(Clone::clone), [], "", &[]);
    match (outcome, file) {
        (Ok(_), Ok(file)) => {
            *lock(&file.team) = Some(team);
            if rank == 0 {
                report(|| format!("{} is open in {size} processes: {}", told.path, transport(&file.client)));
            }
            Ok(Some(file::add(file)))
        }
        (Err(error), file) => {
            if let Ok(file) = file {
                mpi.close_shadow(file.shadow);
            }
            teams::give_back(team);
            Err(error)
        }
        (Ok(_), Err(error)) => Err(error),
    }
}

fn is_null(mpi: &Mpi, comm: Handle) -> bool {
    comm == mpi.handles.comm_null
}

/// Prints why an open failed, in process 0, if this MPI has no place for the text (MPICH 4.0 has none). The classes
/// of a missing and an existing file say it all.
pub fn say_if_lost(mpi: &Mpi, asked: &Asked, error: &MpiError) {
    let is_plain = matches!(error.class, Class::NoSuchFile | Class::FileExists);
    if is_plain || is_null(mpi, asked.comm) || mpi.code(error) != error.class.code(mpi.numbers()) {
        return;
    }
    if mpi.rank_and_size(asked.comm).is_ok_and(|(rank, _)| rank == 0) {
        let name = String::from_utf8_lossy(&asked.name);
        say(&format!("weft-mpi: MPI_File_open of {name} failed: {}", error.text));
    }
}

/// The transport to the metadata server, and why it is not a faster one. I/O servers are not connected yet.
fn transport(client: &Client) -> String {
    let used = client.transports();
    let meta = used.into_iter().find(|server| server.transport.is_some());
    meta.map_or_else(String::new, |server| {
        let fallback = server.fallback.map_or_else(String::new, |fallback| format!(" ({fallback})"));
        format!("{} by {}{fallback}", server.server, server.transport.unwrap_or_default())
    })
}

fn check_same(amode: c_int, first: c_int) -> Result<()> {
    if amode == first {
        return Ok(());
    }
    let text = format!("MPI_File_open with mode {amode} here and {first} in process 0; it must be the same");
    Err(MpiError::new(Class::NotSame, text))
}

/// In process 0.
#[allow(clippy::type_complexity)]
fn open_first(
    mpi: &'static Mpi,
    asked: &Asked,
    hints: &Hints,
    world: (usize, usize),
) -> Result<Option<(Told, Place, Client, File)>> {
    let Some(place) = place_of(&asked.name, &Process)? else { return Ok(None) };
    let numbers = mpi.numbers();
    let has = |bit: c_int| asked.amode & bit != 0;
    check_amode(mpi, asked.amode)?;
    let client = match client(&place.cluster, world) {
        Ok(client) => client,
        Err(error) if place.has_mount => {
            report(|| format!("{} is left to the mount: {}", place.path, error.text));
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let mut options = OpenOptions::new()
        .read(has(numbers.mode_rdonly) || has(numbers.mode_rdwr))
        .write(has(numbers.mode_wronly) || has(numbers.mode_rdwr))
        .create(has(numbers.mode_create))
        .striped(true)
        .mode(0o666 & !weft_host::umask().unwrap_or(0o022));
    if has(numbers.mode_create) {
        options = options.create_new(has(numbers.mode_excl)).create(true);
        if let Some(wish) = hints.layout_wish(client.map().chains.len()) {
            options = options.layout(wish);
        }
    }
    let file = client.open(place.path.as_str(), &options)?;
    let position = if has(numbers.mode_append) { file.stat()?.size } else { 0 };
    if position > 0 {
        file.fetch_set(position)?;
    }
    let exported = if world.1 > 1 { file.share()? } else { Vec::new() };
    let (cluster, path) = (place.cluster.to_string(), place.path.clone());
    let team = if world.1 > 1 { teams::choose(mpi, asked.comm) } else { Chosen { number: 0, is_new: true } };
    let (hints, shows_stats) = (hints.to_text(), Stats::are_wanted());
    let told = Told { cluster, path, amode: asked.amode, position, exported, team, hints, shows_stats };
    Ok(Some((told, place, client, file)))
}

/// Exactly one way of access, and what goes with it (MPI 4.0, 14.2.1).
fn check_amode(mpi: &Mpi, amode: c_int) -> Result<()> {
    let numbers = mpi.numbers();
    let has = |bit: c_int| amode & bit != 0;
    let ways = [numbers.mode_rdonly, numbers.mode_wronly, numbers.mode_rdwr];
    let text = match () {
        () if ways.into_iter().filter(|way| has(*way)).count() != 1 => {
            "needs exactly one of MPI_MODE_RDONLY, MPI_MODE_WRONLY and MPI_MODE_RDWR"
        }
        () if has(numbers.mode_rdonly) && (has(numbers.mode_create) || has(numbers.mode_excl)) => {
            "MPI_MODE_CREATE and MPI_MODE_EXCL need a mode that writes"
        }
        () if has(numbers.mode_rdwr) && has(numbers.mode_sequential) => {
            "MPI_MODE_SEQUENTIAL does not go with MPI_MODE_RDWR"
        }
        () => return Ok(()),
    };
    Err(MpiError::new(Class::Amode, format!("MPI_File_open: {text}")))
}

/// In all other processes.
fn open_under(told: &Told, world: (usize, usize)) -> Result<(Place, Client, File)> {
    let cluster =
        Url::parse(&told.cluster).map_err(|error| MpiError::new(Class::Intern, error.to_string()))?;
    let client = client(&cluster, world)?;
    let file = client.import_shared(&told.exported)?;
    Ok((Place { cluster, path: told.path.clone(), has_mount: false }, client, file))
}

/// Answers up to this length take one message.
const FIRST_BYTES: usize = crate::board::TOLD_BYTES_MAX - 8;

fn broadcast(
    mpi: &'static Mpi,
    comm: Handle,
    rank: usize,
    size: usize,
    answer: Option<Answer>,
) -> Result<Answer> {
    if let (1, Some(answer)) = (size, &answer) {
        return Ok(answer.clone());
    }
    let mut bytes = answer.as_ref().map_or(Vec::new(), Answer::to_bytes);
    let mut first = (bytes.len() as u64).to_ne_bytes().to_vec();
    first.extend(bytes.iter().take(FIRST_BYTES));
    first.resize(8 + FIRST_BYTES, 0);
    teams::tell(mpi, comm, &mut first)?;
    let (length, first) = first.split_at(8);
    let length = u64::from_ne_bytes(length.try_into().expect("8 bytes")) as usize;
    bytes.resize(length, 0);
    let known = length.min(FIRST_BYTES);
    bytes[..known].copy_from_slice(&first[..known]);
    if length > known {
        teams::tell(mpi, comm, &mut bytes[known..])?;
    }
    match answer {
        Some(answer) if rank == 0 => Ok(answer),
        _ => Answer::from_bytes(&bytes).ok_or_else(|| {
            MpiError::new(
                Class::Intern,
                "process 0 has sent what this process cannot read; are they of one release?",
            )
        }),
    }
}

impl Answer {
    /// No bytes at all for files that are not Weft's, of which many programs open many.
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Answer::Other => Vec::new(),
            Answer::Failed(class, text) => fields(&[&(*class as u64).to_ne_bytes(), text.as_bytes()]),
            Answer::Open(told) => fields(&[
                told.cluster.as_bytes(),
                told.path.as_bytes(),
                &told.amode.to_ne_bytes(),
                &told.position.to_ne_bytes(),
                &told.exported,
                &told.team.number.to_ne_bytes(),
                &[u8::from(told.team.is_new)],
                told.hints.as_bytes(),
                &[u8::from(told.shows_stats)],
            ]),
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Answer> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let flag = |byte: u8| (byte < 2).then_some(byte == 1);
        match split_fields(bytes)?[..] {
            [] => Some(Answer::Other),
            [class, message] => {
                let class = u64::from_ne_bytes(class.try_into().ok()?);
                Some(Answer::Failed(Class::from_u64(class), text(message)?))
            }
            [cluster, path, amode, position, exported, number, [is_new], hints, [shows_stats]] => {
                Some(Answer::Open(Told {
                    cluster: text(cluster)?,
                    path: text(path)?,
                    amode: c_int::from_ne_bytes(amode.try_into().ok()?),
                    position: u64::from_ne_bytes(position.try_into().ok()?),
                    exported: exported.to_vec(),
                    team: Chosen {
                        number: u64::from_ne_bytes(number.try_into().ok()?),
                        is_new: flag(*is_new)?,
                    },
                    hints: text(hints)?,
                    shows_stats: flag(*shows_stats)?,
                }))
            }
            _ => None,
        }
    }
}

/// Fields, each behind its length.
fn fields(fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        bytes.extend_from_slice(&(field.len() as u64).to_ne_bytes());
        bytes.extend_from_slice(field);
    }
    bytes
}

fn split_fields(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_at_checked(8)?;
        let length = usize::try_from(u64::from_ne_bytes(length.try_into().ok()?)).ok()?;
        let (field, rest) = rest.split_at_checked(length)?;
        fields.push(field);
        bytes = rest;
    }
    Some(fields)
}

/// Removes a file; whether the name is Weft's.
pub fn delete(name: &[u8]) -> Result<bool> {
    let Some(place) = place_of(name, &Process)? else { return Ok(false) };
    let client = match client(&place.cluster, (0, 1)) {
        Ok(client) => client,
        Err(_) if place.has_mount => return Ok(false),
        Err(error) => return Err(error),
    };
    client.unlink(place.path.as_str())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        let exported = vec![1, 2, 3];
        let (cluster, path) = ("weft://a:1/".into(), "/x".into());
        let (team, hints) = (Chosen { number: 4, is_new: true }, Hints::default().to_text());
        Told { cluster, path, amode: 9, position: 7, exported, team, hints, shows_stats: false }
    }

    #[test]
    fn answers_come_back_from_their_bytes() {
        for answer in [Answer::Other, Answer::Failed(Class::NoSpace, "full".into()), Answer::Open(told())] {
            assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
        }
    }

    #[test]
    fn whatever_the_bytes_are_they_are_an_answer_or_refused() {
        let right = [Answer::Open(told()).to_bytes(), Answer::Failed(Class::Io, "x".into()).to_bytes()];
        weft_test_fuzz::run("mpi-open", &right, |bytes| {
            if let Some(answer) = Answer::from_bytes(bytes) {
                assert_eq!(Answer::from_bytes(&answer.to_bytes()), Some(answer));
            }
        });
    }
}
