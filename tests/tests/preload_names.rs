//! Functions of libc that take paths or descriptors: each is one of the preload library's, needs not be, or is a limit that
//! docs/preload.md names.

use std::collections::BTreeSet;
use std::process::Command;
use weft_tests::{expect_success, preload_library};

/// Parts of the names of functions that may touch files.
const FAMILIES: &[&str] = &[
    "access",
    "advi",
    "aio_",
    "canonicalize",
    "chdir",
    "chmod",
    "chown",
    "chroot",
    "close",
    "dents",
    "dir",
    "dup",
    "epoll",
    "exec",
    "exit",
    "fallocate",
    "fcntl",
    "flock",
    "fork",
    "ftok",
    "ftw",
    "fts",
    "getcwd",
    "getwd",
    "glob",
    "handle",
    "ioctl",
    "isatty",
    "lio_",
    "link",
    "llseek",
    "lockf",
    "lseek",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "mmap",
    "notify",
    "open",
    "path",
    "poll",
    "pread",
    "pwrite",
    "read",
    "remove",
    "rename",
    "seek",
    "select",
    "sendfile",
    "spawn",
    "splice",
    "stat",
    "sync",
    "tcgetattr",
    "tee",
    "temp",
    "tmp",
    "trunc",
    "umask",
    "utime",
    "wait",
    "write",
    "xattr",
];

/// What needs no function of ours: a part of the name, and why.
const SAFE: &[(&str, &str)] = &[
    ("_IO_", "streams reach files by functions that the stream was made with"),
    ("_nss_", "libc's own files are local"),
    ("__mq_", "message queues are no files"),
    ("mq_", "message queues are no files"),
    ("sem_", "semaphores are no files"),
    ("pthread", "threads"),
    ("rwlock", "threads"),
    ("thread", "threads"),
    ("mtx_", "threads"),
    ("cnd_", "threads"),
    ("thrd_", "threads"),
    ("xdr", "remote procedure calls of Sun"),
    ("svc", "remote procedure calls of Sun"),
    ("clnt", "remote procedure calls of Sun"),
    ("rpc", "remote procedure calls of Sun"),
    ("rexec", "remote execution"),
    ("re_exec", "regular expressions"),
    ("regexec", "regular expressions"),
    ("state", "random numbers, multibyte characters, and resolvers"),
    ("dirname", "text"),
    ("glob_pattern_p", "text"),
    ("globfree", "frees memory"),
    ("fsopen", "a context for mounting"),
    ("move_mount", "mounts"),
    ("strdup", "memory"),
    ("strndup", "memory"),
    ("wcsdup", "memory"),
    ("duplocale", "memory"),
    ("malloc_stats", "memory"),
    ("envz_remove", "text"),
    ("lockfile", "locks of streams, between threads"),
    ("__register_atfork", "forks are noticed by it"),
    ("epoll_create", "a descriptor of the kernel's; files of ours cannot be added"),
    ("epoll_pwait", "files of ours cannot be added"),
    ("epoll_wait", "files of ours cannot be added"),
    ("eventfd_", "reads and writes an event descriptor, which is never ours"),
    ("inotify_init", "a descriptor of the kernel's"),
    ("inotify_rm_watch", "a number of the kernel's"),
    ("fanotify_init", "a descriptor of the kernel's"),
    ("pidfd_open", "a descriptor of the kernel's"),
    ("posix_openpt", "a terminal"),
    ("openpty", "a terminal"),
    ("posix_spawnattr", "memory"),
    ("posix_spawn_file_actions_addclose", "descriptors of ours are real ones, which the child closes"),
    ("posix_spawn_file_actions_adddup2", "descriptors of ours are real ones, which the child copies"),
    ("posix_spawn_file_actions_addtcsetpgrp", "a terminal"),
    ("fclose", "closes by the function that the stream was made with"),
    ("fcloseall", "closes by the functions that the streams were made with"),
    ("fread", "reads by the function that the stream was made with"),
    ("fwrite", "writes by the function that the stream was made with"),
    ("__fread", "reads by the function that the stream was made with"),
    ("fseek", "seeks by the function that the stream was made with"),
    ("fopencookie", "takes functions"),
    ("fmemopen", "memory"),
    ("open_memstream", "memory"),
    ("open_wmemstream", "memory"),
    ("pclose", "waits for a child, whose stream is a pipe"),
    ("catclose", "frees memory"),
    ("iconv_close", "frees memory"),
    ("dlclose", "libraries"),
    ("openlog", "a socket"),
    ("closelog", "a socket"),
    ("sigwait", "signals"),
    ("sigtimedwait", "signals"),
    ("madvise", "memory"),
    ("__res_nclose", "a socket"),
    ("process_vm_", "memory"),
    ("exit", "runs what is registered, this library's end among it"),
    ("getutmp", "converts a record"),
    ("updwtmp", "libc's own files are local"),
    ("logwtmp", "libc's own files are local"),
    ("utmp", "libc's own files are local"),
    ("ustat", "device numbers"),
    ("fts_set", "notes in an entry what it is told"),
    ("fts64_set", "notes in an entry what it is told"),
    ("aio_error", "looks where the outcome of a request is put"),
    ("aio_return", "looks where the outcome of a request is put"),
    ("aio_suspend", "looks where the outcome of a request is put; ours have one at once"),
    ("aio_cancel", "looks where the outcome of a request is put; ours have one at once"),
    ("aio_init", "sizes libc's own threads"),
    ("__sched_cpualloc", "memory"),
    ("shm_unlink", "names of shared memory"),
    ("umount", "mounts"),
];

