//! Forks and execs, and the state that is passed on.
//!
//! A program in Weft is executed from a copy in memory. For a script, its path is passed to its interpreter,
//! as the kernel does:
//!
//! ```text
//!   execve("/weft/bin/x")        ELF   ──► memfd with its bytes, executed as /proc/self/fd/N
//!   execve("/weft/bin/s.sh")     #!/bin/sh -e  ──► /bin/sh -e /weft/bin/s.sh …
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{mode_t, pid_t};
use weft_client::{File, OpenOptions};

use super::spawn_directories::{self, Beginning};
use crate::guard::{Errno, Outcome, address, enter, system, within};
use crate::lock_sessions::{self, Passed};
use crate::paths::{Place, Target, on_path, place_of};
use crate::real::hooks;
use crate::{cwd, mounts, table};

const UNKNOWN: u32 = u32::MAX;
/// Bytes of a script's first line that the kernel reads.
const LINE_BYTES_MAX: usize = 255;
/// Depth limit of interpreters that are scripts.
const SCRIPTS_MAX: u32 = 4;
const COPY_BYTES: usize = 1 << 20;
const SHELL: &CStr = c"/bin/sh";

static UMASK: AtomicU32 = AtomicU32::new(UNKNOWN);

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

hooks! {
    fn fork = __fork() -> pid_t {
        let child = fork::real();
        if child > 0 && !crate::guard::is_inside() {
            // Before this process may end. It could otherwise count as the last holder of what the child also
            // has.
            let _ = within(|| {
                lock_sessions::held_by(child as u32);
                Ok(())
            });
        }
        child
    }

    fn vfork = __vfork() -> pid_t {
        // A vfork child would change this process's table of descriptors, since it shares its memory. POSIX
        // allows vfork to be fork.
        fork()
    }

    fn wait = __wait(status: *mut c_int) -> pid_t {
        after_wait(wait::real(status))
    }

    fn waitpid = __waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t {
        after_wait(waitpid::real(pid, status, options))
    }

    fn wait3(status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> pid_t {
        after_wait(wait3::real(status, options, usage))
    }

    fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> pid_t {
        after_wait(wait4::real(pid, status, options, usage))
    }

    fn waitid(kind: libc::idtype_t, id: libc::id_t, place: *mut libc::siginfo_t, options: c_int) -> c_int {
        let result = waitid::real(kind, id, place, options);
        // 0 also if no child has ended.
        after_wait(result + 1) - 1
    }

    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        before_exec();
        let go = |_, path, arguments, environment| execve::real(path, arguments, environment);
        run(&Start::of(path), arguments, environment, &go)
    }

    fn execveat(dirfd: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && *path == 0 && table::find(dirfd).is_some() {
            return fexecve(dirfd, arguments, environment);
        }
        before_exec();
        let go = |at, path, arguments, environment| match at {
            Some(dirfd) => execveat::real(dirfd, path, arguments, environment, flags),
            None => execve::real(path, arguments, environment),
        };
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        run(&Start { dirfd, follow, ..Start::of(path) }, arguments, environment, &go)
    }

    fn execv(path: *const c_char, arguments: Strings) -> c_int {
        execve(path, arguments, environ)
    }

    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        before_exec();
        if !searches_weft(file) {
            let environment = for_program(environment, None);
            return execvpe::real(file, arguments, environment.as_ptr());
        }
        let found = enter(|| search(file).map(CString::into_raw));
        if found.is_null() {
            return -1;
        }
        let result = execve(found, arguments, environment);
        if crate::guard::errno() != libc::ENOEXEC {
            return result;
        }
        // A script without an interpreter line: the shell runs it.
        let by_shell = within(|| {
            let given = list_of(arguments);
            let mut all = vec![SHELL.as_ptr(), found];
            all.extend(given.into_iter().skip(1));
            all.push(std::ptr::null());
            Ok(&*all.leak())
        });
        by_shell.map_or(-1, |all| execve(SHELL.as_ptr(), all.as_ptr(), environment))
    }

    fn execvp(file: *const c_char, arguments: Strings) -> c_int {
        execvpe(file, arguments, environ)
    }

    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
        if table::find(fd).is_none() {
            before_exec();
            let environment = for_program(environment, None);
            return fexecve::real(fd, arguments, environment.as_ptr());
        }
        // The open file itself, whatever its name is now.
        let link = crate::shared::link_name(fd);
        execve(link.as_ptr().cast(), arguments, environment)
    }

    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Strings,
        environment: Strings,
    ) -> c_int {
        before_exec();
        let mut result = 0;
        let go = |_, path, arguments, environment| posix_spawn::real(pid, path, actions, attributes, arguments, environment);
        let start = Start { spawned: Some(actions), ..Start::of(path) };
        let spawned = run(&start, arguments, environment, &go);
        if spawned == -1 {
            result = crate::guard::errno();
        } else if spawned != 0 {
            result = spawned;
        }
        result
    }

    fn posix_spawnp(
        pid: *mut pid_t,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Strings,
        environment: Strings,
    ) -> c_int {
        before_exec();
        if !searches_weft(file) {
            let environment = for_program(environment, Some(actions));
            return posix_spawnp::real(pid, file, actions, attributes, arguments, environment.as_ptr());
        }
        match within(|| search(file)) {
            Ok(found) => posix_spawn(pid, found.as_ptr(), actions, attributes, arguments, environment),
            Err(Errno(errno)) => errno,
        }
    }

    fn posix_spawn_file_actions_addopen(
        actions: *mut c_void,
        fd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: mode_t,
    ) -> c_int {
        match place_of(libc::AT_FDCWD, path) {
            None | Some(Place::Local) => posix_spawn_file_actions_addopen::real(actions, fd, path, flags, mode),
            Some(_) => {
                // Opened now, and passed to the child at this action. This library gets no later opportunity.
                let opened = super::opening::open(path, flags | libc::O_CLOEXEC, mode);
                if opened < 0 {
                    return crate::guard::errno();
                }
                libc::posix_spawn_file_actions_adddup2(actions.cast(), opened, fd)
            }
        }
    }

    fn posix_spawn_file_actions_addchdir_np(actions: *mut c_void, path: *const c_char) -> c_int {
        match place_of(libc::AT_FDCWD, path) {
            None | Some(Place::Local) => {
                spawn_directories::note(actions, Beginning::Local);
                posix_spawn_file_actions_addchdir_np::real(actions, path)
            }
            Some(_) => match super::whereabouts::directory_at(path) {
                Some(here) => {
                    spawn_directories::note(actions, Beginning::Weft(here));
                    // The program looks there for its directory, as the kernel of this library has it.
                    posix_spawn_file_actions_addchdir_np::real(actions, c"/".as_ptr())
                }
                None => crate::guard::errno(),
            },
        }
    }

    fn posix_spawn_file_actions_addfchdir_np(actions: *mut c_void, fd: c_int) -> c_int {
        if table::find(fd).is_none() {
            spawn_directories::note(actions, Beginning::Local);
            return posix_spawn_file_actions_addfchdir_np::real(actions, fd);
        }
        let link = crate::shared::link_name(fd);
        posix_spawn_file_actions_addchdir_np(actions, link.as_ptr().cast())
    }

    fn posix_spawn_file_actions_init(actions: *mut c_void) -> c_int {
        spawn_directories::note(actions, Beginning::Same);
        posix_spawn_file_actions_init::real(actions)
    }

    fn posix_spawn_file_actions_destroy(actions: *mut c_void) -> c_int {
        spawn_directories::note(actions, Beginning::Same);
        posix_spawn_file_actions_destroy::real(actions)
    }

    fn _exit(status: c_int) -> () {
        before_exec();
        lock_sessions::end();
        _exit::real(status)
    }

    fn _Exit(status: c_int) -> () {
        before_exec();
        lock_sessions::end();
        _Exit::real(status)
    }
}

