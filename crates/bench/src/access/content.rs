//! Contents of measured files. Every byte is a function of its offset and of the number of the write, so that
//! misplaced and outdated data is detected.

use super::pattern::Program;
use anyhow::{Result, bail};

/// The contents of memory between the pieces. Nothing may change it.
const GAP: u8 = 0xee;

fn word(index: u64, salt: u64) -> [u8; 8] {
    let mixed =
        index.wrapping_add(salt.wrapping_mul(0xd1b5_4a32_d192_ed03)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 32).to_le_bytes()
}

/// Fills `out` with the contents at `offset` of the file after write `salt`.
pub fn fill(out: &mut [u8], offset: u64, salt: u64) {
    let skip = (offset % 8) as usize;
    let head = if skip == 0 { 0 } else { (8 - skip).min(out.len()) };
    let (first, rest) = out.split_at_mut(head);
    first.copy_from_slice(&word(offset / 8, salt)[skip..skip + head]);
    let mut index = (offset + head as u64) / 8;
    let mut words = rest.chunks_exact_mut(8);
    for out in &mut words {
        out.copy_from_slice(&word(index, salt));
        index += 1;
    }
    let last = words.into_remainder();
    let bytes = last.len();
    last.copy_from_slice(&word(index, salt)[..bytes]);
}

/// Checks that `data` is the contents at `offset` of the file after write `salt`.
pub fn check(data: &[u8], offset: u64, salt: u64) -> Result<()> {
    let mut expected = [0; 4096];
    let mut at = offset;
    for part in data.chunks(expected.len()) {
        let expected = &mut expected[..part.len()];
        fill(expected, at, salt);
        if let Some(index) = part.iter().zip(&*expected).position(|(found, expected)| found != expected) {
            bail!("wrong data at {} (write {salt})", at + index as u64);
        }
        at += part.len() as u64;
    }
    Ok(())
}

/// Fills a program's memory for write `salt`.
pub fn fill_memory(memory: &mut [u8], program: &Program, salt: u64) {
    memory.fill(GAP);
    for both in program.accesses.iter().flat_map(|access| access.both_sides()) {
        let at = both.memory_offset as usize;
        fill(&mut memory[at..at + both.bytes as usize], both.file_offset, salt);
    }
}

/// Clears memory before a read.
pub fn clear_memory(memory: &mut [u8]) {
    memory.fill(GAP);
}

/// Checks that a program has read what write `salt` wrote and changed nothing else. Clears the memory.
pub fn check_memory(memory: &mut [u8], program: &Program, salt: u64) -> Result<()> {
    for both in program.accesses.iter().flat_map(|access| access.both_sides()) {
        let at = both.memory_offset as usize;
        let piece = &mut memory[at..at + both.bytes as usize];
        check(piece, both.file_offset, salt)?;
        piece.fill(GAP);
    }
    match memory.iter().position(|byte| *byte != GAP) {
        Some(at) => bail!("memory between the pieces was written to, at {at}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::*;

    #[test]
    fn contents_are_the_same_however_they_are_cut() {
        let mut whole = vec![0; 100];
        fill(&mut whole, 3, 9);
        for cut in 0..100 {
            let mut parts = vec![0; 100];
            let (a, b) = parts.split_at_mut(cut);
            fill(a, 3, 9);
            fill(b, 3 + cut as u64, 9);
            assert_eq!(parts, whole, "{cut}");
        }
        check(&whole, 3, 9).unwrap();
        assert!(check(&whole, 3, 8).is_err() && check(&whole, 4, 9).is_err());
        whole[50] ^= 1;
        assert!(check(&whole, 3, 9).unwrap_err().to_string().contains("at 53 "));
    }

    #[test]
    fn a_program_may_touch_its_pieces_only() {
        let program = Pattern::Pieces { ranks: 2, pieces: 3, piece_bytes: 5, steps: 2 }.program(1);
        let mut memory = vec![0; program.memory_bytes as usize];
        fill_memory(&mut memory, &program, 1);
        let kept = memory.clone();
        check_memory(&mut memory, &program, 1).unwrap();
        memory.clone_from(&kept);
        memory[5] = 0;
        assert!(check_memory(&mut memory, &program, 1).unwrap_err().to_string().contains("between"));
        memory.clone_from(&kept);
        memory[0] ^= 1;
        assert!(check_memory(&mut memory, &program, 1).is_err());
    }
}
