//! What differs between MPIs: handles, the numbers of constants, and where their functions are.
//!
//! ```text
//!   family     libraries                                    handles     predefined handles
//!   Mpich      libmpi.so.12, libmpich.so.12: MPICH, Intel   int         numbers
//!              MPI, Cray MPICH, MVAPICH
//!   OpenMpi    libmpi.so.40                                 pointers    addresses of symbols of the library
//!   Standard   libmpi_abi.so.*: the ABI of MPI 5.0          pointers    numbers
//! ```
//!
//! [`Handle`] is wide enough for each of them. A C function that takes an `int` reads the low half of the
//! register in which a [`Handle`] is passed; one that returns an `int` by a pointer writes the low half of a
//! [`Handle`] that was 0 before (x86-64 and AArch64 Linux, little endian). So one declaration of a function
//! serves all families, and [`Mpi`](crate::mpi::Mpi) has no type parameter. `MPI_File` is a pointer in all of
//! them; `MPI_Offset`, `MPI_Aint` and `MPI_Count` have 64 bits.

mod facts;
mod mpich;
mod open_mpi;
mod standard;

pub use facts::{Abi, Family, Handle, Handles, Numbers, Predefined, Predefineds};
pub use mpich::MPICH;
pub use open_mpi::OPEN_MPI;
pub use standard::STANDARD;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_an_int_is_no_part_of_a_handle() {
        assert_eq!(MPICH.handle(0xdead_beef_4400_0000), Handle(0x4400_0000));
        assert_eq!(OPEN_MPI.handle(0x7f00_dead_beef), Handle(0x7f00_dead_beef));
    }

    #[test]
    fn handles_that_are_addresses_are_looked_up_and_a_missing_one_is_named() {
        assert_eq!(MPICH.predefined.find(|_| None).unwrap().byte, Handle(0x4c00_010d));
        assert_eq!(OPEN_MPI.predefined.find(|_| Some(7)).unwrap().byte, Handle(7));
        assert_eq!(OPEN_MPI.predefined.find(|_| None).unwrap_err(), c"ompi_mpi_comm_null");
    }

    #[test]
    fn numbers_of_one_kind_differ_from_each_other() {
        for abi in [&MPICH, &OPEN_MPI, &STANDARD] {
            for kind in ["MPI_ERR_", "MPI_MODE_", "MPI_SEEK_", "MPI_COMBINER_", "MPI_DISTRIBUTE_"] {
                let mut numbers: Vec<_> =
                    abi.numbers.named().into_iter().filter(|(name, _)| name.starts_with(kind)).collect();
                let count = numbers.len();
                numbers.sort_by_key(|(_, number)| *number);
                numbers.dedup_by_key(|(_, number)| *number);
                assert_eq!(numbers.len(), count, "{} of {}", kind, abi.name);
            }
        }
    }
}
