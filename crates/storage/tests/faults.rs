//! Errors of the disk reach the caller, and what was there before stays.

mod common;

use common::{on_disk, pattern, plain_disk, plain_reactor};
use weft_storage::{DataFiles, Disk, FaultDisk, FaultPlan, MemDisk, Operation, StorageError};

#[test]
fn a_full_disk_is_reported_and_earlier_data_is_intact() {
    let directory = on_disk();
    full_disk(FaultDisk::new(
        plain_disk(&directory),
        FaultPlan { full_after_bytes: Some(150_000), ..FaultPlan::default() },
    ));
    full_disk(MemDisk::new(150_000));
}

fn full_disk(disk: impl Disk) {
    let files = DataFiles::new(disk);
    plain_reactor().run(async {
        let data = pattern(1, 100_000);
        let file = files.create(1).unwrap();
        file.write(0, &data).await.unwrap();
        let error = file.write(100_000, &data).await.unwrap_err();
        assert!(error.is_full(), "{error}");
        assert!(matches!(error, StorageError::File { operation: Operation::Write, ino: 1, .. }));
        assert!(error.to_string().contains("cannot write data file 0000000000000001"), "{error}");
        // Another file meets the same, and can be removed and read all the same.
        assert!(files.create(2).unwrap().write(0, &data).await.unwrap_err().is_full());
        let mut back = vec![0; 100_000];
        assert_eq!(file.read(0, &mut back).await.unwrap(), 100_000);
        assert!(back == data);
        assert!(file.size().unwrap() <= 150_000);
        assert!(files.remove(2).unwrap());
    });
}

#[test]
fn room_comes_back_when_files_go() {
    let files = DataFiles::new(MemDisk::new(1000));
    plain_reactor().run(async {
        for _ in 0..10 {
            files.create(1).unwrap().write(0, &[1; 1000]).await.unwrap();
            assert_eq!(files.space().unwrap().available_bytes, 0);
            assert!(files.truncate(2, 1).unwrap_err().is_full());
            files.remove(1).unwrap();
            assert_eq!(files.space().unwrap().available_bytes, 1000);
        }
    });
}

#[test]
fn an_error_leaves_the_rest_alone_and_the_next_try_may_succeed() {
    let plan = FaultPlan {
        seed: weft_test_random::seed(),
        error_per_mille: 300,
        short_per_mille: 300,
        ..FaultPlan::default()
    };
    let files = DataFiles::new(FaultDisk::new(MemDisk::new(1 << 20), plan));
    plain_reactor().run(async {
        let mut errors = 0;
        for ino in 0..100u64 {
            let data = pattern(ino, 500);
            loop {
                let written = match files.create(ino) {
                    Ok(file) => file.write(0, &data).await,
                    Err(error) => Err(error),
                };
                match written {
                    Ok(()) => break,
                    Err(error) => {
                        assert_eq!(error.errno(), libc::EIO);
                        errors += 1;
                    }
                }
            }
        }
        assert!(errors > 20);
        files.disk().set_plan(FaultPlan::default());
        for ino in 0..100u64 {
            let mut back = vec![0; 600];
            let count = files.open(ino).unwrap().unwrap().read(0, &mut back).await.unwrap();
            assert!(back[..count] == pattern(ino, 500));
        }
    });
}

#[test]
fn a_torn_write_ends_at_its_byte_and_the_disk_stays_dead_until_it_is_replaced() {
    let memory = MemDisk::new(1 << 20);
    let plan = FaultPlan { torn_after_bytes: Some(1234), ..FaultPlan::default() };
    let files = DataFiles::new(FaultDisk::new(memory.clone(), plan));
    plain_reactor().run(async {
        let data = pattern(9, 1000);
        let file = files.create(1).unwrap();
        file.write(0, &data).await.unwrap();
        file.sync().await.unwrap();
        assert_eq!(file.write(1000, &data).await.unwrap_err().errno(), libc::EIO);
        assert!(file.read(0, &mut [0; 10]).await.is_err());
        assert!(file.sync().await.is_err());
        assert!(files.size(1).is_err());
        assert!(files.create(2).is_err());
        assert!(files.list(None, 1).is_err());

        let after = DataFiles::new(memory);
        let mut back = vec![0; 2000];
        assert_eq!(after.open(1).unwrap().unwrap().read(0, &mut back).await.unwrap(), 1234);
        assert!(back[..1000] == data && back[1000..1234] == data[..234]);
    });
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = |seed| {
        let plan = FaultPlan { seed, error_per_mille: 200, short_per_mille: 200, ..FaultPlan::default() };
        let disk = FaultDisk::new(MemDisk::new(1 << 20), plan);
        plain_reactor().run(async {
            let mut outcome = Vec::new();
            for ino in 0..200 {
                outcome.push(match disk.create(ino) {
                    Ok(file) => disk.write(&file, 0, &[1; 64]).await.is_ok(),
                    Err(_) => false,
                });
            }
            outcome
        })
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

#[test]
fn all_that_was_changed_is_synced_and_only_that() {
    let failing = |number| FaultPlan { failing_sync: Some(number), ..FaultPlan::default() };
    let files = DataFiles::new(FaultDisk::new(MemDisk::new(1 << 20), failing(1)));
    plain_reactor().run(async {
        files
            .sync_all()
            .await
            .expect_err("the first one syncs all there is, for an earlier run may have left something");
        assert_eq!((files.losses(7), files.losses_of_all()), (1, 1), "any file may have lost something");
        files.sync_all().await.unwrap();
        files.disk().set_plan(failing(1));
        files.sync_all().await.expect("nothing has changed, so there is nothing to sync");

        files.create(7).unwrap().write(0, &[1; 100]).await.unwrap();
        files.sync_all().await.unwrap_err();
        assert_eq!((files.losses(7), files.losses(8), files.losses_of_all()), (2, 1, 2));
        files.sync_all().await.unwrap();
        for change in [
            |files: &DataFiles<_>| files.truncate(7, 50),
            |files: &DataFiles<_>| files.allocate(7, 50, 100, false),
            |files: &DataFiles<_>| files.punch(7, 0, 10),
            |files: &DataFiles<_>| files.zero(7, 0, 10, true),
        ] {
            change(&files).unwrap();
            files.disk().set_plan(failing(1));
            files.sync_all().await.expect_err("it was changed");
            files.sync_all().await.unwrap();
        }
        // What was synced or removed is not synced once more.
        files.create(8).unwrap().write(0, &[1; 100]).await.unwrap();
        files.truncate(7, 10).unwrap();
        files.sync(8).await.unwrap();
        files.remove(7).unwrap();
        files.disk().set_plan(failing(1));
        files.sync_all().await.unwrap();
        // Very many are synced at once.
        for ino in 100..500 {
            files.create(ino).unwrap().write(0, &[1; 10]).await.unwrap();
        }
        files.disk().set_plan(failing(2));
        files.sync_all().await.unwrap();
    });
}
