//! Names of errors, for reports.

macro_rules! errors {
    ($($name:ident)*) => {
        /// `ENOENT` and so on.
        pub fn errno_name(errno: i32) -> String {
            $(if errno == libc::$name { return stringify!($name).into(); })*
            format!("errno {errno}")
        }
    };
}

errors! {
    E2BIG EACCES EAGAIN EBADF EBUSY EDQUOT EEXIST EFAULT EFBIG EINTR EINVAL EIO EISDIR ELOOP EMFILE EMLINK ENAMETOOLONG
    ENODATA ENODEV ENOENT ENOMEM ENOSPC ENOSYS ENOTCONN ENOTDIR ENOTEMPTY ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPIPE
    ERANGE EROFS ESPIPE ESTALE ETXTBSY EXDEV
}
