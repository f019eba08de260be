//! Backups of the names: no panic, and what is read to its end says the same when it is written again.
#![no_main]
use libfuzzer_sys::fuzz_target;
use weft_meta::{BackupReader, BackupWriter, verify_backup};

fuzz_target!(|bytes: &[u8]| {
    let Ok((head, size)) = verify_backup(bytes) else { return };
    let mut reader = BackupReader::begin(bytes).expect("it was verified");
    let mut writer = BackupWriter::begin(Vec::new(), &head).expect("it is memory");
    while let Some(pairs) = reader.next_block().expect("it was verified") {
        pairs.iter().for_each(|(key, value)| writer.add(key, value).expect("it was in one"));
    }
    let (again, again_size) = writer.end().expect("it is memory");
    assert_eq!(again_size.records, size.records);
    assert_eq!(verify_backup(again.as_slice()).expect("it was just written").0, head);
});