/// The process's umask.
pub(crate) fn current_umask() -> mode_t {
    let known = UMASK.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let mask = umask_of_kernel().unwrap_or(0o022);
    UMASK.store(mask, Ordering::Relaxed);
    mask
}

/// Records the umask that the program has set.
pub(crate) fn note_umask(mask: mode_t) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// The umask according to the kernel, read without changing it.
fn umask_of_kernel() -> Option<mode_t> {
    let status = std::fs::read("/proc/self/status").ok()?;
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    mode_t::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}

/// Called after a wait for children that returned `pid`.
fn after_wait(pid: pid_t) -> pid_t {
    if pid > 0 {
        let before = crate::guard::errno();
        lock_sessions::after_a_child();
        weft_client::c::set_errno(before);
    }
    pid
}

/// Reports this process's writes to all clients before it executes another program or ends.
fn before_exec() {
    let _ = within(|| {
        table::report_all();
        Ok(())
    });
}

/// An environment that tells a program about this process: the current directory, if it is in Weft, and
/// locks.
struct Environment {
    given: Strings,
    changed: Option<(Vec<CString>, Vec<*const c_char>)>,
    locks: Option<Passed>,
}

impl Drop for Environment {
    /// The exec failed, or a child did it.
    fn drop(&mut self) {
        let _ = within(|| {
            drop((self.changed.take(), self.locks.take()));
            Ok(())
        });
    }
}

