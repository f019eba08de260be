//! The bodies of all operations, by subject.

mod data;
mod locks;
mod map;
mod members;
mod meta;
mod session;

pub use data::*;
pub use locks::*;
pub use map::*;
pub use members::*;
pub use meta::*;
pub use session::*;

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
    use crate::Op;

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

    proptest::proptest! {
        #[test]
        fn noise_never_panics(number in 0usize..64, bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let op = Op::ALL[number % Op::ALL.len()];
            crate::ops::fuzz_decode(op, &bytes);
        }
    }
}
