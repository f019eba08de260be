//! Loads libibverbs and librdmacm when they are first used, and destroys their objects in the right order.

use super::bindings::*;
use libc::{c_char, c_int, c_uint, c_void};
use std::ffi::{CStr, CString};
use std::io;
use std::ptr::NonNull;

macro_rules! library {
    ($($file:ident { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// The functions of both libraries, which stay loaded as long as the process lives.
        pub struct Library {
            /// The process that loaded them; a forked child is another.
            process: u32,
            ibv_is_fork_initialized: Option<unsafe extern "C" fn() -> c_uint>,
            $($(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Library {
            /// Loads them.
            ///
            /// # Errors
            /// What is missing, and how to get it.
            pub fn load() -> Result<Library, String> {
                $(let $file = SharedObject::open(concat!(stringify!($file), ".so.1"))?;)*
                Ok(Library {
                    process: std::process::id(),
                    ibv_is_fork_initialized: fork_question()?,
                    $($(
                        // SAFETY: this is the type of this function in version 1 of the library's interface.
                        $name: unsafe { $file.function(stringify!($name))? },
                    )*)*
                })
            }
        }
    };
}

library! {
    libibverbs {
        ibv_fork_init() -> c_int;
        ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list(*mut *mut ibv_device);
        ibv_get_device_name(*mut ibv_device) -> *const c_char;
        ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ibv_async_event);
        ibv_event_type_str(c_uint) -> *const c_char;
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ibv_cq, c_uint);
        ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq(*mut ibv_srq) -> c_int;
    }
    librdmacm {
        rdma_create_event_channel() -> *mut rdma_event_channel;
        rdma_destroy_event_channel(*mut rdma_event_channel);
        rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp(*mut rdma_cm_id);
        rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut rdma_cm_id) -> c_int;
        rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        rdma_event_str(c_uint) -> *const c_char;
    }
}

impl Library {
    /// Whether this process is a child of the one that loaded the libraries, with its memory but not with its
    /// adapters.
    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Keeps registered memory with this process when it forks. Kernels since 5.12 do this themselves. For
    /// older ones the library hides registered pages from children.
    pub fn make_fork_safe(&self) {
        // SAFETY: both have no arguments. The second fails if the application has registered memory before
        // without it: that was its decision for the process.
        unsafe {
            if self.ibv_is_fork_initialized.is_none_or(|asks| asks() != IBV_FORK_UNNEEDED) {
                (self.ibv_fork_init)();
            }
        }
    }

    /// A text of the libraries.
    ///
    /// # Safety
    /// `text` is null, or ends with a zero and is never freed.
    pub unsafe fn text(&self, text: *const c_char) -> String {
        if text.is_null() {
            return "unknown".to_string();
        }
        // SAFETY: as the caller promises.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A library that is loaded.
struct SharedObject {
    file: &'static str,
    handle: NonNull<c_void>,
}

impl SharedObject {
    fn open(file: &'static str) -> Result<SharedObject, String> {
        let name = CString::new(file).map_err(|error| error.to_string())?;
        // SAFETY: the initialisers of rdma-core's libraries have no preconditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let package = if file.starts_with("librdmacm") { "librdmacm1" } else { "libibverbs1" };
        let handle = NonNull::new(handle)
            .ok_or_else(|| format!("{file} is not installed (Debian: {package}): {}", loading_error()))?;
        Ok(SharedObject { file, handle })
    }

    /// # Safety
    /// `T` is the type of a pointer to this function.
    unsafe fn function<T>(&self, name: &str) -> Result<T, String> {
        const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
        let symbol = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the handle is of a library that stays loaded.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) };
        if address.is_null() {
            return Err(format!("{} is too old: it has no {name}", self.file));
        }
        // SAFETY: a pointer to a function, as the caller promises.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// The loader's text of its last failure.
fn loading_error() -> String {
    // SAFETY: the loader's text stays until this thread calls it again.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_string();
    }
    // SAFETY: as above, and it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// An optional function: libibverbs has it since 2021.
fn fork_question() -> Result<Option<unsafe extern "C" fn() -> c_uint>, String> {
    let library = SharedObject::open("libibverbs.so.1")?;
    // SAFETY: this is its type.
    Ok(unsafe { library.function("ibv_is_fork_initialized").ok() })
}

/// The result of a call: verbs return an errno, the connection manager returns -1 and sets `errno`.
pub fn outcome(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An object of the libraries that is destroyed when this is dropped; not so in a forked child, whose objects
/// are its parent's.
pub struct Owned<T> {
    library: &'static Library,
    pointer: NonNull<T>,
    end: unsafe fn(&Library, *mut T) -> c_int,
    ended: bool,
}

// SAFETY: the libraries can be called from any thread. The users of this type state which calls must not be
// concurrent.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// Takes the result of a call; null means failure.
    ///
    /// # Errors
    /// `errno`, for null.
    ///
    /// # Safety
    /// The pointer is null, or to an object that nobody else destroys and for which `end` may be called once.
    pub unsafe fn take(
        library: &'static Library,
        pointer: *mut T,
        end: unsafe fn(&Library, *mut T) -> c_int,
    ) -> io::Result<Owned<T>> {
        let pointer = NonNull::new(pointer).ok_or_else(io::Error::last_os_error)?;
        Ok(Owned { library, pointer, end, ended: false })
    }

    /// The pointer for calls of the libraries.
    pub fn as_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    /// The library that it belongs to.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Destroys it now. Returns it if that fails.
    pub fn end(mut self) -> Result<(), Owned<T>> {
        if self.try_end() { Ok(()) } else { Err(self) }
    }

    fn try_end(&mut self) -> bool {
        // SAFETY: as promised to `take`; it is not called again once it has destroyed the object.
        self.ended =
            self.ended || self.library.is_forked() || unsafe { (self.end)(self.library, self.as_ptr()) } == 0;
        self.ended
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.try_end();
    }
}

/// Makes a descriptor non-blocking and closes it on exec.
pub fn set_nonblocking(fd: c_int) -> io::Result<()> {
    // SAFETY: flags of a descriptor of this process are read and set.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = SharedObject::open("libweft-is-not-there.so.1").err().expect("it is not there");
        assert!(error.contains("libweft-is-not-there.so.1") && error.contains("not installed"), "{error}");
    }

    #[test]
    fn a_missing_function_is_named() {
        let library = SharedObject::open("libc.so.6").expect("it is there");
        // SAFETY: it is never called.
        let error =
            unsafe { library.function::<unsafe extern "C" fn()>("weft_has_no_such") }.expect_err("none");
        assert!(error.contains("weft_has_no_such"), "{error}");
    }

    #[test]
    fn numbers_of_errors_are_found() {
        assert!(outcome(0).is_ok());
        assert_eq!(outcome(libc::EFAULT).expect_err("a number").raw_os_error(), Some(libc::EFAULT));
    }
}
