//! How a client connects, and how long it tries.

use weft_onc_rpc::AuthSys;

use crate::link::Way;
use crate::tcp::TcpWay;

/// Most silence of a server before the connection counts as dead.
pub const SILENCE_MS_DEFAULT: u64 = 15_000;
/// Time after which calls fail that were not answered.
pub const GIVE_UP_MS_DEFAULT: u64 = 60_000;

/// How a client connects.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Whom calls are for; without one, for the user of this process.
    pub credential: Option<AuthSys>,
    /// A server that owes answers and sends nothing for so long is connected to anew, and the calls are sent again with the
    /// same numbers.
    pub silence_ms: u64,
    /// Calls that were not answered for so long fail, as on a mount with `soft`. Without a limit they wait for ever, as on
    /// one with `hard`.
    pub give_up_ms: Option<u64>,
    /// Connect from a port below 1024, which some servers ask for; without a wish, if this process is root's.
    pub from_reserved_port: Option<bool>,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            credential: None,
            silence_ms: SILENCE_MS_DEFAULT,
            give_up_ms: Some(GIVE_UP_MS_DEFAULT),
            from_reserved_port: None,
        }
    }
}

impl ConnectOptions {
    /// Connections over TCP.
    pub(crate) fn tcp(&self) -> Box<dyn Way> {
        // SAFETY: asks for a number.
        let from_reserved_port = self.from_reserved_port.unwrap_or_else(|| unsafe { libc::geteuid() } == 0);
        Box::new(TcpWay { from_reserved_port })
    }
}

/// The user of this process.
pub fn own_credential() -> AuthSys {
    let mut groups = [0; 64];
    // SAFETY: the buffer is live and of the length given. The rest asks for numbers.
    let (uid, gid, count) = unsafe {
        (libc::geteuid(), libc::getegid(), libc::getgroups(groups.len() as i32, groups.as_mut_ptr()))
    };
    let count = usize::try_from(count).unwrap_or(0);
    AuthSys { stamp: 0, machine: weft_host::name().into_bytes(), uid, gid, groups: groups[..count].to_vec() }
}
