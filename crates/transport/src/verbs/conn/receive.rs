//! From what arrives to requests, checked on the way.

use std::rc::Rc;
use std::task::{Poll, Waker};

use weft_rdma::{CLOSE_TIMEOUT, Writes};
use weft_reactor::timeout;
use weft_verbs::{Fabric, WorkKind};
use weft_wire::limits::SHARE_BYTES_MAX;
use weft_wire::messages::{LentMemory, RemoteKeys};
use weft_wire::{HEADER_BYTES, Header, Wire, flags};

use super::send::Parts;
use super::state::{Arrived, ArrivedSource, ConnInner, DataAt, Request};
use crate::error::{ConnError, FrameError, RunsError};
use crate::frame_limits::FrameLimits;
use crate::verbs::envelope::{ENVELOPE_BYTES, Envelope, PartKind};
use crate::verbs::keys::Described;
use crate::verbs::sizes::{FAST_DATA_BYTES, FAST_HEAD_BYTES};

/// What a request moves, and what of it is kept until the reply.
type SourceOf<F> = (DataAt<F>, Option<Rc<Request<F>>>);

impl<F: Fabric> ConnInner<F> {
    /// Called by the port, which posts the receive again.
    pub(super) fn take_received(&self, kind: WorkKind, message: &[u8]) {
        if self.refused.borrow().is_some() {
            return;
        }
        let taken = match kind {
            WorkKind::ReceivedImmediate(number) => self.take_fast(number),
            WorkKind::ReceivedInvalidate(key) => self.take_back(key, message),
            _ => self.take_part(message),
        };
        if let Err(error) = taken {
            *self.refused.borrow_mut() = Some(error);
            self.receiver.take().into_iter().for_each(Waker::wake);
        }
    }

    fn take_envelope(&self, message: &[u8]) -> Result<PartKind, FrameError> {
        let envelope = Envelope::decode(message).ok_or(FrameError::Parts("it has no envelope"))?;
        let overrun = |_| FrameError::Parts("more was sent than there were credits for");
        self.credits.borrow_mut().received(envelope.credits).map_err(overrun)?;
        if self.credits.borrow().may_send() {
            self.credit_waiter.take().into_iter().for_each(Waker::wake);
        }
        Ok(envelope.kind)
    }

    fn take_part(&self, message: &[u8]) -> Result<(), FrameError> {
        let kind = self.take_envelope(message)?;
        if kind == PartKind::Credits {
            self.dealt_with.set(self.dealt_with.get() + 1);
            return Ok(());
        }
        let limits = FrameLimits::verbs_server(self.proven.get());
        let mut assembler = self.assembler.borrow_mut();
        let step = assembler.part(kind, &message[ENVELOPE_BYTES..], &limits)?;
        let mut payload = self.payload.borrow_mut();
        payload.extend_from_slice(step.payload);
        match step.whole {
            None => self.dealt_with.set(self.dealt_with.get() + 1),
            Some(body) => {
                let source = ArrivedSource::Payload(std::mem::take(&mut *payload));
                self.arrive(Arrived { header: step.header, body, source });
            }
        }
        Ok(())
    }

    /// The client has ended a key.
    fn take_back(&self, key: u32, message: &[u8]) -> Result<(), FrameError> {
        let kind = self.take_envelope(message)?;
        if kind != PartKind::GiveBack || !self.lending.as_ref().is_some_and(|lending| lending.give_back(key))
        {
            return Err(FrameError::Parts("it gave back memory that is not lent to it"));
        }
        self.dealt_with.set(self.dealt_with.get() + 1);
        Ok(())
    }

    /// A request and its data were written into a Fast buffer. What is in it may change at any time: what is
    /// looked at is copied first.
    fn take_fast(&self, number: u32) -> Result<(), FrameError> {
        let wrong = FrameError::Parts("it names no Fast buffer that is free");
        let Some(fast) = &self.fast else { return Err(wrong) };
        let at = number as usize;
        if fast.used.borrow().get(at).copied().unwrap_or(true) {
            return Err(wrong);
        }
        let mut head = vec![0; FAST_HEAD_BYTES];
        // SAFETY: within the buffer; the client may write it meanwhile, and no reference to it is made.
        unsafe { std::ptr::copy_nonoverlapping(fast.slots.base(at).as_ptr(), head.as_mut_ptr(), head.len()) };
        // Only an envelope of credits alone has a length of its own.
        let kind = self.take_envelope(&head)?;
        if kind != PartKind::First {
            return Err(FrameError::Parts("a Fast RDMA Write holds no whole request"));
        }
        let first = head[ENVELOPE_BYTES..].first_chunk().expect("a head is larger than a header");
        let header = Header::decode(first)?;
        FrameLimits::verbs_server(self.proven.get()).check(&header)?;
        let data_at = ENVELOPE_BYTES + HEADER_BYTES + header.body_bytes as usize;
        let remote = header.flags & flags::REMOTE_MEMORY != 0;
        if data_at > FAST_HEAD_BYTES || header.payload_bytes > FAST_DATA_BYTES as u64 || remote {
            return Err(FrameError::Misplaced {
                what: "what it announces fits no Fast buffer",
                header: Box::new(header),
            });
        }
        fast.used.borrow_mut()[at] = true;
        let body = head[ENVELOPE_BYTES + HEADER_BYTES..data_at].to_vec();
        self.arrive(Arrived { header, body, source: ArrivedSource::Fast(number as u16, data_at) });
        Ok(())
    }

