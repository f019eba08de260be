//! Programs in Weft: what is executed instead of one, and the search for one.
//!
//! A program is executed from a copy in memory. For a script, its path is passed to its interpreter, as the
//! kernel does:
//!
//! ```text
//!   execve("/weft/bin/x")        ELF   ──► memfd with its bytes, executed as /proc/self/fd/N
//!   execve("/weft/bin/s.sh")     #!/bin/sh -e  ──► /bin/sh -e /weft/bin/s.sh …
//! ```

use std::ffi::{CStr, CString, c_char, c_int};

use weft_client::{File, OpenOptions};
use weft_host::program::{SCRIPT_LINE_BYTES_MAX, script_line};

use crate::guard::{Errno, Outcome, address, system};
use crate::paths::{Place, Target, resolve};
use crate::strings::{Strings, list_of};
use crate::{cwd, mounts, table};

const COPY_BYTES: usize = 1 << 20;

/// What is executed instead of a file in Weft.
pub(super) struct Program {
    pub(super) path: CString,
    /// The path as the program that executes it would write it.
    pub(super) shown: CString,
    pub(super) arguments: Vec<*const c_char>,
    pub(super) is_script: bool,
    /// Descriptor of a copy, or -1.
    pub(super) copy: c_int,
    /// Owns the strings that `arguments` point to.
    _texts: Vec<CString>,
}

/// Prepares the execution of a file.
///
/// # Safety
/// The list of strings ends with NULL.
pub(super) unsafe fn prepare(target: &Target, arguments: Strings) -> Outcome<Program> {
    let (made, at) = target.at()?;
    made.client.access(at.clone(), true, libc::X_OK as u32)?;
    let file =
        made.client.open(at, &OpenOptions::new().read(true).execute(true)).map_err(|error| {
            match error.errno() {
                libc::EISDIR => Errno(libc::EACCES),
                _ => error.into(),
            }
        })?;
    let mut line = vec![0u8; SCRIPT_LINE_BYTES_MAX];
    let read = file.read_at(&mut line, 0)?;
    line.truncate(read);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno(libc::ENOEXEC));
    let shown = text(&target.shown())?;
    if let Some((interpreter, option)) = script_line(&line) {
        if interpreter.is_empty() {
            return Err(Errno(libc::ENOEXEC));
        }
        let (interpreter, option) = (text(interpreter)?, option.map(text).transpose()?);
        // SAFETY: as the caller promises.
        return Ok(unsafe { Program::of_script(&interpreter, option.as_ref(), shown, arguments) });
    }
    if !line.starts_with(b"\x7fELF") {
        return Err(Errno(libc::ENOEXEC));
    }
    let copy = copy_of(&file, &target.shown())?;
    let path = text(format!("/proc/self/fd/{copy}").as_bytes())?;
    // SAFETY: as the caller promises.
    let arguments = unsafe { list_of(arguments) };
    Ok(Program { path, shown, arguments, is_script: false, copy, _texts: Vec::new() })
}

impl Program {
    /// The interpreter of a script of this path, which is executed instead.
    ///
    /// # Safety
    /// The list of strings ends with NULL.
    pub(super) unsafe fn of_script(
        interpreter: &CStr,
        option: Option<&CString>,
        script: CString,
        arguments: Strings,
    ) -> Program {
        let mut texts = vec![interpreter.to_owned()];
        texts.extend(option.cloned());
        texts.push(script);
        // SAFETY: as the caller promises.
        let given = unsafe { list_of(arguments) };
        let arguments = texts.iter().map(|text| text.as_ptr()).chain(given.into_iter().skip(1)).collect();
        let (path, shown) = (interpreter.to_owned(), interpreter.to_owned());
        Program { path, shown, arguments, is_script: true, copy: -1, _texts: texts }
    }
}

/// Copies a file into memory. Returns a descriptor of the copy.
pub(super) fn copy_of(file: &File, path: &[u8]) -> Outcome<c_int> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(b"weft");
    let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
    let copy =
        system(libc::SYS_memfd_create, [address(name.as_ptr()), libc::MFD_CLOEXEC as usize, 0, 0, 0, 0])?;
    let copy = table::move_away(copy as c_int);
    let (mut buffer, mut offset) = (vec![0u8; COPY_BYTES], 0);
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 {
            return Ok(copy);
        }
        let place = buffer.as_ptr() as usize;
        system(libc::SYS_pwrite64, [copy as usize, place, read, offset as usize, 0, 0])?;
        offset += read as u64;
    }
}

/// Whether the search for a program may look in Weft.
///
/// # Safety
/// The name ends with a zero.
pub(super) unsafe fn searches_weft(file: *const c_char) -> bool {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        return true;
    }
    if !mounts::has_prefix() {
        return false;
    }
    let path = mounts::variable(c"PATH").map_or(&b""[..], CStr::to_bytes);
    path.split(|byte| *byte == b':').any(|directory| match directory.first() {
        Some(b'/') => mounts::all().any(|mount| directory.starts_with(&mount.prefix)),
        _ => cwd::is_inside(),
    })
}

/// Finds a program as `execvp` does.
///
/// # Safety
/// The name ends with a zero.
pub(super) unsafe fn search(file: *const c_char) -> Outcome<CString> {
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(file) };
    if name.to_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    let path = mounts::variable(c"PATH").map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
    for directory in path.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() { b"." } else { directory };
        let candidate = [directory, b"/", name.to_bytes()].concat();
        let candidate = CString::new(candidate).map_err(|_| Errno(libc::EINVAL))?;
        let local = |_, path| {
            let mode = libc::X_OK as usize;
            let at = libc::AT_FDCWD as usize;
            system(libc::SYS_faccessat, [at, address::<c_char>(path), mode, 0, 0, 0]).map_or(-1, |_| 0)
        };
        let weft = |target: &Target| -> Outcome<c_int> {
            let (made, at) = target.at()?;
            made.client.access(at, true, libc::X_OK as u32)?;
            Ok(0)
        };
        let found = match resolve(libc::AT_FDCWD, candidate.to_bytes()) {
            Place::Weft(target) => weft(&target).is_ok(),
            Place::Elsewhere(other) => local(0, other.as_ptr()) == 0,
            Place::Local => local(0, candidate.as_ptr()) == 0,
        };
        if found {
            return Ok(candidate);
        }
    }
    Err(Errno(libc::ENOENT))
}
