//! Counters of open files, as they are stored; `ops/counter.rs` has the rules.

use crate::codec::{Reader, Writer};
use crate::engine::Engine;
use crate::open_counter::{COUNTER_MAX, CounterId};
use crate::{EngineError, keys};
use std::collections::BTreeMap;

const COUNTER_VERSION: u8 = 1;

/// A counter as it is stored.
pub(crate) fn encode_counter(value: u64) -> Vec<u8> {
    let mut out = Writer::with_version(COUNTER_VERSION, 9);
    out.u64(value);
    out.bytes
}

/// The counters that an earlier run of the server left.
pub(crate) fn stored_counters<E: Engine>(engine: &E) -> Result<BTreeMap<CounterId, u64>, EngineError> {
    let prefix = [keys::COUNTER];
    let mut counters = BTreeMap::new();
    for pair in engine.scan(&prefix, &keys::after_prefix(&prefix)) {
        let (key, value) = pair?;
        let id = keys::counter_of(&key).ok_or_else(|| {
            EngineError::Format(format!("the key {} is not one of a counter", keys::readable(&key)))
        })?;
        counters.insert(id, decode_counter(&key, &value)?);
    }
    Ok(counters)
}

// Fuzzed by records: fsck/tests.rs
/// The value of a counter that is stored.
pub(crate) fn decode_counter(key: &[u8], value: &[u8]) -> Result<u64, EngineError> {
    let mut from = Reader::with_version(key, value, COUNTER_VERSION)?;
    let counter = from.u64("counter")?;
    if counter > COUNTER_MAX {
        return Err(from.damaged("counter"));
    }
    from.end()?;
    Ok(counter)
}
