//! Opening files.

use weft_wire::messages::{CreateRequest, CreateUnnamedRequest, FileKind, OpenReply, OpenRequest, rights};
use weft_wire::{Added, Status};

use crate::error::{Error, ErrorKind};
use crate::held::Held;
use crate::open_file::OpenFile;
use crate::{At, Client, File, OpenOptions, Result};

impl Client {
    /// Opens a file, or creates it: one round trip.
    pub fn open<'a>(&self, at: impl Into<At<'a>>, options: &OpenOptions) -> Result<File> {
        let _operation = self.operation();
        let at = at.into();
        self.open_at(&at, options).map_err(|error| error.on(&at))
    }

    fn open_at(&self, at: &At<'_>, options: &OpenOptions) -> Result<File> {
        let access = access_of(options)?;
        let reply = match options.create {
            true => self.meta(&self.create_request(at, options, access))?,
            false => self.meta_behind_closes(at, &self.open_request(at, options, access))?,
        };
        let file = self.opened(at.to_string(), options, access, reply)?;
        if options.truncate && !file.created() {
            file.truncate(0)?;
        }
        if options.sync && file.open().held.is_for_writing() {
            // Durable bytes of a file whose name is not are lost with it.
            file.sync_attributes()?;
            if file.open().held.small_bytes() == 0 {
                file.open().note_striped_durably();
            }
        }
        Ok(file)
    }

    /// Creates a file without a name in a directory, and opens it. Unless it is made with
    /// [`create_new`](OpenOptions::create_new), [`Client::link`] may give it a name, from the inode's number. Else it goes when nobody
    /// has it open any more.
    ///
    /// # Errors
    /// [`Status::Unsupported`] from a metadata server of before this operation.
    pub fn create_unnamed<'a>(&self, dir: impl Into<At<'a>>, options: &OpenOptions) -> Result<File> {
        let _operation = self.operation();
        let dir = dir.into();
        self.create_unnamed_in(&dir, options).map_err(|error| error.on(&dir))
    }

    fn create_unnamed_in(&self, dir: &At<'_>, options: &OpenOptions) -> Result<File> {
        let access = access_of(options)?;
        let reply = self.meta(&CreateUnnamedRequest {
            caller: self.caller_owned(),
            dir: dir.to_wire(),
            follow: options.follow,
            mode: options.mode,
            exclusive: options.exclusive,
            layout: options.layout.clone(),
            access,
            small: !options.striped,
        })?;
        self.opened(dir.to_string(), options, access, reply)
    }

    pub(crate) fn create_request(&self, at: &At<'_>, options: &OpenOptions, access: u32) -> CreateRequest {
        CreateRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            mode: options.mode,
            exclusive: options.exclusive,
            layout: options.layout.clone(),
            access,
            small: Added(!options.striped),
            append: Added(options.append),
        }
    }

    pub(crate) fn open_request(&self, at: &At<'_>, options: &OpenOptions, access: u32) -> OpenRequest {
        let (follow, small) = (options.follow, Added(!options.striped));
        OpenRequest {
            caller: self.caller_owned(),
            at: at.to_wire(),
            follow,
            access,
            small,
            execute: Added(options.execute),
            append: Added(options.append),
        }
    }

    /// The file of a reply to either.
    pub(crate) fn opened(
        &self,
        name: String,
        options: &OpenOptions,
        access: u32,
        reply: OpenReply,
    ) -> Result<File> {
        let Some(capability) = reply.capability else {
            let status = match reply.attr.kind {
                FileKind::Directory => Status::IsDirectory,
                _ => Status::Unsupported,
            };
            return Err(Error::new("Open", ErrorKind::Status(status), "only files have contents here"));
        };
        let (id, session) = (self.inner.open_id(reply.run), self.inner.session().id());
        let held = Held::new(capability, access, id, session).small(reply.small_bytes.0);
        let flags = (options.sync, reply.created, options.append);
        let open = OpenFile::new(&self.inner, &self.caller, held, name, flags, reply.attr);
        self.inner.count(&open.held)?;
        if let Some(parent) = reply.parent {
            let _ = open.parent.set(parent);
        }
        open.set_access(options.access);
        Ok(File::new(open))
    }
}

/// The rights that an open asks for.
pub(crate) fn access_of(options: &OpenOptions) -> Result<u32> {
    let read = if options.read { rights::READ } else { 0 };
    let access = read | if options.write { rights::WRITE } else { 0 };
    if access == 0 || options.truncate && !options.write {
        let text = "a file is opened to read, to write, or both; to be truncated, to write";
        return Err(Error::new("Open", ErrorKind::Invalid, text));
    }
    Ok(access)
}
