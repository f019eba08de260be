//! How to connect.

use weft_rpc::options::Options;
use weft_wire::keys::IssuedKey;
use weft_wire::messages::{Caller, LayoutWish, Time};

use crate::access::AccessOptions;
use crate::dial::Transport;
use crate::error::Error;
use crate::greet::Identity;
use crate::key_files;
use crate::rdma::RdmaOptions;
use crate::url::Url;

/// How to connect. [`Default`] is right for most.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The key to show. Without it: as [`crate::key_files`] finds it.
    pub key: Option<IssuedKey>,
    /// The transport. Without it: the URL's, then `$WEFT_TRANSPORT`, then [`Transport::Auto`].
    pub transport: Option<Transport>,
    /// How RDMA is used. Without it: the defaults, changed by `$WEFT_RDMA`, then by the URL's options that
    /// begin with `rdma-`.
    pub rdma: Option<RdmaOptions>,
    /// Nobody waits for what this client moves: its traffic over RDMA is marked as background.
    pub background: bool,
    /// On whose behalf. Without it: the process's effective user, group, and supplementary groups.
    pub caller: Option<Caller>,
    /// This program, for the servers' list of clients. Without it: the name of the executable.
    pub program: Option<String>,
    /// Over TCP: the session, with its open files and locks, ends as soon as this host closes its last connection, as it
    /// does when the process is killed. Otherwise the metadata server waits 10 seconds whether the client comes back.
    pub ends_with_connection: bool,
    /// How long one operation waits in all for servers that do not answer, in milliseconds. A server for
    /// which one has waited so long in vain is dead: what needs it fails at once, until it is back.
    pub retry_timeout_ms: u64,
    /// Operations wait for ever instead, until the servers are back.
    pub hard: bool,
    /// How long one connection may take to come about, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long a server may stay silent about a request before its connection counts as broken, in
    /// milliseconds.
    pub reply_timeout_ms: u64,
    /// How long a small operation watches its connections before the thread sleeps, in microseconds. It stops
    /// by itself where that does not help. 0: never.
    pub spin_us: u32,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            key: None,
            transport: None,
            rdma: None,
            background: false,
            caller: None,
            program: None,
            ends_with_connection: false,
            retry_timeout_ms: 30_000,
            hard: false,
            connect_timeout_ms: 5_000,
            reply_timeout_ms: 120_000,
            spin_us: 50,
        }
    }
}

impl ConnectOptions {
    /// How calls wait, with what the URL says.
    pub(crate) fn calls(&self, url: &Url) -> Options {
        Options {
            retry_timeout_ms: url.timeout_ms().unwrap_or(self.retry_timeout_ms),
            hard: self.hard || url.hard(),
            connect_timeout_ms: self.connect_timeout_ms,
            reply_timeout_ms: self.reply_timeout_ms,
            spin_us: self.spin_us,
            background: self.background || url.background(),
        }
    }

    /// What servers are shown.
    pub(crate) fn identity(&self, url: &Url) -> Result<Identity, Error> {
        let identity = Identity::client(self.find_key(url)?.as_ref(), self.program.as_deref());
        Ok(identity.ending_with_connection(self.ends_with_connection))
    }

    pub(crate) fn find_transport(&self, url: &Url) -> Result<Transport, Error> {
        if let Some(transport) = self.transport.or(url.transport()) {
            return Ok(transport);
        }
        match std::env::var("WEFT_TRANSPORT") {
            Ok(text) if !text.is_empty() => {
                text.parse().map_err(|reason| Error::configuration(format!("WEFT_TRANSPORT: {reason}")))
            }
            _ => Ok(Transport::Auto),
        }
    }

    pub(crate) fn find_rdma(&self, url: &Url) -> Result<RdmaOptions, Error> {
        if let Some(rdma) = &self.rdma {
            return Ok(rdma.clone());
        }
        let mut rdma = RdmaOptions::default();
        let environment = std::env::var("WEFT_RDMA").unwrap_or_default();
        rdma.set_all(&environment).map_err(|reason| Error::configuration(format!("WEFT_RDMA: {reason}")))?;
        for (name, value) in url.rdma() {
            rdma.set(name, value).map_err(|reason| Error::configuration(format!("rdma-{name}: {reason}")))?;
        }
        Ok(rdma)
    }

    /// `None`: there is none, and over the URL's Unix socket none is needed.
    fn find_key(&self, url: &Url) -> Result<Option<IssuedKey>, Error> {
        match &self.key {
            Some(key) => Ok(Some(key.clone())),
            None => key_files::find(url),
        }
    }

    pub(crate) fn find_caller(&self) -> Caller {
        self.caller.clone().unwrap_or_else(process_caller)
    }
}

