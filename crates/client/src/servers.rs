//! The servers of a cluster: how they are reached, how they are, and how much room they have.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_layout::{ChainId, first_ino_of, shard_of};
use weft_transport::LinkKind;
use weft_wire::limits::FIND_INODES_MAX;
use weft_wire::messages::{
    FileCountReply, FileCountRequest, FindPathsReply, FindPathsRequest, FoundPath, NamePlace, PingRequest,
    ServerInfo, SpaceReply, SpaceRequest, StatusReply, StatusRequest, TreeSpace, UNKNOWN_DISK, endpoint,
    server_state,
};
use weft_wire::{Added, Status};

use crate::batch;
use crate::error::{Error, ErrorKind};
use crate::inner::{Inner, OfProcess};
use crate::lane::{Credits, Lane};
use crate::losses::ServerLosses;
use crate::rdma::RdmaStatus;
use crate::server::{Role, Server};
use crate::waits;
use crate::{Client, Result};

/// How long a server may take to say how it is.
const STATUS_PATIENCE: Duration = Duration::from_secs(3);
/// How long an I/O server may take to say how much space it has.
const SPACE_PATIENCE: Duration = Duration::from_secs(3);

/// Space and files of the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the I/O servers' disks together, in bytes. A disk that several of them use counts once.
    pub space_bytes: u64,
    /// Free on them.
    pub free_bytes: u64,
    /// What files that are striped over all these servers can still grow by, in bytes. The server with the least room ends it.
    pub available_bytes: u64,
    /// Inodes in use.
    pub files: u64,
    /// How many there may be; 0: no limit.
    pub files_max: u64,
}

/// A server that has not answered for as long as an operation may wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadServer {
    /// Its name and address.
    pub server: String,
    /// Since when, in seconds since 1970.
    pub since_unix_s: u64,
    /// What the last attempt met.
    pub cause: String,
    index: usize,
}

/// How one server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportInUse {
    /// The server's name.
    pub server: String,
    /// "meta" or "io".
    pub role: &'static str,
    /// "tcp cubic", "shm direct", "shm staged: REASON", "verbs mlx5_0 …", …; several where connections
    /// differ; `None` while there is none.
    pub transport: Option<String>,
    /// Why not over a faster transport, where one was expected.
    pub fallback: Option<String>,
    /// Why not over RDMA; `None` where it is, or there is no connection.
    pub why_not_rdma: Option<String>,
    /// Connections at the moment.
    pub connections: usize,
    /// What the server takes on each of them.
    pub credits: Vec<Credits>,
}

impl Client {
    /// How each server is reached at the moment, metadata servers first.
    pub fn transports(&self) -> Vec<TransportInUse> {
        let of = |server: &Server| {
            let lanes = server.lanes();
            let mut texts: Vec<String> = Vec::new();
            for lane in &lanes {
                let text = self.lane_text(lane);
                if !texts.contains(&text) {
                    texts.push(text);
                }
            }
            TransportInUse {
                server: server.info().name.clone(),
                role: if server.role == Role::Meta { "meta" } else { "io" },
                transport: (!texts.is_empty()).then(|| texts.join(", ")),
                fallback: server.fallback(),
                why_not_rdma: why_not_rdma(server, &lanes),
                connections: lanes.len(),
                credits: lanes.iter().map(|lane| lane.credits()).collect(),
            }
        };
        self.inner.session().listed().map(|(_, server)| of(server)).collect()
    }

    /// How a connection moves data, and what the network is told of it.
    fn lane_text(&self, lane: &Lane) -> String {
        let traffic = lane.traffic();
        let tos = self.inner.rdma.as_ref().map_or(0, |rdma| rdma.options().tos.of(traffic));
        match lane.kind() {
            kind @ LinkKind::Verbs { .. } if tos != 0 => format!("{kind} ({traffic}, type of service {tos})"),
            kind => kind.to_string(),
        }
    }

    /// RDMA of this process: adapters, memory and counts, or why there is none. Looks for it where nothing
    /// has asked for it yet.
    pub fn rdma_status(&self) -> RdmaStatus {
        match &self.inner.rdma {
            Some(rdma) => rdma.status(),
            None => RdmaStatus::none("connections are made by a simulation"),
        }
    }

    /// The servers that the present operation of the calling thread has waited for, each for how long at
    /// most, the longest first; none that it waited for only a moment.
    pub fn servers_waited_for(&self) -> Vec<(String, Duration)> {
        let session = self.inner.session();
        let named = |(index, wait): (usize, Duration)| {
            let (_, server) = session.servers().nth(index)?;
            Some((server.describe(None), wait))
        };
        waits::longest().into_iter().filter_map(named).collect()
    }

    /// The servers that are known to be dead.
    pub fn dead_servers(&self) -> Vec<DeadServer> {
        let session = self.inner.session();
        let dead = |(index, server): (usize, &Server)| {
            let obituary = server.obituary()?;
            Some(DeadServer {
                server: server.describe(None),
                index,
                since_unix_s: obituary.since_unix_s,
                cause: obituary.cause,
            })
        };
        session.listed().filter_map(dead).collect()
    }

