//! Errors of this library, and their one translation to the error classes of MPI (MPI 4.0, 14.7).

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::Mutex;

use weft_client::{Error, ErrorKind};
use weft_wire::Status;

use crate::abi::{Family, Handle, Numbers};
use crate::mpi::Mpi;
use crate::sync::lock;

/// What every function here returns.
pub type Result<T> = std::result::Result<T, MpiError>;

/// The error classes that are raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Class {
    /// An argument makes no sense.
    Arg = 1,
    /// A count is negative or too large.
    Count,
    /// A communicator is needed, and none was given.
    Comm,
    /// A datatype cannot be used here.
    Type,
    /// No open file.
    File,
    /// Processes gave different arguments where they must be the same.
    NotSame,
    /// A combination of modes that is not allowed, or not what the file was opened for.
    Amode,
    /// An unknown data representation.
    UnsupportedDatarep,
    /// Not supported for this file.
    UnsupportedOperation,
    /// There is no such file.
    NoSuchFile,
    /// There is one already.
    FileExists,
    /// The name is not one of a file.
    BadFile,
    /// No permission.
    Access,
    /// No space left on a server.
    NoSpace,
    /// A quota or limit is reached.
    Quota,
    /// The file system can only be read.
    ReadOnly,
    /// The file is in use.
    FileInUse,
    /// Data cannot be converted.
    Conversion,
    /// The value of a hint makes no sense.
    InfoValue,
    /// Input or output failed.
    Io,
    /// Memory is short.
    NoMem,
    /// Something else.
    Other,
    /// A defect of this library.
    Intern,
}

impl Class {
    const ALL: [Class; 23] = [
        Class::Arg,
        Class::Count,
        Class::Comm,
        Class::Type,
        Class::File,
        Class::NotSame,
        Class::Amode,
        Class::UnsupportedDatarep,
        Class::UnsupportedOperation,
        Class::NoSuchFile,
        Class::FileExists,
        Class::BadFile,
        Class::Access,
        Class::NoSpace,
        Class::Quota,
        Class::ReadOnly,
        Class::FileInUse,
        Class::Conversion,
        Class::InfoValue,
        Class::Io,
        Class::NoMem,
        Class::Other,
        Class::Intern,
    ];

    /// The class of a number in a message between processes.
    pub fn from_u64(number: u64) -> Class {
        Class::ALL.into_iter().find(|class| *class as u64 == number).unwrap_or(Class::Other)
    }

    /// Its number in an MPI.
    pub fn code(self, numbers: &Numbers) -> c_int {
        match self {
            Class::Arg => numbers.err_arg,
            Class::Count => numbers.err_count,
            Class::Comm => numbers.err_comm,
            Class::Type => numbers.err_type,
            Class::File => numbers.err_file,
            Class::NotSame => numbers.err_not_same,
            Class::Amode => numbers.err_amode,
            Class::UnsupportedDatarep => numbers.err_unsupported_datarep,
            Class::UnsupportedOperation => numbers.err_unsupported_operation,
            Class::NoSuchFile => numbers.err_no_such_file,
            Class::FileExists => numbers.err_file_exists,
            Class::BadFile => numbers.err_bad_file,
            Class::Access => numbers.err_access,
            Class::NoSpace => numbers.err_no_space,
            Class::Quota => numbers.err_quota,
            Class::ReadOnly => numbers.err_read_only,
            Class::FileInUse => numbers.err_file_in_use,
            Class::Conversion => numbers.err_conversion,
            Class::InfoValue => numbers.err_info_value,
            Class::Io => numbers.err_io,
            Class::NoMem => numbers.err_no_mem,
            Class::Other => numbers.err_other,
            Class::Intern => numbers.err_intern,
        }
    }
}

/// An operation that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiError {
    /// What kind of failure it is.
    pub class: Class,
    /// What happened, where, and what to do.
    pub text: String,
    /// The code of an MPI function that failed.
    code: Option<c_int>,
}

impl MpiError {
    /// A failure that was found here.
    pub fn new(class: Class, text: impl Into<String>) -> MpiError {
        MpiError { class, text: text.into(), code: None }
    }

    /// A failure of an MPI function, which has a code already.
    pub fn from_mpi(code: c_int, text: String) -> MpiError {
        MpiError { class: Class::Other, text, code: Some(code) }
    }
}

impl std::fmt::Display for MpiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for MpiError {}

impl From<Error> for MpiError {
    fn from(error: Error) -> MpiError {
        MpiError::new(class_of(&error), error.to_string())
    }
}

impl From<weft_layout::ViewError> for MpiError {
    fn from(error: weft_layout::ViewError) -> MpiError {
        MpiError::new(Class::Arg, error.to_string())
    }
}

impl From<weft_layout::DatatypeError> for MpiError {
    fn from(error: weft_layout::DatatypeError) -> MpiError {
        MpiError::new(Class::Type, error.to_string())
    }
}

