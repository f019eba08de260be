//! `posix_spawn`, and the file actions before the program runs.

use std::ffi::{c_char, c_int, c_void};

use libc::{mode_t, pid_t};

use super::opening;
use super::process::{Start, before_exec, examine_found, for_program, run};
use super::programs::{search, searches_weft};
use super::spawn_directories::{self, Beginning};
use super::whereabouts::directory_at;
use crate::dispatch::place_of;
use crate::guard::{Errno, enter, within};
use crate::paths::Place;
use crate::real::hooks;
use crate::strings::Strings;
use crate::table;

hooks! {
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Strings,
        environment: Strings,
    ) -> c_int {
        before_exec();
        let go = |_, path, arguments, environment| {
            match posix_spawn::real(pid, path, actions, attributes, arguments, environment) {
                0 => 0,
                error => enter(|| Err(Errno(error))),
            }
        };
        match run(&Start::spawned(path, actions), arguments, environment, &go) {
            -1 => crate::guard::errno(),
            result => result,
        }
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
            let executed = examine_found(file);
            if executed.script.is_none() {
                executed.tell(file, arguments);
                let environment = for_program(environment, Some(actions), &executed);
                return posix_spawnp::real(pid, file, actions, attributes, arguments, environment.as_ptr());
            }
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
                let opened = opening::open(path, flags | libc::O_CLOEXEC, mode);
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
            Some(_) => match directory_at(path) {
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
}
