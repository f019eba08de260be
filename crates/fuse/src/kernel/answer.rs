//! How a reply goes back, whichever way its request came.

use crate::outcome::{Errno, Outcome};
use weft_fuse_wire::Body;

/// A request that is to be replied to, once.
pub(crate) trait Answer: Sized {
    /// Memory for the body of the reply, of `REQUEST_BYTES_MAX` where the request asks for data.
    fn body(&mut self) -> &mut [u8];

    /// Replies with so many bytes of the body, or an error.
    fn send(self, outcome: Outcome<usize>);

    /// Replies with data that is elsewhere.
    fn send_data(self, data: &[u8]);

    /// The thread goes on with other work after the reply: it is not to wait for that.
    fn at_once(&mut self) {}

    /// No reply is expected.
    fn none(self);

    /// A reply without a body, which another thread is to give.
    fn later(self) -> Later;

    /// Replies with what `write` makes of the outcome.
    fn reply<T>(mut self, outcome: Outcome<T>, write: impl FnOnce(&mut Body<'_>, T)) {
        let outcome = outcome.and_then(|value| {
            let mut body = Body::new(self.body());
            write(&mut body, value);
            if body.fits() { Ok(body.length()) } else { Err(Errno(libc::EIO)) }
        });
        self.send(outcome);
    }

    /// Replies without a body.
    fn done(self, outcome: Outcome<()>) {
        self.send(outcome.map(|()| 0));
    }
}

/// A reply that is still to be given. Dropped, it says EIO.
pub(crate) struct Later {
    give: Option<Box<dyn FnOnce(Outcome<()>) + Send>>,
    waits: Option<Box<dyn FnOnce() + Send>>,
}

impl Later {
    pub(super) fn new(give: impl FnOnce(Outcome<()>) + Send + 'static) -> Later {
        Later { give: Some(Box::new(give)), waits: None }
    }

    /// To be done when the reply turns out to be long in coming.
    pub(super) fn when_it_waits(mut self, waits: impl FnOnce() + Send + 'static) -> Later {
        self.waits = Some(Box::new(waits));
        self
    }

    /// The reply is long in coming.
    pub(crate) fn waits(&mut self) {
        if let Some(waits) = self.waits.take() {
            waits();
        }
    }

    /// Replies.
    pub(crate) fn give(mut self, outcome: Outcome<()>) {
        if let Some(give) = self.give.take() {
            give(outcome);
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Some(give) = self.give.take() {
            give(Err(Errno(libc::EIO)));
        }
    }
}
