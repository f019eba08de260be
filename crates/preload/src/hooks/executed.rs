//! Examines local programs before they are executed.
//!
//! ```text
//!   /bin/x        dynamic         gets this library by LD_PRELOAD
//!                 static, set-id  does not: said once, if an argument is a path in Weft
//!   /bin/s        #!/weft/bin/x   the kernel finds no such interpreter: executed as /weft/bin/x /bin/s …
//! ```

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_host::program::Program;

use crate::guard::{Outcome, address, system, warn};
use crate::paths::{Place, resolve};
use crate::strings::{Strings, list_of};
use crate::{cwd, mounts, shared};

/// Depth limit of interpreters that are scripts.
const SCRIPTS_MAX: u32 = 4;
const CAPABILITIES: &CStr = c"security.capability";

/// Properties of a program that decide how it is executed.
#[derive(Default)]
pub(super) struct Executed {
    /// Why this library is not loaded into it.
    unreachable: Option<&'static str>,
    /// Whether it has more privileges than this process.
    pub(super) is_privileged: bool,
    /// The library of AddressSanitizer that it needs.
    pub(super) runtime: Option<Vec<u8>>,
    /// The interpreter and its option, if the kernel cannot find it.
    pub(super) script: Option<(CString, Option<CString>)>,
}

impl Executed {
    /// Examines a descriptor.
    pub(super) fn of_descriptor(fd: c_int) -> Executed {
        let link = shared::link_name(fd);
        // SAFETY: it ends with a zero.
        unsafe { Executed::of(libc::AT_FDCWD, link.as_ptr().cast()) }
    }

    /// Examines a local program. Called inside.
    ///
    /// # Safety
    /// The path ends with a zero.
    pub(super) unsafe fn of(dirfd: c_int, path: *const c_char) -> Executed {
        // SAFETY: as the caller promises.
        unsafe { examine(dirfd, path, 0) }.unwrap_or_default()
    }

    /// Says once on standard error that a program does not see the files that its arguments name.
    ///
    /// # Safety
    /// The path ends with a zero, the list with NULL.
    pub(super) unsafe fn tell(&self, path: *const c_char, arguments: Strings) {
        static HAS_TOLD: AtomicBool = AtomicBool::new(false);
        let Some(reason) = self.unreachable else { return };
        // SAFETY: as the caller promises.
        let (path, arguments) = unsafe { (CStr::from_ptr(path), list_of(arguments)) };
        // SAFETY: strings.
        let mut texts = arguments.iter().skip(1).map(|text| unsafe { CStr::from_ptr(*text) }.to_bytes());
        let object = match texts.find(|text| is_in_weft(text)) {
            Some(text) => String::from_utf8_lossy(text).into_owned(),
            None if cwd::is_inside() => "its current directory".to_string(),
            None => return,
        };
        if !HAS_TOLD.swap(true, Ordering::Relaxed) {
            warn(&format!(
                "{} {reason}: weft run cannot show it {object}; use a mount for it",
                path.to_string_lossy()
            ));
        }
    }
}

/// Whether an argument looks like a path in Weft. Needs no server.
fn is_in_weft(text: &[u8]) -> bool {
    let is_in = |prefix: &[u8]| {
        text.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    text.starts_with(b"weft:/") || mounts::has_prefix() && mounts::all().any(|mount| is_in(&mount.prefix))
}

unsafe fn examine(dirfd: c_int, path: *const c_char, depth: u32) -> Outcome<Executed> {
    let mut found = MaybeUninit::<libc::stat>::zeroed();
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let arguments = [dirfd as usize, address(path), found.as_mut_ptr() as usize, 0, 0, 0];
    system(libc::SYS_newfstatat, arguments)?;
    // SAFETY: the kernel has filled it.
    let found = unsafe { found.assume_init() };
    if found.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Ok(Executed::default());
    }
    let mut executed = Executed::default();
    // A program that may only be executed stays unknown.
    if let Ok(fd) = system(libc::SYS_openat, [dirfd as usize, address(path), flags as usize, 0, 0, 0]) {
        let program = Program::read(|buffer, offset| {
            let arguments = [fd, buffer.as_mut_ptr() as usize, buffer.len(), offset as usize, 0, 0];
            system(libc::SYS_pread64, arguments).map_err(|error| io::Error::from_raw_os_error(error.0))
        });
        let has_capabilities = has_capabilities(fd);
        shared::close(fd as c_int);
        let program = program.unwrap_or(Program::Other);
        if let Program::Script { interpreter, option } = program {
            return Ok(script(interpreter, option, depth));
        }
        executed.runtime = program.address_sanitizer().map(<[u8]>::to_vec);
        executed.is_privileged = has_capabilities;
        executed.unreachable = match program {
            Program::Static => Some("is linked statically"),
            _ if has_capabilities => Some("gains privileges (capabilities)"),
            _ => None,
        };
    }
    if gains_privileges(&found) {
        executed.is_privileged = true;
        executed.unreachable = Some("gains privileges (set-id)");
    }
    Ok(executed)
}

/// A script is what its interpreter is, unless the kernel does not find that.
fn script(interpreter: Vec<u8>, option: Option<Vec<u8>>, depth: u32) -> Executed {
    let text = |bytes| CString::new(bytes).ok();
    let (Some(path), option) = (text(interpreter), option.map(text)) else { return Executed::default() };
    if path.is_empty() || depth >= SCRIPTS_MAX || matches!(option, Some(None)) {
        return Executed::default();
    }
    let local = match resolve(libc::AT_FDCWD, path.to_bytes()) {
        // SAFETY: it ends with a zero.
        Place::Local => unsafe { examine(libc::AT_FDCWD, path.as_ptr(), depth + 1) }.ok(),
        Place::Weft(_) | Place::Elsewhere(_) => None,
    };
    match local {
        Some(executed) if executed.script.is_none() => executed,
        _ => Executed { script: Some((path, option.flatten())), ..Executed::default() },
    }
}

/// Whether the kernel tells the dynamic linker to ignore `LD_PRELOAD`, by the file's bits.
fn gains_privileges(found: &libc::stat) -> bool {
    // SAFETY: no preconditions.
    let (user, group, real_user, real_group) =
        unsafe { (libc::geteuid(), libc::getegid(), libc::getuid(), libc::getgid()) };
    let has = |bits| found.st_mode & bits == bits;
    let new_user = if has(libc::S_ISUID) { found.st_uid } else { user };
    let new_group = if has(libc::S_ISGID | libc::S_IXGRP) { found.st_gid } else { group };
    new_user != real_user || new_group != real_group
}

/// Whether it has capabilities that this process has not.
fn has_capabilities(fd: usize) -> bool {
    // SAFETY: no preconditions.
    let is_root = unsafe { libc::getuid() } == 0;
    !is_root && system(libc::SYS_fgetxattr, [fd, address(CAPABILITIES.as_ptr()), 0, 0, 0, 0]).is_ok()
}
