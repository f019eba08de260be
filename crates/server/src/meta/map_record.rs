//! The cluster's map as the store has it, and as it is kept in memory.

use crate::current::CurrentMap;
use crate::map::KeptMap;
use std::cell::RefCell;
use weft_meta::{Engine, EngineError, Namespace};
use weft_wire::{DecodeError, Wire};

/// First byte of the record in the store.
const RECORD_VERSION: u8 = 1;

/// The map as it is kept, and as it is served.
pub(super) struct MapKeeper {
    pub name: String,
    pub kept: RefCell<KeptMap>,
    pub current: CurrentMap,
}

/// The map that a store has, if it has any.
pub(crate) fn load<E: Engine>(namespace: &Namespace<E>) -> Result<Option<KeptMap>, EngineError> {
    let Some(record) = namespace.map_record()? else { return Ok(None) };
    let damaged = |why: String| EngineError::Format(format!("the record of the cluster's map: {why}"));
    let (version, body) = record.split_first().ok_or_else(|| damaged("it is empty".into()))?;
    if *version != RECORD_VERSION {
        return Err(damaged(format!("its version is {version}")));
    }
    let kept = KeptMap::from_bytes(body).map_err(|error: DecodeError| damaged(error.to_string()))?;
    kept.check().map_err(damaged)?;
    Ok(Some(kept))
}

/// The record of a map.
pub(crate) fn record(kept: &KeptMap) -> Vec<u8> {
    let mut record = vec![RECORD_VERSION];
    record.extend(kept.to_bytes());
    record
}

/// New files are laid out by this map.
pub(crate) fn lay_out_by<E: Engine>(namespace: &mut Namespace<E>, kept: &KeptMap) {
    let strip_bytes = kept.map.default_layout.strip_bytes();
    namespace.set_defaults(kept.ring_servers(), strip_bytes, kept.server_count);
}
