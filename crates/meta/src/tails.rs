//! Ends of the places given out for appends, as they are stored; `ops/append.rs` has the rules.

use crate::codec::{Reader, Writer};
use crate::engine::Engine;
use crate::{EngineError, keys};
use rustc_hash::FxHashMap;

const TAIL_VERSION: u8 = 1;

/// The value of a tail.
pub(crate) fn encode_tail(tail: u64) -> Vec<u8> {
    let mut out = Writer::with_version(TAIL_VERSION, 9);
    out.u64(tail);
    out.bytes
}

/// The tails that an earlier run of the server left.
pub(crate) fn stored_tails<E: Engine>(engine: &E) -> Result<FxHashMap<u64, u64>, EngineError> {
    let prefix = [keys::APPEND_TAIL];
    let mut tails = FxHashMap::default();
    for pair in engine.scan(&prefix, &keys::after_prefix(&prefix)) {
        let (key, value) = pair?;
        let ino = keys::number_of(&key);
        let ino =
            ino.ok_or_else(|| EngineError::Format(format!("the key {} is short", keys::readable(&key))))?;
        tails.insert(ino, decode_tail(&key, &value)?);
    }
    Ok(tails)
}

// Fuzzed by records: fsck/tests.rs
/// A tail as it is stored.
pub(crate) fn decode_tail(key: &[u8], value: &[u8]) -> Result<u64, EngineError> {
    let mut from = Reader::with_version(key, value, TAIL_VERSION)?;
    let tail = from.u64("tail")?;
    from.end()?;
    Ok(tail)
}