fn class_of(error: &Error) -> Class {
    match error.kind() {
        ErrorKind::Status(status) => class_of_status(status),
        ErrorKind::Invalid => Class::Arg,
        ErrorKind::NotOpenForThis => Class::Access,
        ErrorKind::Untrusted => Class::Access,
        ErrorKind::Configuration => Class::BadFile,
        ErrorKind::Local(libc::ENOMEM) => Class::NoMem,
        ErrorKind::Unreachable | ErrorKind::Local(_) | ErrorKind::Protocol => Class::Io,
    }
}

fn class_of_status(status: Status) -> Class {
    match status {
        Status::NotFound | Status::Stale => Class::NoSuchFile,
        Status::Exists => Class::FileExists,
        Status::NotDirectory | Status::IsDirectory | Status::NameTooLong | Status::Loop => Class::BadFile,
        Status::Access | Status::NotPermitted | Status::Unauthenticated | Status::Capability => Class::Access,
        Status::NoSpace | Status::FileTooBig => Class::NoSpace,
        Status::Limit | Status::Quota => Class::Quota,
        Status::ReadOnly => Class::ReadOnly,
        Status::Busy => Class::FileInUse,
        Status::Unsupported => Class::UnsupportedOperation,
        Status::Invalid | Status::TooBig => Class::Arg,
        _ => Class::Io,
    }
}

/// Codes that were made for errors. MPI has no way to free one, so their number is bounded.
static CODES: Mutex<Option<HashMap<(Class, String), c_int>>> = Mutex::new(None);
const CODES_MAX: usize = 256;
/// The bit by which MPICH tells codes that were added from its own.
const MPICH_DYNAMIC: c_int = 0x4000_0000;

impl Mpi {
    /// The code of an error, for which `MPI_Error_class` gives its class and `MPI_Error_string` its text; once
    /// very many different errors have had one, the class itself.
    pub fn code(&self, error: &MpiError) -> c_int {
        if let Some(code) = error.code {
            return code;
        }
        let class = error.class.code(self.numbers());
        let key = (error.class, error.text.clone());
        {
            let mut codes = lock(&CODES);
            let codes = codes.get_or_insert_default();
            if let Some(code) = codes.get(&key) {
                return *code;
            }
            if codes.len() >= CODES_MAX {
                return class;
            }
        }
        // Without the lock: MPI may wait for a thread that is in it and asks for a code here.
        match self.new_code(class, &error.text) {
            Some(code) => *lock(&CODES).get_or_insert_default().entry(key).or_insert(code),
            None => class,
        }
    }

    fn new_code(&self, class: c_int, text: &str) -> Option<c_int> {
        let mut text = format!("Weft: {text}").replace('\0', " ");
        let mut end = text.len().min(self.numbers().max_error_string_bytes as usize - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        let text = CString::new(text).ok()?;
        let mut code = 0;
        // SAFETY: it is written.
        (unsafe { (self.f.add_error_code)(class, &mut code) } == 0).then_some(())?;
        // MPICH 4.0 gives codes that it takes for its own, and looks for their texts beyond its tables.
        (self.abi.family != Family::Mpich || code & MPICH_DYNAMIC != 0).then_some(())?;
        // SAFETY: the text is copied.
        unsafe { (self.f.add_error_string)(code, text.as_ptr()) };
        Some(code)
    }

    /// Hands an error to the error handler of a file, or of `MPI_FILE_NULL`; what the function returns.
    pub fn raise(&self, file: usize, error: &MpiError) -> c_int {
        crate::report::report(|| format!("error: {}", error.text));
        let code = self.code(error);
        if self.abi.family == Family::OpenMpi && file == self.handles.file_null.0 {
            self.raise_without_file(code);
        } else {
            // SAFETY: the handle is one of this MPI's.
            unsafe { (self.f.file_call_errhandler)(file, code) };
        }
        code
    }

    /// Open MPI calls the handler of `MPI_FILE_NULL` for its own errors only: a file that has the same handler
    /// stands in for it.
    fn raise_without_file(&self, code: c_int) {
        let mut handler = Handle(0);
        // SAFETY: it is written.
        let found = unsafe { (self.f.file_get_errhandler)(self.handles.file_null.0, &mut handler) };
        if found != 0 || handler == self.handles.errors_return {
            return;
        }
        if let Ok(file) = self.open_shadow() {
            // SAFETY: the file was opened above; the handler is the program's.
            unsafe {
                (self.f.file_set_errhandler)(file, handler);
                (self.f.file_call_errhandler)(file, code);
            }
            self.close_shadow(file);
        }
        // SAFETY: the handle was made above.
        unsafe { (self.f.errhandler_free)(&mut handler) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_back_from_their_numbers() {
        for class in Class::ALL {
            assert_eq!(Class::from_u64(class as u64), class);
        }
        assert_eq!(Class::from_u64(0), Class::Other);
    }

    #[test]
    fn errors_of_the_client_become_classes() {
        let class = |kind| MpiError::from(Error::new("open", kind, "why")).class;
        assert_eq!(class(ErrorKind::Status(Status::NotFound)), Class::NoSuchFile);
        assert_eq!(class(ErrorKind::Status(Status::NoSpace)), Class::NoSpace);
        assert_eq!(class(ErrorKind::Unreachable), Class::Io);
        assert_eq!(class(ErrorKind::NotOpenForThis), Class::Access);
    }
}