    /// Looks whether a dead server is back, for `wait` at most; it is asked again from then on. For a thread
    /// that does so every so often: others do not from the first call on.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] while it is not back.
    pub fn probe(&self, dead: &DeadServer, wait: Duration) -> Result<()> {
        self.inner.probe_server(dead.index, wait)
    }

    /// Some thread calls [`Client::probe`] every so often, so that nobody who needs a dead server has to.
    pub fn leave_probing_to_others(&self) {
        self.inner.leave_probing_to_others();
    }

    /// Space and files of the whole cluster, of the I/O servers that answer soon: without those that are
    /// dead.
    ///
    /// # Errors
    /// Also where no I/O server answers.
    pub fn statfs(&self) -> Result<StatFs> {
        self.statfs_at(0)
    }

    /// The same as an inode sees it: in a directory tree with a quota that is to be shown so, its limits are the size.
    ///
    /// # Errors
    /// Also where no I/O server answers.
    pub fn statfs_at(&self, ino: u64) -> Result<StatFs> {
        let _operation = self.operation();
        let io = self.inner.session().listed_of(Role::Io);
        let is_in_use = |server: &Server| server.info().state == server_state::ACTIVE;
        let io = io.filter(|(_, server)| is_in_use(server));
        let requests = io.map(|(index, _)| (index, SpaceRequest {}));
        let patience = SPACE_PATIENCE.min(self.inner.options.patience() / 2);
        let spaces = batch::ask_all(&self.inner, requests, Some(patience));
        let (files, tree) = self.file_count(ino)?;
        let mut all = StatFs { space_bytes: 0, free_bytes: 0, available_bytes: 0, files, files_max: 0 };
        let any = spaces.iter().any(Result::is_ok);
        let is_missed = |space: &Result<SpaceReply>| {
            any && space.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable)
        };
        let spaces: Vec<SpaceReply> =
            spaces.into_iter().filter(|space| !is_missed(space)).collect::<Result<_>>()?;
        let mut counted = HashSet::new();
        for space in &spaces {
            if space.disk_id != UNKNOWN_DISK && !counted.insert(space.disk_id) {
                continue;
            }
            all.space_bytes += space.space_bytes;
            all.free_bytes += space.free_bytes;
        }
        all.available_bytes = growth(&spaces);
        Ok(tree.map_or(all, |tree| within(all, &tree)))
    }

    /// The number of files, and the limits of the tree that the inode is in.
    fn file_count(&self, ino: u64) -> Result<(u64, Option<TreeSpace>)> {
        batch::reap(&self.inner);
        let owners = self.inner.session().owners();
        let requests = owners.map(|(_, owner)| (owner, FileCountRequest { ino: Added(ino) }));
        let (mut all, mut within) = (0, None);
        for reply in batch::ask_all(&self.inner, requests, None) {
            let FileCountReply { files, tree } = reply?;
            all += files;
            within = within.or(tree.0);
        }
        Ok((all, within))
    }

    /// The space of every server's disk, or why one does not say; metadata servers first.
    pub fn server_spaces(&self) -> Vec<(ServerInfo, Result<SpaceReply>)> {
        let servers: Vec<_> = self.inner.session().listed().collect();
        let requests = servers.iter().map(|(index, _)| (*index, SpaceRequest {}));
        let replies = batch::ask_all(&self.inner, requests, Some(SPACE_PATIENCE));
        servers.iter().map(|(_, server)| (*server.info()).clone()).zip(replies).collect()
    }

    /// What every server is doing, or why it does not say; metadata servers first.
    pub fn server_status(&self, with_clients: bool) -> Vec<(ServerInfo, Result<StatusReply>)> {
        let servers: Vec<_> = self.inner.session().listed().collect();
        let requests = servers.iter().map(|(index, _)| (*index, StatusRequest { with_clients }));
        let replies = batch::ask_all(&self.inner, requests, Some(STATUS_PATIENCE));
        servers.iter().map(|(_, server)| (*server.info()).clone()).zip(replies).collect()
    }

    /// Looks for paths of inodes among all names, in parts, until all are found, or `until`; for administrators. `from` is where the
    /// last part ended; returned are the paths that were found and where to go on, or `None` after the last part. Of more than
    /// [`FIND_INODES_MAX`] inodes the first are looked for.
    pub fn find_paths(
        &self,
        inodes: &[u64],
        from: NamePlace,
        until: Instant,
    ) -> Result<(Vec<FoundPath>, Option<NamePlace>)> {
        let mut missing: Vec<u64> = inodes.iter().copied().take(FIND_INODES_MAX).collect();
        let (mut all, mut after) = (Vec::new(), from);
        loop {
            let request = FindPathsRequest { inodes: missing.clone(), after };
            let FindPathsReply { found, next } = batch::ask(&self.inner, &request)?;
            missing.retain(|ino| found.iter().all(|found| found.ino != *ino));
            all.extend(found);
            if missing.is_empty() {
                return Ok((all, None));
            }
            match next.or_else(|| self.next_shard(after)) {
                Some(next) if Instant::now() < until => after = next,
                next => return Ok((all, next)),
            }
        }
    }

    /// The place before the first name of the shard after that of `place`.
    fn next_shard(&self, place: NamePlace) -> Option<NamePlace> {
        let (shard, _) = self.inner.session().owners().find(|(shard, _)| *shard > shard_of(place.dir))?;
        Some(NamePlace { dir: first_ino_of(shard), cookie: 0 })
    }

    /// Time of a round trip of `echo` to the server with this name.
    pub fn ping(&self, server: &str, echo: &[u8]) -> Result<Duration> {
        let mut servers = self.inner.session().listed();
        let (index, _) = servers.find(|(_, one)| one.info().name == server).ok_or_else(|| {
            let text = format!("the cluster has no server `{server}`");
            Error::new("Ping", ErrorKind::Invalid, text)
        })?;
        let request = PingRequest { echo: echo.to_vec() };
        let begin = Instant::now();
        batch::ask_server(&self.inner, index, &request)?;
        Ok(begin.elapsed())
    }
}

