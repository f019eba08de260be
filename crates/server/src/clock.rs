//! The wall clock.

pub(crate) use weft_host::{since_1970, unix_s};
use weft_meta::Timestamp;

/// Now, as the namespace keeps times.
pub(crate) fn now() -> Timestamp {
    let since = since_1970();
    Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() }
}
