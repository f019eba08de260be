//! How a connection is made: Weft as a protocol over a port.

use std::cell::RefCell;
use std::rc::Rc;

use weft_rdma::{Channel, Connection, Port, Protocol, Refusal, Slots};
use weft_verbs::{Access, Fabric, WorkKind};
use weft_wire::{VERSIONS, negotiate};

use super::lend::Lending;
use super::state::{ConnInner, Fast};
use crate::verbs::credits::Credits;
use crate::verbs::envelope::{Accepting, FastBuffers, MESSAGE_BYTES, Rejection};
use crate::verbs::lend::{LENT_MAX, LENT_READS};
use crate::verbs::options::{PortState, VerbsServerOptions};
use crate::verbs::peers::VerbsAsked;
use crate::verbs::sizes::FAST_BYTES;

/// Weft's messages over RDMA, on a server.
#[derive(Clone, Copy)]
pub(in crate::verbs) struct Weft {
    pub options: VerbsServerOptions,
}

impl<F: Fabric> Protocol<F> for Weft {
    type Asked = VerbsAsked;
    type Connection = ConnInner<F>;

    fn reads_in(&self) -> u8 {
        LENT_READS
    }

    fn accept(&self, channel: Channel<F>, asked: VerbsAsked) -> (Rc<ConnInner<F>>, Vec<u8>) {
        let VerbsAsked { asking, key } = asked;
        let port_state: Rc<PortState> = channel.port().state();
        let credits = Credits::new(asking.receives, channel.window());
        let fast = self.fast_buffers(channel.port(), &port_state);
        let lending = if self.options.lends { Lending::new(channel.port().device()) } else { None };
        let accepting = Accepting {
            version: negotiate(VERSIONS, asking.versions).unwrap_or(VERSIONS.1),
            lent_max: lending.as_ref().map_or(0, |_| LENT_MAX as u8),
            receives: channel.window() as u16,
            message_bytes: MESSAGE_BYTES as u32,
            fast: fast.as_ref().map_or_else(FastBuffers::default, |fast| FastBuffers {
                count: fast.slots.count() as u16,
                bytes: FAST_BYTES as u32,
                remote_key: fast.slots.remote_key(),
                address: fast.slots.base(0).as_ptr() as u64,
            }),
        };
        let inner = ConnInner::new(channel, port_state, credits, fast, lending);
        (inner, accepting.encode(&key, &asking.nonce))
    }

    fn refuse(&self, why: Refusal) -> Vec<u8> {
        match why {
            Refusal::Full => Rejection::Busy,
            Refusal::Failed => Rejection::Internal,
        }
        .encode()
    }
}

impl Weft {
    fn fast_buffers<F: Fabric>(&self, port: &Port<F>, state: &PortState) -> Option<Rc<Fast<F::Device>>> {
        let count = state.take_fast(&self.options);
        if count == 0 {
            return None;
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        match Slots::new(port.device(), FAST_BYTES, count.into(), access) {
            Ok(slots) => Some(Rc::new(Fast { slots, used: RefCell::new(vec![false; count.into()]) })),
            // Without them small writes are slower, and nothing else.
            Err(_) => {
                state.give_fast(count.into());
                None
            }
        }
    }
}

impl<F: Fabric> Connection<F> for ConnInner<F> {
    fn channel(&self) -> &Channel<F> {
        &self.channel
    }

    fn received(&self, kind: WorkKind, message: &[u8]) {
        self.take_received(kind, message);
    }

    fn receives_posted(&self) {
        self.grant_credits();
    }

    fn try_again(&self) {
        self.send_credits();
    }

    fn failed(&self) {
        let wakers = [self.receiver.take(), self.credit_waiter.take()];
        wakers.into_iter().flatten().for_each(std::task::Waker::wake);
    }

    fn ending(&self) {
        self.end_windows();
    }
}
