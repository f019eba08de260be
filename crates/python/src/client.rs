//! A connection to a file system: names and attributes.

use crate::errors::{exception, released};
use crate::file::File;
use crate::memory::Memory;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use weft_client::{At, ConnectOptions, OpenOptions, SetAttr, SetTime, Transport, Url};
use weft_wire::messages::{Attr, LayoutWish, Time};

/// A connection to a file system. `weftfs.FileSystem` is built on it.
#[pyclass(frozen, subclass, module = "weftfs._weftfs")]
pub(crate) struct Client {
    client: weft_client::Client,
    url: String,
}

/// (ino, mode with the kind, nlink, uid, gid, size, atime_ns, mtime_ns, ctime_ns, btime_ns, layout or None)
type Stat = (u64, u32, u32, u32, u32, u64, i128, i128, i128, i128, Option<(u32, u16, u16)>);

fn stat_of(attr: &Attr) -> Stat {
    let ns = |time: &Time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let layout = attr.layout.map(|it| (it.strip_bytes(), it.server_count(), it.first_server()));
    (
        attr.ino,
        weft_client::c::type_bits(attr.kind) | attr.mode & 0o7777,
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        ns(&attr.atime),
        ns(&attr.mtime),
        ns(&attr.ctime),
        ns(&attr.btime),
        layout,
    )
}

fn time_of(ns: i128) -> SetTime {
    SetTime::To(Time {
        seconds: ns.div_euclid(1_000_000_000) as i64,
        nanoseconds: ns.rem_euclid(1_000_000_000) as u32,
    })
}

/// strip_bytes, servers, first_server; 0, 0, -1: as the cluster has it.
type Wish = (u32, u16, i32);

fn wish_of((strip_bytes, server_count, first_server): Wish) -> LayoutWish {
    let first_server_plus_1 = u16::try_from(first_server + 1).unwrap_or(0);
    LayoutWish { strip_bytes, server_count, first_server_plus_1 }
}

/// Permissions of something new, as this process makes it.
fn masked(mode: u32) -> u32 {
    mode & !weft_host::umask().unwrap_or(0o022)
}

