//! The functions that programs call: every `MPI_File_` function that concerns Weft's files, and its profiling
//! twin, since the Fortran bindings of several MPIs call that one.
//!
//! ```text
//!   MPI_File_read_at (fh, offset, …) ─┐                  a file of Weft's ──► access, pointers, open, …
//!   PMPI_File_read_at ────────────────┴─► which file? ──┤
//!                                                       any other ─────────► the program's own MPI
//! ```
//!
//! All arguments are integers or pointers, so each is taken as a whole register, whatever the width of
//! handles in the program's MPI is ([`crate::abi`]), and handed on unchanged where the file is not Weft's.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::access::{self, Access, Completion, Pointer};
use crate::error::{Class, MpiError};
use crate::file::{self, MpiFile, SplitKind, SplitPointer};
use crate::find;
use crate::mpi::{Mpi, mpi};
use crate::{close, guard, open, pointers, settings, sizes, split, view_calls};
use weft_client::Direction;

/// The program's own function of a name: of the next library in order, or of its MPI.
fn own(name: &'static CStr, cache: &AtomicUsize) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = |name: &CStr| {
        let of_library = || mpi().and_then(|mpi| mpi.library.function(name)).or_else(|| find::in_any(name));
        find::next(name).or_else(of_library)
    };
    // A program may look whether there is a function for large counts, and finds this library's. An MPI without
    // it has the one for usual counts, which takes its arguments in the same registers.
    let for_usual_counts = || {
        let shorter = name.to_bytes().strip_suffix(b"_c").and_then(|shorter| CString::new(shorter).ok())?;
        found(&shorter)
    };
    let Some(address) = found(name).or_else(for_usual_counts) else {
        eprintln!(
            "weft-mpi: the program calls {}, which no loaded library has; is it linked to an MPI?",
            name.to_string_lossy()
        );
        std::process::abort();
    };
    cache.store(address, Ordering::Relaxed);
    address
}

/// Weft's file of a handle. Where it is not Weft's, the body of an entry ends: the program's own MPI goes on. A
/// handle of Weft's that was closed is an error here, as the MPI would look at memory that is not a file any more.
macro_rules! weft_file {
    ($handle:expr) => {
        match file::of_handle($handle) {
            Some(file) => file,
            None if file::was_closed($handle) => return closed_handle(),
            None => return None,
        }
    };
}

fn closed_handle() -> Option<c_int> {
    let mpi = mpi()?;
    let error = MpiError::new(Class::File, "a handle of a file that was closed");
    Some(mpi.raise(mpi.handles.file_null.0, &error))
}

/// Exports a function and its profiling twin. The body says what happens in Weft; `None` where it is the
/// program's own MPI's business.
macro_rules! entry {
    ($name:expr, ($($argument:ident),*) $body:expr) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn plain($($argument: usize),*) -> c_int {
                static OWN: AtomicUsize = AtomicUsize::new(0);
                const NAME: &CStr =
                    match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() };
                // SAFETY: the program's arguments, as MPI defines them.
                unsafe { call(NAME, &OWN, $($argument),*) }
            }
            #[unsafe(export_name = concat!("P", $name))]
            unsafe extern "C" fn profiling($($argument: usize),*) -> c_int {
                static OWN: AtomicUsize = AtomicUsize::new(0);
                const NAME: &CStr =
                    match CStr::from_bytes_with_nul(concat!("P", $name, "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() };
                // SAFETY: as above.
                unsafe { call(NAME, &OWN, $($argument),*) }
            }
            #[allow(clippy::too_many_arguments)] // up to six are the program's
            unsafe fn call(name: &'static CStr, cache: &AtomicUsize, $($argument: usize),*) -> c_int {
                let done: Option<c_int> = guard::call(|| $body);
                if let Some(code) = done {
                    return code;
                }
                // SAFETY: the function of this name has these parameters, each in a register or a word.
                let own = unsafe {
                    std::mem::transmute::<usize, unsafe extern "C" fn($(entry!(@word $argument)),*) -> c_int>(
                        own(name, cache),
                    )
                };
                // SAFETY: the program's arguments.
                unsafe { own($($argument),*) }
            }
        };
    };
    (@word $argument:ident) => { usize };
}

