//! Finds the MPI of this process.
//!
//! A program's MPI is loaded before the program calls it, but not always so that its symbols are in the
//! global scope: mpi4py loads its library with `RTLD_LOCAL`. So the loaded objects are looked through by name,
//! and symbols are asked of the object itself.
//!
//! The predefined handles of Open MPI are addresses of its variables. A program that is not position
//! independent in this respect has copies of them (copy relocations), which are the handles then. The global
//! scope knows them, so it is asked first for variables, and the library itself where that finds nothing.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use crate::abi::{Abi, MPICH, OPEN_MPI, STANDARD};

/// A loaded library.
pub struct Library {
    /// Its path.
    pub path: CString,
    handle: *mut c_void,
}

// SAFETY: a handle of dlopen may be used by any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// A library that is loaded already.
    fn loaded(path: &CStr) -> Option<Library> {
        // SAFETY: nothing is loaded, so no initialisers run. The handle is never closed.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        (!handle.is_null()).then(|| Library { path: path.to_owned(), handle })
    }

    /// That of a test's double: every library of the process.
    #[cfg(test)]
    pub(crate) fn none() -> Library {
        Library { path: CString::default(), handle: libc::RTLD_DEFAULT }
    }

    /// The address of a function.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        symbol(self.handle, name)
    }

    /// The address of a variable, as the program sees it.
    pub fn variable(&self, name: &CStr) -> Option<usize> {
        symbol(libc::RTLD_DEFAULT, name).or_else(|| symbol(self.handle, name))
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Option<usize> {
    // SAFETY: the handle is one of dlopen's, or a special one.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// The next definition of a function behind this library, in the order in which the program is linked; of
/// another tool, for example, that is preloaded as well.
pub fn next(name: &CStr) -> Option<usize> {
    symbol(libc::RTLD_NEXT, name)
}

/// A function of any loaded library but this one, whatever its scope.
pub fn in_any(name: &CStr) -> Option<usize> {
    let here = this_library();
    let others = loaded_paths().into_iter().filter_map(|path| Library::loaded(&path));
    others.filter_map(|library| library.function(name)).find(|address| library_base(*address) != here)
}

fn this_library() -> usize {
    library_base(this_library as fn() -> usize as usize)
}

/// Where the object is loaded that an address belongs to; 0 if it belongs to none.
fn library_base(address: usize) -> usize {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; what is written is a valid description or stays zeros.
    unsafe {
        libc::dladdr(address as *const c_void, info.as_mut_ptr());
        info.assume_init().dli_fbase as usize
    }
}

/// Why there is no MPI to work with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// No library with such a name is loaded.
    NoLibrary,
    /// One is, but of an unknown kind.
    Unknown(String),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missing::NoLibrary => write!(f, "the process has loaded no MPI library (libmpi.so, libmpich.so)"),
            Missing::Unknown(path) => write!(
                f,
                "{path} is neither of MPICH's family (libmpi.so.12), nor Open MPI 4 or 5 (libmpi.so.40), nor \
                 of the ABI of MPI 5 (libmpi_abi.so)"
            ),
        }
    }
}

/// The MPI that is loaded.
pub fn find() -> Result<(&'static Abi, Library), Missing> {
    let mut unknown = None;
    for path in loaded_paths() {
        if !is_named_like_mpi(path.to_bytes()) {
            continue;
        }
        let Some(library) = Library::loaded(&path) else { continue };
        if library.function(c"PMPI_File_open").is_none() {
            continue;
        }
        let has = |name: &CStr| library.function(name).is_some();
        match family(path.to_bytes(), has(c"ompi_mpi_comm_world"), has(c"MPIX_Grequest_start")) {
            Some(abi) => return Ok((abi, library)),
            None => unknown = Some(path.to_string_lossy().into_owned()),
        }
    }
    Err(unknown.map_or(Missing::NoLibrary, Missing::Unknown))
}

fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

fn is_named_like_mpi(path: &[u8]) -> bool {
    let name = base(path);
    [
        "libmpi.so",
        "libmpich.so",
        "libmpi_abi.so",
        "libmpi_cray.so",
        "libmpi_gnu",
        "libmpi_intel",
        "libmpi_ilp64",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// The family of a library by its path and by what it has.
fn family(path: &[u8], has_open_mpi_symbols: bool, has_mpich_symbols: bool) -> Option<&'static Abi> {
    match () {
        () if has_open_mpi_symbols => Some(&OPEN_MPI),
        () if base(path).starts_with(b"libmpi_abi.so") => Some(&STANDARD),
        () if has_mpich_symbols => Some(&MPICH),
        () => None,
    }
}

/// The paths of all loaded objects but the program itself.
fn loaded_paths() -> Vec<CString> {
    unsafe extern "C" fn note(
        info: *mut libc::dl_phdr_info,
        _bytes: libc::size_t,
        paths: *mut c_void,
    ) -> c_int {
        // SAFETY: the linker passes a valid description, and `paths` is the vector below.
        let (name, paths) = unsafe { ((*info).dlpi_name, &mut *paths.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a string of the linker's, which outlives this call.
            paths.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut paths: Vec<CString> = Vec::new();
    // SAFETY: `note` is called with the vector, and only until this returns.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::from_mut(&mut paths).cast()) };
    paths.retain(|path| !path.is_empty());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Family;

    #[test]
    fn a_family_is_told_by_the_library_and_not_by_its_path() {
        let family =
            |path: &str, open_mpi, mpich| family(path.as_bytes(), open_mpi, mpich).map(|abi| abi.family);
        assert_eq!(family("/opt/libmpi.so.40", true, false), Some(Family::OpenMpi));
        assert_eq!(family("/opt/libmpi.so.12", false, true), Some(Family::Mpich));
        assert_eq!(family("/opt/libmpi_abi.so.1", false, true), Some(Family::Standard));
        assert_eq!(family("/opt/libmpi.so.12", false, false), None);
    }

    #[test]
    fn other_libraries_of_an_mpi_are_left_alone() {
        for path in ["/usr/lib/libmpi.so.40", "/usr/lib/libmpich.so.12", "libmpi_abi.so.1"] {
            assert!(is_named_like_mpi(path.as_bytes()), "{path}");
        }
        for path in ["/usr/lib/libmpi_cxx.so.40", "/usr/lib/libmpi_mpifh.so.40", "/lib/libweft_mpi.so"] {
            assert!(!is_named_like_mpi(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_process_without_mpi_has_none() {
        assert_eq!(find().err(), Some(Missing::NoLibrary));
        assert!(loaded_paths().iter().any(|path| base(path.to_bytes()).starts_with(b"libc.so")));
    }
}