impl Environment {
    fn as_ptr(&self) -> Strings {
        self.changed.as_ref().map_or(self.given, |(_, all)| all.as_ptr())
    }
}

/// # Safety
/// The list of strings ends with NULL.
unsafe fn list_of(strings: Strings) -> Vec<*const c_char> {
    let mut all = Vec::new();
    // SAFETY: as the caller promises.
    unsafe {
        let mut next = strings;
        while !next.is_null() && !(*next).is_null() {
            all.push(*next);
            next = next.add(1);
        }
    }
    all
}

/// Builds the environment of a program. `spawned`: a child executes it that is spawned with these file
/// actions.
///
/// # Safety
/// NULL, or a list of strings that ends with NULL.
unsafe fn for_program(given: Strings, spawned: Option<*const c_void>) -> Environment {
    let prepared = within(|| {
        let beginning = spawned.map_or(Beginning::Same, spawn_directories::of);
        let moves = !matches!(beginning, Beginning::Same);
        let here = match beginning {
            Beginning::Same => cwd::inside(),
            Beginning::Local => None,
            Beginning::Weft(here) => Some(here),
        };
        Ok((lock_sessions::pass_on(spawned.is_some()), here, moves))
    });
    let (locks, here, moves) = prepared.unwrap_or((None, None, false));
    if here.is_none() && !moves && locks.is_none() {
        return Environment { given, changed: None, locks: None };
    }
    let changed = within(|| {
        let mut texts: Vec<CString> = locks.iter().map(|locks| locks.text.clone()).collect();
        if let Some(here) = here {
            let text = [cwd::VARIABLE.to_bytes(), b"=", &here.to_pass_on()].concat();
            texts.push(CString::new(text).map_err(|_| Errno(libc::EINVAL))?);
        }
        // SAFETY: as the caller promises.
        let mut all = unsafe { list_of(given) };
        all.retain(|entry| {
            // SAFETY: strings.
            let entry = unsafe { CStr::from_ptr(*entry) }.to_bytes();
            let is = |variable: &CStr| {
                entry.strip_prefix(variable.to_bytes()).is_some_and(|rest| rest.starts_with(b"="))
            };
            !is(cwd::VARIABLE) && !is(lock_sessions::VARIABLE)
        });
        all.extend(texts.iter().map(|text| text.as_ptr()));
        all.push(std::ptr::null());
        Ok((texts, all))
    });
    Environment { given, changed: changed.ok(), locks }
}

/// The program to execute.
struct Start {
    dirfd: c_int,
    path: *const c_char,
    /// Whether to follow a symbolic link at the end of the path.
    follow: bool,
    /// The number of scripts that it is the interpreter of, directly or indirectly.
    depth: u32,
    /// The file actions, if a child is spawned to execute it.
    spawned: Option<*const c_void>,
}

impl Start {
    fn of(path: *const c_char) -> Self {
        Start { dirfd: libc::AT_FDCWD, path, follow: true, depth: 0, spawned: None }
    }
}

/// Executes the file of a path in a directory, as given by the program; without a directory, a path from this
/// library.
type Go<'a> = &'a dyn Fn(Option<c_int>, *const c_char, Strings, Strings) -> c_int;