/// Refuses a count that an MPI without functions for large counts cannot take.
fn too_large(file: usize, count: i64) -> Option<c_int> {
    if i32::try_from(count).is_ok() || file::of_handle(file).is_some() {
        return None;
    }
    let mpi = mpi()?;
    if mpi.library.function(c"PMPI_File_read_c").is_some() {
        return None;
    }
    let text = format!("{count} elements: {} takes at most 2^31 - 1 in one call", mpi.abi.name);
    Some(mpi.raise(file, &MpiError::new(Class::Count, text)))
}

/// The result of a function on a file: raises an error with the file's handler.
fn finish(file: &MpiFile, result: crate::error::Result<()>) -> Option<c_int> {
    Some(match result {
        Ok(()) => 0,
        Err(error) => file.mpi.raise(file.shadow, &error),
    })
}

/// As [`finish`], of a function that writes a result.
fn finish_with<T>(file: &MpiFile, result: crate::error::Result<T>, to: usize) -> Option<c_int> {
    finish(
        file,
        result.map(|value| {
            // SAFETY: the program's pointer to a place for the result.
            unsafe { ptr::write_unaligned(to as *mut T, value) }
        }),
    )
}

/// A string of the program.
fn text(pointer: usize) -> Vec<u8> {
    if pointer == 0 {
        return Vec::new();
    }
    // SAFETY: MPI takes strings that end with a zero.
    unsafe { CStr::from_ptr(pointer as *const c_char) }.to_bytes().to_vec()
}

fn handle_of(mpi: &Mpi, register: usize) -> crate::abi::Handle {
    mpi.abi.handle(register)
}

entry! { "MPI_File_open", (comm, name, amode, info, to) {
    let mpi = mpi()?;
    let asked = open::Asked { comm: handle_of(mpi, comm), name: text(name), amode: amode as c_int, info: handle_of(mpi, info) };
    match open::open(mpi, &asked) {
        Ok(Some(handle)) => {
            // SAFETY: the program's place for the handle.
            unsafe { ptr::write(to as *mut usize, handle) };
            Some(0)
        }
        Ok(None) => {
            file::forget_closed();
            None
        }
        Err(error) => {
            // The Fortran bindings convert the handle also where there is none.
            // SAFETY: as above.
            unsafe { ptr::write(to as *mut usize, mpi.handles.file_null.0) };
            open::say_if_lost(mpi, &asked, &error);
            Some(mpi.raise(mpi.handles.file_null.0, &error))
        }
    }
} }
entry! { "MPI_File_close", (to) {
    // SAFETY: the program's handle.
    let handle = unsafe { ptr::read(to as *const usize) };
    let file = weft_file!(handle);
    let (mpi, result) = (file.mpi, close::close(file));
    // SAFETY: as above.
    unsafe { ptr::write(to as *mut usize, mpi.handles.file_null.0) };
    Some(match result {
        Ok(()) => 0,
        Err(error) => mpi.raise(mpi.handles.file_null.0, &error),
    })
} }
entry! { "MPI_File_delete", (name, _info) {
    let mpi = mpi()?;
    match open::delete(&text(name)) {
        Ok(true) => Some(0),
        Ok(false) => None,
        Err(error) => Some(mpi.raise(mpi.handles.file_null.0, &error)),
    }
} }

entry! { "MPI_File_get_size", (fh, to) { let file = weft_file!(fh); finish_with(&file, sizes::size(&file), to) } }
entry! { "MPI_File_set_size", (fh, bytes) { let file = weft_file!(fh); finish(&file, sizes::set_size(&file, bytes as i64)) } }
entry! { "MPI_File_preallocate", (fh, bytes) { let file = weft_file!(fh); finish(&file, sizes::preallocate(&file, bytes as i64)) } }
entry! { "MPI_File_sync", (fh) { let file = weft_file!(fh); finish(&file, sizes::sync(&file)) } }

entry! { "MPI_File_get_group", (fh, to) { let file = weft_file!(fh); finish_handle(&file, settings::group(&file), to) } }
entry! { "MPI_File_get_amode", (fh, to) { let file = weft_file!(fh); finish_with(&file, Ok(file.amode), to) } }
entry! { "MPI_File_get_info", (fh, to) { let file = weft_file!(fh); finish_handle(&file, settings::info(&file), to) } }
entry! { "MPI_File_set_info", (fh, info) {
    let file = weft_file!(fh);
    let info = handle_of(file.mpi, info);
    finish(&file, settings::set_info(&file, info))
} }
entry! { "MPI_File_set_atomicity", (fh, flag) { let file = weft_file!(fh); finish(&file, settings::set_atomicity(&file, flag as c_int != 0)) } }
entry! { "MPI_File_get_atomicity", (fh, to) { let file = weft_file!(fh); finish_with(&file, Ok(c_int::from(file.is_atomic())), to) } }

