//! The bytes of a sidecar: one record for each region of 16 MiB of its data file, back to back.
//!
//! ```text
//!   record   | header, 512 bytes | sum of block 0 | sum of block 1 | … | sum of block 4095 |      4 bytes each
//!   header   0: magic, version, region, inode, CRC32C of these    40: a CRC32C for the sums of each granule (64 blocks)
//!            448: a mark for each granule, one byte
//! ```
//!
//! A block is 4 KiB of the data file; its sum is its CRC32C, the last one's as if the file went on with zeros. 0 stands for no sum,
//! and a CRC32C that is 0 is kept as `0xffffffff`. What lies beyond the end of the sidecar reads as zeros. The sums of a granule are in force if its mark is `0xa5`, and void if it is 0.
//!
//! **Power cuts.** A write may be torn at any byte. The mark is made 0, durably, before a block of the granule changes. While all
//! marks are 0 that matter, the first part of the header and the sums are written and made durable; then the rest of the header
//! in one write, marks last. So whatever of it comes to the disk, no mark puts sums in force that are not there.

/// What one sum is of.
pub const BLOCK_BYTES: u64 = 4096;
/// Blocks of one record.
pub const REGION_BLOCKS: usize = 4096;
/// Bytes of a data file that one record is of.
pub const REGION_BYTES: u64 = BLOCK_BYTES * REGION_BLOCKS as u64;
/// Blocks whose sums are in force or not together.
pub const GRANULE_BLOCKS: usize = 64;
/// Granules of one record: one for each bit of `void`.
pub const GRANULES: usize = REGION_BLOCKS / GRANULE_BLOCKS;
/// Length of a record's header.
pub const HEADER_BYTES: usize = 512;
/// Length of a record.
pub const RECORD_BYTES: usize = HEADER_BYTES + REGION_BLOCKS * 4;

/// The version of the format.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"weftsums";
/// Length of the part of a header that never changes, and where its check is.
const FIRST_BYTES: usize = 32;
const CHECK_AT: usize = FIRST_BYTES - 4;
/// Where the checks of granules begin.
pub(super) const CHECKS_AT: usize = 40;
/// Where the marks begin.
pub(super) const MARKS_AT: usize = HEADER_BYTES - GRANULES;
const IN_FORCE: u8 = 0xa5;
const VOID: u8 = 0;

const _: () = assert!(CHECKS_AT + GRANULES * 4 <= MARKS_AT && GRANULES == 64);

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The granules whose sums count for nothing.
    pub void: u64,
    /// CRC32C of the sums of each granule.
    pub granules: [u32; GRANULES],
}

impl Header {
    /// One that puts no sum in force.
    pub fn void() -> Header {
        Header { void: u64::MAX, granules: [0; GRANULES] }
    }

    /// The marks.
    pub fn marks(&self) -> [u8; GRANULES] {
        std::array::from_fn(|granule| if self.void >> granule & 1 == 1 { VOID } else { IN_FORCE })
    }

    /// What puts sums in force: the header from `CHECKS_AT` on.
    pub fn force(&self) -> [u8; HEADER_BYTES - CHECKS_AT] {
        let mut bytes = [0; HEADER_BYTES - CHECKS_AT];
        for (place, sum) in bytes.chunks_exact_mut(4).zip(self.granules) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        bytes[MARKS_AT - CHECKS_AT..].copy_from_slice(&self.marks());
        bytes
    }
}

/// The part of a header that never changes.
pub fn first_part(ino: u64, region: u32) -> [u8; FIRST_BYTES] {
    let mut bytes = [0; FIRST_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&region.to_le_bytes());
    bytes[16..24].copy_from_slice(&ino.to_le_bytes());
    let check = crc32c::crc32c(&bytes[..CHECK_AT]);
    bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its header; one that puts nothing in force where that found is damaged. `None`: there is no record.
    pub header: Option<Header>,
    /// The granules that are void on disk, or whose check does not fit.
    pub void: u64,
    /// The sums in force, by block; 0: none.
    pub sums: Vec<u32>,
    /// How many granules cannot be used since the record is damaged.
    pub damaged_granules: u32,
    /// Blocks that have a sum which is not in force: it was made void, or is damaged.
    pub had: Vec<usize>,
    /// The record is sound, but that of another inode.
    pub foreign: Option<u64>,
}

