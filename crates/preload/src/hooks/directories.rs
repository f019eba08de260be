//! Directory streams: `opendir` and related functions.
//!
//! ```text
//!   DIR of libc:   first field a descriptor, never negative
//!   DIR of ours:   MARK (negative) │ fd │ position │ rest of a page │ the last entry returned
//! ```
//!
//! Positions are the server's cookies, shifted for two names that it does not store: 0 `.` 1 `..` 2 + cookie.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::Ordering;

use libc::{DIR, dirent, ssize_t};
use weft_client::c::entry_type;
use weft_wire::limits::DIRECTORY_PAGE_ENTRIES_MAX;
use weft_wire::messages::{Entry, FileKind};

use crate::dispatch::on_path;
use crate::guard::{Errno, Outcome, Returned, enter, run_inside, within};
use crate::real::hooks;
use crate::shared::Kind;
use crate::table::{Use, find};

const MARK: c_int = -0x5745_4654;
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// A stream of ours, behind a `DIR *`.
#[repr(C)]
struct Stream {
    mark: c_int,
    fd: c_int,
    position: u64,
    page: VecDeque<Entry>,
    at_end: bool,
    current: dirent,
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

hooks! {
    fn opendir(path: *const c_char) -> *mut DIR {
        on_path(libc::AT_FDCWD, path, true, |_, path| opendir::real(path), |target| {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
            Ok(stream(super::opening::open_target(target, flags, 0)?, 0))
        })
    }

    fn fdopendir(fd: c_int) -> *mut DIR {
        match find(fd) {
            None => fdopendir::real(fd),
            Some(open) if open.kind() != Kind::Directory => enter(|| Err(Errno(libc::ENOTDIR))),
            Some(open) => enter(|| Ok(stream(fd, open.shared().position.load(Ordering::Acquire)))),
        }
    }

    fn readdir = readdir64(directory: *mut DIR) -> *mut dirent {
        match ours(directory) {
            None => readdir::real(directory),
            Some(stream) => match within(|| stream.next()) {
                Ok(true) => &mut stream.current,
                Ok(false) => std::ptr::null_mut(),
                Err(error) => enter(|| Err(error)),
            },
        }
    }

    fn readdir_r = readdir64_r(directory: *mut DIR, place: *mut dirent, result: *mut *mut dirent) -> c_int {
        match ours(directory) {
            None => readdir_r::real(directory, place, result),
            Some(stream) => match within(|| stream.next()) {
                Ok(true) => {
                    *place = stream.current;
                    *result = place;
                    0
                }
                Ok(false) => {
                    *result = std::ptr::null_mut();
                    0
                }
                Err(Errno(errno)) => errno,
            },
        }
    }

    fn closedir(directory: *mut DIR) -> c_int {
        match ours(directory) {
            None => closedir::real(directory),
            Some(stream) => {
                let fd = stream.fd;
                let stream: *mut Stream = stream;
                run_inside(|| drop(Box::from_raw(stream)));
                super::descriptors::close(fd)
            }
        }
    }

    fn dirfd(directory: *mut DIR) -> c_int {
        match ours(directory) {
            None => dirfd::real(directory),
            Some(stream) => stream.fd,
        }
    }

    fn rewinddir(directory: *mut DIR) -> () {
        match ours(directory) {
            None => rewinddir::real(directory),
            Some(stream) => stream.go_to(0),
        }
    }

    fn seekdir(directory: *mut DIR, position: c_long) -> () {
        match ours(directory) {
            None => seekdir::real(directory, position),
            Some(stream) => stream.go_to(position as u64),
        }
    }

    fn telldir(directory: *mut DIR) -> c_long {
        match ours(directory) {
            None => telldir::real(directory),
            Some(stream) => stream.position as c_long,
        }
    }

    fn scandir = scandir64(path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        scan(opendir(path), list, filter, compare)
    }

    fn scandirat = scandirat64(dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
        let fd = super::opening::openat(dirfd, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, 0);
        if fd < 0 {
            return -1;
        }
        scan(fdopendir(fd), list, filter, compare)
    }

    fn getdirentries = getdirentries64(fd: c_int, buffer: *mut c_char, bytes: usize, base: *mut libc::off_t) -> ssize_t
    where fd is open {
        *base = open.shared().position.load(Ordering::Acquire) as libc::off_t;
        entries(&open, buffer.cast(), bytes)
    }

    fn getdents64(fd: c_int, buffer: *mut c_void, bytes: usize) -> ssize_t where fd is open {
        entries(&open, buffer.cast(), bytes)
    }
}

/// The stream behind a `DIR *`, if it is one of ours.
unsafe fn ours<'a>(directory: *mut DIR) -> Option<&'a mut Stream> {
    // SAFETY: libc's and ours both begin with a number.
    if directory.is_null() || unsafe { directory.cast::<c_int>().read() } != MARK {
        return None;
    }
    // SAFETY: it has our mark. In C only one thread may use it at a time.
    Some(unsafe { &mut *directory.cast::<Stream>() })
}

fn stream(fd: c_int, position: u64) -> *mut DIR {
    // SAFETY: zeroed bytes are a valid `dirent`.
    let current = unsafe { std::mem::zeroed() };
    let stream = Stream { mark: MARK, fd, position, page: VecDeque::new(), at_end: false, current };
    Box::into_raw(Box::new(stream)).cast()
}

/// Fetches one page of a directory, from a position on. The first page also has the parent's inode, and says where
/// the listing ends.
fn page(open: &Use, position: u64, entries_max: u32) -> Outcome<(VecDeque<Entry>, bool, u64)> {
    if open.kind() != Kind::Directory {
        return Err(Errno(libc::ENOTDIR));
    }
    let made = open.mount.made()?;
    let after = position.saturating_sub(AFTER_DOTS);
    let until = if after == 0 { 0 } else { open.shared().until.load(Ordering::Acquire) };
    // The permission to list was checked when it was opened.
    match made.as_root.read_dir_page(open.shared().ino, (after, until), entries_max, false) {
        Ok(reply) => {
            open.shared().until.store(reply.until.0, Ordering::Release);
            Ok((reply.entries.into(), reply.end, reply.parent))
        }
        // It was removed: it is empty.
        Err(error) if error.errno() == libc::ESTALE => Ok((VecDeque::new(), true, open.shared().ino)),
        Err(error) => Err(error.into()),
    }
}

impl Stream {
    fn go_to(&mut self, position: u64) {
        self.page.clear();
        (self.position, self.at_end) = (position, false);
    }

