//! Getting a FUSE connection attached to a directory: by mount(2) as root, else through the helper `fusermount3`.
//!
//! ```text
//!   root                                    others
//!   open /dev/fuse ──► mount(2) with fd=N    fusermount3 -o … DIR  ── the descriptor, over a socket ──► here
//! ```
//!
//! With `auto_unmount`, a guard (a shell of its own) waits for the end of this process and unmounts what nobody serves.
//! fusermount3 has a guard too, but it misses some ends. A process that is killed may close its socket to the guard before
//! its connection to the kernel. The guard's one request then fails with ECONNABORTED, and it takes only ENOTCONN for an end.
//!
//! [`Attached`] knows its own device number and leaves others' mounts on the same directory alone. A number is given again once a
//! mount has gone; so at the end only a mount that nobody serves is detached.

use crate::options::{MountError, MountOptions};
use crate::umount;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const FUSE_DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// Tells the helper the number of the socket on which it sends the descriptor.
const HELPER_SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Waits until nobody holds the other end of its standard input. Asks the mount for its free space then, which no cache
/// answers; the request waits while the connection is being closed. A mount that answers is somebody else's.
const GUARD_SCRIPT: &str = r#"
cat > /dev/null
case $(LC_ALL=C stat -f -- "$0" 2>&1) in
*"not connected"* | *"connection abort"*) fusermount3 -u -q -z -- "$0" || umount -l -- "$0" ;;
esac
"#;

/// A mount of ours. Dropped when nobody serves it any more, it is detached if the kernel still has it.
pub(crate) struct Attached {
    dir: PathBuf,
    /// `major:minor`, as in mountinfo.
    pub(crate) device: String,
    /// With auto_unmount, a process that unmounts when its standard input ends, as it does with this process.
    _guard: Option<Child>,
}

/// Mounts; the descriptor is the connection to the kernel, on which its first request waits.
pub(crate) fn attach(options: &MountOptions) -> Result<(Attached, OwnedFd), MountError> {
    // Before the mount: where that fails, the guard finds nothing to unmount.
    let guard = options.auto_unmount.then(|| start_guard(&options.dir)).transpose();
    let guard = guard.map_err(|source| refused(options, source))?;
    let connection = match by_system_call(options)? {
        Ok(connection) => connection,
        Err(_) => by_helper(options)?,
    };
    let mounts = weft_host::mounts();
    let mount = mounts.into_iter().rev().find(|mount| mount.dir == options.dir);
    let device = mount.map(|mount| mount.device).unwrap_or_default();
    Ok((Attached { dir: options.dir.clone(), device, _guard: guard }, connection))
}

/// Starts the guard of a mount. A signal to the group of this process does not reach it.
fn start_guard(dir: &Path) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(GUARD_SCRIPT).arg(dir).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only setsid is called, which is allowed there.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    command.spawn().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("the process that unmounts at the end, sh, cannot be run: {error}"),
        )
    })
}

fn refused(options: &MountOptions, source: io::Error) -> MountError {
    MountError::Kernel { dir: options.dir.clone(), source }
}

/// A fresh descriptor, of no connection yet.
pub(crate) fn open_device() -> io::Result<File> {
    File::options().read(true).write(true).open(FUSE_DEVICE)
}

/// The inner error is EPERM: this user may not mount by himself.
fn by_system_call(options: &MountOptions) -> Result<Result<OwnedFd, i32>, MountError> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(Err(libc::EPERM));
    }
    let device = open_device().map_err(|source| refused(options, source))?;
    // SAFETY: neither call has preconditions.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    for word in connection_words(options) {
        data.push(',');
        data.push_str(word);
    }
    let wanted = flags(options).into_iter().filter(|flag| flag.2);
    let flags = wanted.fold(0, |flags, (flag, ..)| flags | flag);
    let source = c_string(options, options.url.to_string().as_bytes())?;
    let dir = c_string(options, options.dir.as_os_str().as_bytes())?;
    let data = c_string(options, data.as_bytes())?;
    // SAFETY: all pointers are to strings that end with a zero and live through the call.
    let mounted = unsafe {
        libc::mount(source.as_ptr(), dir.as_ptr(), c"fuse.weft".as_ptr(), flags, data.as_ptr().cast())
    };
    match (mounted, io::Error::last_os_error()) {
        (0, _) => Ok(Ok(device.into())),
        (_, error) if error.raw_os_error() == Some(libc::EPERM) => Ok(Err(libc::EPERM)),
        (_, error) => Err(refused(options, error)),
    }
}

