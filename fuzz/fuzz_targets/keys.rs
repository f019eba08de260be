//! Key files: no panic, and what is read is written again with the same meaning.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_wire::keys::IssuedKey;

fuzz_target!(|text: &str| {
    if let Ok(key) = IssuedKey::from_text(text) {
        assert_eq!(IssuedKey::from_text(&key.to_text()), Ok(key));
    }
});
