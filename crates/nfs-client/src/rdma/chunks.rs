//! What a reply says of the chunks that its call gave (RFC 8166, 3.4.6 and 4.4.1). Pure.

use weft_onc_rpc::rdma::{Body, Chunks, RdmaError, Segment};

/// What of a call's memory the server has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// The reply is in the reply chunk, and has so many bytes; else it is inline.
    pub long_reply: Option<usize>,
    /// Bytes of data.
    pub data: usize,
}

/// What a call gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Given {
    /// Room for data.
    pub write: Option<Vec<Segment>>,
    /// Room for the whole reply.
    pub reply: Option<Vec<Segment>>,
}

/// Why a reply has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoReply {
    /// The server has not understood the header.
    Refused(RdmaError),
    /// It makes no sense.
    Garbage(&'static str),
}

impl Given {
    /// What the header of the reply says.
    ///
    /// # Errors
    /// See [`NoReply`].
    // Fuzzed by nfs-rdma-replies.
    pub(super) fn written(&self, body: &Body) -> Result<Written, NoReply> {
        let (chunks, is_long) = match body {
            Body::Message(chunks) => (chunks, false),
            Body::NoMessage(chunks) => (chunks, true),
            Body::Error(error) => return Err(NoReply::Refused(*error)),
            Body::Done => return Err(NoReply::Garbage("a server never says that it is done")),
        };
        let Chunks { reads, writes, reply } = chunks;
        if !reads.is_empty() {
            return Err(NoReply::Garbage("it exposes memory of its own"));
        }
        let data = match (&writes[..], &self.write) {
            ([], _) => 0,
            ([said], Some(given)) => filled(given, said)?,
            _ => return Err(NoReply::Garbage("it has written more chunks than it was given")),
        };
        let in_reply = match (reply, &self.reply) {
            (Some(said), Some(given)) => Some(filled(given, said)?),
            (Some(_), None) => {
                return Err(NoReply::Garbage("it has written a reply chunk that it was not given"));
            }
            (None, _) => None,
        };
        match in_reply.filter(|_| is_long) {
            None if is_long => Err(NoReply::Garbage("the reply is neither inline nor in a chunk")),
            long_reply => Ok(Written { long_reply, data }),
        }
    }
}

/// How much of a chunk was filled: all of its segments but the last that is used are full.
fn filled(given: &[Segment], said: &[Segment]) -> Result<usize, NoReply> {
    let wrong = NoReply::Garbage("it has written more to a chunk than there was room for");
    if said.len() > given.len() {
        return Err(wrong);
    }
    let (mut bytes, mut is_full) = (0, true);
    for (given, said) in given.iter().zip(said) {
        if said.bytes > given.bytes || (said.bytes > 0 && !is_full) {
            return Err(wrong);
        }
        is_full = said.bytes == given.bytes;
        bytes += said.bytes as usize;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_onc_rpc::rdma::{RdmaHeader, ReadSegment};

    fn segments(sizes: &[u32]) -> Vec<Segment> {
        sizes.iter().map(|bytes| Segment { handle: 7, bytes: *bytes, offset: 4096 }).collect()
    }

    fn given() -> Given {
        Given { write: Some(segments(&[100, 50])), reply: Some(segments(&[200])) }
    }

    fn chunks(writes: &[&[u32]], reply: Option<&[u32]>) -> Chunks {
        Chunks {
            writes: writes.iter().map(|sizes| segments(sizes)).collect(),
            reply: reply.map(segments),
            ..Chunks::default()
        }
    }

    #[test]
    fn a_reply_says_how_much_was_written() {
        let cases: [(&[u32], usize); 4] = [(&[100, 20], 120), (&[30, 0], 30), (&[30], 30), (&[0, 0], 0)];
        for (sizes, data) in cases {
            let body = Body::Message(chunks(&[sizes], None));
            assert_eq!(given().written(&body), Ok(Written { long_reply: None, data }), "{sizes:?}");
        }
        let long = Body::NoMessage(chunks(&[], Some(&[70])));
        assert_eq!(given().written(&long), Ok(Written { long_reply: Some(70), data: 0 }));
        let unused = Body::Message(chunks(&[], Some(&[0])));
        assert_eq!(given().written(&unused), Ok(Written { long_reply: None, data: 0 }));
        assert_eq!(
            given().written(&Body::Error(RdmaError::Chunks)),
            Err(NoReply::Refused(RdmaError::Chunks))
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let reads = vec![ReadSegment { position: 0, segment: segments(&[4])[0] }];
        let none = Given::default();
        let cases = [
            (given(), Body::Message(chunks(&[&[101]], None)), "more than there is room for"),
            (given(), Body::Message(chunks(&[&[99, 1]], None)), "a gap"),
            (given(), Body::Message(chunks(&[&[100, 50, 0]], None)), "a segment too many"),
            (given(), Body::Message(chunks(&[&[1], &[1]], None)), "a chunk too many"),
            (given(), Body::NoMessage(chunks(&[], Some(&[201]))), "a long reply that is too long"),
            (given(), Body::NoMessage(chunks(&[], None)), "no reply"),
            (none.clone(), Body::Message(chunks(&[&[1]], None)), "a chunk that was not given"),
            (none, Body::NoMessage(chunks(&[], Some(&[4]))), "a reply chunk that was not given"),
            (given(), Body::Message(Chunks { reads, ..Chunks::default() }), "Read-Read"),
            (given(), Body::Done, "done"),
        ];
        for (given, body, what) in cases {
            assert!(matches!(given.written(&body), Err(NoReply::Garbage(_))), "{what}");
        }
    }

    #[test]
    fn damaged_headers_are_fuzzed() {
        let header = |body| RdmaHeader { xid: 1, credits: 2, body }.write().into_bytes();
        let right = [
            header(Body::Message(chunks(&[&[100, 20]], None))),
            header(Body::NoMessage(chunks(&[], Some(&[70])))),
            header(Body::Error(RdmaError::Chunks)),
        ];
        weft_test_fuzz::run("nfs-rdma-replies", &right, |bytes| {
            let Ok((header, _)) = RdmaHeader::decode(bytes) else { return };
            if let Ok(written) = given().written(&header.body) {
                assert!(written.data <= 150 && written.long_reply.is_none_or(|bytes| bytes <= 200));
            }
        });
    }
}
