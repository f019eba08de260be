//! Where file systems of Weft are in this process's paths, and the connections to them.
//!
//! ```text
//!   WEFT_PREFIX=/weft=weft://node1:7400/          /weft/a/b   is /a/b of that cluster
//!   WEFT_URL=weft://node1:7400/data               weft:/x     is /data/x
//!                                                 weft://node2:7400/y  names its cluster itself
//! ```
//!
//! Connections are made when they are needed. A forked child makes its own connections, with its parent's
//! map. The parent's connections in its memory are never used, since a thread of the parent may have been
//! using them.

use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use weft_client::{At, Client, ConnectOptions, Url, process_caller};
use weft_wire::messages::{Caller, ROOT_INO};

use crate::guard::{Outcome, warn};
use crate::memory::SpinLock;
use crate::path_text::normal;

/// A path prefix and its cluster. Never freed.
pub(crate) struct Mount {
    /// The prefix of its paths: `/weft`, or `weft://host:port`.
    pub(crate) prefix: Vec<u8>,
    url: Url,
    made: AtomicPtr<Made>,
    next: *const Mount,
}

// SAFETY: `next` is set before a mount is published and points to one that is never freed.
unsafe impl Sync for Mount {}

/// The connections of one process for one user. Never freed.
pub(crate) struct Made {
    generation: u32,
    /// The client, on behalf of the process's effective user.
    pub(crate) client: Client,
    /// The same connections, for operations that a descriptor permits, whoever the process's user is now.
    pub(crate) as_root: Client,
    /// Inode of the mount's root directory.
    pub(crate) root: u64,
    /// `st_dev` of its files.
    pub(crate) device: u64,
    next: *const Made,
}

// SAFETY: `next` is set before it is published and points to one that is never freed.
unsafe impl Sync for Made {}

impl Made {
    /// The client, on behalf of the process's real user, as `access` needs.
    pub(crate) fn for_real_user(&self) -> Client {
        // SAFETY: no preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        self.client.with_caller(Caller { uid, gid, ..self.client.caller().clone() })
    }

    /// A path relative to the mount's root.
    pub(crate) fn at<'a>(&self, path: &'a [u8]) -> At<'a> {
        At::child(self.root, path)
    }
}

static FIRST: AtomicPtr<Mount> = AtomicPtr::new(ptr::null_mut());
/// Held while a mount is added, and over a fork.
pub(crate) static ADDING: SpinLock<()> = SpinLock::new(());
static READ: AtomicU8 = AtomicU8::new(NOT_READ);
const NOT_READ: u8 = 0;
const READING: u8 = 1;
const DONE: u8 = 2;
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The number of forks between the first process and this one.
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Records that this process is now a child.
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// An environment variable; `None` if it is unset or empty.
pub(crate) fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends with a zero, and so does the value.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))?
    };
    (!value.is_empty()).then_some(value)
}

/// Reads the environment, once.
pub(crate) fn read_environment() {
    if READ.load(Ordering::Acquire) == DONE {
        return;
    }
    if READ.compare_exchange(NOT_READ, READING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread, or this one through a hook, is already reading it. At worst a path is taken for a
        // local one.
        return;
    }
    if let Some(text) = variable(c"WEFT_PREFIX") {
        for entry in text.to_bytes().split(|byte| *byte == b';').rev() {
            add_from_environment(entry);
        }
    }
    READ.store(DONE, Ordering::Release);
}

fn add_from_environment(entry: &[u8]) {
    let parsed = || {
        let equals = entry.iter().position(|byte| *byte == b'=')?;
        let (prefix, url) = (&entry[..equals], std::str::from_utf8(&entry[equals + 1..]).ok()?);
        let prefix = normal(prefix.strip_prefix(b"/").map(|_| prefix)?);
        (prefix != b"/").then_some((prefix, Url::parse(url).ok()?))
    };
    match parsed() {
        Some((prefix, url)) => drop(add(prefix, url)),
        None => warn(&format!(
            "WEFT_PREFIX has `{}`; it must look like /weft=weft://HOST:PORT/",
            String::from_utf8_lossy(entry)
        )),
    }
}

fn add(prefix: Vec<u8>, url: Url) -> &'static Mount {
    ADDING.with(|()| {
        if let Some(known) = all().find(|mount| mount.prefix == prefix && mount.url == url) {
            return known;
        }
        let next = FIRST.load(Ordering::Acquire);
        let mount = Box::new(Mount { prefix, url, made: AtomicPtr::new(ptr::null_mut()), next });
        let mount = Box::leak(mount);
        FIRST.store(mount, Ordering::Release);
        mount
    })
}

/// All mounts.
pub(crate) fn all() -> impl Iterator<Item = &'static Mount> {
    let mut next: *const Mount = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or a mount, which is never freed.
        let mount = unsafe { next.as_ref() }?;
        next = mount.next;
        Some(mount)
    })
}

