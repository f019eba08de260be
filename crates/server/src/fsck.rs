//! A check of the whole file system, by a task of the metadata server.
//!
//! ```text
//!   names   step, step, step … in short turns                                         (weft_meta::fsck)
//!   data    ListObjects of each server ─► whose are they? ─► still there? still nobody's?
//!           files, a page at a time ─► StatObjects on their servers ─► size as recorded? ─► still settled, same epoch?
//!   then    treats what it is told to, until nobody has asked for a while
//! ```
//!
//! What is found in the data is asked twice, the second time after the answer that made it a finding, so that
//! what is made or removed meanwhile is none. Data files that were just written are left alone where they
//! have no inode: a write may be on its way whose file is just gone.

mod found;
mod sizes;

use crate::clock::{now, unix_s};
use crate::current::{CurrentMap, Peers};
use crate::peer::Peer;
use crate::step::StepError;
use crate::stop::StopFlag;
use found::Found;
use sizes::{Sizes, is_nobodys, layout_over};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};
use weft_layout::{ChainId, Layout};
use weft_meta::{Engine, FileState, MetaError, Namespace, Owner, Treatment, run_again};
use weft_reactor::{MailSender, Mailbox, mailbox, timeout};
use weft_wire::messages::{
    CheckReply, ListObjectsRequest, NotedLayout, NotedLayoutsRequest, ObjectSize, RemoveObjectsRequest,
    StatObjectsRequest, VouchEmptyRequest,
};

/// Records of the namespace in one turn of the metadata thread: less than a millisecond.
const RECORDS_PER_TURN: usize = 256;
/// Files or data files in one step.
const FILES_PER_STEP: usize = 512;
/// More findings are not kept; repairing and checking again brings the rest.
const FINDINGS_MAX: usize = 10_000;
/// A check that nobody asks for during this time ends.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// A check that was asked for within this time keeps others away.
const IN_USE: Duration = Duration::from_secs(5);
/// Findings that wait to be treated.
const JOBS_MAX: usize = 64;
/// How long a wait goes on before it looks whether to end.
const WAIT_STEP: Duration = Duration::from_millis(200);
/// Data files that were written so short a time ago are not anybody's or nobody's yet.
const YOUNG_S: u64 = 60;

/// What a check needs.
pub(crate) struct Setup<E: Engine> {
    pub map: CurrentMap,
    pub peers: Rc<Peers>,
    pub stop: StopFlag,
    pub namespace: Rc<RefCell<Namespace<E>>>,
    pub orphan_age_s: u64,
}

impl<E: Engine> Clone for Setup<E> {
    fn clone(&self) -> Self {
        Setup {
            map: self.map.clone(),
            peers: self.peers.clone(),
            stop: self.stop.clone(),
            namespace: self.namespace.clone(),
            orphan_age_s: self.orphan_age_s,
        }
    }
}

struct State {
    records: u64,
    data_files: u64,
    finished: bool,
    failure: String,
    findings: Vec<Found>,
    asked_at: Instant,
}

type Shared = Rc<RefCell<State>>;

/// How a finding was treated, or why that failed.
pub(crate) type Treated = Result<Treatment, String>;

struct Job {
    finding: usize,
    accept_loss: bool,
    answer: MailSender<Treated>,
}

/// A check, as those see it who ask for it.
pub(crate) struct Running {
    /// Its name.
    pub check: u64,
    map: CurrentMap,
    shared: Shared,
    jobs: MailSender<Job>,
}

impl Running {
    /// Whether it goes on, and somebody still asks for it.
    pub fn is_under_way(&self) -> bool {
        let state = self.shared.borrow_mut();
        !state.finished && state.asked_at.elapsed() < IN_USE
    }

    /// How far it is, with findings from `known` on.
    pub fn report(&self, known: usize, findings_max: usize) -> CheckReply {
        let mut state = self.shared.borrow_mut();
        state.asked_at = Instant::now();
        let map = self.map.get();
        let page = state.findings.iter().skip(known).take(findings_max);
        CheckReply {
            records: state.records,
            data_files: state.data_files,
            finished: state.finished,
            failure: state.failure.clone(),
            found: state.findings.len() as u32,
            findings: page.map(|found| found.info(&map)).collect(),
        }
    }

