//! System calls on stream sockets: everything here is non-blocking unless it says otherwise.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weft_wire::limits::GROUPS_MAX;

use crate::framing::Source;

/// Of asm-generic/socket.h; the libc crate does not have it.
const SO_PEERGROUPS: i32 = 59;
/// Room for the control message that carries descriptors.
const CONTROL_BYTES: usize = 64;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Turns the -1 of a system call into its error.
pub(crate) fn checked(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// The result of a system call that makes a descriptor.
///
/// # Safety
/// `fd` is that result, and nobody else owns the descriptor.
pub(crate) unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    checked(fd as isize)?;
    // SAFETY: it is not -1, so a new descriptor, as the caller promises.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads a TCP or Unix socket.
pub(crate) struct SocketSource<'a> {
    pub fd: BorrowedFd<'a>,
    /// A Unix socket, over which descriptors may come.
    pub unix: bool,
    /// Set when a read got nothing, or less than it had room for: the stream is empty, and reads are not tried until it was
    /// waited for.
    pub drained: bool,
}

impl Source for SocketSource<'_> {
    unsafe fn read(
        &mut self,
        pieces: &mut [libc::iovec],
        passed: &mut VecDeque<OwnedFd>,
    ) -> io::Result<usize> {
        if self.drained {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let mut control = Control([0; CONTROL_BYTES]);
        // SAFETY: msghdr is plain data; all zeros is its empty state.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        if self.unix {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = CONTROL_BYTES as _;
        }
        // SAFETY: the pieces are writable, as the caller promises; the control buffer is live and of the length given.
        let read =
            checked(unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) })
                .inspect_err(|error| self.drained = error.kind() == io::ErrorKind::WouldBlock)?;
        let with_descriptors = self.unix && message.msg_controllen > 0;
        if with_descriptors {
            // SAFETY: the kernel has just filled this message.
            unsafe { collect_descriptors(&message, passed) };
        }
        // The kernel ends a read behind descriptors though there may be more.
        self.drained = read < room && !with_descriptors;
        Ok(read)
    }
}

/// # Safety
/// `message` was filled by `recvmsg`.
unsafe fn collect_descriptors(message: &libc::msghdr, passed: &mut VecDeque<OwnedFd>) {
    // SAFETY: the CMSG functions walk the control buffer that the kernel has filled; the descriptors in it are new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = (control.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(control).cast::<RawFd>();
                for at in 0..count {
                    passed.push_back(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, control);
        }
    }
}

/// Sends what the pieces hold, with a descriptor if one is given.
///
/// # Safety
/// The pieces are readable memory. (What other threads of a careless caller change meanwhile is sent in some state.)
pub(crate) unsafe fn send(
    fd: BorrowedFd<'_>,
    pieces: &[libc::iovec],
    descriptor: Option<BorrowedFd<'_>>,
    more: bool,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: msghdr is plain data; all zeros is its empty state.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    if let Some(descriptor) = descriptor {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the control buffer is aligned and large enough for one descriptor.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor.as_raw_fd());
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the pieces are readable, as the caller promises.
    checked(unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) })
}

/// Ends both directions; the descriptor stays.
pub(crate) fn shut_down(fd: BorrowedFd<'_>, how: i32) {
    // SAFETY: no memory is passed; on a socket that is not connected any more it fails without effect.
    unsafe { libc::shutdown(fd.as_raw_fd(), how) };
}

/// Waits until one of `events` is there, at most until `deadline`. Says whether it is.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, events: i16, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let left_ms = left.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as i32;
        // SAFETY: one live entry.
        match checked(unsafe { libc::poll(&mut entry, 1, left_ms) } as isize) {
            Ok(count) => return Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn set_option<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: the option's value is a live `T` of the length given.
    let result = unsafe {
        let value: *const T = value;
        libc::setsockopt(fd.as_raw_fd(), level, name, value.cast(), size_of::<T>() as u32)
    };
    checked(result as isize).map(drop)
}

/// An option whose value is plain data.
///
/// # Safety
/// Any bytes are a valid `T`.
unsafe fn get_option<T>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<(T, usize)> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` into `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut bytes) };
    checked(result as isize)?;
    // SAFETY: zeroed and then partly written; any bytes are valid, as the caller promises.
    Ok((unsafe { value.assume_init() }, bytes as usize))
}

/// The process at the other end of a Unix socket, as the kernel noted it when the connection was made.
pub(crate) fn peer_credentials(fd: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    // SAFETY: three integers.
    Ok(unsafe { get_option::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED) }?.0)
}

