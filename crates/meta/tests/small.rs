//! Small files: bytes that lie with the inode, and the way from there to data files.

mod common;
use common::*;
use proptest::prelude::*;
use weft_meta::{
    At, Caller, Engine, LayoutRequest, MemEngine, Namespace, NewFile, OpenFlags, Spread, WriteReport,
};

const BOUND: u64 = 16 * 1024;

fn make<E: Engine>(ns: &mut Namespace<E>, path: &str, flags: OpenFlags) -> u64 {
    let new = NewFile { mode: 0o644, small: true, ..NewFile::default() };
    let made = run(ns, |op| op.create(&Caller::root(), now(1), S1, at(path), &new, flags)).unwrap();
    assert_eq!(u64::from(made.small_bytes), BOUND);
    made.attr.ino
}

fn write<E: Engine>(ns: &mut Namespace<E>, ino: u64, offset: u64, bytes: &[u8]) -> &'static str {
    match run(ns, |op| op.write_small(now(7), ino, offset, bytes)) {
        Ok(None) => "striped",
        result => outcome(result),
    }
}

fn read<E: Engine>(ns: &mut Namespace<E>, ino: u64) -> Option<Vec<u8>> {
    ns.begin().read_small(ino, 0, u64::MAX).unwrap().map(|read| read.bytes)
}

fn begin<E: Engine>(ns: &mut Namespace<E>, ino: u64) -> Spread {
    run(ns, |op| op.spread_begin(ino)).unwrap()
}

fn end<E: Engine>(ns: &mut Namespace<E>, ino: u64) {
    let layout = ns
        .begin()
        .getattr(ino)
        .map_or_else(|_| weft_layout::Layout::new(262_144, 0, 4, 4).unwrap(), |attr| attr.layout.unwrap());
    run(ns, |op| op.spread_end(ino, &layout, true)).unwrap();
}

fn state<E: Engine>(ns: &mut Namespace<E>, ino: u64) -> (u64, bool) {
    let attr = ns.begin().getattr(ino).unwrap();
    (attr.size, attr.size_live)
}

#[test]
fn the_inode_knows_the_size_of_a_small_file_while_it_is_written() {
    let mut ns = mem();
    let ino = make(&mut ns, "f", WRITE);
    assert_eq!(state(&mut ns, ino), (0, false), "nobody has to ask I/O servers");
    assert_eq!(write(&mut ns, ino, 3, b"abc"), "ok");
    assert_eq!((state(&mut ns, ino), read(&mut ns, ino)), ((6, false), Some(b"\0\0\0abc".to_vec())));
    let attr = ns.begin().getattr(ino).unwrap();
    assert_eq!((attr.mtime, attr.ctime), (now(7), now(7)));
    // A second writer, and one that ends without a report.
    run(&mut ns, |op| op.open(&Caller::root(), S2, At::ino(ino), WRITE)).unwrap();
    run(&mut ns, |op| op.session_gone(S2)).unwrap();
    assert_eq!(state(&mut ns, ino), (6, false));
    // What a client reports cannot make it longer than its bytes.
    let report = WriteReport { max_end: 1 << 40, mtime: Some(now(9)) };
    run(&mut ns, |op| op.close(now(9), S1, ino, true, Some(&report))).unwrap();
    assert_eq!(state(&mut ns, ino), (6, false));
    sound(&ns);
}

#[test]
fn a_write_beyond_the_bound_is_refused_until_the_file_is_striped() {
    let mut ns = mem();
    let ino = make(&mut ns, "f", WRITE);
    assert_eq!(write(&mut ns, ino, BOUND - 1, b"x"), "ok");
    assert_eq!(write(&mut ns, ino, BOUND, b"x"), "Small");
    assert_eq!(write(&mut ns, ino, u64::MAX, b"x"), "Small");
    let Spread::Move { bytes, durable, .. } = begin(&mut ns, ino) else { panic!("there are bytes to move") };
    assert!(bytes.len() as u64 == BOUND && bytes.ends_with(b"\0x") && !durable);
    // On their way they are read here, and change no more.
    assert_eq!(read(&mut ns, ino), Some(bytes.clone()));
    assert_eq!(write(&mut ns, ino, 0, b"y"), "Small");
    assert_eq!(
        outcome(run(&mut ns, |op| op.truncate_begin(&Caller::root(), now(8), S1, At::ino(ino), 1))),
        "Small"
    );
    // Somebody else may have begun it, and died.
    assert_eq!(begin(&mut ns, ino), Spread::Move { layout: layout_of(&mut ns, ino), bytes, durable });
    end(&mut ns, ino);
    assert_eq!((read(&mut ns, ino), write(&mut ns, ino, 0, b"y")), (None, "striped"));
    assert_eq!(state(&mut ns, ino), (BOUND, true), "it is open for writing");
    assert_eq!(begin(&mut ns, ino), Spread::Done);
    run(&mut ns, |op| op.close(now(9), S1, ino, true, Some(&WriteReport { max_end: 20_000, mtime: None })))
        .unwrap();
    assert_eq!(state(&mut ns, ino), (20_000, false));
    sound(&ns);
}

