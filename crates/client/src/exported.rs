//! An open file for another process: a few bytes that the program passes on by whatever means it has.
//!
//! ```text
//!   process 0      open ──► File::export ──► bytes ──── MPI_Bcast, a pipe, … ────► processes 1 to n
//!   each of them   Client::import ──► Reopen: capability, this session ──► metadata server: open there too
//!
//!   process 0      open ──► File::share ───► bytes ───────────────────────────────► processes 1 to n
//!   each of them   Client::import_shared, and no message: the open of process 0 covers it
//! ```
//!
//! The bytes carry the file's capability, so that neither the path is walked nor permissions are checked
//! again. They are of no use to others than the holder of the same key. [`Client::import`] takes one message:
//! the metadata server must know who has a file open, for a file that is removed, and for the size of one that
//! is written. A file that is *shared* stays open where it was opened for as long as others use it, and what
//! they write is reported from there (`shared.rs`), so nobody else has to be known.
//!
//! ```text
//!   8 bytes        2         16          4        54             32               about 113     4 to 259
//!   "weftfile"     version   cluster     flags    capability     whose counter    attributes    name, for errors
//! ```

use weft_wire::messages::{Attr, OpenId, ReopenRequest, rights};
use weft_wire::security::Capability;
use weft_wire::{Added, Op, Reader, Wire, Writer};

use crate::error::{Error, ErrorKind};
use crate::held::{CounterOf, Held};
use crate::open_file::OpenFile;
use crate::wait::lock;
use crate::{Client, File, Result, batch};

/// What [`File::export`] returns has no more bytes than this.
pub const EXPORT_BYTES_MAX: usize = 512;

const MAGIC: &[u8; 8] = b"weftfile";
const VERSION: u16 = 2;
/// What is kept of a name: its end.
const NAME_BYTES_MAX: usize = 255;
/// Flags.
const SYNC: u32 = 1;
const APPENDS: u32 = 2;
const SHARED: u32 = 4;

/// What is exported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exported {
    cluster_id: [u8; 16],
    flags: u32,
    capability: Capability,
    counter: CounterOf,
    attr: Attr,
    name: String,
}

fn refused(text: impl Into<String>) -> Error {
    Error::new("import", ErrorKind::Invalid, text)
}

impl Exported {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.raw(MAGIC);
        VERSION.put(&mut out);
        self.cluster_id.put(&mut out);
        self.flags.put(&mut out);
        self.capability.put(&mut out);
        self.counter.session.put(&mut out);
        self.counter.run.put(&mut out);
        self.counter.number.put(&mut out);
        self.attr.put(&mut out);
        let name = self.name.as_bytes();
        name[name.len().saturating_sub(NAME_BYTES_MAX)..].to_vec().put(&mut out);
        out.into_bytes()
    }

    /// Bytes behind the end do not matter, so that programs may pass on a buffer of [`EXPORT_BYTES_MAX`]
    /// whole.
    fn from_bytes(bytes: &[u8]) -> Result<Exported> {
        let mut input = Reader::new(bytes);
        if input.raw(MAGIC.len()) != Ok(MAGIC) {
            return Err(refused("these bytes are no exported file, or not all of one"));
        }
        let cut = |error| refused(format!("the bytes of an exported file are damaged or cut short: {error}"));
        let version = u16::get(&mut input).map_err(cut)?;
        if version != VERSION {
            let text = format!("the file was exported in format {version}, and this library reads {VERSION}");
            return Err(refused(text));
        }
        let mut rest = || {
            Ok(Exported {
                cluster_id: Wire::get(&mut input)?,
                flags: Wire::get(&mut input)?,
                capability: Wire::get(&mut input)?,
                counter: CounterOf {
                    session: Wire::get(&mut input)?,
                    run: Wire::get(&mut input)?,
                    number: Wire::get(&mut input)?,
                },
                attr: Wire::get(&mut input)?,
                name: String::from_utf8_lossy(&Vec::<u8>::get(&mut input)?).into_owned(),
            })
        };
        rest().map_err(cut)
    }
}