impl Client {
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        path: &OsStr,
        work: impl FnOnce(&weft_client::Client, At<'_>) -> weft_client::Result<T> + Send,
    ) -> PyResult<T> {
        released(py, path, || work(&self.client, At::path(path)))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (url, *, transport=None, key_file=None, timeout_ms=None))]
    fn new(
        py: Python<'_>,
        url: &str,
        transport: Option<&str>,
        key_file: Option<std::path::PathBuf>,
        timeout_ms: Option<u64>,
    ) -> PyResult<Client> {
        let parsed = Url::parse(url).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let transport = transport.map(str::parse::<Transport>).transpose();
        let transport = transport.map_err(|reason| PyValueError::new_err(format!("transport: {reason}")))?;
        let key = key_file.as_deref().map(weft_client::read_key_file).transpose();
        let key = key.map_err(|error| exception(py, &error, OsStr::new(url)))?;
        let mut options = ConnectOptions { key, transport, ..ConnectOptions::default() };
        options.program = Some("python".to_owned());
        options.retry_timeout_ms = timeout_ms.unwrap_or(options.retry_timeout_ms);
        let client = released(py, OsStr::new(url), || weft_client::Client::connect(&parsed, options))?;
        Ok(Client { client, url: url.to_owned() })
    }

    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// (server, role, transport or None, why not a faster one or None)
    fn transports(&self) -> Vec<(String, &'static str, Option<String>, Option<String>)> {
        let one = |used: weft_client::TransportInUse| (used.server, used.role, used.transport, used.fallback);
        self.client.transports().into_iter().map(one).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "the flags of open(2)")]
    #[pyo3(signature = (path, *, read, write, create, exclusive, truncate, append, striped, mode, layout))]
    fn open_native(
        &self,
        py: Python<'_>,
        path: OsString,
        read: bool,
        write: bool,
        create: bool,
        exclusive: bool,
        truncate: bool,
        append: bool,
        striped: bool,
        mode: u32,
        layout: Option<Wish>,
    ) -> PyResult<File> {
        let options = OpenOptions::new().read(read).write(write).create(create).truncate(truncate);
        let options = options.append(append).striped(striped);
        let options = if create || exclusive { options.mode(masked(mode)) } else { options };
        let options = if exclusive { options.create_new(true) } else { options };
        let options = layout.map(wish_of).into_iter().fold(options, OpenOptions::layout);
        let file = self.run(py, &path, |client, at| client.open(at, &options))?;
        Ok(File::new(file, &path))
    }

    fn stat_raw(&self, py: Python<'_>, path: OsString, follow: bool) -> PyResult<Stat> {
        self.run(py, &path, |client, at| Ok(stat_of(&client.stat(at, follow)?)))
    }

    /// Names with their attributes, in the order of their making.
    fn list_raw<'py>(
        &self,
        py: Python<'py>,
        path: OsString,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, Option<Stat>)>> {
        let entries =
            self.run(py, &path, |client, at| client.read_dir(at)?.collect::<weft_client::Result<Vec<_>>>())?;
        let one = |entry: &weft_wire::messages::Entry| {
            (PyBytes::new(py, &entry.name), entry.attr.as_ref().map(stat_of))
        };
        Ok(entries.iter().map(one).collect())
    }

    fn mkdir_raw(&self, py: Python<'_>, path: OsString, mode: u32, layout: Option<Wish>) -> PyResult<()> {
        let mode = masked(mode);
        self.run(py, &path, |client, at| match layout {
            Some(layout) => client.mkdir_with_layout(at, mode, &wish_of(layout)).map(drop),
            None => client.mkdir(at, mode).map(drop),
        })
    }

    fn set_layout_raw(&self, py: Python<'_>, path: OsString, layout: Option<Wish>) -> PyResult<()> {
        self.run(py, &path, |client, at| client.set_layout(at, layout.map(wish_of).as_ref()).map(drop))
    }

    fn rmdir(&self, py: Python<'_>, path: OsString) -> PyResult<()> {
        self.run(py, &path, |client, at| client.rmdir(at))
    }

    fn unlink(&self, py: Python<'_>, path: OsString) -> PyResult<()> {
        self.run(py, &path, |client, at| client.unlink(at))
    }

    fn rename_raw(
        &self,
        py: Python<'_>,
        source: OsString,
        target: OsString,
        no_replace: bool,
    ) -> PyResult<()> {
        let flags = if no_replace { libc::RENAME_NOREPLACE } else { 0 };
        self.run(py, &source, |client, at| client.rename(at, At::path(&target), flags))
    }

    fn symlink(&self, py: Python<'_>, target: OsString, path: OsString) -> PyResult<()> {
        self.run(py, &path, |client, at| client.symlink(at, target.as_bytes()).map(drop))
    }

    fn link(&self, py: Python<'_>, source: OsString, path: OsString) -> PyResult<()> {
        self.run(py, &source, |client, at| client.link(at, false, At::path(&path)).map(drop))
    }

    fn readlink(&self, py: Python<'_>, path: OsString) -> PyResult<OsString> {
        let target = self.run(py, &path, |client, at| client.readlink(at))?;
        Ok(OsStr::from_bytes(&target).to_owned())
    }

    #[pyo3(signature = (path, *, mode=None, uid=None, gid=None, times_ns=None, follow=true))]
    #[expect(clippy::too_many_arguments, reason = "the attributes of a file")]
    fn set_attributes(
        &self,
        py: Python<'_>,
        path: OsString,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        times_ns: Option<(i128, i128)>,
        follow: bool,
    ) -> PyResult<()> {
        let changes = SetAttr {
            mode,
            uid,
            gid,
            atime: times_ns.map(|(atime, _)| time_of(atime)),
            mtime: times_ns.map(|(_, mtime)| time_of(mtime)),
        };
        self.run(py, &path, |client, at| client.setattr(at, follow, &changes).map(drop))
    }

    fn truncate(&self, py: Python<'_>, path: OsString, nbytes: u64) -> PyResult<()> {
        self.run(py, &path, |client, at| client.truncate(at, nbytes))
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: OsString,
        name: OsString,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value =
            self.run(py, &path, |client, at| client.get_xattr(client.stat(at, true)?.ino, name.as_bytes()))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(&self, py: Python<'_>, path: OsString, name: OsString, value: &[u8]) -> PyResult<()> {
        self.run(py, &path, |client, at| {
            client.set_xattr(client.stat(at, true)?.ino, name.as_bytes(), value, 0)
        })
    }

    fn removexattr(&self, py: Python<'_>, path: OsString, name: OsString) -> PyResult<()> {
        self.run(py, &path, |client, at| client.remove_xattr(client.stat(at, true)?.ino, name.as_bytes()))
    }

    fn listxattr(&self, py: Python<'_>, path: OsString) -> PyResult<Vec<OsString>> {
        let names = self.run(py, &path, |client, at| client.list_xattrs(client.stat(at, true)?.ino))?;
        Ok(names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect())
    }

    /// (space_bytes, free_bytes, available_bytes, files)
    fn statfs_raw(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let all = released(py, OsStr::new(&self.url), || self.client.statfs())?;
        Ok((all.space_bytes, all.free_bytes, all.available_bytes, all.files))
    }

    /// Copies between two open files on the servers; the bytes that were there to be copied.
    fn copy_range(
        &self,
        py: Python<'_>,
        source: &File,
        source_offset: u64,
        target: &File,
        target_offset: u64,
        nbytes: u64,
    ) -> PyResult<u64> {
        let (from, to) = (source.open()?, target.open()?);
        released(py, OsStr::new(&self.url), || {
            self.client.copy_range(&from, source_offset, &to, target_offset, nbytes)
        })
    }

    /// Makes all that was written by anybody durable.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        released(py, OsStr::new(&self.url), || self.client.sync_all())
    }

    /// Makes all names, attributes and sizes durable.
    fn sync_names(&self, py: Python<'_>) -> PyResult<()> {
        released(py, OsStr::new(&self.url), || self.client.sync_names())
    }

    /// Memory that servers on this host reach without a copy; zeros at first.
    fn alloc(&self, py: Python<'_>, nbytes: usize) -> PyResult<Memory> {
        released(py, OsStr::new(&self.url), || self.client.alloc(nbytes)).map(Memory::new)
    }
}
