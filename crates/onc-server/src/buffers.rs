//! Buffers that are used again: a fresh one costs its pages and their zeros, about as much as the copy into it.
//!
//! Each thread has its own. What a buffer held before is in it still: who takes one fills it, or cuts it to
//! what was filled, before anybody else sees it.

use std::cell::RefCell;

/// Sizes are powers of two, the least of which this is. What is smaller is left to the allocator.
const LEAST_BYTES: usize = 4 << 10;
/// How many sizes there are: up to 1 MiB.
const SIZES: usize = 9;
/// Bytes that are kept of each size.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The buffers of one size.
#[derive(Default)]
struct Kept {
    /// The one that was given back last is taken first: it is in the processor's cache still.
    buffers: Vec<Vec<u8>>,
    /// Fewest that were kept since they were looked at: so many are not needed.
    least: usize,
}

thread_local! {
    static KEPT: RefCell<[Kept; SIZES]> = RefCell::default();
}

/// Which size has room for so many bytes, and how large it is.
fn size_of(bytes: usize) -> Option<(usize, usize)> {
    let size_bytes = bytes.checked_next_power_of_two()?;
    let number = (size_bytes / LEAST_BYTES).checked_ilog2()? as usize;
    (number < SIZES).then_some((number, size_bytes))
}

/// A buffer of so many bytes, with anything in it.
pub fn take(bytes: usize) -> Vec<u8> {
    let Some((number, size_bytes)) = size_of(bytes) else { return vec![0; bytes] };
    let known = KEPT.with_borrow_mut(|kept| {
        let Kept { buffers, least } = &mut kept[number];
        let buffer = buffers.pop();
        *least = (*least).min(buffers.len());
        buffer
    });
    let mut buffer = known.unwrap_or_else(|| vec![0; size_bytes]);
    buffer.truncate(bytes);
    buffer
}

/// Gives one back that [`take`] has made; another one is freed.
pub fn give(mut buffer: Vec<u8>) {
    let bytes = buffer.capacity();
    let Some((number, _)) = size_of(bytes).filter(|(_, size_bytes)| *size_bytes == bytes) else { return };
    KEPT.with_borrow_mut(|kept| {
        let buffers = &mut kept[number].buffers;
        if (buffers.len() + 1) * bytes <= KEPT_BYTES_MAX {
            buffer.resize(bytes, 0);
            buffers.push(buffer);
        }
    });
}

/// Frees those that were not needed since the last call.
pub fn trim() {
    KEPT.with_borrow_mut(|kept| {
        for Kept { buffers, least } in kept {
            buffers.drain(..(*least).min(buffers.len()));
            *least = buffers.len();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_taken_again() {
        for bytes in [1 << 20, (1 << 20) - 5, 4096, 5000] {
            let mut first = take(bytes);
            assert_eq!(first.len(), bytes);
            let address = first.as_ptr();
            first.truncate(100);
            give(first);
            let again = take(bytes);
            assert_eq!((again.as_ptr(), again.len()), (address, bytes));
            let other = take(bytes);
            assert_ne!(other.as_ptr(), address, "it is in use");
        }
        assert_eq!((take(0).len(), take(5).len(), take(3 << 20).len()), (0, 5, 3 << 20));
    }

    #[test]
    fn no_more_is_kept_than_was_needed() {
        let held = |count: usize| (0..count).map(|_| take(1 << 20)).collect::<Vec<_>>();
        let kept = || KEPT.with_borrow(|kept| kept[SIZES - 1].buffers.len());
        held(40).into_iter().for_each(give);
        assert_eq!(kept(), 16);
        trim();
        held(3).into_iter().for_each(give);
        trim();
        assert_eq!(kept(), 3);
        trim();
        assert_eq!(kept(), 0);
    }
}
