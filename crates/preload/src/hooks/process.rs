//! Forks and execs, and the state that is passed on.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::pid_t;

use super::attributes;
use super::executed::Executed;
use super::programs::{Program, prepare, search, searches_weft};
use super::spawn_directories::{self, Beginning};
use crate::dispatch::on_path;
use crate::guard::{Errno, enter, run_inside, within};
use crate::lock_inheritance::{self, Passed};
use crate::real::hooks;
use crate::strings::{Strings, list_of, with_entries};
use crate::{cwd, keep, lock_sessions, table};

/// Depth limit of interpreters that are scripts.
const SCRIPTS_MAX: u32 = 4;
const SHELL: &CStr = c"/bin/sh";

unsafe extern "C" {
    static environ: Strings;
}

hooks! {
    fn fork = __fork() -> pid_t {
        let child = fork::real();
        if child > 0 && !crate::guard::is_inside() {
            // Before this process may end. It could otherwise count as the last holder of what the child also
            // has.
            run_inside(|| lock_sessions::held_by(child as u32));
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
            let executed = examine_found(file);
            if executed.script.is_none() {
                executed.tell(file, arguments);
                let environment = for_program(environment, None, &executed);
                return execvpe::real(file, arguments, environment.as_ptr());
            }
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
            let executed = within(|| Ok(Executed::of_descriptor(fd))).unwrap_or_default();
            if executed.script.is_none() {
                executed.tell(c"the program".as_ptr(), arguments);
                let environment = for_program(environment, None, &executed);
                return fexecve::real(fd, arguments, environment.as_ptr());
            }
        }
        // The open file itself, whatever its name is now.
        let link = crate::shared::link_name(fd);
        execve(link.as_ptr().cast(), arguments, environment)
    }

    fn system(command: *const c_char) -> c_int {
        before_exec();
        restore_environment();
        after_wait(system::real(command).wrapping_add(1)).wrapping_sub(1)
    }

    fn popen(command: *const c_char, kind: *const c_char) -> *mut libc::FILE {
        before_exec();
        restore_environment();
        popen::real(command, kind)
    }

    fn pclose(stream: *mut libc::FILE) -> c_int {
        after_wait(pclose::real(stream).wrapping_add(1)).wrapping_sub(1)
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

/// Called after a wait for children that returned `pid`.
fn after_wait(pid: pid_t) -> pid_t {
    if pid > 0 {
        let before = crate::guard::errno();
        lock_sessions::after_a_child();
        weft_client::c::set_errno(before);
    }
    pid
}

/// Puts back into the program's own environment what libc passes to a program that it executes itself.
fn restore_environment() {
    run_inside(|| {
        keep::restore_own();
        cwd::restore_variable();
    });
}

/// Reports this process's writes to all clients before it executes another program or ends.
pub(super) fn before_exec() {
    run_inside(table::report_all);
}

/// Examines the program that a search of local directories finds.
///
/// # Safety
/// The name ends with a zero.
pub(super) unsafe fn examine_found(file: *const c_char) -> Executed {
    // SAFETY: as the caller promises.
    let found = within(|| unsafe {
        let found = search(file)?;
        Ok(Executed::of(libc::AT_FDCWD, found.as_ptr()))
    });
    found.unwrap_or_default()
}

/// An environment that tells a program about this process: the current directory, if it is in Weft, and
/// locks. It also has the variables of Weft that it lacked.
pub(super) struct Environment {
    given: Strings,
    changed: Option<(Vec<CString>, Vec<*const c_char>)>,
    locks: Option<Passed>,
}

impl Drop for Environment {
    /// The exec failed, or a child did it.
    fn drop(&mut self) {
        run_inside(|| drop((self.changed.take(), self.locks.take())));
    }
}

impl Environment {
    pub(super) fn as_ptr(&self) -> Strings {
        self.changed.as_ref().map_or(self.given, |(_, all)| all.as_ptr())
    }
}

/// Builds the environment of a program. `spawned`: a child executes it that is spawned with these file
/// actions.
///
/// # Safety
/// NULL, or a list of strings that ends with NULL.
pub(super) unsafe fn for_program(
    given: Strings,
    spawned: Option<*const c_void>,
    program: &Executed,
) -> Environment {
    let prepared = within(|| {
        let beginning = spawned.map_or(Beginning::Same, spawn_directories::of);
        let moves = !matches!(beginning, Beginning::Same);
        let here = match beginning {
            Beginning::Same => cwd::inside(),
            Beginning::Local => None,
            Beginning::Weft(here) => Some(here),
        };
        // SAFETY: as the caller promises.
        let entries = unsafe { list_of(given) };
        // SAFETY: strings.
        let entries: Vec<_> =
            entries.iter().map(|entry| unsafe { CStr::from_ptr(*entry) }.to_bytes()).collect();
        // A static program passes the variables on to others.
        let missing = match program.is_privileged {
            false => keep::missing(&entries, program.runtime.as_deref()),
            true => Vec::new(),
        };
        Ok((lock_inheritance::pass_on(spawned.is_some()), here, moves, missing))
    });
    let (locks, here, moves, mut texts) = prepared.unwrap_or((None, None, false, Vec::new()));
    if here.is_none() && !moves && locks.is_none() && texts.is_empty() {
        return Environment { given, changed: None, locks: None };
    }
    let changed = within(|| {
        texts.extend(locks.iter().map(|locks| locks.text.clone()));
        if let Some(here) = here {
            let text = [cwd::VARIABLE.to_bytes(), b"=", &here.to_pass_on()].concat();
            texts.push(CString::new(text).map_err(|_| Errno(libc::EINVAL))?);
        }
        // SAFETY: as the caller promises.
        let all = unsafe { with_entries(given, &texts, &[cwd::VARIABLE, lock_inheritance::VARIABLE]) };
        Ok((texts, all))
    });
    Environment { given, changed: changed.ok(), locks }
}

/// The program to execute.
pub(super) struct Start {
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

    /// A program that a child is spawned with these file actions to execute.
    pub(super) fn spawned(path: *const c_char, actions: *const c_void) -> Self {
        Start { spawned: Some(actions), ..Start::of(path) }
    }
}

/// Executes the file of a path in a directory, as given by the program; without a directory, a path from this
/// library.
pub(super) type Go<'a> = &'a dyn Fn(Option<c_int>, *const c_char, Strings, Strings) -> c_int;

/// Executes the file of a path with `go`.
///
/// # Safety
/// As for `execveat`.
pub(super) unsafe fn run(start: &Start, arguments: Strings, environment: Strings, go: Go<'_>) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        let local = |dirfd, path| {
            let executed = within(|| Ok(start.examine(dirfd, path))).unwrap_or_default();
            if let Some((interpreter, option)) = &executed.script {
                let script = start.script_path(dirfd, path);
                let program =
                    within(|| Ok(Program::of_script(interpreter, option.as_ref(), script, arguments)));
                return program.map_or(-1, |program| start.run_prepared(program, environment, go));
            }
            executed.tell(path, arguments);
            let environment = for_program(environment, start.spawned, &executed);
            go((start.depth == 0).then_some(dirfd), path, arguments, environment.as_ptr())
        };
        let prepared = std::cell::RefCell::new(None);
        let result = on_path(start.dirfd, start.path, start.follow, local, |target| {
            if !start.follow && attributes::is_link(target)? {
                return Err(Errno(libc::ELOOP));
            }
            *prepared.borrow_mut() = Some(prepare(target, arguments)?);
            Ok(0)
        });
        match prepared.take().filter(|_| result == 0) {
            Some(program) => start.run_prepared(program, environment, go),
            None => result,
        }
    }
}