/// What the connection is told, by whichever way.
fn connection_words(options: &MountOptions) -> impl Iterator<Item = &'static str> {
    let words =
        [(options.identities.kernel_checks(), "default_permissions"), (options.allow_other, "allow_other")];
    words.into_iter().filter(|(wanted, _)| *wanted).map(|(_, word)| word)
}

/// Flags of mount(2), as the helper names them, and whether they are wanted.
fn flags(options: &MountOptions) -> [(libc::c_ulong, &'static str, bool); 4] {
    [
        (libc::MS_RDONLY, "ro", options.read_only),
        (libc::MS_NOSUID, "nosuid", !options.set_id),
        (libc::MS_NODEV, "nodev", !options.devices),
        (libc::MS_NOEXEC, "noexec", options.no_exec),
    ]
}

fn c_string(options: &MountOptions, bytes: &[u8]) -> Result<CString, MountError> {
    let reason = || "a name contains a zero byte".to_string();
    CString::new(bytes).map_err(|_| MountError::MountPoint { dir: options.dir.clone(), reason: reason() })
}

fn by_helper(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |source| refused(options, source);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_options(options)).arg("--").arg(&options.dir);
    command.env(HELPER_SOCKET_VARIABLE, theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let socket = theirs.as_raw_fd();
    // SAFETY: between fork and exec only fcntl is called, which is allowed there; the socket is open until after spawn.
    unsafe {
        command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(|error| {
        let text = format!("{HELPER} cannot be run ({error}); install the package fuse3, or mount as root");
        failed(io::Error::new(error.kind(), text))
    })?;
    drop(theirs);
    if let Some(connection) = receive_descriptor(&ours) {
        let _ = child.wait();
        return Ok(connection);
    }
    let output = child.wait_with_output().map_err(failed)?;
    Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())))
}

/// `a,b=c`, with commas in values escaped.
fn helper_options(options: &MountOptions) -> String {
    let source = options.url.to_string().replace('\\', "\\\\").replace(',', "\\,");
    let flags = flags(options).into_iter().filter(|flag| flag.2).map(|(_, word, _)| word);
    let words: Vec<_> = connection_words(options).chain(flags).collect();
    format!("fsname={source},subtype=weft,{}", words.join(","))
}

/// One byte comes with the descriptor; nothing comes where the helper failed.
fn receive_descriptor(socket: &UnixStream) -> Option<OwnedFd> {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    // SAFETY: all pointers in the message are to places that live through the call and are as long as said; a control
    // message is read only where the kernel says that there is one, and its descriptor then belongs to this process.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        if libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) <= 0 {
            return None;
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let descriptor = libc::CMSG_DATA(header).cast::<i32>().read_unaligned();
        Some(OwnedFd::from_raw_fd(descriptor))
    }
}

impl Attached {
    fn is_there(&self) -> bool {
        let is_ours = |mount: &weft_host::Mount| mount.dir == self.dir && mount.device == self.device;
        weft_host::mounts().iter().any(|mount| mount.is_weft() && is_ours(mount))
    }

    /// Takes the mount away from its users.
    pub(crate) fn detach(&self) {
        if self.is_there() {
            let _ = umount::umount_lazy(&self.dir);
        }
    }

    /// Whether nobody serves the mount. One that was unmounted may have left its place and its device number to another
    /// one, which somebody serves.
    fn is_dead(&self) -> bool {
        let Ok(path) = CString::new(self.dir.as_os_str().as_bytes()) else { return false };
        let mut status = std::mem::MaybeUninit::<libc::statx>::uninit();
        let flags = libc::AT_STATX_FORCE_SYNC | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        // SAFETY: the path is a string that ends with a zero, and the kernel writes no more than a `statx`.
        let outcome = unsafe {
            libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, libc::STATX_BASIC_STATS, status.as_mut_ptr())
        };
        let error = io::Error::last_os_error().raw_os_error();
        outcome != 0 && matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED))
    }

    /// The kernel reads ahead 128 KiB at most unless the backing device of the mount says otherwise; only root may say it.
    pub(crate) fn read_ahead(&self, kib: u32) {
        let setting = Path::new("/sys/class/bdi").join(&self.device).join("read_ahead_kb");
        let _ = std::fs::write(setting, kib.to_string());
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.is_there() && self.is_dead() {
            let _ = umount::umount_lazy(&self.dir);
        }
    }
}