/// Whether any path other than a URL can be in Weft.
pub(crate) fn has_prefix() -> bool {
    read_environment();
    !FIRST.load(Ordering::Acquire).is_null()
}

/// The mount of a descriptor that another process opened.
pub(crate) fn of_descriptor(prefix: &[u8], url: &[u8]) -> Option<&'static Mount> {
    read_environment();
    let url = Url::parse(std::str::from_utf8(url).ok()?).ok()?;
    Some(add(prefix.to_vec(), url))
}

/// The mount and the path in it, for `weft://HOST:PORT/PATH` or `weft:/PATH`; `None` for other texts.
pub(crate) fn of_url(text: &[u8]) -> Option<(&'static Mount, Vec<u8>)> {
    let rest = text.strip_prefix(b"weft:")?;
    read_environment();
    if rest.starts_with(b"//") {
        let url = Url::parse(std::str::from_utf8(text).ok()?).ok()?;
        let path = url.path().as_bytes().to_vec();
        return Some((mount_of(&url), path));
    }
    let Some(base) = variable(c"WEFT_URL") else {
        let first = all().next()?;
        return Some((first, [b"/", rest].concat()));
    };
    let url = Url::parse(base.to_str().ok()?).ok()?;
    let path = [url.path().as_bytes(), b"/", rest].concat();
    Some((mount_of(&url), path))
}

/// The mount of a cluster's root.
fn mount_of(url: &Url) -> &'static Mount {
    let root = url.with_path("/");
    let known = all().find(|mount| mount.url == root);
    known.unwrap_or_else(|| add(format!("weft://{}", root.server()).into_bytes(), root))
}

impl Mount {
    /// The URL of its cluster and root directory.
    pub(crate) fn address(&self) -> &Url {
        &self.url
    }

    /// The URL as text, for a descriptor's page.
    pub(crate) fn url(&self) -> String {
        self.url.to_string()
    }

    /// This process's connections for its current user. Makes them if there are none.
    pub(crate) fn made(&'static self) -> Outcome<&'static Made> {
        let newest = self.made.load(Ordering::Acquire);
        if let Some(made) = all_made(newest).find(|made| made.is_ours() && is_caller(made.client.caller())) {
            return Ok(made);
        }
        // The client reads in the environment where the key is.
        crate::keep::restore_own();
        // SAFETY: null, or one that is never freed.
        let (client, root) = match unsafe { newest.as_ref() } {
            Some(made) if made.is_ours() => (made.client.with_caller(process_caller()), made.root),
            Some(parents) => {
                let map = parents.client.map();
                (Client::connect_with_map(&self.url, ConnectOptions::default(), map)?, parents.root)
            }
            None => {
                let client = Client::connect(&self.url, ConnectOptions::default())?;
                let at_root = self.url.path().bytes().all(|byte| byte == b'/');
                let root = if at_root { ROOT_INO } else { client.stat(self.url.path(), true)?.ino };
                (client, root)
            }
        };
        let cluster_id = client.map().cluster_id;
        let device =
            u64::from(u32::from_le_bytes([cluster_id[0], cluster_id[1], cluster_id[2], 0])) << 8 | 0xfe;
        let as_root = client.with_caller(Caller { uid: 0, gid: 0, groups: Vec::new() });
        let fresh = Made { generation: generation(), client, as_root, root, device, next: newest };
        let fresh = Box::into_raw(Box::new(fresh));
        match self.made.compare_exchange(newest, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it is published, so it is never freed.
            Ok(_) => Ok(unsafe { &*fresh }),
            Err(_) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(fresh) });
                self.made()
            }
        }
    }

    /// This process's connections, if it has made any.
    pub(crate) fn made_before(&self) -> Option<&'static Made> {
        all_made(self.made.load(Ordering::Acquire)).find(|made| made.is_ours())
    }
}

impl Made {
    fn is_ours(&self) -> bool {
        self.generation == generation()
    }
}

/// The newest connections and the earlier ones: for other users, and of processes that this one was forked
/// from.
fn all_made(newest: *const Made) -> impl Iterator<Item = &'static Made> {
    let mut next = newest;
    std::iter::from_fn(move || {
        // SAFETY: null, or one that is never freed.
        let made = unsafe { next.as_ref() }?;
        next = made.next;
        Some(made)
    })
}

/// How many groups of a process are compared at once.
const GROUPS_AT_ONCE: usize = 64;

/// Whether the caller is the process's current user and groups.
fn is_caller(caller: &Caller) -> bool {
    let mut groups = [0; GROUPS_AT_ONCE];
    // SAFETY: no preconditions. At most as many groups are written as the buffer holds.
    let (uid, gid, count) = unsafe {
        (libc::geteuid(), libc::getegid(), libc::getgroups(groups.len() as i32, groups.as_mut_ptr()))
    };
    match usize::try_from(count) {
        Ok(count) => caller.uid == uid && caller.gid == gid && caller.groups == groups[..count],
        Err(_) => *caller == process_caller(),
    }
}