/// Its groups, the primary one first, as many as a request may have.
pub(crate) fn peer_groups(fd: BorrowedFd<'_>, credentials: &libc::ucred) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let bytes = loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` to the live buffer, and to `bytes` how many there are.
        let result = unsafe {
            let list = groups.as_mut_ptr().cast();
            libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PEERGROUPS, list, &mut bytes)
        };
        match checked(result as isize) {
            Ok(_) => break bytes as usize,
            Err(error) if error.raw_os_error() == Some(libc::ERANGE) && bytes as usize > 4 * groups.len() => {
                groups.resize(bytes as usize / 4, 0);
            }
            Err(error) => return Err(error),
        }
    };
    groups.truncate(bytes / size_of::<u32>());
    groups.retain(|group| *group != credentials.gid);
    groups.insert(0, credentials.gid);
    groups.truncate(GROUPS_MAX);
    Ok(groups)
}

/// The congestion control in effect.
pub(crate) fn congestion(fd: BorrowedFd<'_>) -> io::Result<String> {
    // SAFETY: bytes.
    let (name, bytes) = unsafe { get_option::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION) }?;
    let name = &name[..bytes];
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// Asks for a congestion control.
pub(crate) fn set_congestion(fd: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut value = [0u8; 16];
    let bytes = name.as_bytes();
    if bytes.len() >= value.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    value[..bytes.len()].copy_from_slice(bytes);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, &value)
}

/// A new stream socket, non-blocking and not inherited.
pub(crate) fn stream_socket(family: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed, and the result is new.
    unsafe { owned(libc::socket(family, kind, 0)) }
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no memory is passed.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) as isize)?;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags as i32 | libc::O_NONBLOCK) as isize)?;
    }
    Ok(())
}

/// A socket address as the kernel takes it. `keep` is held open while a long path is reached through it.
pub(crate) struct Address {
    storage: libc::sockaddr_storage,
    bytes: libc::socklen_t,
    _keep: Option<OwnedFd>,
}

impl Address {
    fn of<T>(value: T, bytes: usize, keep: Option<OwnedFd>) -> Address {
        const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
        // SAFETY: plain data; all zeros is valid.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: the storage is larger than and at least as aligned as any socket address.
        unsafe { std::ptr::from_mut(&mut storage).cast::<T>().write(value) };
        Address { storage, bytes: bytes as libc::socklen_t, _keep: keep }
    }

    /// Of a TCP address.
    pub(crate) fn internet(address: SocketAddr) -> Address {
        let (storage, bytes) = weft_host::raw_address(address);
        Address { storage, bytes, _keep: None }
    }

    /// Of a Unix socket's path. One that does not fit an address is reached through its directory's descriptor.
    pub(crate) fn unix(path: &Path) -> io::Result<Address> {
        // SAFETY: plain data.
        let mut raw: libc::sockaddr_un = unsafe { zeroed() };
        raw.sun_family = libc::AF_UNIX as _;
        let room = raw.sun_path.len() - 1;
        let (short, keep) = if path.as_os_str().len() <= room {
            (path.as_os_str().as_bytes().to_vec(), None)
        } else {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let parent = CString::new(path.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes())?;
            // SAFETY: a live string; the result is new.
            let directory = unsafe {
                owned(libc::open(parent.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC))
            }?;
            let mut short = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
            short.extend_from_slice(name.as_bytes());
            (short, Some(directory))
        };
        if short.len() > room || short.contains(&0) {
            let text = format!(
                "the file name of a socket may have {room} bytes less its directory: {}",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for (to, from) in raw.sun_path.iter_mut().zip(&short) {
            *to = *from as libc::c_char;
        }
        Ok(Address::of(raw, size_of::<libc::sa_family_t>() + short.len() + 1, keep))
    }

    pub(crate) fn bind(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let address = std::ptr::from_ref(&self.storage).cast();
        // SAFETY: a live address of the length given.
        checked(unsafe { libc::bind(fd.as_raw_fd(), address, self.bytes) } as isize).map(drop)
    }

    /// Connects, and waits for it until `deadline`.
    pub(crate) fn connect(&self, fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
        loop {
            let address = std::ptr::from_ref(&self.storage).cast();
            // SAFETY: a live address of the length given.
            let result = checked(unsafe { libc::connect(fd.as_raw_fd(), address, self.bytes) } as isize);
            match result {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A Unix socket whose queue of waiting connections is full.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Err(error),
            }
        }
        if !wait_for(fd, libc::POLLOUT, deadline)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: an integer.
        match unsafe { get_option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR) }?.0 {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Whether the two ends of a TCP connection are on one host.
pub(crate) fn is_local(fd: BorrowedFd<'_>) -> bool {
    let stream = match fd.as_fd().try_clone_to_owned() {
        Ok(fd) => std::net::TcpStream::from(fd),
        Err(_) => return false,
    };
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip() || loopback(peer.ip()),
        _ => false,
    }
}

fn loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}
