//! Every request and reply decoder: no panic, no allocation beyond the input's size, one encoding for each value.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_wire::{Op, fuzz_decode};

fuzz_target!(|input: (u8, &[u8])| {
    let (which, bytes) = input;
    fuzz_decode(Op::ALL[usize::from(which) % Op::ALL.len()], bytes);
});
