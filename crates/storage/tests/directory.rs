//! The storage directory: whose it is, and that it is used once.

mod common;

use std::fs;
use tempfile::TempDir;

use common::{IDENTITY, directories, formatted, on_disk, plain_disk, plain_reactor, ring_disk};
use weft_storage::sums::SettleWhen;
use weft_storage::{DataFiles, Directory, Disk, DiskEngine, Identity, LocalDisk, StateFile, StorageError};

fn refusal(result: Result<LocalDisk, StorageError>) -> String {
    match result {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn data_is_found_again_by_either_disk_at_the_documented_place() {
    let directory = on_disk();
    plain_reactor().run(async {
        let disk = ring_disk(&directory);
        let file = disk.create(0x12a).unwrap();
        disk.write(&file, 0, b"kept").await.unwrap();
        disk.sync(&file).await.unwrap();
        drop(disk);
        let disk = plain_disk(&directory);
        let mut back = [0; 9];
        let file = disk.open(0x12a).unwrap().unwrap();
        assert_eq!(disk.read(&file, 0, &mut back).await.unwrap(), 4);
    });
    let path = "data/9e/37/000000000000012a";
    assert_eq!(fs::read(directory.path().join(path)).unwrap(), b"kept");
    let identity = fs::read_to_string(directory.path().join("weft-storage")).unwrap();
    let storage = "05".repeat(16);
    let cluster = "07".repeat(16);
    assert_eq!(identity, format!("weft-storage 2\ncluster {cluster}\nserver 2\nstorage {storage}\n"));
}

#[test]
fn two_servers_cannot_use_one_directory() {
    let directory = on_disk();
    let first = plain_disk(&directory);
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("in use by another server"), "{message}");
    assert!(message.contains(&std::process::id().to_string()), "{message}");
    drop(first);
    plain_disk(&directory);
}

#[test]
fn a_wrong_directory_is_refused_with_the_reason() {
    let directory = on_disk();
    drop(plain_disk(&directory));
    let other_cluster = Identity { cluster_id: [8; 16], ..IDENTITY };
    let other_server = Identity { server_id: 3, ..IDENTITY };
    let message = refusal(LocalDisk::open(directory.path(), &other_cluster, DiskEngine::Plain));
    assert!(message.contains("cluster 0707") && message.contains("cluster 0808"), "{message}");
    let message = refusal(LocalDisk::open(directory.path(), &other_server, DiskEngine::Plain));
    assert!(message.contains("`server 2` where `server 3` is expected"), "{message}");

    let identity = directory.path().join("weft-storage");
    let text = fs::read_to_string(&identity).unwrap();
    fs::write(&identity, text.replace("weft-storage 2", "weft-storage 9")).unwrap();
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("`weft-storage 9`"), "{message}");

    // Data without an identity is somebody's: not ours.
    fs::remove_file(&identity).unwrap();
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("holds data but no weft-storage file"), "{message}");
    fs::write(&identity, text).unwrap();
    plain_disk(&directory);
}

#[test]
fn foreign_names_among_the_data_are_not_listed() {
    let directory = on_disk();
    let disk = plain_disk(&directory);
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

#[test]
fn a_storage_is_made_only_when_asked_for_and_never_over_another() {
    let directory = on_disk();
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("it is empty") && message.contains("weft serve --format"), "{message}");
    let missing = directory.path().join("not/mounted");
    let message = refusal(LocalDisk::open(&missing, &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("there is no such directory"), "{message}");
    assert!(!missing.exists(), "refusing leaves nothing behind");
    fs::write(directory.path().join("note"), b"").unwrap();
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("it has 1 entries"), "{message}");

    assert_eq!(plain_disk(&directory).storage(), [5; 16]);
    let again = Directory::format(directory.path(), &IDENTITY, &[6; 16]).unwrap_err().to_string();
    assert!(again.contains("holds weft-storage already") && again.contains("nothing was changed"), "{again}");
    assert_eq!(plain_disk(&directory).storage(), [5; 16]);
    let whole = on_disk();
    fs::create_dir_all(whole.path().join("data/00")).unwrap();
    let data_of_somebody = Directory::format(whole.path(), &IDENTITY, &[6; 16]).unwrap_err().to_string();
    assert!(data_of_somebody.contains("holds data already"), "{data_of_somebody}");
}

#[test]
fn a_storage_without_its_data_is_refused() {
    let directory = on_disk();
    drop(plain_disk(&directory));
    fs::remove_dir(directory.path().join("data")).unwrap();
    let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
    assert!(message.contains("no directory data"), "{message}");
    assert!(!directory.path().join("data").exists());
}

#[test]
fn a_storage_of_the_first_format_gets_a_name() {
    let directory = on_disk();
    formatted(&directory);
    let path = directory.path().join("weft-storage");
    fs::write(&path, format!("weft-storage 1\ncluster {}\nserver 2\n", "07".repeat(16))).unwrap();
    fs::remove_file(directory.path().join("weft-state")).unwrap();
    let named = plain_disk(&directory).storage();
    assert_ne!(named, [5; 16]);
    assert_eq!(plain_disk(&directory).storage(), named);
    assert_eq!(StateFile::open(directory.path()).unwrap().state().mark, 0);
}

