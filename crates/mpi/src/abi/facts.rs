//! What a table says of a family of MPIs.

use std::ffi::{c_int, c_void};

/// A communicator, datatype, info, request, group or operator of MPI, in whatever family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Handle(pub usize);

/// Which MPI it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// MPICH's ABI, as Intel MPI, Cray MPICH and MVAPICH have it too.
    Mpich,
    /// Open MPI 4 and 5.
    OpenMpi,
    /// The ABI that MPI 5.0 defines.
    Standard,
}

/// Declares the numbers of an ABI, and their names in MPI for the test that compares them with `mpi.h`.
macro_rules! numbers {
    ($($field:ident $name:literal;)*) => {
        /// Constants of `mpi.h` that have other values in other families.
        #[derive(Debug, Clone, Copy)]
        pub struct Numbers { $(#[doc = concat!("`", $name, "`")] pub $field: c_int,)* }

        impl Numbers {
            /// All of them, with their names in MPI.
            pub fn named(&self) -> Vec<(&'static str, i64)> {
                vec![$(($name, i64::from(self.$field)),)*]
            }
        }
    };
}

numbers! {
    err_comm "MPI_ERR_COMM";
    err_type "MPI_ERR_TYPE";
    err_count "MPI_ERR_COUNT";
    err_arg "MPI_ERR_ARG";
    err_other "MPI_ERR_OTHER";
    err_intern "MPI_ERR_INTERN";
    err_no_mem "MPI_ERR_NO_MEM";
    err_file "MPI_ERR_FILE";
    err_not_same "MPI_ERR_NOT_SAME";
    err_amode "MPI_ERR_AMODE";
    err_unsupported_datarep "MPI_ERR_UNSUPPORTED_DATAREP";
    err_unsupported_operation "MPI_ERR_UNSUPPORTED_OPERATION";
    err_no_such_file "MPI_ERR_NO_SUCH_FILE";
    err_file_exists "MPI_ERR_FILE_EXISTS";
    err_bad_file "MPI_ERR_BAD_FILE";
    err_access "MPI_ERR_ACCESS";
    err_no_space "MPI_ERR_NO_SPACE";
    err_quota "MPI_ERR_QUOTA";
    err_read_only "MPI_ERR_READ_ONLY";
    err_file_in_use "MPI_ERR_FILE_IN_USE";
    err_conversion "MPI_ERR_CONVERSION";
    err_io "MPI_ERR_IO";
    err_info_value "MPI_ERR_INFO_VALUE";
    mode_rdonly "MPI_MODE_RDONLY";
    mode_rdwr "MPI_MODE_RDWR";
    mode_wronly "MPI_MODE_WRONLY";
    mode_create "MPI_MODE_CREATE";
    mode_excl "MPI_MODE_EXCL";
    mode_delete_on_close "MPI_MODE_DELETE_ON_CLOSE";
    mode_sequential "MPI_MODE_SEQUENTIAL";
    mode_append "MPI_MODE_APPEND";
    seek_set "MPI_SEEK_SET";
    seek_cur "MPI_SEEK_CUR";
    seek_end "MPI_SEEK_END";
    combiner_named "MPI_COMBINER_NAMED";
    combiner_dup "MPI_COMBINER_DUP";
    combiner_contiguous "MPI_COMBINER_CONTIGUOUS";
    combiner_vector "MPI_COMBINER_VECTOR";
    combiner_hvector "MPI_COMBINER_HVECTOR";
    combiner_indexed "MPI_COMBINER_INDEXED";
    combiner_hindexed "MPI_COMBINER_HINDEXED";
    combiner_indexed_block "MPI_COMBINER_INDEXED_BLOCK";
    combiner_hindexed_block "MPI_COMBINER_HINDEXED_BLOCK";
    combiner_struct "MPI_COMBINER_STRUCT";
    combiner_subarray "MPI_COMBINER_SUBARRAY";
    combiner_darray "MPI_COMBINER_DARRAY";
    combiner_f90_real "MPI_COMBINER_F90_REAL";
    combiner_f90_complex "MPI_COMBINER_F90_COMPLEX";
    combiner_f90_integer "MPI_COMBINER_F90_INTEGER";
    combiner_resized "MPI_COMBINER_RESIZED";
    order_fortran "MPI_ORDER_FORTRAN";
    distribute_cyclic "MPI_DISTRIBUTE_CYCLIC";
    distribute_none "MPI_DISTRIBUTE_NONE";
    distribute_dflt_darg "MPI_DISTRIBUTE_DFLT_DARG";
    displacement_current "MPI_DISPLACEMENT_CURRENT";
    max_info_value_bytes "MPI_MAX_INFO_VAL";
    max_error_string_bytes "MPI_MAX_ERROR_STRING";
}

/// Predefined handles: a number, or the symbol whose address it is.
#[derive(Debug, Clone, Copy)]
pub enum Predefined {
    /// The handle itself.
    Number(usize),
    /// The name of the library's variable.
    Symbol(&'static std::ffi::CStr),
}

/// Declares the predefined handles that are used.
macro_rules! predefined {
    ($($field:ident $name:literal;)*) => {
        /// Predefined handles as a table has them.
        #[derive(Debug, Clone, Copy)]
        pub struct Predefineds { $(#[doc = concat!("`", $name, "`")] pub $field: Predefined,)* }

        /// Predefined handles of the MPI of this process.
        #[derive(Debug, Clone, Copy)]
        pub struct Handles { $(#[doc = concat!("`", $name, "`")] pub $field: Handle,)* }

        impl Predefineds {
            /// Finds all of them; the name of the first symbol that is missing otherwise.
            pub fn find(
                &self,
                mut address: impl FnMut(&'static std::ffi::CStr) -> Option<usize>,
            ) -> Result<Handles, &'static std::ffi::CStr> {
                let mut one = |predefined| match predefined {
                    Predefined::Number(number) => Ok(Handle(number)),
                    Predefined::Symbol(name) => address(name).map(Handle).ok_or(name),
                };
                Ok(Handles { $($field: one(self.$field)?,)* })
            }
        }
    };
}

predefined! {
    comm_null "MPI_COMM_NULL";
    comm_self "MPI_COMM_SELF";
    datatype_null "MPI_DATATYPE_NULL";
    byte "MPI_BYTE";
    uint64 "MPI_UINT64_T";
    max "MPI_MAX";
    sum "MPI_SUM";
    info_null "MPI_INFO_NULL";
    file_null "MPI_FILE_NULL";
    errors_return "MPI_ERRORS_RETURN";
}

/// All that is known of a family before its library is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Abi {
    /// Which.
    pub family: Family,
    /// Its name, for people.
    pub name: &'static str,
    /// Bytes of a handle in arrays of handles.
    pub handle_bytes: usize,
    /// Bytes of an `MPI_Status`.
    pub status_bytes: usize,
    /// `MPI_STATUS_IGNORE`.
    pub status_ignore: usize,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    /// Constants.
    pub numbers: Numbers,
    /// Predefined handles.
    pub predefined: Predefineds,
}

impl Abi {
    /// A handle as it came in a register: what is above an `int` is not part of one.
    pub fn handle(&self, register: usize) -> Handle {
        Handle(if self.handle_bytes == 4 { register & 0xffff_ffff } else { register })
    }

    /// `MPI_IN_PLACE`, as the functions take it.
    pub fn in_place(&self) -> *const c_void {
        self.in_place as *const c_void
    }
}
