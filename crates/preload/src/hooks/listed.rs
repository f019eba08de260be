//! `execl` and related functions. The arguments are collected into the list that `execve` takes.
//!
//! ```text
//!   registers   arg0 … │ stack   return address │ further arguments …
//!                 └─────────────────┐ ▼
//!   stack       return address │ arg0 … │ further arguments … NULL (environment, of execle)
//!                                ▲ the list
//! ```
//!
//! Rust cannot define variadic functions of C, so this part is assembly.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int};

use super::process;
use crate::strings::Strings;

unsafe extern "C" {
    static environ: Strings;
}

unsafe extern "C" fn run_list(path: *const c_char, list: Strings) -> c_int {
    // SAFETY: the arguments are those of C's `execl`.
    unsafe { process::execve(path, list, environ) }
}

unsafe extern "C" fn search_list(file: *const c_char, list: Strings) -> c_int {
    // SAFETY: the arguments are those of C's `execlp`.
    unsafe { process::execvpe(file, list, environ) }
}

unsafe extern "C" fn run_list_with_environment(path: *const c_char, list: Strings) -> c_int {
    // SAFETY: the arguments are those of C's `execle`: the environment follows the NULL that ends the list.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = end.add(1);
        }
        process::execve(path, list, *end.add(1).cast::<Strings>())
    }
}

/// Defines a C function with one string and a list of arguments.
macro_rules! with_list {
    ($($name:ident => $function:ident;)*) => { $(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg(target_arch = "x86_64")]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                // Pops the return address, so that the arguments in registers and on the stack are adjacent.
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