#[test]
fn parts_of_a_file_that_belong_to_different_chains_stay_apart() {
    async fn holds(files: &DataFiles<LocalDisk>, data: &[u8]) {
        let mut back = vec![0; data.len() + 1];
        let file = files.open(298).unwrap().unwrap();
        assert_eq!(file.read(0, &mut back).await.unwrap(), data.len());
        assert_eq!(back[..data.len()], *data);
    }
    for directory in directories() {
        plain_reactor().run(async {
            let own = plain_disk(&directory);
            let other = DataFiles::new(own.of_chain(weft_layout::ChainId(7)).unwrap());
            let own = DataFiles::new(own);
            for (files, data) in [(&own, b"of its own chain".as_slice()), (&other, b"of chain 7".as_slice())]
            {
                let file = files.create(298).unwrap();
                file.write(0, data).await.unwrap();
                file.sync().await.unwrap();
                let now = SettleWhen::NOW;
                assert_eq!(files.settle(now, async |_| true).await.unwrap().files, 1);
            }
            other.create(299).unwrap();
            drop(own);
            let message = refusal(LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain));
            assert!(message.contains("in use"), "a chain keeps its storage locked: {message}");
        });
        for kind in ["data", "sums"] {
            for home in [kind.to_string(), format!("chains/0007/{kind}")] {
                let file = directory.path().join(home).join("9e/37/000000000000012a");
                assert!(file.is_file(), "{}", file.display());
            }
        }
        plain_reactor().run(async {
            let own = plain_disk(&directory);
            let other = DataFiles::new(own.of_chain(weft_layout::ChainId(7)).unwrap());
            let own = DataFiles::new(own);
            let inos = |files: &DataFiles<LocalDisk>| {
                files.list(None, 10).unwrap().0.iter().map(|object| object.ino).collect::<Vec<_>>()
            };
            assert_eq!((inos(&own), inos(&other)), (vec![298], vec![298, 299]));
            holds(&own, b"of its own chain").await;
            assert!(own.remove(298).unwrap());
            assert!(own.open(298).unwrap().is_none());
            holds(&other, b"of chain 7".as_slice()).await;
        });
    }
}

/// A storage with data files of these numbers, all of them durable.
fn synced_storage(inos: impl Iterator<Item = u64>) -> TempDir {
    let directory = on_disk();
    let files = DataFiles::new(plain_disk(&directory));
    plain_reactor().run(async {
        for ino in inos {
            files.create(ino).unwrap().write(0, &[1; 10]).await.unwrap();
            files.sync(ino).await.unwrap();
        }
    });
    directory
}

fn open(directory: &TempDir) -> Result<LocalDisk, StorageError> {
    LocalDisk::open(directory.path(), &IDENTITY, DiskEngine::Plain)
}

#[test]
fn a_storage_whose_data_files_are_gone_is_refused_until_that_is_accepted() {
    let directory = synced_storage([2, 3].into_iter());
    let (data, elsewhere) = (directory.path().join("data"), directory.path().join("elsewhere"));
    fs::rename(&data, &elsewhere).unwrap();
    fs::create_dir(&data).unwrap();
    // As a new disk has it.
    fs::create_dir(data.join("lost+found")).unwrap();
    for _ in 0..2 {
        let error = open(&directory).map(drop).unwrap_err();
        assert!(matches!(error, StorageError::Emptied { .. }), "{error}");
        assert!(error.to_string().contains("not mounted") && error.to_string().contains("--accept-loss"));
    }
    // The disk is mounted.
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&elsewhere, &data).unwrap();
    assert_eq!(open(&directory).unwrap().emptied(), None);
    fs::remove_dir_all(data.join("00")).unwrap();
    open(&directory).map(drop).unwrap_err();
    Directory::accept_loss(directory.path()).unwrap();
    for _ in 0..2 {
        assert_eq!(open(&directory).unwrap().emptied().unwrap().missing, 2);
    }
    let files = DataFiles::new(plain_disk(&directory));
    assert!(files.has_lost(2).unwrap() && files.has_lost(3).unwrap());
    plain_reactor().run(async { files.remove_all(&[2, 3]).await.unwrap() });
    drop(files);
    open(&directory).unwrap();
    assert!(!directory.path().join("held/loss-accepted").exists(), "another loss is another one");
}

#[test]
fn a_storage_that_lacks_most_data_files_is_refused_and_one_that_lacks_some_is_not() {
    for (removed, is_refused) in [(1, false), (15, false), (20, false), (21, true), (40, true)] {
        let inos = || (0..40).map(|number| 2 + number * 256);
        let directory = synced_storage(inos());
        for ino in inos().take(removed) {
            let place = ((ino >> 8u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
            let name = format!("data/{:02x}/{:02x}/{ino:016x}", place >> 8, place & 0xff);
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        assert_eq!(open(&directory).is_err(), is_refused, "{removed}");
    }
}