/// Reads a record of at most [`RECORD_BYTES`]; what is missing is zeros.
pub fn parse(bytes: &[u8], ino: u64, region: u32) -> Record {
    let none = |header, void, damaged_granules| Record {
        header,
        void,
        sums: Vec::new(),
        damaged_granules,
        had: Vec::new(),
        foreign: None,
    };
    let head: [u8; HEADER_BYTES] = std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0));
    let marks = &head[MARKS_AT..];
    let void = marks.iter().rev().fold(0, |void, mark| void << 1 | u64::from(*mark == VOID));
    if head[..FIRST_BYTES] != first_part(ino, region) {
        // Without a mark nothing was in force: an interrupted settling leaves that.
        if void == u64::MAX {
            return none(None, void, 0);
        }
        let other = u64::from_le_bytes(head[16..24].try_into().expect("8 bytes"));
        if head[..FIRST_BYTES] == first_part(other, region) {
            return Record { foreign: Some(other), ..none(Some(Header::void()), void, 0) };
        }
        return none(Some(Header::void()), void, GRANULES as u32);
    }
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let mut header = Header { void, granules: std::array::from_fn(|granule| word(CHECKS_AT + 4 * granule)) };
    let words = bytes.get(HEADER_BYTES..).unwrap_or(&[]).chunks(4).take(REGION_BLOCKS);
    let mut sums: Vec<u32> =
        words.map(|word| word.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))).collect();
    let (mut damaged_granules, mut had) = (0, Vec::new());
    for (granule, mark) in marks.iter().enumerate() {
        let is_void = header.void >> granule & 1 == 1;
        let is_damaged =
            !is_void && (*mark != IN_FORCE || check_of_granule(&sums, granule) != header.granules[granule]);
        damaged_granules += u32::from(is_damaged);
        if is_void || is_damaged {
            header.void |= 1 << granule;
            let end = ((granule + 1) * GRANULE_BLOCKS).min(sums.len());
            let begin = (granule * GRANULE_BLOCKS).min(end);
            had.extend((begin..end).filter(|block| sums[*block] != 0));
            sums[begin..end].fill(0);
        }
    }
    trim(&mut sums);
    Record { void: header.void, header: Some(header), sums, damaged_granules, had, foreign: None }
}

/// CRC32C of the sums of a granule, with zeros for those that are not there.
pub fn check_of_granule(sums: &[u32], granule: usize) -> u32 {
    let begin = granule * GRANULE_BLOCKS;
    (begin..begin + GRANULE_BLOCKS).fold(0, |check, block| {
        crc32c::crc32c_append(check, &sums.get(block).copied().unwrap_or(0).to_le_bytes())
    })
}

/// The sum of a block, of which the file has these bytes: never 0.
pub fn sum_of(block: &[u8]) -> u32 {
    const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
    let crc = crc32c::crc32c_append(crc32c::crc32c(block), &ZEROS[block.len()..]);
    if crc == 0 { u32::MAX } else { crc }
}

