//! `dprintf` and related functions: libc formats the text, and this library writes it.
//!
//! ```text
//!   dprintf(fd, format, …)   registers and stack ──► va_list ──► print(fd, format, va_list)
//! ```
//!
//! Rust cannot define variadic functions of C, so the beginning is assembly. On both machines a `va_list` is
//! passed as an address.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::files;
use crate::real::hooks;
use crate::table::find;

/// C's `va_list`, as an argument.
type List = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: List) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, list: List) -> c_int;
}

hooks! {
    fn vdprintf(fd: c_int, format: *const c_char, list: List) -> c_int {
        if find(fd).is_none() {
            return vdprintf::real(fd, format, list);
        }
        let mut text = ptr::null_mut();
        let bytes = vasprintf(&mut text, format, list);
        written(fd, text, bytes)
    }

    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: List) -> c_int {
        if find(fd).is_none() {
            return __vdprintf_chk::real(fd, flag, format, list);
        }
        let mut text = ptr::null_mut();
        let bytes = __vasprintf_chk(&mut text, flag, format, list);
        written(fd, text, bytes)
    }
}

/// Writes a text of libc's, and frees it.
unsafe fn written(fd: c_int, text: *mut c_char, bytes: c_int) -> c_int {
    if bytes < 0 {
        return -1;
    }
    let (mut done, all) = (0, bytes as usize);
    // SAFETY: the text has this many bytes, and nobody else has it.
    unsafe {
        while done < all {
            match files::write(fd, text.add(done).cast(), all - done) {
                written @ 1.. => done += written as usize,
                _ => break,
            }
        }
        let before = crate::guard::errno();
        libc::free(text.cast());
        weft_client::c::set_errno(before);
    }
    if done == all { bytes } else { -1 }
}

/// Defines a C function with two or three named arguments and a list, which calls one with a `va_list`. The
/// texts: bytes of registers with named arguments (x86-64) and with others (AArch64), and on both machines the
/// register for the `va_list`.
macro_rules! with_va_list {
    ($($name:ident => $function:ident, $named:literal, $left:literal, $x86:literal, $arm:literal;)*) => { $(
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg(target_arch = "x86_64")]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 176], ", $named),
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $x86, ", [rsp + 176]"),
                "call {function}",
                "leave",
                "ret",
                function = sym $function,
            )
        }

        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg(target_arch = "aarch64")]
        unsafe extern "C" fn $name() -> c_int {
            naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #48]",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                "add x9, sp, #240",
                "str x9, [sp, #16]",
                "str x9, [sp, #32]",
                "add x9, sp, #112",
                "str x9, [sp, #24]",
                concat!("mov w9, #-", $left),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $arm, ", sp, #16"),
                "bl {function}",
                "ldp x29, x30, [sp], #240",
                "ret",
                function = sym $function,
            )
        }
    )* };
}

with_va_list! {
    dprintf => vdprintf, "16", "48", "rdx", "x2";
    __dprintf_chk => __vdprintf_chk, "24", "40", "rcx", "x3";
}
