//! The storage directory: whose it is, and that it is used once.

mod common;

use std::fs;

use common::{IDENTITY, on_disk, plain_reactor};
use weft_storage::{Disk, Identity, PlainDisk, RingDisk, StorageError};

fn refusal(result: Result<PlainDisk, StorageError>) -> String {
    match result {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn data_is_found_again_by_either_disk_at_the_documented_place() {
    let directory = on_disk();
    plain_reactor().run(async {
        let disk = RingDisk::open(directory.path(), &IDENTITY).unwrap();
        let file = disk.create(0x12a).unwrap();
        disk.write(&file, 0, b"kept").await.unwrap();
        disk.sync(&file).await.unwrap();
        drop(disk);
        let disk = PlainDisk::open(directory.path(), &IDENTITY).unwrap();
        let mut back = [0; 9];
        let file = disk.open(0x12a).unwrap().unwrap();
        assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 4);
    });
    let path = "data/9e/37/000000000000012a";
    assert_eq!(fs::read(directory.path().join(path)).unwrap(), b"kept");
    let identity = fs::read_to_string(directory.path().join("weft-storage")).unwrap();
    assert_eq!(identity, "weft-storage 1\ncluster 07070707070707070707070707070707\nserver 2\n");
}

#[test]
fn two_servers_cannot_use_one_directory() {
    let directory = on_disk();
    let first = PlainDisk::open(directory.path(), &IDENTITY).unwrap();
    let message = refusal(PlainDisk::open(directory.path(), &IDENTITY));
    assert!(message.contains("in use by another server"), "{message}");
    assert!(message.contains(&std::process::id().to_string()), "{message}");
    drop(first);
    PlainDisk::open(directory.path(), &IDENTITY).unwrap();
}

#[test]
fn a_wrong_directory_is_refused_with_the_reason() {
    let directory = on_disk();
    drop(PlainDisk::open(directory.path(), &IDENTITY).unwrap());
    let other_cluster = Identity { cluster_id: [8; 16], ..IDENTITY };
    let other_server = Identity { server_id: 3, ..IDENTITY };
    let message = refusal(PlainDisk::open(directory.path(), &other_cluster));
    assert!(message.contains("cluster 0707") && message.contains("cluster 0808"), "{message}");
    let message = refusal(PlainDisk::open(directory.path(), &other_server));
    assert!(message.contains("`server 2` where `server 3` is expected"), "{message}");

    let identity = directory.path().join("weft-storage");
    let text = fs::read_to_string(&identity).unwrap();
    fs::write(&identity, text.replace("weft-storage 1", "weft-storage 9")).unwrap();
    let message = refusal(PlainDisk::open(directory.path(), &IDENTITY));
    assert!(message.contains("`weft-storage 9`"), "{message}");

    // Data without an identity is somebody's: not ours.
    fs::remove_file(&identity).unwrap();
    let message = refusal(PlainDisk::open(directory.path(), &IDENTITY));
    assert!(message.contains("holds data but no weft-storage file"), "{message}");
    fs::write(&identity, text).unwrap();
    PlainDisk::open(directory.path(), &IDENTITY).unwrap();
}

#[test]
fn foreign_names_among_the_data_are_not_listed() {
    let directory = on_disk();
    let disk = PlainDisk::open(directory.path(), &IDENTITY).unwrap();
    disk.create(1).unwrap();
    fs::create_dir(directory.path().join("data/lost+found")).unwrap();
    fs::create_dir(directory.path().join("data/zz")).unwrap();
    let inner = fs::read_dir(directory.path().join("data"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| entry.file_name().len() == 2 && entry.file_name() != "zz")
        .unwrap();
    fs::write(inner.path().join("note"), b"").unwrap();
    assert_eq!(disk.list(None, 10).unwrap().len(), 1);
}