/// Limits: the function, and the words that docs/preload.md has for it.
const LIMITS: &[(&str, &str)] = &[
    ("catopen", "what libc reads for itself"),
    ("dlmopen", "`dlopen`"),
    ("dlopen", "`dlopen`"),
    ("forkpty", "`forkpty`"),
    ("iconv_open", "what libc reads for itself"),
    ("open_by_handle_at", "`open_by_handle_at`"),
    ("open_tree", "`open_tree`"),
    ("popen", "`popen`"),
    ("shm_open", "`shm_open`"),
    ("tee", "`tee`"),
    ("tempnam", "`tempnam`"),
    ("tmpfile", "`tmpfile`"),
    ("tmpnam", "`tempnam`"),
    ("vmsplice", "`vmsplice`"),
];

/// Functions that a library has for everybody.
fn functions(library: &str) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions", library]).output();
    let said = expect_success("nm", &output.expect("nm is installed"));
    let public = said.lines().filter(|line| !line.contains("GLIBC_PRIVATE"));
    let words = public.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let functions = words.filter(|words| words.len() == 3 && ["T", "W", "i"].contains(&words[1]));
    functions.map(|words| words[2].split('@').next().unwrap_or_default().to_string()).collect()
}

fn libc() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is there");
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so.6"));
    path.expect("this test is linked with libc.so.6").to_string()
}

#[test]
fn every_function_of_libc_that_touches_files_is_ours_or_harmless_or_a_known_limit() {
    let ours = functions(preload_library().to_str().expect("UTF-8"));
    let documented = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/preload.md"))
        .expect("it is there");
    let mut unknown = Vec::new();
    for name in functions(&libc()) {
        if !FAMILIES.iter().any(|family| name.contains(family)) || ours.contains(&name) {
            continue;
        }
        match LIMITS.iter().find(|(start, _)| name.starts_with(start)) {
            Some((_, words)) => assert!(documented.contains(words), "docs/preload.md says nothing of {name}"),
            None if SAFE.iter().any(|(part, _)| name.contains(part)) => {}
            None => unknown.push(name),
        }
    }
    assert!(unknown.is_empty(), "neither hooked, nor safe, nor a limit that is documented: {unknown:?}");
}
