//! What stands in front of every message, and what is said when a connection is made. Pure; little-endian.
//!
//! ```text
//!  envelope      0 credits u16 │ 2 kind u8 │ 3 zero            8: header, body, payload, or a further part of them
//!  lending       request u64 │ share offset u64 │ address u64 │ bytes u32 │ key u32          for each part, behind an envelope
//!
//!  asking        "WEFT" │ versions u8 u8 │ role u8 │ zero │ message bytes u32 │ receives u16 │ zero u16 │ nonce 16 │ mac 16
//!  accepting     version u8 │ lent u8 │ receives u16 │ message bytes u32 │ fast: count u16, zero u16, bytes u32, key u32,
//!                zero u32, address u64 │ mac 16
//!  rejecting     "WEFT" │ reason u16
//! ```
//!
//! The connection manager may pad with zeros behind the end.

use weft_wire::MAGIC;
use weft_wire::security::{Key, connect_mac, same_mac};

/// Size of an envelope.
pub(super) const ENVELOPE_BYTES: usize = 8;
/// Largest message that one receive holds, envelope included.
pub(super) const MESSAGE_BYTES: usize = 8 << 10;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartKind {
    /// It begins with a header.
    First = 0,
    /// It goes on where the one before it ended.
    Further = 1,
    /// It has nothing but its envelope.
    Credits = 2,
    /// A server lends memory: [`Lend`], once or more.
    Lend = 3,
    /// A client gives it back: nothing but an envelope, in a send that ends the key.
    GiveBack = 4,
}

/// In front of every send and every Fast RDMA Write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    /// Receives that the peer may use in addition.
    pub credits: u16,
    /// What comes.
    pub kind: PartKind,
}

impl Envelope {
    pub(super) fn encode(self) -> [u8; ENVELOPE_BYTES] {
        let [low, high] = self.credits.to_le_bytes();
        [low, high, self.kind as u8, 0, 0, 0, 0, 0]
    }

    /// `None` for what no peer of this version sends.
    pub(super) fn decode(bytes: &[u8]) -> Option<Envelope> {
        let [low, high, kind, 0, 0, 0, 0, 0] = *bytes.first_chunk::<ENVELOPE_BYTES>()? else { return None };
        let kind = match kind {
            0 => PartKind::First,
            1 => PartKind::Further,
            2 if bytes.len() == ENVELOPE_BYTES => PartKind::Credits,
            3 if bytes.len() > ENVELOPE_BYTES
                && (bytes.len() - ENVELOPE_BYTES).is_multiple_of(LEND_BYTES) =>
            {
                PartKind::Lend
            }
            4 if bytes.len() == ENVELOPE_BYTES => PartKind::GiveBack,
            _ => return None,
        };
        Some(Envelope { credits: u16::from_le_bytes([low, high]), kind })
    }
}

/// Size of what a server says of a part that it lends.
const LEND_BYTES: usize = 32;

/// Memory of the server's for a part of a request's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lend {
    /// Whose.
    pub request_id: u64,
    /// Which part.
    pub share_offset: u64,
    /// Where it begins.
    pub address: u64,
    /// How much it is.
    pub bytes: u32,
    /// What the client shows for it, and ends when it has done its work.
    pub remote_key: u32,
}

impl Lend {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LEND_BYTES);
        for field in [self.request_id, self.share_offset, self.address] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.remote_key.to_le_bytes());
        bytes
    }

    /// All of what stands behind an envelope of [`PartKind::Lend`].
    pub(super) fn decode_all(bytes: &[u8]) -> Vec<Lend> {
        let each = bytes.as_chunks::<LEND_BYTES>().0.iter();
        each.map(|bytes| Lend {
            request_id: u64::from_le_bytes(array(bytes, 0)),
            share_offset: u64::from_le_bytes(array(bytes, 8)),
            address: u64::from_le_bytes(array(bytes, 16)),
            bytes: u32::from_le_bytes(array(bytes, 24)),
            remote_key: u32::from_le_bytes(array(bytes, 28)),
        })
        .collect()
    }
}

/// Which of a cluster's keys a peer shows to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerbsRole {
    /// The key of clients.
    #[default]
    Client,
    /// The key that only servers have.
    Server,
}

const ASKING_BYTES: usize = 48;
const ACCEPTING_BYTES: usize = 48;

/// What a client says when it asks for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asking {
    /// Oldest and newest version that it speaks.
    pub versions: (u8, u8),
    /// Whose key it knows.
    pub role: VerbsRole,
    /// The largest message that it receives.
    pub message_bytes: u32,
    /// Receives that it has posted.
    pub receives: u16,
    /// For the server's answer.
    pub nonce: [u8; 16],
}

