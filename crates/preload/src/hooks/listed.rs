//! `execl` and its kin: the program's arguments come one by one, and become the list that `execve` takes.
//!
//! ```text
//!   registers   arg0 … │ stack   return address │ further arguments …
//!                 └─────────────────┐ ▼
//!   stack       return address │ arg0 … │ further arguments … NULL (environment, of execle)
//!                                ▲ the list
//! ```
//!
//! Rust has no functions of C's with arguments of any number, so this much is written for the processor.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int};

use super::process;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

unsafe extern "C" fn run_list(path: *const c_char, list: Strings) -> c_int {
    // SAFETY: what C's `execl` may be given.
    unsafe { process::execve(path, list, environ) }
}

unsafe extern "C" fn search_list(file: *const c_char, list: Strings) -> c_int {
    // SAFETY: what C's `execlp` may be given.
    unsafe { process::execvpe(file, list, environ) }
}

unsafe extern "C" fn run_list_with_environment(path: *const c_char, list: Strings) -> c_int {
    // SAFETY: what C's `execle` may be given: behind the NULL that ends the list is the environment.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = end.add(1);
        }
        process::execve(path, list, *end.add(1).cast::<Strings>())
    }
}

/// A function of C's with one string and a list of arguments.
macro_rules! with_list {
    ($($name:ident => $function:ident;)*) => { $(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg(target_arch = "x86_64")]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                // The return address, so that registers and stack are next to each other.
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {function}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                function = sym $function,
            )
        }

        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg(target_arch = "aarch64")]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "str x1, [sp, #24]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x1, sp, #24",
                "bl {function}",
                "ldp x29, x30, [sp], #80",
                "ret",
                function = sym $function,
            )
        }
    )* };
}

with_list! {
    execl => run_list;
    execlp => search_list;
    execle => run_list_with_environment;
}
