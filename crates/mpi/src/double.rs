//! An MPI in place of a real one, for tests: functions of the test's own, in the thread that calls them.

use std::ffi::c_int;

use crate::abi::MPICH;
use crate::find::Library;
use crate::functions::Functions;
use crate::mpi::Mpi;

/// What a function returns that a test does not expect to be called.
pub(crate) const UNEXPECTED: c_int = 4242;

extern "C" fn unexpected() -> c_int {
    UNEXPECTED
}

/// An MPI of MPICH's family with these functions.
///
/// # Safety
/// Each has the parameters of the function of its name.
pub(crate) unsafe fn mpi(functions: &[(&str, usize)]) -> &'static Mpi {
    let address = |name: &std::ffi::CStr| {
        let given = functions.iter().find(|(known, _)| known.as_bytes() == name.to_bytes());
        Some(given.map_or(unexpected as extern "C" fn() -> c_int as usize, |(_, address)| *address))
    };
    // SAFETY: the caller's promise; the other function looks at no parameter.
    let f = unsafe { Functions::find(address) }.expect("each name has a function");
    let handles = MPICH.predefined.find(|_| None).expect("they are numbers");
    Box::leak(Box::new(Mpi { abi: &MPICH, handles, f, library: Library::none() }))
}
