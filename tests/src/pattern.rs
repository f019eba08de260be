//! Blocks that say what they are: from any of them it can be told who wrote it, where, and in which round, and whether every
//! byte of it is from that same write.
//!
//! ```
//! use weft_tests::pattern::{Stamp, fill, read};
//! let (mut block, stamp) = (vec![0; 4096], Stamp { writer: 3, slot: 7, round: 9 });
//! fill(&mut block, stamp);
//! assert_eq!(read(&block), Ok(stamp));
//! block[4000] ^= 1;
//! assert!(read(&block).is_err());
//! ```

/// Who wrote a block, at which place of its own, and for which time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The writer.
    pub writer: u32,
    /// Its block.
    pub slot: u32,
    /// How often it had written that block before.
    pub round: u64,
}

const WORD_BYTES: usize = 8;

fn word(stamp: Stamp, index: usize) -> u64 {
    let seed = (u64::from(stamp.writer) << 40) ^ (u64::from(stamp.slot) << 20) ^ (stamp.round << 1) ^ 1;
    mix(seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Fills a block, whose length is a multiple of 8 and at least 16.
pub fn fill(block: &mut [u8], stamp: Stamp) {
    for (index, bytes) in block.chunks_exact_mut(WORD_BYTES).enumerate() {
        let value = match index {
            0 => (u64::from(stamp.writer) << 32) | u64::from(stamp.slot),
            1 => stamp.round,
            _ => word(stamp, index),
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
}

/// Reads a block's stamp; an error says where it is torn.
pub fn read(block: &[u8]) -> Result<Stamp, String> {
    let word_at = |index: usize| {
        let bytes = &block[index * WORD_BYTES..(index + 1) * WORD_BYTES];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    let stamp = Stamp { writer: (word_at(0) >> 32) as u32, slot: word_at(0) as u32, round: word_at(1) };
    for index in 2..block.len() / WORD_BYTES {
        if word_at(index) != word(stamp, index) {
            let (at, found) = (index * WORD_BYTES, word_at(index));
            return Err(format!("byte {at}: {found:#x} does not belong to a block that begins as {stamp:?}"));
        }
    }
    Ok(stamp)
}

/// Size of the files that `weft-load files` makes: more than a strip on each of three servers, and not a multiple of anything.
pub const MOUNT_FILE_BYTES: usize = 300_001;

/// Bytes that differ from place to place and from seed to seed.
pub fn scattered(seed: u64, count: usize) -> Vec<u8> {
    let word = |at: usize| (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[at % 8];
    (0..count).map(word).collect()
}

/// Whether bytes are those that were wanted.
///
/// # Errors
/// Where they are not.
pub fn same(what: &str, found: &[u8], wanted: &[u8]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
        Some(at) => Err(format!("{what}: byte {at} is {}, not {}", found[at], wanted[at])),
        None if found.len() != wanted.len() => {
            Err(format!("{what}: {} bytes, not {}", found.len(), wanted.len()))
        }
        None => Ok(()),
    }
}
