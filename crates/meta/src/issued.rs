//! Records of the keys that clients have. What is in them is the server's business; here they are bytes by an id.

use crate::engine::Engine;
use crate::keys;
use crate::namespace::Namespace;
use crate::op::Op;
use crate::{EngineError, MetaError};

/// A key's id, and what is known of it.
pub type IssuedKeyRecord = ([u8; 16], Vec<u8>);

impl<E: Engine> Op<'_, E> {
    /// Stores what is known of a key, in place of what was.
    pub fn put_issued_key(&mut self, id: [u8; 16], record: Vec<u8>) {
        self.put(keys::issued(&id).to_vec(), record);
    }
}

impl<E: Engine> Namespace<E> {
    /// All records, by id.
    pub fn issued_keys(&self) -> Result<Vec<IssuedKeyRecord>, MetaError> {
        let from = vec![keys::ISSUED];
        let mut records = Vec::new();
        for pair in self.engine().scan(&from, &keys::after_prefix(&from)) {
            let (key, record) = pair?;
            let id = key.get(1..).and_then(|id| id.try_into().ok());
            let damaged = || EngineError::Format(format!("no id of a key in {}", keys::readable(&key)));
            records.push((id.ok_or_else(damaged)?, record.to_vec()));
        }
        Ok(records)
    }
}