    /// Has a finding treated; an error if the check has ended. Lost data is given up only where that is accepted.
    pub fn treat(&self, finding: usize, accept_loss: bool, answer: MailSender<Treated>) -> Result<(), ()> {
        self.shared.borrow_mut().asked_at = Instant::now();
        self.jobs.send(Job { finding, accept_loss, answer }).map_err(|_| ())
    }
}

/// Starts a check.
pub(crate) fn start<E: Engine + 'static>(setup: Setup<E>, check: u64) -> Running {
    let (jobs, waiting) = mailbox(JOBS_MAX);
    let shared = Rc::new(RefCell::new(State {
        records: 0,
        data_files: 0,
        finished: false,
        failure: String::new(),
        findings: Vec::new(),
        asked_at: Instant::now(),
    }));
    let running = Running { check, map: setup.map.clone(), shared: shared.clone(), jobs };
    let checker = Checker { number: check, shared, setup };
    // It ends by itself when the server stops or nobody asks any more.
    weft_reactor::spawn(checker.run(waiting));
    running
}

struct Checker<E: Engine> {
    number: u64,
    setup: Setup<E>,
    shared: Shared,
}

impl<E: Engine + 'static> Checker<E> {
    async fn run(mut self, mut jobs: Mailbox<Job>) {
        let failure = self.check().await.err().map(|error| error.to_string()).unwrap_or_default();
        {
            let mut state = self.shared.borrow_mut();
            state.failure = failure;
            state.finished = true;
        }
        while !self.is_over() {
            let Ok(Some(job)) = timeout(WAIT_STEP, jobs.receive()).await else { continue };
            let found = self.shared.borrow_mut().findings.get(job.finding).cloned();
            let treated = match found {
                Some(found) => self.treat(&found, job.accept_loss).await.map_err(|error| error.to_string()),
                None => Err("there is no such finding".to_string()),
            };
            // Whoever asked may be gone.
            let _ = job.answer.send(treated);
        }
        let number = self.number;
        let _ = self.ask(move |namespace| {
            namespace.end_audit(number);
            Ok(())
        });
    }

    fn is_over(&self) -> bool {
        self.setup.stop.is_stopped()
            || Rc::strong_count(&self.shared) == 1
            || self.shared.borrow_mut().asked_at.elapsed() > IDLE_MAX
    }

    fn ask<R>(&self, work: impl FnOnce(&mut Namespace<E>) -> Result<R, MetaError>) -> Result<R, StepError> {
        Ok(work(&mut self.setup.namespace.borrow_mut())?)
    }

    fn add(&self, found: impl IntoIterator<Item = Found>) {
        let mut state = self.shared.borrow_mut();
        let room = FINDINGS_MAX.saturating_sub(state.findings.len());
        state.findings.extend(found.into_iter().take(room));
    }

    /// An I/O server that a finding or a layout names. One of a check's is never gone: servers only come.
    fn peer(&self, id: u16) -> Result<Rc<Peer>, StepError> {
        self.setup.peers.get(id).ok_or(StepError::NoServer(id))
    }

    async fn check(&mut self) -> Result<(), StepError> {
        self.check_names().await?;
        self.check_owners().await?;
        self.check_sizes().await
    }

    async fn check_names(&self) -> Result<(), StepError> {
        let number = self.number;
        self.ask(move |namespace| {
            namespace.begin_audit(number);
            Ok(())
        })?;
        let mut found = Vec::new();
        loop {
            let step = self.ask(move |namespace| namespace.step_audit(number, RECORDS_PER_TURN))?;
            self.shared.borrow_mut().records += step.records;
            found.extend(step.findings.into_iter().map(|finding| {
                let paths = BTreeMap::new();
                Found::Name { finding, paths }
            }));
            found.truncate(FINDINGS_MAX);
            if step.finished {
                break;
            }
            if self.is_over() {
                return Err(StepError::Ended);
            }
            weft_reactor::yield_now().await;
        }
        // Another failure is that of a damaged record in the way of the search. Findings then have inode numbers.
        if let Err(StepError::Ended) = self.find_paths(&mut found).await {
            return Err(StepError::Ended);
        }
        self.add(found);
        Ok(())
    }

    fn owners(&self, inos: Vec<u64>) -> Result<Vec<Owner>, StepError> {
        self.ask(move |namespace| namespace.owners(&inos))
    }

    /// Looks through all data files for such that are nobody's.
    async fn check_owners(&mut self) -> Result<(), StepError> {
        let old_s = unix_s().saturating_sub(self.setup.orphan_age_s.min(YOUNG_S)) as i64;
        let mut without: BTreeMap<u64, Vec<u16>> = BTreeMap::new();
        for id in self.setup.peers.ids() {
            let mut cursor = 0;
            loop {
                let request = ListObjectsRequest { cursor, entries_max: FILES_PER_STEP as u32 };
                let page = self.peer(id)?.call(&request).await?;
                self.shared.borrow_mut().data_files += page.objects.len() as u64;
                let old = page.objects.iter().filter(|object| object.mtime_s <= old_s);
                let inos: Vec<u64> = old.map(|object| object.ino).collect();
                let owners = self.owners(inos.clone())?;
                for (ino, owner) in inos.into_iter().zip(owners) {
                    if is_nobodys(&owner, id) {
                        without.entry(ino).or_default().push(id);
                    }
                }
                cursor = page.cursor;
                if cursor == 0 {
                    break;
                }
            }
        }
        let mut found = Vec::new();
        for (ino, servers) in without {
            found.extend(self.look_again(ino, &servers).await?);
        }
        found.truncate(FINDINGS_MAX);
        self.find_paths(&mut found).await?;
        self.add(found);
        Ok(())
    }

    /// Data files on these servers of an inode that had no part there: are they still there, and is that
    /// still so?
    async fn look_again(&mut self, ino: u64, servers: &[u16]) -> Result<Vec<Found>, StepError> {
        let owner = self.owners(vec![ino])?.remove(0);
        let mut parts = Vec::new();
        for id in servers {
            let there = self.peer(*id)?.call(&StatObjectsRequest { inos: vec![ino] }).await?;
            parts.extend(there.objects.first().map(|object| (*id, object.bytes)));
        }
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        if owner == Owner::Nothing {
            let layout = self.layout_noted(ino, &parts).await?;
            return Ok(vec![Found::NoInode { ino, parts, layout }]);
        }
        let kept = self.may_be_forgotten(ino)?;
        let strays = parts.iter().filter(|(id, _)| is_nobodys(&owner, *id));
        Ok(strays.map(|(server, _)| Found::Stray { ino, server: *server, kept, path: None }).collect())
    }

    /// Whether the names may once have known more of this inode than they do: they were put back from a copy
    /// or a backup since.
    fn may_be_forgotten(&self, ino: u64) -> Result<bool, StepError> {
        self.ask(move |namespace| Ok(ino < namespace.vouched_from()?))
    }

    /// How a file is striped, if its data files tell, agree, and all have a part of it.
    async fn layout_noted(&mut self, ino: u64, parts: &[(u16, u64)]) -> Result<Option<Layout>, StepError> {
        let mut noted: Option<Layout> = None;
        for (id, bytes) in parts {
            let reply = self.peer(*id)?.call(&NotedLayoutsRequest { inos: vec![ino] }).await?;
            let Some(NotedLayout { layout, .. }) = reply.layouts.first() else {
                // One that was made to say that there is nothing tells no more than that.
                if *bytes == 0 {
                    continue;
                }
                return Ok(None);
            };
            let fits = layout.slot_of_chain(ChainId::of_single(*id)).is_some()
                && usize::from(layout.ring_servers()) <= self.setup.peers.ids().len();
            if !fits || noted.is_some_and(|noted| noted != *layout) {
                return Ok(None);
            }
            noted = Some(*layout);
        }
        Ok(noted)
    }

    /// Compares the size of every file that nobody writes with what its data files have.
    async fn check_sizes(&mut self) -> Result<(), StepError> {
        self.wait_for_clients().await?;
        let servers = self.ask(|namespace| Ok(namespace.servers()?))?;
        let lost_below = servers.into_iter().map(|(id, record)| (id, record.lost_below_ino)).collect();
        let (mut after, mut all_found) = (0, Vec::new());
        loop {
            let (files, next) = self.ask(move |namespace| namespace.files_after(after, FILES_PER_STEP))?;
            let servers = self.setup.peers.ids().len() as u16;
            let known = |file: &&FileState| file.is_settled && file.layout.ring_servers() <= servers;
            let files: Vec<FileState> = files.iter().filter(known).copied().collect();
            let sizes = self.sizes(&files).await?;
            let suspect = |file: &&FileState| {
                sizes.of(file).0 != file.bytes
                    || sizes.lost(file, &lost_below).is_some()
                    || sizes.has_lost.contains_key(&file.ino)
            };
            let differ: Vec<&FileState> = files.iter().filter(suspect).collect();
            let now = self.owners(differ.iter().map(|file| file.ino).collect())?;
            for (file, now) in differ.into_iter().zip(now) {
                // Written, cut or removed meanwhile: nothing is known of it.
                if now == Owner::File(*file) {
                    let (ino, path) = (file.ino, None);
                    let replaced = sizes.lost(file, &lost_below).map(|id| (vec![id], true));
                    let gone = sizes.has_lost.get(&ino).map(|servers| (servers.clone(), false));
                    all_found.push(match replaced.or(gone) {
                        Some((servers, replaced)) => Found::Lost { ino, path, servers, replaced },
                        None => sizes.finding(file, &self.setup.map.get()),
                    });
                }
            }
            all_found.truncate(FINDINGS_MAX);
            if self.is_over() {
                return Err(StepError::Ended);
            }
            let Some(next) = next else { break };
            after = next;
        }
        self.find_paths(&mut all_found).await?;
        self.add(all_found);
        Ok(())
    }

    /// Looks for a name of each inode that something was found of.
    async fn find_paths(&self, all_found: &mut [Found]) -> Result<(), StepError> {
        let inos: BTreeSet<u64> = all_found.iter().flat_map(Found::inos).collect();
        let mut paths = BTreeMap::new();
        let searched = self.search_paths(inos, &mut paths).await;
        all_found.iter_mut().for_each(|found| found.name(&paths));
        searched
    }

    /// Searches all names, in short turns.
    async fn search_paths(
        &self,
        mut left: BTreeSet<u64>,
        paths: &mut BTreeMap<u64, String>,
    ) -> Result<(), StepError> {
        let mut at = (0, 0);
        while !left.is_empty() {
            let inos: Vec<u64> = left.iter().copied().collect();
            let part = self
                .ask(|namespace| run_again(|| namespace.begin().find_paths(&inos, at, RECORDS_PER_TURN)))?;
            for (ino, name) in part.found {
                left.remove(&ino);
                paths.insert(ino, String::from_utf8_lossy(&name).into_owned());
            }
            let Some(next) = part.next else { break };
            at = next;
            if self.is_over() {
                return Err(StepError::Ended);
            }
            weft_reactor::yield_now().await;
        }
        Ok(())
    }

    /// After a restart nobody knows who writes, until clients had their time to come back.
    async fn wait_for_clients(&self) -> Result<(), StepError> {
        while self.ask(|namespace| Ok(namespace.in_grace()))? {
            if self.is_over() {
                return Err(StepError::Ended);
            }
            weft_reactor::sleep(WAIT_STEP).await;
        }
        Ok(())
    }

    async fn sizes(&mut self, files: &[FileState]) -> Result<Sizes, StepError> {
        let mut by_server: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
        for file in files {
            for slot in 0..file.layout.server_count() {
                by_server.entry(file.layout.chain(slot).single_server()).or_default().push(file.ino);
            }
        }
        let mut sizes = Sizes::default();
        for (id, inos) in by_server {
            let reply = self.peer(id)?.call(&StatObjectsRequest { inos }).await?;
            let parts = reply.objects.into_iter().map(|ObjectSize { ino, bytes }| ((ino, id), bytes));
            sizes.parts.extend(parts);
            for ino in reply.lost.0 {
                sizes.has_lost.entry(ino).or_default().push(id);
            }
        }
        Ok(sizes)
    }

    async fn treat(&mut self, found: &Found, accept_loss: bool) -> Result<Treatment, StepError> {
        if found.is_loss() && !accept_loss {
            return Ok(Treatment::Left);
        }
        match found.clone() {
            Found::Name { finding, .. } => {
                let number = self.number;
                self.ask(move |namespace| Ok(namespace.treat(number, now(), &finding)?.0))
            }
            Found::Size { found, .. } => {
                let taken = self.ask(move |namespace| Ok(namespace.take_size(&found)?.0))?;
                Ok(if taken { Treatment::Repaired } else { Treatment::Gone })
            }
            Found::Stray { kept: true, .. } => Ok(Treatment::Left),
            Found::Stray { ino, server, .. } => match self.look_again(ino, &[server]).await?.first() {
                Some(Found::Stray { kept: false, .. }) => self.remove(ino, &[server]).await,
                _ => Ok(Treatment::Gone),
            },
            Found::Lost { ino, servers, .. } => {
                for id in servers {
                    self.peer(id)?.call(&VouchEmptyRequest { inos: vec![ino] }).await?;
                }
                Ok(Treatment::Repaired)
            }
            Found::NoInode { ino, parts, .. } => {
                let servers: Vec<u16> = parts.iter().map(|(id, _)| *id).collect();
                match self.look_again(ino, &servers).await?.pop() {
                    Some(Found::NoInode { parts, layout, .. }) => self.adopt(ino, &parts, layout).await,
                    _ => Ok(Treatment::Gone),
                }
            }
        }
    }

    async fn remove(&mut self, ino: u64, servers: &[u16]) -> Result<Treatment, StepError> {
        for id in servers {
            self.peer(*id)?.call(&RemoveObjectsRequest { inos: vec![ino] }).await?;
        }
        Ok(Treatment::Repaired)
    }

    /// Makes a file of data files. Those without a byte are removed, unless the names may have forgotten
    /// their file. Where they do not tell how it was striped, that is only known if all is on one server;
    /// else the file gets the layout that new ones have.
    async fn adopt(
        &mut self,
        ino: u64,
        parts: &[(u16, u64)],
        noted: Option<Layout>,
    ) -> Result<Treatment, StepError> {
        if !self.may_be_forgotten(ino)? && parts.iter().all(|(_, bytes)| *bytes == 0) {
            let servers: Vec<u16> = parts.iter().map(|(id, _)| *id).collect();
            return self.remove(ino, &servers).await;
        }
        let usual = self.ask(move |namespace| namespace.default_layout_of(ino))?;
        let layout = noted.unwrap_or_else(|| layout_over(parts, &usual));
        let size = |(id, bytes): &(u16, u64)| {
            let slot = layout.slot_of_chain(ChainId::of_single(*id));
            slot.map_or(0, |slot| layout.logical_size(slot, *bytes))
        };
        let bytes = parts.iter().map(size).max().unwrap_or(0);
        // Where a file of this size has no byte, none is missing.
        for slot in 0..layout.server_count() {
            let id = layout.chain(slot).single_server();
            if layout.local_size(slot, bytes) == 0 && !parts.iter().any(|(there, _)| *there == id) {
                self.peer(id)?.call(&VouchEmptyRequest { inos: vec![ino] }).await?;
            }
        }
        let adopted = self.ask(move |namespace| Ok(namespace.adopt_data(now(), ino, &layout, bytes)?.0))?;
        Ok(if adopted { Treatment::Repaired } else { Treatment::Gone })
    }
}
