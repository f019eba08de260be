//! The cluster's map on the metadata thread: it is kept in the store, and published only when it is durable,
//! so that no version is given twice.

use super::MetaPart;
use super::map_record::{MapKeeper, lay_out_by, record};
use crate::answer::{Answer, Refusal};
use crate::current::CurrentMap;
use crate::log;
use crate::map::{Event, FileMap, KeptMap, MapError};
use std::cell::RefCell;
use weft_meta::{Engine, MetaError};
use weft_wire::Status;
use weft_wire::messages::{AddServerRequest, MapChangedReply, MoveServerRequest};

impl From<MapError> for Refusal {
    fn from(error: MapError) -> Refusal {
        let status = match error {
            MapError::Unknown { .. } | MapError::NoSuchId { .. } => Status::NotFound,
            MapError::NameTaken { .. } | MapError::AddressTaken { .. } => Status::Exists,
            MapError::Missing { .. } | MapError::Reordered { .. } | MapError::Unfit(_) => Status::Invalid,
        };
        Refusal::new(status, error.to_string())
    }
}

impl<E: Engine + 'static> MetaPart<E> {
    /// Keeps the map from now on, of which `current` is what is served.
    pub fn keep_map(&self, name: &str, kept: KeptMap, current: CurrentMap) {
        let keeper = MapKeeper { name: name.to_owned(), kept: RefCell::new(kept), current };
        // It is given one map, when it starts.
        let _ = self.map.set(keeper);
    }

    fn keeper(&self) -> Result<&MapKeeper, Refusal> {
        let text = "this metadata server keeps no map";
        self.map.get().ok_or_else(|| Refusal::new(Status::Unsupported, text))
    }

    /// What the map has of an I/O server, `None` where there is none of this id.
    pub(super) fn io_name(&self, id: u16) -> Option<String> {
        let kept = self.map.get()?.kept.borrow();
        kept.map.io_server(id).map(|server| server.name.clone())
    }

    /// I/O servers of the map, by id.
    pub(super) fn io_names(&self) -> Vec<(u16, String)> {
        let Some(keeper) = self.map.get() else { return Vec::new() };
        let kept = keeper.kept.borrow();
        kept.map.io_servers().map(|server| (server.id, server.name.clone())).collect()
    }

    /// The map, where it is newer than `known`.
    pub(super) fn newer_map(&self, known: u32) -> Option<weft_wire::messages::ClusterMapReply> {
        let current = &self.map.get()?.current;
        (current.version() > known).then(|| (*current.get()).clone())
    }

    /// Takes over what was heard of the cluster; returns the map's version from here on, which is durable.
    pub async fn change_map(&self, event: Event) -> Result<u32, Refusal> {
        let keeper = self.keeper()?;
        let next = keeper.kept.borrow().after(&event)?;
        if next == *keeper.kept.borrow() {
            return Ok(next.map.version);
        }
        let ((), seq) = self.namespace.borrow_mut().change(|op| {
            op.put_map_record(record(&next));
            Ok::<_, MetaError>(())
        })?;
        let is_new = next.map.version > keeper.kept.borrow().map.version;
        keeper.kept.replace(next.clone());
        self.durable(seq).await?;
        if is_new {
            log::info!(
                &keeper.name,
                "the cluster's map is at version {}: {}",
                next.map.version,
                event.text()
            );
            let (version, ring) = (next.map.version, next.ring_servers());
            keeper.current.publish(next.map.clone());
            if keeper.current.version() == version {
                self.ring_servers.set(ring);
                lay_out_by(&mut self.namespace.borrow_mut(), &next);
            }
        }
        Ok(next.map.version)
    }

    /// An I/O server joins.
    pub async fn add_server(&self, request: AddServerRequest) -> Result<Answer, Refusal> {
        let AddServerRequest { name, endpoints } = request;
        self.change_map(Event::Added { name: name.clone(), endpoints }).await?;
        self.changed(&name)
    }

    /// A server will be elsewhere.
    pub async fn move_server(&self, request: MoveServerRequest) -> Result<Answer, Refusal> {
        let MoveServerRequest { name, endpoints } = request;
        self.change_map(Event::Moved { name: name.clone(), endpoints }).await?;
        self.changed(&name)
    }

    /// The cluster file was read again.
    pub async fn read_file_again(&self, file: FileMap) {
        let name = self.map.get().map_or("meta", |keeper| keeper.name.as_str());
        match self.change_map(Event::Reread(file)).await {
            Ok(version) => {
                log::info!(name, "has read the cluster file again; the map is at version {version}")
            }
            Err(refusal) => {
                log::warning!(name, "does not go by the cluster file as it is now: {}", refusal.text)
            }
        }
    }

    fn changed(&self, name: &str) -> Result<Answer, Refusal> {
        let kept = self.keeper()?.kept.borrow();
        let id = kept.map.servers.iter().find(|server| server.name == name).map_or(0, |server| server.id);
        Ok(Answer::of(&MapChangedReply { id, map_version: kept.map.version }))
    }
}