/// Drops zeros from the end.
pub fn trim(sums: &mut Vec<u32>) {
    let end = sums.iter().rposition(|sum| *sum != 0).map_or(0, |last| last + 1);
    sums.truncate(end);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sums: &[u32], void: u64) -> Vec<u8> {
        let granules = std::array::from_fn(|granule| check_of_granule(sums, granule));
        let mut bytes = first_part(9, 3).to_vec();
        bytes.resize(CHECKS_AT, 0);
        bytes.extend(Header { void, granules }.force());
        sums.iter().for_each(|sum| bytes.extend(sum.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_record_is_found_as_it_was_written_but_for_what_is_void() {
        let sums: Vec<u32> = (1..=200).collect();
        let found = parse(&record(&sums, 0), 9, 3);
        assert_eq!((found.sums.as_slice(), found.damaged_granules), (sums.as_slice(), 0));
        let found = parse(&record(&sums, 0b10), 9, 3);
        assert!(found.sums[64..128].iter().all(|sum| *sum == 0) && found.damaged_granules == 0);
        assert_eq!((&found.sums[..64], &found.sums[128..]), (&sums[..64], &sums[128..]));
        assert_eq!(found.had, (64..128).collect::<Vec<_>>());
        let none = parse(&[0; 700], 9, 3);
        assert_eq!((none.header, none.void, none.damaged_granules, none.foreign), (None, u64::MAX, 0, None));
        assert!(none.sums.is_empty() && none.had.is_empty());
        assert_eq!(parse(&[], 9, 3).header, None);
    }

    #[test]
    fn every_flipped_bit_takes_its_sums_out_of_force_and_no_other_value_into_it() {
        let sums: Vec<u32> = (1..=150).map(|n: u32| n.wrapping_mul(0x9e37_79b9)).collect();
        let whole = record(&sums, 0);
        for bit in 0..whole.len() * 8 {
            let mut torn = whole.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            let found = parse(&torn, 9, 3);
            let is_between =
                (FIRST_BYTES * 8..CHECKS_AT * 8).contains(&bit) || (296 * 8..MARKS_AT * 8).contains(&bit);
            assert_eq!(found.damaged_granules == 0, is_between, "bit {bit}");
            for (block, sum) in found.sums.iter().enumerate() {
                assert!(*sum == 0 || *sum == sums[block], "bit {bit}");
            }
        }
        for (ino, region) in [(8, 3), (9, 2)] {
            assert_eq!(
                parse(&whole, ino, region).sums,
                Vec::<u32>::new(),
                "a record of another file or region"
            );
        }
        assert_eq!(parse(&whole, 8, 3).foreign, Some(9));
        assert_eq!(parse(&whole, 9, 2).foreign, None);
    }

    #[test]
    fn no_part_of_a_write_puts_sums_in_force_that_are_not_there() {
        let (old, new): (Vec<u32>, Vec<u32>) = ((1..=150).collect(), (1001..=1200).collect());
        let (before, after) = (record(&old, u64::MAX), record(&new, 0));
        // Sums and first part: nothing is in force until the rest of the header is written, up to its marks.
        for torn in 0..after.len() {
            let mut image = before.clone();
            image.resize(after.len(), 0);
            image[HEADER_BYTES..torn.max(HEADER_BYTES)]
                .copy_from_slice(&after[HEADER_BYTES..torn.max(HEADER_BYTES)]);
            let found = parse(&image, 9, 3);
            assert!(found.sums.is_empty() && found.damaged_granules == 0);
        }
        let mut whole = before.clone();
        whole.resize(after.len(), 0);
        whole[HEADER_BYTES..].copy_from_slice(&after[HEADER_BYTES..]);
        for torn in CHECKS_AT..=HEADER_BYTES {
            let mut image = whole.clone();
            image[CHECKS_AT..torn].copy_from_slice(&after[CHECKS_AT..torn]);
            let found = parse(&image, 9, 3);
            assert_eq!(found.damaged_granules, 0, "torn at {torn}");
            assert!(found.sums.iter().zip(&new).all(|(found, new)| *found == 0 || found == new));
        }
    }

    #[test]
    fn a_short_block_has_the_sum_of_one_with_zeros_behind_and_no_sum_is_zero() {
        let mut block = vec![7; 100];
        let short = sum_of(&block);
        block.resize(BLOCK_BYTES as usize, 0);
        assert_eq!(short, sum_of(&block));
        assert_ne!(sum_of(&[]), 0);
    }

    #[test]
    fn damaged_records_put_no_sum_in_force_that_is_not_under_a_check() {
        let sums: Vec<u32> = (1..=70).collect();
        weft_test_fuzz::run("sums", &[record(&sums, 0), record(&sums, 0b10), vec![0; 700]], |bytes| {
            let found = parse(bytes, 9, 3);
            assert!(found.sums.len() <= REGION_BLOCKS && found.damaged_granules <= GRANULES as u32);
            for (block, sum) in found.sums.iter().enumerate() {
                assert!(found.void >> (block / GRANULE_BLOCKS) & 1 == 0 || *sum == 0, "block {block}");
            }
        });
    }
}
