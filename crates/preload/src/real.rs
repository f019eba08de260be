//! libc's functions behind the hooks: those of the same name that come after this library.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of libc, looked up when it is first called.
pub(crate) struct Real {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Real {
        Real { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A program that calls it was linked against a libc that has it.
            std::process::abort();
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines hooks: functions with libc's names. `NAME::real` is libc's own function. The body gets the
/// arguments as the program passed them, and is as unsafe as the function is in C. Names after `=` are
/// aliases of the function. With `where fd is open`, the body is for descriptors in Weft only, runs inside,
/// and returns an `Outcome`.
macro_rules! hooks {
    ($(
        fn $name:ident $(= $alias:ident)* ( $($arguments:tt)* ) -> $result:ty
            $(where $fd:ident is $open:ident)? $body:block
    )*) => { $(
        crate::real::hooks! { @hook $name ( $($arguments)* ) $result, [ $($fd $open)? ] $body }
        crate::real::hooks! { @aliases [ $($alias)* ] $name ( $($arguments)* ) $result }
    )* };
    (@aliases [] $name:ident $arguments:tt $result:ty) => {};
    (@aliases [ $first:ident $($rest:ident)* ] $name:ident $arguments:tt $result:ty) => {
        crate::real::hooks! { @alias $first $name $arguments $result }
        crate::real::hooks! { @aliases [ $($rest)* ] $name $arguments $result }
    };
    (@body $name:ident $arguments:tt [] $body:block) => { $body };
    (@body $name:ident ( $($argument:ident),* ) [ $fd:ident $open:ident ] $body:block) => {
        match find($fd) {
            None => $name::real($($argument),*),
            Some($open) => enter(|| $body),
        }
    };
    (@hook $name:ident ( $($argument:ident : $kind:ty),* $(,)? ) $result:ty, $condition:tt $body:block) => {
        #[allow(non_snake_case)]
        pub(crate) mod $name {
            #[allow(unused_imports)]
            use super::*;

            /// libc's function.
            #[allow(dead_code)]
            pub(crate) unsafe fn real($($argument: $kind),*) -> $result {
                static REAL: crate::real::Real = crate::real::Real::new(
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    },
                );
                // SAFETY: the function of this name has this signature.
                let real: unsafe extern "C" fn($($kind),*) -> $result = unsafe { std::mem::transmute(REAL.get()) };
                // SAFETY: as the caller of the hook promises.
                unsafe { real($($argument),*) }
            }
        }

        #[allow(non_snake_case)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the arguments are those of C's function of this name.
            #[allow(unused_unsafe)]
            unsafe { crate::real::hooks!(@body $name ( $($argument),* ) $condition $body) }
        }
    };
    (@alias $alias:ident $name:ident ( $($argument:ident : $kind:ty),* $(,)? ) $result:ty) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $alias($($argument: $kind),*) -> $result {
            // SAFETY: the same function.
            unsafe { $name($($argument),*) }
        }
    };
}
pub(crate) use hooks;