impl Asking {
    pub(super) fn encode(&self, key: &Key) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ASKING_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([self.versions.0, self.versions.1, self.role as u8, 0]);
        bytes.extend(self.message_bytes.to_le_bytes());
        bytes.extend(self.receives.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.nonce);
        bytes.extend(connect_mac(key, b"ask", &[&bytes]));
        bytes
    }

    /// Without looking at the mac, for which [`Asking::is_genuine`] needs the key of its role.
    pub(super) fn decode(bytes: &[u8]) -> Option<Asking> {
        if bytes.len() < ASKING_BYTES || bytes[..4] != MAGIC {
            return None;
        }
        let role = match bytes[6] {
            0 => VerbsRole::Client,
            1 => VerbsRole::Server,
            _ => return None,
        };
        Some(Asking {
            versions: (bytes[4], bytes[5]),
            role,
            message_bytes: u32::from_le_bytes(array(bytes, 8)),
            receives: u16::from_le_bytes(array(bytes, 12)),
            nonce: array(bytes, 16),
        })
    }

    /// Whether the mac in `bytes` was made with `key`.
    pub(super) fn is_genuine(bytes: &[u8], key: &Key) -> bool {
        let said = ASKING_BYTES - 16;
        bytes.len() >= ASKING_BYTES
            && same_mac(&array(bytes, said), &connect_mac(key, b"ask", &[&bytes[..said]]))
    }
}

/// The Fast RDMA buffers of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FastBuffers {
    /// How many; they lie one behind the other.
    pub count: u16,
    /// Size of each.
    pub bytes: u32,
    /// What the client shows for them.
    pub remote_key: u32,
    /// Where the first begins.
    pub address: u64,
}

/// What a server says when it takes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepting {
    /// The version of both.
    pub version: u8,
    /// Parts of memory that the server lends at once; 0: it lends none.
    pub lent_max: u8,
    /// Receives that the client may use.
    pub receives: u16,
    /// The largest message that it receives.
    pub message_bytes: u32,
    /// Where small data may be written.
    pub fast: FastBuffers,
}

impl Accepting {
    pub(super) fn encode(&self, key: &Key, nonce: &[u8; 16]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ACCEPTING_BYTES);
        bytes.extend([self.version, self.lent_max]);
        bytes.extend(self.receives.to_le_bytes());
        bytes.extend(self.message_bytes.to_le_bytes());
        bytes.extend(self.fast.count.to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(self.fast.bytes.to_le_bytes());
        bytes.extend(self.fast.remote_key.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.fast.address.to_le_bytes());
        bytes.extend(connect_mac(key, b"accept", &[nonce, &bytes]));
        bytes
    }

    /// `None` if the mac was not made with `key` for this `nonce`.
    pub(super) fn decode(bytes: &[u8], key: &Key, nonce: &[u8; 16]) -> Option<Accepting> {
        let said = ACCEPTING_BYTES - 16;
        if bytes.len() < ACCEPTING_BYTES
            || !same_mac(&array(bytes, said), &connect_mac(key, b"accept", &[nonce, &bytes[..said]]))
        {
            return None;
        }
        Some(Accepting {
            version: bytes[0],
            lent_max: bytes[1],
            receives: u16::from_le_bytes(array(bytes, 2)),
            message_bytes: u32::from_le_bytes(array(bytes, 4)),
            fast: FastBuffers {
                count: u16::from_le_bytes(array(bytes, 8)),
                bytes: u32::from_le_bytes(array(bytes, 12)),
                remote_key: u32::from_le_bytes(array(bytes, 16)),
                address: u64::from_le_bytes(array(bytes, 24)),
            },
        })
    }
}

/// Why a server does not take a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    /// What it said cannot be understood.
    Malformed = 1,
    /// No version is common.
    Version = 2,
    /// It does not know the cluster's key.
    Key = 3,
    /// No receives or queues are left.
    Busy = 4,
    /// Something failed here.
    Internal = 5,
}

impl Rejection {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((self as u16).to_le_bytes());
        bytes
    }

    /// What a client tells its user about it.
    pub(super) fn text(bytes: &[u8]) -> &'static str {
        if bytes.len() < 6 || bytes[..4] != MAGIC {
            return "nothing that speaks Weft's protocol over RDMA listens there";
        }
        match u16::from_le_bytes(array(bytes, 4)) {
            1 => {
                "the server did not understand the request for an RDMA connection; use the same release on both"
            }
            2 => "the server speaks other versions of the protocol; use the same release on both",
            3 => "the key here is not the cluster's",
            4 => "the server has no room for a further RDMA connection",
            _ => "the server could not make its end of the RDMA connection; its log says why",
        }
    }
}