impl File {
    /// Describes the open file for [`Client::import`] in another process that has the same key, of at most
    /// [`EXPORT_BYTES_MAX`] bytes. It may be used any number of times, also when this handle is closed, for
    /// at least an hour and at most a day. View, cursor and locks are not in it.
    ///
    /// # Errors
    /// If the metadata server must be asked for a new capability, and cannot be.
    pub fn export(&self) -> Result<Vec<u8>> {
        self.describe(0)
    }

    /// As [`File::export`], for [`Client::import_shared`] too: other processes use the file under this open,
    /// without one of their own. This handle stays open until they have closed theirs. What they wrote is
    /// reported by [`File::close_shared`]; [`File::close`] asks the I/O servers for it.
    ///
    /// # Errors
    /// As [`File::export`].
    pub fn share(&self) -> Result<Vec<u8>> {
        // Who takes part without asking anybody takes it for striped.
        let open = self.open();
        open.held.spread(&open.inner).map_err(|error| error.on(&open.name))?;
        let shared = self.describe(SHARED)?;
        self.open.held.note_covers(true);
        Ok(shared)
    }

    fn describe(&self, flags: u32) -> Result<Vec<u8>> {
        let open = self.open();
        open.inner.keep_alive(&open.held).map_err(|error| error.on(&open.name))?;
        let flags = flags | if open.sync { SYNC } else { 0 } | if open.appends { APPENDS } else { 0 };
        let exported = Exported {
            cluster_id: open.inner.cluster_id,
            flags,
            capability: open.held.capability(),
            counter: open.held.counter(),
            attr: lock(&open.attr).clone(),
            name: open.name.clone(),
        };
        Ok(exported.to_bytes())
    }

    /// The right to this open file, for [`Client::adopt`] in another process of the same user.
    pub fn pass(&self) -> Vec<u8> {
        self.open().held.capability().to_bytes()
    }
}

impl Client {
    /// Opens a file that another process has or had open, by what [`File::export`] gave there: for the same
    /// operations, whatever the file's permissions are by now. Bytes behind the end of the description do not
    /// matter.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the bytes are not, or not all of, a description, or one of another
    /// cluster; [`Status::Capability`](weft_wire::Status::Capability) where it is too old, was changed, or is
    /// another key's; [`Status::Stale`](weft_wire::Status::Stale) where the file is gone.
    pub fn import(&self, bytes: &[u8]) -> Result<File> {
        let Exported { flags, capability, counter, name, .. } = self.exported(bytes)?;
        self.open_held(capability, &name, flags & SYNC != 0, flags & APPENDS != 0, Some(counter))
    }

    /// Takes part in an open that another process has, by what [`File::share`] gave there, without asking
    /// anybody: that open covers this handle for as long as it lasts. Reads and writes, sizes, syncs of
    /// contents and the counter work as with any handle. The first lock, append, and renewal of a capability
    /// that expires make it an open of its own, as [`Client::import`] does at once.
    ///
    /// It is closed without a message. What was written through it is reported by the process that has shared
    /// the file, or not at all: that one closes its handle last. A handle that is used after that reads and
    /// writes data files that nobody keeps: the size of a file may be too small then, and data of a file
    /// without a name is removed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the bytes are not what [`File::share`] gave in this cluster. Whether they
    /// are too old, or another key's, the first read or write says.
    pub fn import_shared(&self, bytes: &[u8]) -> Result<File> {
        let Exported { flags, capability, counter, attr, name, .. } = self.exported(bytes)?;
        if flags & SHARED == 0 {
            let text = "the file was exported, but not shared: import it, or share it where it is open";
            return Err(refused(text).on(&name));
        }
        let (access, id) = (capability.access(), self.inner.open_id(0));
        let size_live = attr.size_live || access & rights::WRITE != 0;
        let attr = Attr { ino: capability.ino, layout: Some(capability.layout), size_live, ..attr };
        let held = Held::new(capability, access, id, self.inner.session().id());
        let held = held.counting_with(counter).under_anothers();
        let flags = (flags & SYNC != 0, false, flags & APPENDS != 0);
        Ok(File::new(OpenFile::new(&self.inner, &self.caller, held, name, flags, attr)))
    }

