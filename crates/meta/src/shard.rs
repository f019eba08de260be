//! The numbers and the records of a shard ([`weft_layout::shard_of`]).
//!
//! Whatever is stored under a number belongs to the number's shard. Replies and watches of a session are stored once per
//! shard, behind the session's id.

use weft_layout::{NUMBER_BITS, first_ino_of};

use crate::keys;

const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;

/// The greatest number of a shard. It is never given out, so that the next number is always one of the shard.
pub(crate) const fn last_number(shard: u16) -> u64 {
    first_ino_of(shard) | NUMBER_MASK
}

/// The keys of a kind under all numbers of a shard: from the first one up to the second, which is not one.
pub(crate) fn keys_of(kind: u8, shard: u16) -> (Vec<u8>, Vec<u8>) {
    let from = keys::numbered(kind, first_ino_of(shard)).to_vec();
    (from, keys::after_prefix(&keys::numbered(kind, last_number(shard))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::{Caller, SessionId};
    use crate::engine::{Batch, Engine};
    use crate::inode::{Kind, ROOT_INO, Timestamp};
    use crate::namespace::{Namespace, NamespaceOptions, encode_number};
    use crate::op::run_again;
    use crate::orphan::Orphan;
    use crate::{At, Damage, MemEngine, MetaError, Owner};
    use proptest::prelude::*;
    use weft_layout::shard_of;

    const NOW: Timestamp = Timestamp { seconds: 100, nanos: 0 };
    const SHARDS: u16 = 1 << (64 - NUMBER_BITS);

    /// A store with these records besides the root directory, opened after a restart.
    fn restarted(records: &[(Vec<u8>, Vec<u8>)]) -> Namespace<MemEngine> {
        let mut engine = MemEngine::new();
        Namespace::format(&mut engine, [1; 16], &Caller::root(), NOW).unwrap();
        let ns = Namespace::open(engine, NamespaceOptions::default()).unwrap();
        let mut engine = ns.engine.fork();
        let mut batch = Batch::default();
        records.iter().for_each(|(key, value)| batch.put(key, value));
        run_again(|| engine.commit(&batch)).unwrap();
        Namespace::open(engine, NamespaceOptions::default()).unwrap()
    }

    fn keys_in(ns: &Namespace<MemEngine>, kind: u8) -> Vec<Vec<u8>> {
        ns.engine.scan(&[kind], &[kind + 1]).map(|pair| pair.unwrap().0).collect()
    }

    proptest! {
        #![proptest_config(weft_test_random::cases(256))]

        #[test]
        fn every_number_has_one_shard_whose_keys_are_together(ino: u64, shard in 0..SHARDS, kind in b'a'..=b'z') {
            let own = shard_of(ino);
            prop_assert!(own < SHARDS && (first_ino_of(own)..=last_number(own)).contains(&ino));
            prop_assert_eq!(shard_of(first_ino_of(shard)), shard);
            prop_assert_eq!(shard_of(last_number(shard)), shard);
            prop_assert_eq!(last_number(shard).wrapping_add(1), first_ino_of((shard + 1) % SHARDS));
            let (from, to) = keys_of(kind, shard);
            let key = [&keys::numbered(kind, ino), b"name".as_slice()].concat();
            prop_assert_eq!(from <= key && key < to, own == shard);
        }

        #[test]
        fn a_sweep_touches_only_its_shard(numbers in prop::collection::btree_set((0..3u16, 1000..1400u64), 1..40)) {
            let ino = |shard, number| first_ino_of(shard) + number;
            let mut records = Vec::new();
            for (shard, number) in &numbers {
                let session = SessionId(u128::from(*number).to_be_bytes());
                let mut reply = vec![1; 17];
                reply[9..].copy_from_slice(&7i64.to_le_bytes());
                records.push((keys::orphan(ino(*shard, *number)).to_vec(), Orphan::Nameless.encode()));
                records.push((keys::reply(*shard, session, 3).to_vec(), reply));
                records.push((keys::watcher(*shard, session), vec![1]));
            }
            let mut ns = restarted(&records);
            for shard in 0..3 {
                let own = numbers.iter().filter(|(of, _)| *of == shard).count();
                prop_assert_eq!(ns.watchers(shard).unwrap().len(), own);
                prop_assert_eq!(ns.reap_orphans(shard).unwrap(), own);
                prop_assert_eq!(ns.drop_old_replies(shard, NOW).unwrap(), own);
                let left = numbers.iter().filter(|(of, _)| *of > shard).count();
                prop_assert_eq!(keys_in(&ns, keys::ORPHAN).len(), left);
                prop_assert_eq!(keys_in(&ns, keys::REPLY).len(), left);
            }
        }
    }

    #[test]
    fn keys_of_the_first_shard_are_those_of_before() {
        let session = SessionId([7; 16]);
        assert_eq!(keys::reply(0, session, 3)[..], [b"r".as_slice(), &[7; 16], &[0, 0, 0, 3]].concat());
        assert_eq!(keys::reply(5, session, 1023)[..], [b"r".as_slice(), &[7; 16], &[0, 5, 3, 255]].concat());
        assert_eq!(keys::watcher(0, session), [b"w".as_slice(), &[7; 16]].concat());
        assert_eq!(keys::watcher(5, session), [b"w".as_slice(), &[7; 16], &[0, 5]].concat());
        assert_eq!(keys::inode(first_ino_of(3) + 7), *b"i\x00\x30\x00\x00\x00\x00\x00\x07");
    }

    #[test]
    fn numbers_end_with_the_shard() {
        let last = last_number(0);
        let lease = (keys::SUPER_INO_LEASE.to_vec(), encode_number(last - 100));
        let mut ns = restarted(&[lease]);
        let next = last - 3;
        ns.next_ino = next;
        let root = Caller::root();
        let make = |ns: &mut Namespace<MemEngine>, name: &str| {
            let at = At::new(ROOT_INO, name);
            ns.change(|op| op.mknod(&root, NOW, at, Kind::File, 0o600, 0)).map(|(made, _)| made.attr.ino)
        };
        for number in next..last {
            assert_eq!(make(&mut ns, &format!("{number}")).unwrap(), number);
        }
        let refused = make(&mut ns, "one more").unwrap_err();
        assert!(matches!(refused, MetaError::NoNumbers { shard: 0 }), "{refused}");
        assert_eq!(ns.check().unwrap(), vec![]);
        let mut again = Namespace::open(ns.engine.fork(), NamespaceOptions::default()).unwrap();
        assert!(make(&mut again, "after a restart").is_err());
        assert!(shard_of(again.next_ino()) == 0 && again.check().unwrap().is_empty());
    }

    /// Their owner may have files with these numbers: a check here must not call their data files orphans.
    #[test]
    fn data_files_of_other_shards_are_not_judged() {
        let lease = (keys::SUPER_INO_LEASE.to_vec(), encode_number(first_ino_of(2) + 5000));
        let ns = restarted(&[lease]);
        let owners = ns.owners(&[first_ino_of(1) + 7, first_ino_of(2) + 7, first_ino_of(3) + 7]).unwrap();
        assert_eq!(owners, [Owner::Unsettled, Owner::Nothing, Owner::Unsettled]);
    }

    /// Numbers that come from outside do not lead the next one out of its shard.
    #[test]
    fn the_next_number_stays_in_its_shard() {
        let mut ns = restarted(&[]);
        let next = ns.next_ino();
        let (from, _) = ns.change(|op| Ok::<_, MetaError>(op.forgets_below(first_ino_of(9) + 5))).unwrap();
        assert_eq!((from, ns.next_ino()), (next, next));
        ns.change(|op| Ok::<_, MetaError>(op.forgets_below(u64::MAX))).unwrap();
        assert_eq!(ns.next_ino(), next);
        // An inode under a number of another shard is damage that is left to people.
        let made = ns.change(|op| op.mkdir(&Caller::root(), NOW, At::new(ROOT_INO, "d"), 0o700)).unwrap().0;
        let mut engine = ns.engine.fork();
        let value = engine.get(&keys::inode(made.attr.ino)).unwrap().unwrap();
        let mut batch = Batch::default();
        batch.put(keys::inode(first_ino_of(9) + 5), &value);
        engine.commit(&batch).unwrap();
        let mut ns = Namespace::open(engine, NamespaceOptions::default()).unwrap();
        let next = ns.next_ino();
        ns.begin_audit(1);
        let mut findings = Vec::new();
        while let Ok(step) = ns.step_audit(1, 100) {
            findings.extend(step.findings);
            if step.finished {
                break;
            }
        }
        let beyond = findings.iter().find(|finding| matches!(finding.damage, Damage::BeyondLease { .. }));
        let treated = ns.treat(1, NOW, beyond.unwrap()).unwrap().0;
        assert_eq!((treated, ns.next_ino()), (crate::Treatment::Left, next));
    }
}
