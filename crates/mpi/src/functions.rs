//! The functions of the program's MPI that are called, by their profiling names: calls of this library are no
//! calls of the program, and tools that watch the program's need not see them.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::abi::Handle;

/// A callback for an attribute that is copied.
pub type CopyAttribute =
    unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// A callback for an attribute that is removed.
pub type DeleteAttribute = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;
/// A generalized request's callback that fills in a status.
pub type QueryRequest = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// … that frees its state.
pub type FreeRequest = unsafe extern "C" fn(*mut c_void) -> c_int;
/// … that cancels it.
pub type CancelRequest = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
/// … of MPICH, that moves it on.
pub type PollRequest = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// … of MPICH, that waits for some.
pub type WaitRequests = unsafe extern "C" fn(c_int, *mut *mut c_void, f64, *mut c_void) -> c_int;

/// Declares the functions; those behind `optional` may be missing.
macro_rules! functions {
    (
        $($field:ident $name:literal ($($kind:ty),*);)*
        ; optional $($maybe:ident $maybe_name:literal ($($maybe_kind:ty),*);)*
    ) => {
        /// Functions of the MPI of this process. Each returns an error code.
        pub struct Functions {
            $(#[doc = concat!("`", $name, "`")] pub $field: unsafe extern "C" fn($($kind),*) -> c_int,)*
            $(#[doc = concat!("`", $maybe_name, "`")]
                pub $maybe: Option<unsafe extern "C" fn($($maybe_kind),*) -> c_int>,)*
        }

        impl Functions {
            /// Finds all of them by `address`; the name of the first one that is missing otherwise.
            ///
            /// # Safety
            /// What `address` returns is the function of that name of an MPI.
            pub unsafe fn find(
                mut address: impl FnMut(&CStr) -> Option<usize>,
            ) -> Result<Functions, &'static str> {
                let mut of = |name: &'static str| {
                    address(CStr::from_bytes_with_nul(name.as_bytes()).expect("it ends with a zero"))
                };
                Ok(Functions {
                    $($field: {
                        let address = of(concat!($name, "\0")).ok_or($name)?;
                        // SAFETY: the caller's promise; the parameters are those of the MPI standard.
                        unsafe {
                            std::mem::transmute::<usize, unsafe extern "C" fn($($kind),*) -> c_int>(address)
                        }
                    },)*
                    $($maybe: of(concat!($maybe_name, "\0")).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<usize, unsafe extern "C" fn($($maybe_kind),*) -> c_int>(
                                address,
                            )
                        }
                    }),)*
                })
            }
        }
    };
}

functions! {
    finalized "PMPI_Finalized" (*mut c_int);

    comm_rank "PMPI_Comm_rank" (Handle, *mut c_int);
    comm_size "PMPI_Comm_size" (Handle, *mut c_int);
    comm_idup "PMPI_Comm_idup" (Handle, *mut Handle, *mut Handle);
    comm_free "PMPI_Comm_free" (*mut Handle);
    comm_test_inter "PMPI_Comm_test_inter" (Handle, *mut c_int);
    comm_group "PMPI_Comm_group" (Handle, *mut Handle);
    comm_create_keyval "PMPI_Comm_create_keyval"
        (CopyAttribute, DeleteAttribute, *mut c_int, *mut c_void);
    comm_set_attr "PMPI_Comm_set_attr" (Handle, c_int, *mut c_void);
    comm_get_attr "PMPI_Comm_get_attr" (Handle, c_int, *mut *mut c_void, *mut c_int);
    comm_split "PMPI_Comm_split" (Handle, c_int, c_int, *mut Handle);
    comm_set_errhandler "PMPI_Comm_set_errhandler" (Handle, Handle);

    ibarrier "PMPI_Ibarrier" (Handle, *mut Handle);
    ibcast "PMPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    iallreduce "PMPI_Iallreduce"
        (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    iallgather "PMPI_Iallgather"
        (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    iallgatherv "PMPI_Iallgatherv"
        (*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle, *mut Handle);
    iexscan "PMPI_Iexscan" (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    isend "PMPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv "PMPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    iprobe "PMPI_Iprobe" (c_int, c_int, Handle, *mut c_int, *mut c_void);
    test "PMPI_Test" (*mut Handle, *mut c_int, *mut c_void);
    get_count "PMPI_Get_count" (*const c_void, Handle, *mut c_int);

    type_size "PMPI_Type_size_x" (Handle, *mut i64);
    type_get_extent "PMPI_Type_get_extent_x" (Handle, *mut i64, *mut i64);
    type_get_envelope "PMPI_Type_get_envelope" (Handle, *mut c_int, *mut c_int, *mut c_int, *mut c_int);
    type_get_contents "PMPI_Type_get_contents"
        (Handle, c_int, c_int, c_int, *mut c_int, *mut isize, *mut c_void);
    type_dup "PMPI_Type_dup" (Handle, *mut Handle);
    type_free "PMPI_Type_free" (*mut Handle);
    type_create_keyval "PMPI_Type_create_keyval"
        (CopyAttribute, DeleteAttribute, *mut c_int, *mut c_void);
    type_set_attr "PMPI_Type_set_attr" (Handle, c_int, *mut c_void);
    type_get_attr "PMPI_Type_get_attr" (Handle, c_int, *mut *mut c_void, *mut c_int);
    pack "PMPI_Pack" (*const c_void, c_int, Handle, *mut c_void, c_int, *mut c_int, Handle);
    pack_external "PMPI_Pack_external"
        (*const c_char, *const c_void, c_int, Handle, *mut c_void, isize, *mut isize);
    unpack_external "PMPI_Unpack_external"
        (*const c_char, *const c_void, isize, *mut isize, *mut c_void, c_int, Handle);

    status_set_elements "PMPI_Status_set_elements_x" (*mut c_void, Handle, i64);
    status_set_cancelled "PMPI_Status_set_cancelled" (*mut c_void, c_int);
    grequest_start "PMPI_Grequest_start"
        (QueryRequest, FreeRequest, CancelRequest, *mut c_void, *mut Handle);
    grequest_complete "PMPI_Grequest_complete" (Handle);

    add_error_code "PMPI_Add_error_code" (c_int, *mut c_int);
    add_error_string "PMPI_Add_error_string" (c_int, *const c_char);
    errhandler_free "PMPI_Errhandler_free" (*mut Handle);
    file_call_errhandler "PMPI_File_call_errhandler" (usize, c_int);
    file_get_errhandler "PMPI_File_get_errhandler" (usize, *mut Handle);
    file_set_errhandler "PMPI_File_set_errhandler" (usize, Handle);

    info_create "PMPI_Info_create" (*mut Handle);
    info_set "PMPI_Info_set" (Handle, *const c_char, *const c_char);
    info_get "PMPI_Info_get" (Handle, *const c_char, c_int, *mut c_char, *mut c_int);

    file_open "PMPI_File_open" (Handle, *const c_char, c_int, Handle, *mut usize);
    file_close "PMPI_File_close" (*mut usize);

    ; optional
    type_get_envelope_c "PMPI_Type_get_envelope_c"
        (Handle, *mut i64, *mut i64, *mut i64, *mut i64, *mut c_int);
    type_get_contents_c "PMPI_Type_get_contents_c"
        (Handle, i64, i64, i64, i64, *mut c_int, *mut isize, *mut i64, *mut c_void);
    pollable_grequest_start "MPIX_Grequest_start"
        (QueryRequest, FreeRequest, CancelRequest, PollRequest, WaitRequests, *mut c_void, *mut Handle);
}