entry! { "MPI_File_set_view", (fh, displacement, etype, filetype, datarep, info) {
    let file = weft_file!(fh);
    let mpi = file.mpi;
    let asked = view_calls::Asked {
        displacement: displacement as i64,
        etype: handle_of(mpi, etype),
        filetype: handle_of(mpi, filetype),
        datarep: text(datarep),
        info: handle_of(mpi, info),
    };
    finish(&file, view_calls::set_view(&file, &asked))
} }
entry! { "MPI_File_get_view", (fh, displacement, etype, filetype, datarep) {
    let file = weft_file!(fh);
    let result = view_calls::get_view(&file).map(|seen| {
        // SAFETY: the program's places for the results; that of the representation has room for its name.
        unsafe {
            ptr::write(displacement as *mut i64, seen.displacement);
            write_handle(&file, seen.etype, etype);
            write_handle(&file, seen.filetype, filetype);
            let name = seen.datarep.to_bytes_with_nul();
            ptr::copy_nonoverlapping(name.as_ptr(), datarep as *mut u8, name.len());
        }
    });
    finish(&file, result)
} }
entry! { "MPI_File_get_byte_offset", (fh, offset, to) { let file = weft_file!(fh); finish_with(&file, view_calls::byte_offset(&file, offset as i64), to) } }
entry! { "MPI_File_get_type_extent", (fh, datatype, to) {
    let file = weft_file!(fh);
    let datatype = handle_of(file.mpi, datatype);
    finish_with(&file, view_calls::type_extent(&file, datatype), to)
} }
entry! { "MPI_File_get_type_extent_c", (fh, datatype, to) {
    let file = weft_file!(fh);
    let datatype = handle_of(file.mpi, datatype);
    finish_with(&file, view_calls::type_extent(&file, datatype), to)
} }

entry! { "MPI_File_seek", (fh, offset, whence) { let file = weft_file!(fh); finish(&file, pointers::seek(&file, offset as i64, whence as c_int)) } }
entry! { "MPI_File_get_position", (fh, to) { let file = weft_file!(fh); finish_with(&file, pointers::position(&file), to) } }
entry! { "MPI_File_seek_shared", (fh, offset, whence) { let file = weft_file!(fh); finish(&file, pointers::seek_shared(&file, offset as i64, whence as c_int)) } }
entry! { "MPI_File_get_position_shared", (fh, to) { let file = weft_file!(fh); finish_with(&file, pointers::shared_position(&file), to) } }

/// Writes a handle in the width of its family.
///
/// # Safety
/// `to` is the program's place for one.
unsafe fn write_handle(file: &MpiFile, handle: crate::abi::Handle, to: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match file.mpi.abi.handle_bytes {
            4 => ptr::write(to as *mut u32, handle.0 as u32),
            _ => ptr::write(to as *mut usize, handle.0),
        }
    }
}

fn finish_handle(
    file: &MpiFile,
    result: crate::error::Result<crate::abi::Handle>,
    to: usize,
) -> Option<c_int> {
    finish(
        file,
        result.map(|handle| {
            // SAFETY: the program's place for a handle.
            unsafe { write_handle(file, handle, to) }
        }),
    )
}

/// Carries out a data access.
fn access(file: &Arc<MpiFile>, access: Access, completion: Completion) -> Option<c_int> {
    let result = access::access(file, access, completion).map(|request| {
        if let (Some(request), Completion::Request(to)) = (request, completion) {
            // SAFETY: the program's place for the request.
            unsafe { write_handle(file, request, to) };
        }
    });
    finish(file, result)
}