/// What files that are striped over all these servers can still grow by. Servers on one disk share its space.
fn growth(spaces: &[SpaceReply]) -> u64 {
    let mut users: HashMap<[u8; 16], u64> = HashMap::new();
    spaces.iter().for_each(|space| *users.entry(space.disk_id).or_default() += 1);
    let share = |space: &SpaceReply| match space.disk_id {
        UNKNOWN_DISK => space.available_bytes,
        disk => space.available_bytes / users[&disk],
    };
    let least = spaces.iter().map(share).min().unwrap_or(0);
    least.saturating_mul(spaces.len() as u64)
}

/// What is left of the whole file system under the limits of a tree.
fn within(all: StatFs, tree: &TreeSpace) -> StatFs {
    let left = |free_bytes: u64| match tree.space_bytes {
        0 => free_bytes,
        space_bytes => free_bytes.min(space_bytes.saturating_sub(tree.used_bytes)),
    };
    StatFs {
        space_bytes: if tree.space_bytes == 0 { all.space_bytes } else { tree.space_bytes },
        free_bytes: left(all.free_bytes),
        available_bytes: left(all.available_bytes),
        files: tree.files,
        files_max: tree.files_max,
    }
}

impl Inner {
    /// What the I/O server with this index has told of losses of any file.
    pub(crate) fn losses_at(&self, server: usize) -> &ServerLosses {
        let losses = self.of_process.get_or_make(OfProcess::default).losses.get_or_grow(server);
        if let Some(proven) = self.session().server(server).first_proven() {
            losses.note_arrival(proven.loss_epoch);
        }
        losses
    }

    /// The I/O server of this chain, which a layout names.
    pub(crate) fn io(&self, chain: ChainId) -> Result<usize> {
        let session = self.session();
        if let Some(index) = session.chain_index(chain) {
            return Ok(index);
        }
        self.follow_chain(chain);
        session.chain_index(chain).ok_or_else(|| {
            let text = format!(
                "a part of the file is on chain {chain}, which the cluster's map (version {}) does not have; weft server ls \
                 says which there are",
                session.map_version()
            );
            Error::new("connect", ErrorKind::Status(Status::Lost), text)
        })
    }
}

/// Why the connections to a server are not over RDMA, where they are not.
fn why_not_rdma(server: &Server, lanes: &[Arc<Lane>]) -> Option<String> {
    let kinds = || lanes.iter().map(|lane| lane.kind());
    if lanes.is_empty() || kinds().any(|kind| matches!(kind, LinkKind::Verbs { .. })) {
        return None;
    }
    let is_shared = kinds().any(|kind| matches!(kind, LinkKind::ShmDirect | LinkKind::ShmStaged { .. }));
    Some(match server.fallback() {
        _ if is_shared => "it is on this host, where shared memory is faster".into(),
        Some(reason) => reason,
        None if server.info().addresses(endpoint::RDMA).next().is_none() => {
            "the cluster file has no RDMA address of it".into()
        }
        None => "another transport was asked for".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_server_ends_the_growth_of_striped_files() {
        let space = |available_bytes, disk: u8| SpaceReply {
            space_bytes: 1000,
            free_bytes: available_bytes,
            available_bytes,
            disk_id: [disk; 16],
        };
        for (spaces, bytes) in [
            (vec![], 0),
            (vec![space(100, 1)], 100),
            (vec![space(100, 1), space(300, 2)], 200),
            (vec![space(0, 1), space(300, 2), space(300, 3)], 0),
            // Two servers on one disk have half of it each.
            (vec![space(100, 1), space(100, 1)], 100),
            (vec![space(100, 1), space(100, 1), space(300, 2)], 150),
            (vec![space(100, 0), space(100, 0)], 200),
        ] {
            assert_eq!(growth(&spaces), bytes, "{spaces:?}");
        }
    }
}