    /// Fetches the next entry into `current`. Returns whether there was one.
    fn next(&mut self) -> Outcome<bool> {
        self.next_of(&find(self.fd).ok_or(Errno(libc::EBADF))?)
    }

    fn next_of(&mut self, open: &Use) -> Outcome<bool> {
        while self.page.is_empty() && !self.at_end {
            let (page, at_end, parent) = page(open, self.position, DIRECTORY_PAGE_ENTRIES_MAX)?;
            (self.page, self.at_end) = (page, at_end);
            if self.position < AFTER_DOTS {
                let ino = open.shared().ino;
                let dot = |name: &[u8], ino| Entry {
                    name: name.to_vec(),
                    ino,
                    kind: FileKind::Directory,
                    cookie: 0,
                    attr: None,
                };
                self.page.push_front(dot(b"..", if ino == open.mount.made()?.root { ino } else { parent }));
                if self.position < AFTER_DOT {
                    self.page.push_front(dot(b".", ino));
                }
            }
        }
        let Some(entry) = self.page.pop_front() else { return Ok(false) };
        self.position =
            if self.position < AFTER_DOTS { self.position + 1 } else { entry.cookie + AFTER_DOTS };
        self.current.d_ino = entry.ino;
        self.current.d_off = self.position as i64;
        self.current.d_type = entry_type(entry.kind);
        let bytes = entry.name.len().min(self.current.d_name.len() - 1);
        for (place, byte) in self.current.d_name.iter_mut().zip(&entry.name[..bytes]) {
            *place = *byte as c_char;
        }
        self.current.d_name[bytes] = 0;
        self.current.d_reclen = record_bytes(bytes) as u16;
        Ok(true)
    }
}

/// Size of an entry with a name of this length.
fn record_bytes(name_bytes: usize) -> usize {
    (std::mem::offset_of!(dirent, d_name) + name_bytes + 1).next_multiple_of(8)
}

/// Entries as `getdents64` returns them, from the descriptor's position on.
unsafe fn entries(open: &Use, buffer: *mut u8, room: usize) -> Outcome<ssize_t> {
    let shared = open.shared();
    let mut stream = Stream {
        mark: MARK,
        fd: -1,
        position: shared.position.load(Ordering::Acquire),
        page: VecDeque::new(),
        at_end: false,
        // SAFETY: zeroed bytes are a valid `dirent`.
        current: unsafe { std::mem::zeroed() },
    };
    let mut used = 0;
    loop {
        let before = stream.position;
        if !stream.next_of(open)? {
            shared.position.store(before, Ordering::Release);
            return Ok(used as ssize_t);
        }
        let bytes = usize::from(stream.current.d_reclen);
        if used + bytes > room {
            shared.position.store(before, Ordering::Release);
            return if used == 0 { Err(Errno(libc::EINVAL)) } else { Ok(used as ssize_t) };
        }
        // SAFETY: the program passes a buffer of this size. The bytes of an entry up to its length are live.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(&stream.current).cast(),
                buffer.add(used),
                bytes,
            );
        }
        used += bytes;
    }
}

/// Reads a whole directory for `scandir`, into memory from libc, which the program frees.
unsafe fn scan(directory: *mut DIR, list: *mut *mut *mut dirent, filter: Filter, compare: Compare) -> c_int {
    if directory.is_null() {
        return i32::FAILED;
    }
    let mut found: Vec<*mut dirent> = Vec::new();
    // SAFETY: the stream is open. Entries are copied into memory of their size. The program's functions take
    // entries.
    unsafe {
        loop {
            let entry = readdir(directory);
            if entry.is_null() {
                break;
            }
            if filter.is_some_and(|filter| filter(entry) == 0) {
                continue;
            }
            let name_bytes = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().len();
            let bytes = record_bytes(name_bytes);
            let copy = libc::malloc(bytes);
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), bytes);
            run_inside(|| found.push(copy.cast()));
        }
        closedir(directory);
        let array = libc::malloc((found.len().max(1)) * size_of::<*mut dirent>()).cast::<*mut dirent>();
        std::ptr::copy_nonoverlapping(found.as_ptr(), array, found.len());
        if let Some(compare) = compare {
            // The program's function takes pointers to elements, as `qsort` passes them.
            let compare = std::mem::transmute::<
                unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int,
                unsafe extern "C" fn(*const c_void, *const c_void) -> c_int,
            >(compare);
            libc::qsort(array.cast(), found.len(), size_of::<*mut dirent>(), Some(compare));
        }
        *list = array;
    }
    let count = found.len() as c_int;
    run_inside(|| drop(found));
    count
}