/// Executes the file of a path with `go`.
///
/// # Safety
/// As for `execveat`.
unsafe fn run(start: &Start, arguments: Strings, environment: Strings, go: Go<'_>) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let environment = for_program(environment, start.spawned);
        let local =
            |dirfd, path| go((start.depth == 0).then_some(dirfd), path, arguments, environment.as_ptr());
        let prepared = std::cell::RefCell::new(None);
        let result = on_path(start.dirfd, start.path, start.follow, local, |target| {
            if !start.follow && super::attributes::is_link(target)? {
                return Err(Errno(libc::ELOOP));
            }
            let mut program = prepare(target, arguments)?;
            program.arguments.push(std::ptr::null());
            *prepared.borrow_mut() = Some(program);
            Ok(0)
        });
        let Some(program) = prepared.take().filter(|_| result == 0) else { return result };
        let (path, arguments) = (program.path.as_ptr(), program.arguments.as_ptr());
        let result = match start.depth < SCRIPTS_MAX && program.is_script {
            true => {
                let spawned = start.spawned;
                let interpreter = Start { depth: start.depth + 1, spawned, ..Start::of(path) };
                run(&interpreter, arguments, environment.given, go)
            }
            false => go(None, path, arguments, environment.as_ptr()),
        };
        let before = crate::guard::errno();
        if program.copy >= 0 {
            crate::shared::close(program.copy);
            table::forget(program.copy);
        }
        let _ = within(|| {
            drop(program);
            Ok(())
        });
        weft_client::c::set_errno(before);
        result
    }
}

/// What is executed instead of a file in Weft.
struct Program {
    path: CString,
    arguments: Vec<*const c_char>,
    is_script: bool,
    /// Descriptor of a copy, or -1.
    copy: c_int,
    /// Owns the strings that `arguments` point to.
    _texts: Vec<CString>,
}

/// # Safety
/// The list of strings ends with NULL.
unsafe fn prepare(target: &Target, arguments: Strings) -> Outcome<Program> {
    let (made, at) = target.at()?;
    made.client.access(at.clone(), true, libc::X_OK as u32)?;
    let file = made.client.open(at, &OpenOptions::new().read(true)).map_err(|error| match error.errno() {
        libc::EISDIR => Errno(libc::EACCES),
        _ => error.into(),
    })?;
    // SAFETY: as the caller promises.
    let given = unsafe { list_of(arguments) };
    let mut line = vec![0u8; LINE_BYTES_MAX];
    let read = file.read_at(&mut line, 0)?;
    line.truncate(read);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno(libc::ENOEXEC));
    if let Some(rest) = line.strip_prefix(b"#!") {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let words = rest[..end].trim_ascii();
        let cut = words.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(words.len());
        let (interpreter, option) = (&words[..cut], words[cut..].trim_ascii());
        if interpreter.is_empty() {
            return Err(Errno(libc::ENOEXEC));
        }
        let mut texts = vec![text(interpreter)?];
        if !option.is_empty() {
            texts.push(text(option)?);
        }
        texts.push(text(&target.shown())?);
        let arguments = texts.iter().map(|text| text.as_ptr()).chain(given.into_iter().skip(1)).collect();
        return Ok(Program { path: text(interpreter)?, arguments, is_script: true, copy: -1, _texts: texts });
    }
    if !line.starts_with(b"\x7fELF") {
        return Err(Errno(libc::ENOEXEC));
    }
    let copy = copy_of(&file, &target.shown())?;
    let path = text(format!("/proc/self/fd/{copy}").as_bytes())?;
    Ok(Program { path, arguments: given, is_script: false, copy, _texts: Vec::new() })
}

/// Copies a file into memory. Returns a descriptor of the copy.
pub(super) fn copy_of(file: &File, path: &[u8]) -> Outcome<c_int> {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(b"weft");
    let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
    let copy =
        system(libc::SYS_memfd_create, [address(name.as_ptr()), libc::MFD_CLOEXEC as usize, 0, 0, 0, 0])?;
    let copy = super::descriptors::move_away(copy as c_int);
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
unsafe fn searches_weft(file: *const c_char) -> bool {
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
unsafe fn search(file: *const c_char) -> Outcome<CString> {
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
        let found = match crate::paths::resolve(libc::AT_FDCWD, candidate.to_bytes()) {
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