    fn arrive(&self, arrived: Arrived) {
        self.arrived.borrow_mut().push_back(arrived);
        self.receiver.take().into_iter().for_each(Waker::wake);
    }

    /// The receives of parts that need no more are posted again: the peer may use them.
    pub(super) fn grant_credits(&self) {
        let mut credits = self.credits.borrow_mut();
        (0..self.dealt_with.replace(0)).for_each(|_| credits.dealt_with());
        let window = self.channel.adjust_window(credits.in_use());
        credits.set_window(window);
        drop(credits);
        self.send_credits();
    }

    /// Sends credits alone if they are to be granted now; later if there is no slot for them.
    pub(super) fn send_credits(&self) {
        if self.channel.is_over() || !self.credits.borrow().wants_to_tell() {
            return;
        }
        let (slot, room) = (self.port().try_message_slot(), self.channel.try_room(1));
        let (Some(mut slot), Some(room)) = (slot, room) else {
            return self.port().try_later(self.channel.queue_pair());
        };
        let bytes = self.fill(&mut slot, PartKind::Credits, &[], &mut Parts::default());
        let _ = self.channel.send(room, Writes::default(), slot, bytes, None);
    }

    /// The next request, or why there is none.
    async fn next(&self) -> Result<Arrived, FrameError> {
        std::future::poll_fn(|cx| {
            if let Some(arrived) = self.arrived.borrow_mut().pop_front() {
                return Poll::Ready(Ok(arrived));
            }
            if let Some(error) = self.refused.take() {
                return Poll::Ready(Err(error));
            }
            if self.channel.is_over() {
                return Poll::Ready(Err(FrameError::Closed));
            }
            *self.receiver.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// What a request moves.
    fn source(&self, header: &Header, arrived: ArrivedSource) -> Result<SourceOf<F>, FrameError> {
        let misplaced = |what| FrameError::Misplaced { what, header: Box::new(*header) };
        let payload = match arrived {
            ArrivedSource::Fast(number, data_at) => {
                let fast = self.fast.clone().ok_or(FrameError::Parts("there are no Fast buffers"))?;
                let source = DataAt::Fast { fast, number: number.into(), data_at };
                return Ok((source, Some(Request::new(Some(number), None))));
            }
            ArrivedSource::Payload(payload) => payload,
        };
        if header.flags & flags::REMOTE_MEMORY == 0 {
            let source = if payload.is_empty() { DataAt::Nothing } else { DataAt::Inline(Rc::new(payload)) };
            return Ok((source, None));
        }
        if header.flags & flags::LENT_MEMORY != 0 {
            let told = LentMemory::from_bytes(&payload)
                .map_err(|_| misplaced("what it says of data that it moves itself cannot be read"))?;
            if self.lending.is_none() || told.bytes > SHARE_BYTES_MAX {
                return Err(misplaced("it asks for memory to be lent where none is, or for too much"));
            }
            return Ok((DataAt::Lent { told }, None));
        }
        let told = RemoteKeys::from_bytes(&payload)
            .map_err(|_| misplaced("its description of memory cannot be read"))?;
        let described = Described::accept(told).map_err(|error| match error {
            RunsError::OutsideSegment(_) => misplaced("a piece of memory lies outside of its key"),
            RunsError::UnknownSegment(_) => misplaced("a piece of memory has no key"),
            _ => misplaced("the memory that it describes is too much, or wraps around"),
        })?;
        let described = Rc::new(described);
        let request = Request::new(None, Some(described.clone()));
        Ok((DataAt::Remote { described, request: request.clone() }, Some(request)))
    }

    pub(super) async fn recv(&self) -> Result<(Header, Vec<u8>, DataAt<F>), ConnError> {
        match self.next().await {
            Ok(Arrived { header, body, source }) => {
                self.credits.borrow_mut().dealt_with();
                self.grant_credits();
                match self.begin(&header, source) {
                    Ok(source) => Ok((header, body, source)),
                    Err(error) => Err(self.refuse(error).await),
                }
            }
            Err(FrameError::Closed) => Err(self.error()),
            Err(error) => Err(self.refuse(error).await),
        }
    }

    fn begin(&self, header: &Header, source: ArrivedSource) -> Result<DataAt<F>, FrameError> {
        let (source, request) = self.source(header, source)?;
        if let Some(mechanism) = source.mechanism() {
            self.port_state.transfers.add(mechanism);
        }
        if let Some(request) = request {
            let mut requests = self.requests.borrow_mut();
            if requests.contains_key(&header.request_id) {
                let what = "its number is in use by a request under way";
                return Err(FrameError::Misplaced { what, header: Box::new(*header) });
            }
            requests.insert(header.request_id, request);
        }
        Ok(source)
    }

    /// Tells a peer whose message cannot be taken why, where it can be told, and ends the connection.
    async fn refuse(&self, error: FrameError) -> ConnError {
        if let Some((header, detail)) = error.refusal() {
            let told = async {
                self.send_message(header, &detail, &[], Vec::new(), None).await?;
                self.channel.work_ended(self.channel.posted()).await;
                Ok::<(), ConnError>(())
            };
            let _ = timeout(CLOSE_TIMEOUT, told).await;
        }
        self.fail(error.to_string());
        ConnError::Stream { peer: self.peer_text(), source: error }
    }
}