impl Start {
    /// Examines a local program before it is executed.
    unsafe fn examine(&self, dirfd: c_int, path: *const c_char) -> Executed {
        // SAFETY: as the caller of `run` promises.
        unsafe {
            let moves = |actions| !matches!(spawn_directories::of(actions), Beginning::Same);
            match (path.is_null(), *path as u8) {
                (true, _) => Executed::default(),
                (_, 0) => Executed::of_descriptor(dirfd),
                // Relative to a directory in which the child will be.
                (_, first) if first != b'/' && self.spawned.is_some_and(moves) => Executed::default(),
                _ => Executed::of(dirfd, path),
            }
        }
    }

    /// The path by which an interpreter opens a local script, as the kernel passes it.
    unsafe fn script_path(&self, dirfd: c_int, path: *const c_char) -> CString {
        // SAFETY: as the caller of `run` promises.
        let path = unsafe { CStr::from_ptr(path) };
        let bytes = path.to_bytes();
        if dirfd == libc::AT_FDCWD || bytes.starts_with(b"/") {
            return path.to_owned();
        }
        let slash = if bytes.is_empty() { "" } else { "/" };
        let whole = [format!("/dev/fd/{dirfd}{slash}").as_bytes(), bytes].concat();
        CString::new(whole).unwrap_or_default()
    }

    /// Executes what is executed instead of a file: a copy of a program in Weft, or the interpreter of a script.
    unsafe fn run_prepared(&self, mut program: Program, environment: Strings, go: Go<'_>) -> c_int {
        run_inside(|| program.arguments.push(std::ptr::null()));
        let (path, arguments) = (program.path.as_ptr(), program.arguments.as_ptr());
        // SAFETY: the strings live as long as the program.
        let result = unsafe {
            if self.depth < SCRIPTS_MAX && program.is_script {
                let interpreter = Start { depth: self.depth + 1, spawned: self.spawned, ..Start::of(path) };
                run(&interpreter, arguments, environment, go)
            } else {
                let executed = within(|| Ok(Executed::of(libc::AT_FDCWD, path))).unwrap_or_default();
                executed.tell(program.shown.as_ptr(), arguments);
                let environment = for_program(environment, self.spawned, &executed);
                go(None, path, arguments, environment.as_ptr())
            }
        };
        let before = crate::guard::errno();
        if program.copy >= 0 {
            crate::shared::close(program.copy);
            table::forget(program.copy);
        }
        run_inside(|| drop(program));
        weft_client::c::set_errno(before);
        result
    }
}