/// Exports a function of data access in its two forms: with an `int` for the number of elements, and, for
/// large counts, with an `MPI_Count`.
macro_rules! accesses {
    ($($name:literal $direction:ident $pointer:ident $form:ident $is_collective:literal;)*) => {
        $(accesses! { @$form $pointer $name $direction $is_collective })*
    };
    (@blocking At $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, offset, buffer, count, datatype, status)
            $direction (Pointer::At(offset as i64)) $is_collective (Completion::Status(status as *mut c_void)) }
    };
    (@blocking $pointer:ident $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, buffer, count, datatype, status)
            $direction (Pointer::$pointer) $is_collective (Completion::Status(status as *mut c_void)) }
    };
    (@nonblocking At $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, offset, buffer, count, datatype, request)
            $direction (Pointer::At(offset as i64)) $is_collective (Completion::Request(request)) }
    };
    (@nonblocking $pointer:ident $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, buffer, count, datatype, request)
            $direction (Pointer::$pointer) $is_collective (Completion::Request(request)) }
    };
    (@begin At $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, offset, buffer, count, datatype)
            $direction (Pointer::At(offset as i64)) $is_collective (Completion::End) }
    };
    (@begin $pointer:ident $name:literal $direction:ident $is_collective:literal) => {
        accesses! { @both $name fh buffer count datatype (fh, buffer, count, datatype)
            $direction (Pointer::$pointer) $is_collective (Completion::End) }
    };
    (@end $pointer:ident $name:literal $direction:ident $is_collective:literal) => {
        entry! { $name, (fh, buffer, status) {
            let file = weft_file!(fh);
            let split = SplitKind { direction: Direction::$direction, pointer: SplitPointer::$pointer };
            // SAFETY: the program's status.
            finish(&file, unsafe { split::end(&file, split, buffer, status as *mut c_void) })
        } }
    };
    (@both $name:literal $fh:ident $buffer:ident $count:ident $datatype:ident ($($argument:ident),*)
        $direction:ident ($pointer:expr) $is_collective:literal ($completion:expr)) => {
        entry! { $name, ($($argument),*) {
            let file = weft_file!($fh);
            access(&file, Access {
                direction: Direction::$direction,
                pointer: $pointer,
                is_collective: $is_collective,
                buffer: $buffer,
                // The upper half of a register that holds an `int` is undefined.
                count: i64::from($count as i32),
                datatype: handle_of(file.mpi, $datatype),
            }, $completion)
        } }
        entry! { concat!($name, "_c"), ($($argument),*) {
            if let Some(code) = too_large($fh, $count as i64) {
                return Some(code);
            }
            let file = weft_file!($fh);
            access(&file, Access {
                direction: Direction::$direction,
                pointer: $pointer,
                is_collective: $is_collective,
                buffer: $buffer,
                count: $count as i64,
                datatype: handle_of(file.mpi, $datatype),
            }, $completion)
        } }
    };
}

accesses! {
    "MPI_File_read_at" Read At blocking false;
    "MPI_File_read_at_all" Read At blocking true;
    "MPI_File_iread_at" Read At nonblocking false;
    "MPI_File_iread_at_all" Read At nonblocking true;
    "MPI_File_read" Read Individual blocking false;
    "MPI_File_read_all" Read Individual blocking true;
    "MPI_File_iread" Read Individual nonblocking false;
    "MPI_File_iread_all" Read Individual nonblocking true;
    "MPI_File_read_shared" Read Shared blocking false;
    "MPI_File_iread_shared" Read Shared nonblocking false;
    "MPI_File_read_ordered" Read Ordered blocking true;
    "MPI_File_read_at_all_begin" Read At begin true;
    "MPI_File_read_at_all_end" Read At end true;
    "MPI_File_read_all_begin" Read Individual begin true;
    "MPI_File_read_all_end" Read Individual end true;
    "MPI_File_read_ordered_begin" Read Ordered begin true;
    "MPI_File_read_ordered_end" Read Ordered end true;
    "MPI_File_write_at" Write At blocking false;
    "MPI_File_write_at_all" Write At blocking true;
    "MPI_File_iwrite_at" Write At nonblocking false;
    "MPI_File_iwrite_at_all" Write At nonblocking true;
    "MPI_File_write" Write Individual blocking false;
    "MPI_File_write_all" Write Individual blocking true;
    "MPI_File_iwrite" Write Individual nonblocking false;
    "MPI_File_iwrite_all" Write Individual nonblocking true;
    "MPI_File_write_shared" Write Shared blocking false;
    "MPI_File_iwrite_shared" Write Shared nonblocking false;
    "MPI_File_write_ordered" Write Ordered blocking true;
    "MPI_File_write_at_all_begin" Write At begin true;
    "MPI_File_write_at_all_end" Write At end true;
    "MPI_File_write_all_begin" Write Individual begin true;
    "MPI_File_write_all_end" Write Individual end true;
    "MPI_File_write_ordered_begin" Write Ordered begin true;
    "MPI_File_write_ordered_end" Write Ordered end true;
}
