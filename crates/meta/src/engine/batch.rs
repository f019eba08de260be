//! The writes of one commit.

use crate::codec::{Encode, Writer};

/// The writes of one operation; all become visible and durable together. A later write of the same key wins.
///
/// Keys and values lie one behind the other in one buffer, so that a batch that is cleared and filled again allocates nothing:
///
/// ```text
///   bytes    i7 <inode>  n1a <entry>  o1,16
///   writes     ^       ^    ^       ^      ^     ends of key and value; of a deletion, of the key only
/// ```
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Writer,
    writes: Vec<Write>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Write {
    key_end: usize,
    value_end: Option<usize>,
}

impl Batch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.put_with(key, |out| out.bytes.extend_from_slice(value.as_ref()));
    }

    /// Sets `key` to the encoding of `value`.
    pub(crate) fn put_encoded(&mut self, key: impl AsRef<[u8]>, value: &impl Encode) {
        self.put_with(key, |out| value.encode_to(out));
    }

    /// Sets `key` to what `encode` appends.
    pub(crate) fn put_with(&mut self, key: impl AsRef<[u8]>, encode: impl FnOnce(&mut Writer)) {
        self.bytes.bytes.extend_from_slice(key.as_ref());
        let key_end = self.bytes.bytes.len();
        encode(&mut self.bytes);
        self.writes.push(Write { key_end, value_end: Some(self.bytes.bytes.len()) });
    }

    /// Deletes `key`; no error if it does not exist.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.bytes.bytes.extend_from_slice(key.as_ref());
        self.writes.push(Write { key_end: self.bytes.bytes.len(), value_end: None });
    }

    /// How many writes there are.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Takes all writes out, and keeps the memory for others.
    pub fn clear(&mut self) {
        self.bytes.bytes.clear();
        self.writes.clear();
    }

    /// Each key with its new value, or with `None` to delete it.
    pub fn writes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let bytes = &self.bytes.bytes;
        let mut start = 0;
        self.writes.iter().map(move |write| {
            let key = &bytes[start..write.key_end];
            start = write.value_end.unwrap_or(write.key_end);
            (key, write.value_end.map(|end| &bytes[write.key_end..end]))
        })
    }
}
