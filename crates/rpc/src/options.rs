//! How long calls wait, and how.

use std::time::Duration;

/// How long calls to a cluster wait, and how.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long one operation waits in all for servers that do not answer, in milliseconds. A server that has not
    /// answered for so long is dead: what needs it fails at once, until it is back.
    pub retry_timeout_ms: u64,
    /// Operations wait for ever instead, until the servers are back.
    pub hard: bool,
    /// How long one connection may take to come about, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long a server may stay silent about a request before its connection counts as broken, in milliseconds.
    pub reply_timeout_ms: u64,
    /// How long a small operation busy-polls its connections before the thread sleeps, in microseconds. 0: never.
    pub spin_us: u32,
    /// Nobody waits for what is moved: it is marked as background traffic.
    pub background: bool,
}

impl Options {
    /// How long one operation may wait; `None`: for ever.
    pub fn timeout(&self) -> Option<Duration> {
        (!self.hard).then(|| self.patience())
    }

    /// How long a server may be silent.
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.retry_timeout_ms)
    }

    /// How long a server may take for a reply if it lives.
    pub fn reply_timeout(&self) -> Duration {
        Duration::from_millis(self.reply_timeout_ms)
    }

    /// How long one connection may take to come about.
    pub fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }
}
