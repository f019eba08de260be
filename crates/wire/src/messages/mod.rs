//! The bodies of all operations, by subject.

mod data;
mod inode;
mod locks;
mod map;
mod members;
mod names;
mod open;
mod quota;
mod session;
mod small;
mod store;
mod watch;

pub use crate::claims::Caller;
pub use data::*;
pub use inode::*;
pub use locks::*;
pub use map::*;
pub use members::*;
pub use names::*;
pub use open::*;
pub use quota::*;
pub use session::*;
pub use small::*;
pub use store::*;
pub use watch::*;

crate::message! {
    /// A body without fields.
    pub struct Empty {}

    /// What an error reply has besides its status.
    pub struct ErrorDetail {
        /// What happened, to what, and what to do.
        pub text: String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Wire};

    /// One line per message: its name, and the bytes of its sample. A change of this file is a change of the
    /// protocol.
    const GOLDEN: &str = include_str!("../../golden/messages.hex");

    fn rendered() -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        crate::ops::samples().iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect()
    }

    #[test]
    fn every_message_has_its_golden_bytes() {
        let now = rendered();
        if std::env::var_os("WEFT_GOLDEN_WRITE").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/messages.hex"), &now).unwrap();
            return;
        }
        for (now, golden) in now.lines().zip(GOLDEN.lines()) {
            assert_eq!(now, golden);
        }
        assert_eq!(now.lines().count(), GOLDEN.lines().count());
    }

    #[test]
    fn every_sample_is_read_back_and_every_prefix_refused() {
        for ((_, bytes), op) in crate::ops::samples().chunks(2).map(|pair| pair[0].clone()).zip(Op::ALL) {
            assert!(crate::ops::fuzz_decode(*op, &bytes) >= 1, "{op:?}");
            for end in 0..bytes.len() {
                crate::ops::fuzz_decode(*op, &bytes[..end]);
            }
        }
    }

    /// The first byte of an input chooses the operation.
    #[test]
    fn damaged_bodies_are_refused_or_written_back_the_same() {
        let samples = crate::ops::samples();
        let of_op =
            |(number, (_, bytes)): (usize, &(String, Vec<u8>))| [&[(number / 2) as u8], &bytes[..]].concat();
        let right: Vec<_> = samples.iter().enumerate().map(of_op).collect();
        weft_test_fuzz::run("bodies", &right, |bytes| {
            let Some((op, body)) = bytes.split_first() else { return };
            crate::ops::fuzz_decode(Op::ALL[usize::from(*op) % Op::ALL.len()], body);
        });
    }

    /// Keys and memory of RDMA, and memory that processes share, stand before the bodies of messages.
    #[test]
    fn damaged_descriptions_of_memory_are_refused_or_written_back_the_same() {
        fn one<T: Wire>(bytes: &[u8]) {
            if let Ok(value) = T::from_bytes(bytes) {
                assert_eq!(value.to_bytes(), bytes, "an encoding has one form");
            }
        }
        let samples = crate::ops::samples();
        let right: Vec<_> = samples.iter().rev().take(3).map(|(_, bytes)| bytes.clone()).collect();
        weft_test_fuzz::run("memory", &right, |bytes| {
            one::<RemoteMemory>(bytes);
            one::<RemoteKeys>(bytes);
            one::<LentMemory>(bytes);
        });
    }
}