/// The effective user, group and supplementary groups of this process.
pub fn process_caller() -> Caller {
    let mut groups = vec![0; weft_wire::limits::GROUPS_MAX];
    // SAFETY: these calls have no preconditions; getgroups writes at most as many as there is room for.
    let (uid, gid, count) = unsafe {
        (libc::geteuid(), libc::getegid(), libc::getgroups(groups.len() as i32, groups.as_mut_ptr()))
    };
    groups.truncate(usize::try_from(count).unwrap_or(0));
    Caller { uid, gid, groups }
}

/// How to open a file; the same words as in the standard library.
///
/// ```
/// use weft_client::OpenOptions;
/// let options = OpenOptions::new().read(true).write(true).create(true).mode(0o640);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) create: bool,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
    pub(crate) append: bool,
    pub(crate) sync: bool,
    pub(crate) follow: bool,
    pub(crate) striped: bool,
    pub(crate) execute: bool,
    pub(crate) mode: u32,
    pub(crate) layout: Option<LayoutWish>,
    pub(crate) access: AccessOptions,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Neither to read nor to write; says otherwise before it is used.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            sync: false,
            follow: true,
            striped: false,
            execute: false,
            mode: 0o666,
            layout: None,
            access: AccessOptions::default(),
        }
    }
}

/// Defines methods that set the field of their name.
macro_rules! setters {
    ($($(#[$about:meta])* $field:ident: $kind:ty;)*) => {
        impl OpenOptions { $(
            $(#[$about])*
            pub fn $field(mut self, $field: $kind) -> OpenOptions {
                self.$field = $field;
                self
            }
        )* }
    };
}

setters! {
    /// Whether to read.
    read: bool;
    /// Whether to write.
    write: bool;
    /// Whether to create the file where it is not there.
    create: bool;
    /// Whether to cut the file to no bytes; needs `write`.
    truncate: bool;
    /// Whether [`crate::File::write`] goes to the end of the file, behind what anybody has appended; needs
    /// `write`.
    append: bool;
    /// Whether every write is durable when it returns, on whatever server. The file's name is when it is
    /// open.
    sync: bool;
    /// Whether a symbolic link at the end of the name is followed (it is, if nothing is said).
    follow: bool;
    /// Whether the file is striped from the beginning, and not small at first with its bytes at the metadata server: for one that
    /// will be large, or is used by many.
    striped: bool;
    /// Whether what is there is read to be executed, which takes the permission to execute instead of that to read.
    execute: bool;
    /// Permission bits of a file that is created, umask applied; 0o666 if nothing is said.
    mode: u32;
    /// How reads and writes of pieces are carried out; [`crate::File::set_access`] changes it.
    access: AccessOptions;
}

impl OpenOptions {
    /// Whether to create the file, and fail where it is there; one without a name then never gets one.
    pub fn create_new(mut self, create_new: bool) -> OpenOptions {
        self.exclusive = create_new;
        self.create |= create_new;
        self
    }

    /// Layout of a file that is created, where another than the directory's default is wanted.
    pub fn layout(mut self, layout: LayoutWish) -> OpenOptions {
        self.layout = Some(layout);
        self
    }
}

/// A time to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetTime {
    /// The metadata server's now.
    Now,
    /// This one.
    To(Time),
}

/// Changes of attributes; what is `None` stays.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits with set-id and sticky bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::RdmaMechanism;

    #[test]
    fn the_option_wins_over_the_url() {
        let url = Url::parse("weft://h/?transport=tcp").unwrap();
        assert_eq!(ConnectOptions::default().find_transport(&url).unwrap(), Transport::Tcp);
        let options = ConnectOptions { transport: Some(Transport::Shm), ..ConnectOptions::default() };
        assert_eq!(options.find_transport(&url).unwrap(), Transport::Shm);
    }

    #[test]
    fn options_of_rdma_are_the_urls_unless_they_are_given() {
        let url = Url::parse("weft://h/?transport=rdma&rdma-mechanism=fast&rdma-tos=8").unwrap();
        assert_eq!(ConnectOptions::default().find_transport(&url).unwrap(), Transport::Rdma);
        let found = ConnectOptions::default().find_rdma(&url).unwrap();
        assert_eq!((found.mechanism, found.tos.bulk), (RdmaMechanism::Fast, 8));
        let given = ConnectOptions { rdma: Some(RdmaOptions::default()), ..ConnectOptions::default() };
        assert_eq!(given.find_rdma(&url).unwrap(), RdmaOptions::default());
    }

    #[test]
    fn this_process_has_an_identity() {
        let caller = process_caller();
        // SAFETY: no preconditions.
        assert_eq!(caller.uid, unsafe { libc::geteuid() });
        assert!(caller.groups.len() <= weft_wire::limits::GROUPS_MAX);
    }
}