fn layout_of<E: Engine>(ns: &mut Namespace<E>, ino: u64) -> weft_layout::Layout {
    ns.begin().getattr(ino).unwrap().layout.unwrap()
}

#[test]
fn bytes_that_did_not_get_through_stay_with_the_inode() {
    let mut ns = mem();
    let ino = make(&mut ns, "f", WRITE);
    write(&mut ns, ino, 0, b"abc");
    begin(&mut ns, ino);
    ns.spread_failed(ino);
    assert_eq!(write(&mut ns, ino, 1, b"x"), "ok");
    assert_eq!(read(&mut ns, ino), Some(b"axc".to_vec()));
    sound(&ns);
}

#[test]
fn an_empty_file_is_striped_at_once() {
    let mut ns = mem();
    let (open, closed) = (make(&mut ns, "open", WRITE), make(&mut ns, "closed", READ));
    assert_eq!([open, closed].map(|ino| begin(&mut ns, ino)), [Spread::Done, Spread::Done]);
    assert_eq!((state(&mut ns, open), state(&mut ns, closed)), ((0, true), (0, false)));
    assert_eq!(write(&mut ns, closed, 0, b"x"), "striped");
    sound(&ns);
}

#[test]
fn only_a_file_that_went_to_data_files_leaves_garbage() {
    let mut ns = mem();
    let root = Caller::root();
    let [stays, spread, on_its_way] =
        ["stays", "spread", "on its way"].map(|name| make(&mut ns, name, OpenFlags::default()));
    for ino in [stays, spread, on_its_way] {
        assert_eq!(write(&mut ns, ino, 0, b"abc"), "ok");
    }
    begin(&mut ns, spread);
    end(&mut ns, spread);
    begin(&mut ns, on_its_way);
    let layout = layout_of(&mut ns, on_its_way);
    for name in ["stays", "spread", "on its way"] {
        run(&mut ns, |op| op.unlink(&root, now(4), at(name))).unwrap();
    }
    let garbage = |ns: &mut Namespace<MemEngine>| {
        ns.begin().garbage(0, 9).unwrap().into_iter().map(|(ino, _)| ino).collect::<Vec<_>>()
    };
    assert_eq!(garbage(&mut ns), [spread, on_its_way]);
    // The bytes of one arrive after its data files were removed.
    run(&mut ns, |op| {
        op.garbage_done(&[spread, on_its_way]);
        Ok(())
    })
    .unwrap();
    run(&mut ns, |op| op.spread_end(on_its_way, &layout, true)).unwrap();
    assert_eq!(garbage(&mut ns), [on_its_way]);
    sound(&ns);
}

#[test]
fn a_layout_that_is_asked_for_makes_a_file_striped() {
    let mut ns = mem();
    let ino = make(&mut ns, "f", READ);
    let wide = LayoutRequest { strip_bytes: Some(4096), ..LayoutRequest::default() };
    let set = |ns: &mut Namespace<MemEngine>| {
        outcome(run(ns, |op| op.set_layout(&Caller::root(), now(3), At::ino(ino), &wide)))
    };
    run(&mut ns, |op| op.open(&Caller::root(), S2, At::ino(ino), WRITE)).unwrap();
    assert_eq!(set(&mut ns), "Busy", "a writer may be about to write by the old one");
    run(&mut ns, |op| op.close(now(4), S2, ino, true, None)).unwrap();
    assert_eq!(set(&mut ns), "ok");
    assert_eq!(write(&mut ns, ino, 0, b"x"), "striped");
    let small = make(&mut ns, "g", READ);
    write(&mut ns, small, 0, b"x");
    let set = run(&mut ns, |op| op.set_layout(&Caller::root(), now(3), At::ino(small), &wide));
    assert_eq!(outcome(set), "Busy", "it was written");
}

