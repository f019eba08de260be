//! What is done to inputs: small damage, and what decoders tend to get wrong.

use weft_test_random::Random;

/// Numbers at the edges of types and of usual limits.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    7,
    8,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];
/// Characters that text formats give a meaning.
const SIGNS: &[u8] = b"\n\0 =\"'[]{}:/?#.,-_09azAZ\\\x7f\xff";
const BYTES_MAX: usize = 1 << 16;

/// One of `pool`, changed in one to four places.
pub(crate) fn mutate(random: &mut Random, pool: &[Vec<u8>]) -> Vec<u8> {
    let mut input = random.choose(pool).clone();
    for _ in 0..1 + random.below(4) {
        change(random, &mut input, pool);
    }
    input.truncate(BYTES_MAX);
    input
}

fn change(random: &mut Random, input: &mut Vec<u8>, pool: &[Vec<u8>]) {
    let length = input.len() as u64;
    let at = random.below(length) as usize;
    match random.below(11) {
        0 => input.truncate(at),
        1 => {
            let other = random.choose(pool);
            input.truncate(at);
            input.extend(&other[random.below(other.len() as u64 + 1) as usize..]);
        }
        2 => {
            let more = 1 + random.below(32) as usize;
            let bytes = random.bytes(more);
            input.splice(at..at, bytes);
        }
        3 => {
            let end = (at + 1 + random.below(32) as usize).min(input.len());
            input.drain(at.min(end)..end);
        }
        4 => {
            let end = (at + 1 + random.below(64) as usize).min(input.len());
            let copy = input[at.min(end)..end].to_vec();
            let to = random.below(length + 1) as usize;
            input.splice(to..to, copy);
        }
        _ if input.is_empty() => input.push(random.next() as u8),
        5 | 6 => input[at] ^= 1 << random.below(8),
        7 => input[at] = random.next() as u8,
        8 => input[at] = *random.choose(SIGNS),
        9 => input[at] = input[at].wrapping_add(*random.choose(&[1, 255, 16, 240])),
        _ => put_number(random, input, at),
    }
}

/// An edge, in one to eight bytes, of either order.
fn put_number(random: &mut Random, input: &mut [u8], at: usize) {
    let bytes = (1 << random.below(4)).min(input.len() - at);
    let edge = random.choose(&EDGES).wrapping_add(random.below(3)).wrapping_sub(1);
    let number = match random.one_in(2) {
        true => edge.to_le_bytes()[..bytes].to_vec(),
        false => edge.to_be_bytes()[8 - bytes..].to_vec(),
    };
    input[at..at + bytes].copy_from_slice(&number);
}