    fn exported(&self, bytes: &[u8]) -> Result<Exported> {
        let exported = Exported::from_bytes(bytes)?;
        if exported.cluster_id != self.inner.cluster_id {
            let text = "the file was exported by a client of another cluster than this one is connected to";
            return Err(refused(text).on(&exported.name));
        }
        Ok(exported)
    }

    /// As [`Client::import`], by what [`File::pass`] gave. `name` is for errors; `sync` as in
    /// [`OpenOptions::sync`](crate::OpenOptions::sync).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is no pass; `Stale` where the file is gone, `Capability` where the pass
    /// is too old.
    pub fn adopt(&self, pass: &[u8], name: &str, sync: bool) -> Result<File> {
        let capability = Capability::from_bytes(pass).map_err(|error| {
            Error::new(Op::Reopen.name(), ErrorKind::Invalid, error.to_string()).on(&name)
        })?;
        self.open_held(capability, name, sync, false, None)
    }

    /// Opens a file of which a capability is at hand, with the counter of another open or its own.
    fn open_held(
        &self,
        capability: Capability,
        name: &str,
        sync: bool,
        appends: bool,
        counter: Option<CounterOf>,
    ) -> Result<File> {
        let inner = &self.inner;
        let open = || {
            let (access, id) = (capability.access(), inner.open_id(0));
            let request =
                ReopenRequest { capability: capability.clone(), id: id.clone(), small: Added(true) };
            let reply = batch::ask(inner, &request)?;
            let id = OpenId { run: reply.run, ..id };
            let capability = reply.capability.unwrap_or(capability);
            let held = Held::new(capability, access, id, inner.session().id());
            let mut held = held.small(reply.small_bytes.0);
            if let Some(counter) = counter {
                held = held.counting_with(counter);
            }
            let open =
                OpenFile::new(inner, &self.caller, held, name.into(), (sync, false, appends), reply.attr);
            inner.count(&open.held)?;
            Ok(File::new(open))
        };
        open().map_err(|error: Error| error.on(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exported(name: &str) -> Exported {
        let capability = Capability::sample(&mut 7);
        let counter = CounterOf { session: [4; 16], run: 6, number: 5 };
        let attr = Attr::sample(&mut 9);
        Exported { cluster_id: [9; 16], flags: SYNC | APPENDS, capability, counter, attr, name: name.into() }
    }

    #[test]
    fn a_description_is_bounded_and_comes_back_with_anything_behind_it() {
        let one = exported("/a/file");
        let mut bytes = one.to_bytes();
        bytes.resize(EXPORT_BYTES_MAX, 0xaa);
        assert_eq!(Exported::from_bytes(&bytes).unwrap(), one);
        let mut seed = 1;
        let capability = Capability { ino: u64::MAX, rights: u32::MAX, ..Capability::sample(&mut seed) };
        let long = Exported { capability, ..exported(&"x".repeat(5000)) }.to_bytes();
        assert!(long.len() < EXPORT_BYTES_MAX, "{} bytes", long.len());
        assert_eq!(Exported::from_bytes(&long).unwrap().name.len(), NAME_BYTES_MAX);
    }

    #[test]
    fn bytes_that_are_cut_or_of_another_version_are_refused_in_words() {
        let mut bytes = exported("/f").to_bytes();
        for length in 0..bytes.len() {
            let error = Exported::from_bytes(&bytes[..length]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{length}: {error}");
        }
        bytes[MAGIC.len()] = 1;
        let error = Exported::from_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains("exported in format 1"), "{error}");
        assert!(Exported::from_bytes(b"a text").unwrap_err().to_string().contains("no exported file"));
    }

    #[test]
    fn whatever_the_bytes_are_they_are_a_description_or_refused() {
        let right = ["/a/file", ""].map(|name| exported(name).to_bytes());
        weft_test_fuzz::run("exported-file", &right, |bytes| {
            if let Ok(read) = Exported::from_bytes(bytes) {
                assert_eq!(Exported::from_bytes(&read.to_bytes()).unwrap().capability, read.capability);
            }
        });
    }
}
