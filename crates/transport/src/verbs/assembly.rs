//! Messages out of their parts. Pure: what arrives is checked before anything is allocated for it.
//!
//! ```text
//!   part   first:  header │ body …
//!          further:         … body │ payload …
//!          further:                  … payload           every part but the last is as full as the sender likes
//! ```

use weft_wire::{HEADER_BYTES, Header};

use super::envelope::PartKind;
use crate::error::FrameError;
use crate::frame_limits::FrameLimits;

/// A message of which parts are missing.
struct Partial {
    header: Header,
    body: Vec<u8>,
    payload_at: u64,
}

/// Takes the parts of one connection.
#[derive(Default)]
pub(super) struct Assembler {
    partial: Option<Partial>,
}

/// What a part brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<'a> {
    /// Of the message that it belongs to.
    pub header: Header,
    /// Where in the message's payload the bytes below belong.
    pub payload_at: u64,
    /// Payload in this part.
    pub payload: &'a [u8],
    /// The body, once the message is whole.
    pub whole: Option<Vec<u8>>,
}

impl Assembler {
    /// Takes a part of a message, without its envelope.
    pub(super) fn part<'a>(
        &mut self,
        kind: PartKind,
        data: &'a [u8],
        limits: &FrameLimits,
    ) -> Result<Step<'a>, FrameError> {
        let (mut partial, data) = match (kind, self.partial.take()) {
            (PartKind::First, None) => {
                let head = data.first_chunk().ok_or(FrameError::Parts("a header is cut short"))?;
                let header = Header::decode(head)?;
                limits.check(&header)?;
                let body = Vec::with_capacity(header.body_bytes as usize);
                (Partial { header, body, payload_at: 0 }, &data[HEADER_BYTES..])
            }
            (PartKind::Further, Some(partial)) => (partial, data),
            (PartKind::First, Some(_)) => return Err(FrameError::Parts("a message begins within another")),
            _ => return Err(FrameError::Parts("a message goes on that has not begun")),
        };
        let header = partial.header;
        let (body, payload) = data.split_at(data.len().min(header.body_bytes as usize - partial.body.len()));
        let payload_at = partial.payload_at;
        let payload_left = header.payload_bytes - payload_at;
        if payload.len() as u64 > payload_left {
            return Err(FrameError::Parts("a part is longer than its message"));
        }
        partial.body.extend_from_slice(body);
        partial.payload_at += payload.len() as u64;
        let ends =
            partial.body.len() == header.body_bytes as usize && partial.payload_at == header.payload_bytes;
        let whole = if ends {
            Some(partial.body)
        } else {
            if data.is_empty() && kind == PartKind::Further {
                return Err(FrameError::Parts("a part is empty"));
            }
            self.partial = Some(partial);
            None
        };
        Ok(Step { header, payload_at, payload, whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_wire::{Op, Status};

    fn message(body: usize, payload: usize) -> Vec<u8> {
        let mut header = Header::request(Op::Write, 7);
        header.body_bytes = body as u32;
        header.payload_bytes = payload as u64;
        let mut bytes = header.encode().to_vec();
        bytes.extend((0..body + payload).map(|at| at as u8));
        bytes
    }

    fn take(assembler: &mut Assembler, parts: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>), FrameError> {
        let limits = FrameLimits::verbs_server(true);
        let (mut payload, mut body) = (Vec::new(), None);
        for (at, part) in parts.iter().enumerate() {
            let kind = if at == 0 { PartKind::First } else { PartKind::Further };
            let step = assembler.part(kind, part, &limits)?;
            assert_eq!(step.payload_at, payload.len() as u64);
            payload.extend_from_slice(step.payload);
            assert!(body.is_none());
            body = step.whole;
        }
        Ok((body.expect("the message is whole"), payload))
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn any_cut_gives_the_message(
            body in 0usize..3000, payload in 0usize..3000, cuts in proptest::collection::vec(1usize..900, 0..20),
        ) {
            let bytes = message(body, payload);
            let (mut parts, mut rest) = (Vec::new(), &bytes[..]);
            for cut in cuts {
                let cut = if parts.is_empty() { cut + HEADER_BYTES } else { cut };
                if cut >= rest.len() {
                    break;
                }
                let (part, left) = rest.split_at(cut);
                parts.push(part);
                rest = left;
            }
            parts.push(rest);
            let mut assembler = Assembler::default();
            for _ in 0..2 {
                let (taken, data) = take(&mut assembler, &parts).unwrap();
                prop_assert_eq!(&taken[..], &bytes[HEADER_BYTES..HEADER_BYTES + body]);
                prop_assert_eq!(&data[..], &bytes[HEADER_BYTES + body..]);
            }
        }

        #[test]
        fn noise_is_refused(parts in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..5)) {
            let mut assembler = Assembler::default();
            for (first, part) in &parts {
                let kind = if *first { PartKind::First } else { PartKind::Further };
                prop_assert!(assembler.part(kind, part, &FrameLimits::verbs_server(true)).is_err());
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let bytes = message(10, 10);
        let limits = FrameLimits::verbs_server(true);
        let first = |assembler: &mut Assembler, data: &[u8]| {
            assembler.part(PartKind::First, data, &limits).map(|step| step.whole.is_some())
        };
        assert!(first(&mut Assembler::default(), &[&bytes[..], &[0]].concat()).is_err());
        let mut assembler = Assembler::default();
        assert!(!first(&mut assembler, &bytes[..70]).unwrap());
        assert!(first(&mut assembler, &bytes).is_err());
        let mut assembler = Assembler::default();
        assert!(assembler.part(PartKind::Further, &bytes, &limits).is_err());
        assert!(!first(&mut assembler, &bytes[..64]).unwrap());
        assert!(assembler.part(PartKind::Further, &[], &limits).is_err());
        let mut unproven = Header::request(Op::Hello, 1);
        unproven.body_bytes = 4000;
        let refused = Assembler::default()
            .part(PartKind::First, &unproven.encode(), &FrameLimits::verbs_server(false))
            .unwrap_err();
        assert!(matches!(refused, FrameError::TooBig { part: "body", .. }));
        let reply = Header::request(Op::Ping, 1).reply(Status::Ok);
        assert!(first(&mut Assembler::default(), &reply.encode()).is_err());
    }
}
