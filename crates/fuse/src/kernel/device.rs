//! Requests read from `/dev/fuse`, and replies written to it.
//!
//! ```text
//!   memory of a thread    request  […… header, arguments │ data, from a page's beginning …]
//!                         reply    […… header            │ body, from a page's beginning …]
//! ```
//!
//! The data of a write and the body of a read are the long ones; at the beginning of a page the kernel copies them page by page.

use super::answer::{Answer, Later};
use super::dispatch::Dispatcher;
use super::memory::{Memory, REQUEST_BYTES_MAX};
use super::panics::Ended;
use crate::attach::open_device;
use crate::outcome::Outcome;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use weft_fuse_wire::{Header, ReplyHeader, Request, split};

/// `FUSE_DEV_IOC_CLONE`: makes a fresh descriptor of the device another end of a connection.
const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
const PAGE_BYTES: usize = 4096;
/// Least room that the kernel wants for a request.
pub(super) const REQUEST_BYTES_MIN: usize = 8192;
/// Header and arguments of a write.
const BEFORE_DATA_BYTES: usize = Header::BYTES + 40;
const BODY_AT: usize = PAGE_BYTES;

/// One end of the connection.
#[derive(Clone)]
pub(super) struct Device(Arc<File>);

impl Device {
    pub(super) fn new(file: Arc<File>) -> Device {
        Device(file)
    }

    pub(super) fn into_file(self) -> Arc<File> {
        self.0
    }

    /// Another end, so that threads do not wait for each other in the kernel; this one where there is none to be had.
    pub(super) fn cloned(self) -> Device {
        let Ok(fresh) = open_device() else { return self };
        let number = self.0.as_raw_fd() as u32;
        // SAFETY: the kernel reads four bytes, which live through the call.
        match unsafe { libc::ioctl(fresh.as_raw_fd(), CLONE, &raw const number) } {
            0 => Device(Arc::new(fresh)),
            _ => self,
        }
    }

    /// Reads a request; `None`: the connection has ended.
    pub(super) fn receive(&self, memory: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&*self.0).read(memory) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV) => return Ok(None),
                    // ENOENT: whoever asked was killed meanwhile.
                    Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Replies. What nobody waits for any more is not an error.
    pub(super) fn reply(&self, unique: u64, outcome: Result<(), i32>, body: &[u8]) {
        let header = ReplyHeader { unique, errno: outcome.err().unwrap_or(0), body_bytes: body.len() };
        let _ = (&*self.0).write_vectored(&[IoSlice::new(&header.encode()), IoSlice::new(body)]);
    }

    /// Answers for a request whose serving panicked.
    fn finish(&self, unique: u64, ended: Ended) {
        if ended == Ended::Unanswered {
            self.reply(unique, Err(libc::EIO), &[]);
        }
    }

    /// Serves requests until the connection ends, or `goes_on` says no after one. What the kernel forgets may gather for so long after it
    /// has told of some.
    pub(super) fn serve(
        &self,
        dispatcher: &Dispatcher,
        gathering: Option<Duration>,
        goes_on: impl Fn() -> bool,
    ) -> io::Result<()> {
        let long = PAGE_BYTES + REQUEST_BYTES_MAX as usize;
        let mut request = Memory::new(dispatcher.client(), long);
        let mut reply = Memory::new(dispatcher.client(), BODY_AT + REQUEST_BYTES_MAX as usize);
        let request = &mut request[PAGE_BYTES - BEFORE_DATA_BYTES..];
        while let Some(bytes) = self.receive(request)? {
            let Ok(header) = Header::decode(&request[..bytes]) else { continue };
            let (arguments, data) = split(header.opcode, &request[Header::BYTES..bytes]);
            let answer = DeviceAnswer { device: self, unique: header.unique, memory: &mut reply };
            let request = Request::decode(&header, arguments, data);
            self.finish(header.unique, dispatcher.serve(&header, request, answer));
            if !goes_on() {
                return Ok(());
            }
            if let Some(gathering) = gathering.filter(|_| header.is_forget()) {
                std::thread::sleep(gathering);
            }
        }
        Ok(())
    }
}

struct DeviceAnswer<'a> {
    device: &'a Device,
    unique: u64,
    memory: &'a mut [u8],
}

impl Answer for DeviceAnswer<'_> {
    fn body(&mut self) -> &mut [u8] {
        &mut self.memory[BODY_AT..]
    }

    fn send(self, outcome: Outcome<usize>) {
        let errno = outcome.map_or_else(|errno| errno.0, |_| 0);
        let body_bytes = outcome.unwrap_or(0);
        let header = ReplyHeader { unique: self.unique, errno, body_bytes };
        let from = BODY_AT - ReplyHeader::BYTES;
        self.memory[from..BODY_AT].copy_from_slice(&header.encode());
        let _ = (&*self.device.0).write(&self.memory[from..BODY_AT + body_bytes]);
    }

    fn send_data(self, data: &[u8]) {
        self.device.reply(self.unique, Ok(()), data);
    }

    fn none(self) {}

    fn later(self) -> Later {
        let (device, unique) = (self.device.clone(), self.unique);
        Later::new(move |outcome| device.reply(unique, outcome.map_err(|errno| errno.0), &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::panics::guarded;
    use super::*;
    use crate::metrics::Metrics;
    use crate::outcome::Errno;
    use crate::slow::Served;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// A device, and the kernel's end of it.
    fn device() -> (Device, File) {
        let mut ends = [0; 2];
        // SAFETY: two numbers are written, of descriptors that belong to nobody else.
        let ends = unsafe {
            let made = libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr());
            assert_eq!(made, 0);
            ends.map(|end| File::from(OwnedFd::from_raw_fd(end)))
        };
        let [ours, kernel] = ends;
        (Device::new(Arc::new(ours)), kernel)
    }

    fn replies(kernel: &File) -> Vec<(u64, i32)> {
        let mut replies = Vec::new();
        let mut reply = [0; 64];
        while let Ok(bytes) = (&*kernel).read(&mut reply)
            && bytes > 0
        {
            let errno = i32::from_ne_bytes(reply[4..8].try_into().expect("four bytes"));
            replies.push((u64::from_ne_bytes(reply[8..16].try_into().expect("eight bytes")), -errno));
        }
        replies
    }

    type Serve = fn(crate::slow::Noted<'_, DeviceAnswer<'_>>);

    #[test]
    fn a_request_whose_serving_panics_is_answered_with_eio_and_the_next_one_is_served() {
        let (device, kernel) = device();
        let metrics = Metrics::new();
        let cases: [(u64, Serve); 5] = [
            (1, |_| panic!("injected")),
            (2, |answer| answer.done(Ok(()))),
            (3, |answer| {
                answer.done(Err(Errno(libc::ENOENT)));
                panic!("injected after the reply");
            }),
            (4, |answer| {
                let _dropped = answer.later();
                panic!("injected while another thread was to reply");
            }),
            (5, |answer| answer.done(Ok(()))),
        ];
        for (unique, serve) in cases {
            let (served, mut memory) = (Served::begin(true), vec![0; BODY_AT + 100]);
            let answer = DeviceAnswer { device: &device, unique, memory: &mut memory };
            device.finish(unique, guarded("read", &served, Some(&metrics), answer, serve));
            served.count(&metrics, "read");
        }
        drop(device);
        let expected = [(1, libc::EIO), (2, 0), (3, libc::ENOENT), (4, libc::EIO), (5, 0)];
        assert_eq!(replies(&kernel), expected);
        assert_eq!((metrics.panics(), metrics.errors("read")), (3, 2));
    }
}
