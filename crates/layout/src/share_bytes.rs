//! How many bytes of a request one slot has, without a walk over all of them.

use crate::extents::{Cursor, Form};
use crate::own_blocks::OwnBlocks;
use crate::region::{Extent, Region, Regions};
use crate::striping::Layout;

/// The number of bytes of the request on `slot`. O(1) for a contiguous extent. For a regular or repeated part
/// it takes at most until the pattern of servers repeats, whatever its length.
pub fn share_bytes(layout: &Layout, slot: u16, regions: &Regions) -> u64 {
    if slot >= layout.server_count() {
        return 0;
    }
    if layout.server_count() == 1 {
        return regions.total_bytes();
    }
    regions.parts.iter().map(|part| share_bytes_of_part(layout, slot, part)).sum()
}

fn share_bytes_of_part(layout: &Layout, slot: u16, part: &Region) -> u64 {
    let (count, stride_bytes, iteration_bytes) = match Form::of(part) {
        Form::Nest(nest) => match nest.loops.last() {
            Some(outermost) => {
                (outermost.count, outermost.stride_bytes, part.total_bytes() / outermost.count)
            }
            None => {
                let block = Extent { offset: nest.offset, bytes: nest.block_bytes };
                return layout.local_size(slot, block.end()) - layout.local_size(slot, block.offset);
            }
        },
        Form::List(_) => (1, 0, part.total_bytes()),
        Form::Repeat(repeat) => (repeat.count, repeat.stride_bytes, repeat.body.total_bytes()),
    };
    // After this many iterations, the same bytes of stripes repeat.
    let period = layout.stripe_bytes() / gcd(stride_bytes.unsigned_abs(), layout.stripe_bytes());
    let (periods, rest) = (count / period, count % period);
    let mut blocks = OwnBlocks::over(layout, slot, Cursor::over(std::slice::from_ref(part)));
    if periods < 2 {
        return blocks.map(|block| block.bytes).sum();
    }
    let (mut in_period, mut in_rest) = (0, 0);
    while let Some(block) = blocks.next() {
        // No block is in two iterations.
        let stream_end = blocks.cursor.stream_offset();
        if stream_end > period * iteration_bytes {
            break;
        }
        in_period += block.bytes;
        if stream_end <= rest * iteration_bytes {
            in_rest += block.bytes;
        }
    }
    periods * in_period + in_rest
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whether any byte of the request is on `slot`.
pub fn share_has(layout: &Layout, slot: u16, regions: &Regions) -> bool {
    OwnBlocks::from(layout, slot, regions, 0).next().is_some()
}
