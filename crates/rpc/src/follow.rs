//! Following the cluster's map: a newer one is fetched when it is needed, by the thread that needs it.
//!
//! ```text
//!   a request is refused: its map is old ───► ask that server ──┐
//!   a reply carries a higher version ───────► ask that server ──┤ no newer map
//!   a layout names a chain that the map has not ────────────────┼──► ask the metadata server and
//!   a server cannot be reached, or another answers ─────────────┘    some others, all at once ──┐
//!   the request is repeated, with its number, by the tables that the newer map has updated ◄────┘
//! ```
//!
//! Of threads that need a newer map at the same time one fetches it. The others wait for it if they were
//! refused; who has only heard of it goes on. A server that cannot be reached may just be down, so others are
//! asked about it only now and then.
//!
//! A map with a lower version is never gone by, nor one that is not sound, or another cluster's.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weft_layout::ChainId;

use weft_wire::messages::{ClusterMapReply, ClusterMapRequest, server_state};

use crate::batch::Batch;
use crate::call::Call;
use crate::error::{Error, ErrorKind};
use crate::following::{begin_asking, check_map, end_asking, unsound};
use crate::rpc::Rpc;
use crate::server::{Role, Server};
use crate::session::Session;
use crate::wait::{lock, try_lock};

/// How long those who are asked for the map are waited for.
const FETCH_PATIENCE: Duration = Duration::from_secs(1);
/// Servers that are asked at once.
const ASKED_AT_ONCE: usize = 4;
impl Rpc {
    /// A reply of this server carried this version.
    pub(crate) fn hear_of_map(&self, version: u32, server: usize) {
        let session = self.session();
        if version > session.map_version() {
            session.following.heard_from.store(server, Ordering::Relaxed);
            session.following.heard.fetch_max(version, Ordering::Release);
        }
    }

    /// Fetches a map that was heard of, if no other thread does.
    pub(crate) fn follow_heard(&self) {
        let session = self.session();
        let following = &session.following;
        if following.heard.load(Ordering::Acquire) <= session.map_version() {
            return;
        }
        let Some(_guard) = try_lock(&following.fetching) else { return };
        // Once: where it cannot be had, the next request is refused, or hears of it again.
        if following.heard.swap(0, Ordering::AcqRel) > session.map_version() {
            let _ = self.fetch(session, Some(following.heard_from.load(Ordering::Relaxed)), None);
        }
    }

    /// Fetches the map with this version, or a newer one, which the server `holder` has.
    ///
    /// # Errors
    /// If what is served cannot be gone by. That nobody could be asked is no error: the server will say so
    /// again.
    pub(crate) fn follow_to(&self, version: u32, holder: usize) -> Result<(), Error> {
        let session = self.session();
        let following = &session.following;
        let fetches = following.fetches.load(Ordering::Acquire);
        if session.map_version() >= version {
            return Ok(());
        }
        let _guard = lock(&following.fetching);
        if session.map_version() >= version || following.fetches.load(Ordering::Acquire) != fetches {
            return Ok(());
        }
        self.fetch(session, Some(holder), None).map(drop)
    }

    /// A server could not be reached by the map with this version. Says whether there is a newer one, after
    /// asking others for it.
    pub(crate) fn follow_moved(&self, server: usize, version: u32) -> bool {
        let session = self.session();
        let is_newer = || session.map_version() != version;
        if is_newer() {
            return true;
        }
        let Some(_guard) = try_lock(&session.following.fetching) else { return is_newer() };
        let ask_at = &session.server(server).ask_others_at;
        if !is_newer() && begin_asking(ask_at) {
            let begun = Instant::now();
            let _ = self.fetch(session, None, Some(server));
            end_asking(ask_at, begun);
        }
        is_newer()
    }

    /// A layout names a chain that the map does not have: asks for a newer one.
    pub fn follow_chain(&self, chain: ChainId) {
        let session = self.session();
        let _guard = lock(&session.following.fetching);
        let ask_at = &session.following.ask_for_chains_at;
        if session.chain_index(chain).is_none() && begin_asking(ask_at) {
            let begun = Instant::now();
            let _ = self.fetch(session, None, None);
            end_asking(ask_at, begun);
        }
    }

    /// Fetches a newer map, from `holder` first, which has one, then of others without `but`; whether there is
    /// one.
    fn fetch(&self, session: &Session, holder: Option<usize>, but: Option<usize>) -> Result<bool, Error> {
        let of_holder = holder.map_or(Ok(false), |server| self.fetch_of(session, &[server]));
        let fetched = match of_holder {
            Ok(true) => Ok(true),
            of_holder => {
                let of_others = self.fetch_of(session, &others(session, holder.or(but)));
                if matches!(of_others, Ok(false)) { of_holder } else { of_others }
            }
        };
        session.following.fetches.fetch_add(1, Ordering::AcqRel);
        fetched
    }

    /// Asks these servers at once, and goes by the first newer map that comes.
    fn fetch_of(&self, session: &Session, servers: &[usize]) -> Result<bool, Error> {
        let patience = FETCH_PATIENCE.min(self.options.patience() / 4);
        let mut batch = Batch::default();
        for server in servers {
            batch.push(Call::of(self, *server, &ClusterMapRequest {}, *server).asking_once(patience));
        }
        let mut fetched = Ok(false);
        while let Some(finished) = batch.wait(self) {
            let server = finished.server;
            let map = finished.decode::<ClusterMapRequest>(self);
            match map.and_then(|map| self.take_map(session, map, server)) {
                Ok(true) => return Ok(true),
                Err(error) if matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Untrusted) => {
                    fetched = Err(error);
                }
                Ok(false) | Err(_) => {}
            }
        }
        fetched
    }

    /// Goes by a map if it is newer; whether it is.
    fn take_map(&self, session: &Session, map: ClusterMapReply, server: usize) -> Result<bool, Error> {
        if map.version <= session.map_version() && map.cluster_id == self.cluster_id {
            return Ok(false);
        }
        check_map(&map, &self.cluster_id)
            .and_then(|()| {
                match session
                    .listed_of(Role::Meta)
                    .all(|(_, known)| map.meta_servers().any(|meta| meta.id == known.id))
                {
                    true => Ok(()),
                    false => Err(unsound("a metadata server of this session is not in it")),
                }
            })
            .map_err(|error| error.at_server(session.server(server).describe(None)))?;
        session.go_by(Arc::new(map));
        Ok(true)
    }
}

/// The metadata servers and some of the others: first who is well and connected to.
fn others(session: &Session, but: Option<usize>) -> Vec<usize> {
    // One that is joining may not be there yet.
    let is_in_use = |server: &Server| server.info().state == server_state::ACTIVE;
    let asked =
        |role| session.listed_of(role).filter(|(index, server)| Some(*index) != but && is_in_use(server));
    let mut io: Vec<_> = asked(Role::Io).collect();
    let turn = session.following.turn.fetch_add(1, Ordering::Relaxed);
    let first = turn.checked_rem(io.len()).unwrap_or(0);
    io.rotate_left(first);
    let mut all: Vec<_> = asked(Role::Meta).chain(io).collect();
    all.sort_by_key(|(_, server)| {
        (server.health.is_failing(), server.role == Role::Io, server.lanes().is_empty())
    });
    all.into_iter().map(|(index, _)| index).take(ASKED_AT_ONCE).collect()
}