/// Bytes of a slice that is known to be long enough.
fn array<const BYTES: usize>(bytes: &[u8], at: usize) -> [u8; BYTES] {
    bytes[at..at + BYTES].try_into().expect("the length was checked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: Key = Key([7; 32]);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn asking() -> Asking {
        let nonce = [9; 16];
        Asking { versions: (1, 2), role: VerbsRole::Server, message_bytes: 8192, receives: 32, nonce }
    }

    fn accepting() -> Accepting {
        let fast = FastBuffers { count: 4, bytes: 73_728, remote_key: 0x0102_0304, address: 0x1122_3344 };
        Accepting { version: 1, lent_max: 2, receives: 16, message_bytes: 8192, fast }
    }

    #[test]
    fn the_bytes_are_these() {
        assert_eq!(hex(&Envelope { credits: 0x0102, kind: PartKind::Further }.encode()), "0201010000000000");
        let asking = hex(&asking().encode(&KEY));
        assert_eq!(&asking[..64], format!("5745465401020100002000002000{}{}", "0000", "09".repeat(16)));
        let accepting = hex(&accepting().encode(&KEY, &[9; 16]));
        assert_eq!(&accepting[..64], "0102100000200000040000000020010004030201000000004433221100000000");
        assert_eq!((asking.len(), accepting.len()), (96, 96));
        assert_eq!(hex(&Rejection::Busy.encode()), "574546540400");
        let lend = Lend { request_id: 1, share_offset: 0x200, address: 0x30000, bytes: 4, remote_key: 5 };
        let said = "010000000000000000020000000000000000030000000000".to_string() + "0400000005000000";
        assert_eq!(hex(&lend.encode()), said);
        assert_eq!(Lend::decode_all(&[lend.encode(), lend.encode()].concat()), [lend, lend]);
        for (bytes, is_right) in [(0, false), (31, false), (32, true), (33, false), (64, true)] {
            let message = [&[0, 0, 3, 0, 0, 0, 0, 0][..], &vec![0; bytes]].concat();
            assert_eq!(Envelope::decode(&message).is_some(), is_right);
        }
    }

    #[test]
    fn only_the_key_makes_it_genuine() {
        let mut bytes = asking().encode(&KEY);
        bytes.extend([0; 8]);
        assert_eq!(Asking::decode(&bytes), Some(asking()));
        assert!(Asking::is_genuine(&bytes, &KEY));
        assert!(!Asking::is_genuine(&bytes, &Key([8; 32])));
        for bit in 0..ASKING_BYTES * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!Asking::is_genuine(&bad, &KEY), "bit {bit}");
        }
        let bytes = accepting().encode(&KEY, &[9; 16]);
        assert_eq!(Accepting::decode(&bytes, &KEY, &[9; 16]), Some(accepting()));
        assert_eq!(Accepting::decode(&bytes, &KEY, &[8; 16]), None);
        assert_eq!(Accepting::decode(&bytes, &Key([8; 32]), &[9; 16]), None);
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]
        #[test]
        fn noise_is_no_more_than_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(envelope) = Envelope::decode(&bytes) {
                prop_assert_eq!(&envelope.encode()[..], &bytes[..ENVELOPE_BYTES]);
            }
            let _ = Asking::decode(&bytes);
            let _ = Rejection::text(&bytes);
            prop_assert!(!Asking::is_genuine(&bytes, &KEY));
            prop_assert_eq!(Accepting::decode(&bytes, &KEY, &[0; 16]), None);
        }
    }

    /// A peer that knows the key may say anything.
    #[test]
    fn damaged_envelopes_and_greetings_are_refused_or_written_back_the_same() {
        let lend = Lend { request_id: 1, share_offset: 2, address: 3, bytes: 4, remote_key: 5 };
        let lent = [&Envelope { credits: 3, kind: PartKind::Lend }.encode()[..], &lend.encode()].concat();
        let right = [
            lent,
            Envelope { credits: 3, kind: PartKind::First }.encode().to_vec(),
            asking().encode(&KEY),
            accepting().encode(&KEY, &[9; 16]),
            Rejection::Busy.encode().to_vec(),
        ];
        weft_test_fuzz::run("envelopes", &right, |bytes| {
            if let Some(envelope) = Envelope::decode(bytes) {
                assert_eq!(envelope.encode()[..], bytes[..ENVELOPE_BYTES]);
                let parts = Lend::decode_all(&bytes[ENVELOPE_BYTES..]);
                assert!(parts.len() * LEND_BYTES <= bytes.len());
            }
            if let Some(asking) = Asking::decode(bytes) {
                assert_eq!(Asking::decode(&asking.encode(&KEY)), Some(asking));
            }
            let _ = Rejection::text(bytes);
            let said = &bytes[..bytes.len().min(ACCEPTING_BYTES - 16)];
            let genuine = [said, &connect_mac(&KEY, b"accept", &[&[9; 16], said])].concat();
            if let Some(accepting) = Accepting::decode(&genuine, &KEY, &[9; 16]) {
                let again = Accepting::decode(&accepting.encode(&KEY, &[9; 16]), &KEY, &[9; 16]);
                assert_eq!(again, Some(accepting));
            }
        });
    }
}