#[test]
fn who_was_told_that_bytes_are_durable_is_told_so_where_they_go() {
    let mut ns = mem();
    let durable = |ns: &mut Namespace<MemEngine>, ino| match begin(ns, ino) {
        Spread::Move { durable, .. } => durable,
        Spread::Done => panic!("there are bytes to move"),
    };
    let synced = make(&mut ns, "synced", WRITE);
    write(&mut ns, synced, 0, b"abc");
    ns.note_sync();
    write(&mut ns, synced, 0, b"x");
    let written_so = make(&mut ns, "written so", WRITE);
    write(&mut ns, written_so, 0, b"abc");
    ns.note_sync();
    assert!(durable(&mut ns, synced) && durable(&mut ns, written_so));
    let [before, after] = ["before", "after"].map(|name| make(&mut ns, name, WRITE));
    write(&mut ns, before, 0, b"abc");
    ns.note_sync();
    write(&mut ns, before, 3, b"d");
    write(&mut ns, after, 0, b"abc");
    assert!(durable(&mut ns, before), "whoever synced everything was told so");
    assert!(!durable(&mut ns, after));
    // A sync while they are on their way.
    let layout = layout_of(&mut ns, after);
    ns.note_sync();
    assert!(!run(&mut ns, |op| op.spread_end(after, &layout, false)).unwrap());
    assert_eq!(read(&mut ns, after), Some(b"abc".to_vec()));
    assert!(run(&mut ns, |op| op.spread_end(after, &layout, true)).unwrap());
    assert_eq!((read(&mut ns, after), ns.begin().small_bytes(after).unwrap()), (None, 0));
}

#[test]
fn a_store_that_is_opened_again_has_the_bytes() {
    let mut ns = mem();
    let ino = make(&mut ns, "f", WRITE);
    write(&mut ns, ino, 0, b"abc");
    begin(&mut ns, ino);
    // A bound that was lowered concerns files that grow from now on.
    let options = weft_meta::NamespaceOptions { small_file_bytes: 0, ..options() };
    let mut ns = Namespace::open(ns.engine().fork(), options).unwrap();
    assert_eq!(read(&mut ns, ino), Some(b"abc".to_vec()));
    assert_eq!(ns.begin().small_bytes(ino).unwrap(), 3);
    assert_eq!((write(&mut ns, ino, 0, b"xyz"), write(&mut ns, ino, 3, b"d")), ("ok", "Small"));
    let new = NewFile { mode: 0o644, small: true, ..NewFile::default() };
    let made = run(&mut ns, |op| op.create(&Caller::root(), now(1), S1, at("g"), &new, WRITE)).unwrap();
    assert_eq!((made.small_bytes, made.attr.size_live), (0, true));
    sound(&ns);
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, bytes: Vec<u8> },
    Truncate { size: u64 },
    Read { offset: u64, bytes: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = prop_oneof![0..100_u64, 0..BOUND];
    let step = prop_oneof![
        (place.clone(), prop::collection::vec(any::<u8>(), 0..300))
            .prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        place.clone().prop_map(|size| Step::Truncate { size }),
        (place, 0..40_000_u64).prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(weft_test_random::cases(100))]

    #[test]
    fn a_small_file_is_a_vector(steps in steps()) {
        let mut ns = mem();
        let ino = make(&mut ns, "f", WRITE);
        let mut model = Vec::new();
        for step in steps {
            match step {
                Step::Write { offset, bytes } => {
                    let end = offset as usize + bytes.len();
                    if end as u64 > BOUND {
                        prop_assert_eq!(write(&mut ns, ino, offset, &bytes), "Small");
                        continue;
                    }
                    prop_assert_eq!(write(&mut ns, ino, offset, &bytes), "ok");
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].copy_from_slice(&bytes);
                }
                Step::Truncate { size } => {
                    let begun = run(&mut ns, |op| op.truncate_begin(&Caller::root(), now(8), S1, At::ino(ino), size));
                    prop_assert!(!begun.unwrap().data_work);
                    model.resize(size as usize, 0);
                }
                Step::Read { offset, bytes } => {
                    let read = ns.begin().read_small(ino, offset, bytes).unwrap().unwrap();
                    let begin = model.len().min(offset as usize);
                    let end = model.len().min((offset + bytes) as usize);
                    prop_assert_eq!((read.bytes.as_slice(), read.file_bytes), (&model[begin..end], model.len() as u64));
                }
            }
            prop_assert_eq!(state(&mut ns, ino), (model.len() as u64, false));
        }
        prop_assert_eq!(read(&mut ns, ino), Some(model));
        prop_assert_eq!(ns.check().unwrap(), vec![]);
    }
}
