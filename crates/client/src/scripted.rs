//! Tests of lanes, batches and repetition against a server that does what it is told.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_layout::{Extent, Layout, Regions};
use weft_transport::{Bulk, Completion, Link, LinkError, LinkKind, Segment};
use weft_wire::limits::LANES_PER_SERVER_MAX;
use weft_wire::messages::{
    Attr, ClusterMapReply, Empty, Endpoint, FetchAddReply, IoWork, LockReply, LockState, OpenId, OpenReply,
    PingReply, PingRequest, ProveReply, ReadReply, RemovedReply, ServerInfo, endpoint, rights, server_role,
};
use weft_wire::security::{Capability, Key};
use weft_wire::{Header, Op, Status, Wire, flags};

use crate::batch;
use crate::dial::{Dial, Dialled, Greet, Wish};
use crate::error::{Error, ErrorKind};
use crate::held::Held;
use crate::open_file::OpenFile;
use crate::wait::lock;
use crate::{
    AccessOptions, Client, ConnectOptions, File, Method, Pending, finish_all, finish_some, wait_all,
};

/// Requests that a link may have under way.
const CREDITS: u16 = 64;
/// What every read of a file gets.
const READ_BYTES: u64 = 4096;

/// What the server does with the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Answer,
    Refuse(Status),
    /// Take the request and break the connection.
    Break,
    /// Take the request and say nothing.
    Silence,
}

#[derive(Default)]
struct Script {
    acts: Mutex<VecDeque<Act>>,
    log: Mutex<Vec<Header>>,
    dials: AtomicUsize,
    refuse_dials: AtomicUsize,
    answer_after: Mutex<Duration>,
    /// Nothing is answered before so many requests were made.
    answer_from: AtomicUsize,
    /// Descriptors tell of answers only when they were armed.
    must_arm: AtomicBool,
    arms: AtomicUsize,
}

/// An answer, and when it is given.
struct Due {
    at: Instant,
    /// After so many requests.
    from: usize,
    completion: Completion,
}

struct ScriptedLink {
    script: Arc<Script>,
    /// Readable when the next answer is due.
    timer: OwnedFd,
    answers: Vec<Due>,
    credits: u16,
    broken: bool,
}

impl ScriptedLink {
    fn new(script: &Arc<Script>) -> ScriptedLink {
        // SAFETY: no memory is passed; the descriptor is new.
        let timer = unsafe {
            let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            assert!(fd >= 0);
            OwnedFd::from_raw_fd(fd)
        };
        ScriptedLink { script: script.clone(), timer, answers: Vec::new(), credits: CREDITS, broken: false }
    }

    /// Sets the timer to the next answer.
    fn arm(&self) {
        let next = self.answers.iter().map(|due| due.at.saturating_duration_since(Instant::now())).min();
        let after = next.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: 0, tv_nsec: after.as_nanos() as i64 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: a live specification.
        let set = unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    }

    fn answer(&self, header: &Header, status: Status, body: Vec<u8>) -> Due {
        let at = Instant::now() + *lock(&self.script.answer_after);
        let from = self.script.answer_from.load(Ordering::SeqCst);
        Due { at, from, completion: Completion { header: header.reply(status), body, delivered_bytes: 0 } }
    }
}

impl Link for ScriptedLink {
    fn kind(&self) -> LinkKind {
        LinkKind::Memory
    }
    fn peer(&self) -> &str {
        "scripted"
    }
    fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }
    fn wants_write(&self) -> bool {
        false
    }
    fn credits(&self) -> u16 {
        self.credits
    }
    fn set_credits(&mut self, credits: u16) {
        self.credits = credits;
    }
    unsafe fn submit(&mut self, header: Header, body: &[u8], _bulk: Bulk) -> Result<(), LinkError> {
        lock(&self.script.log).push(header);
        self.credits -= 1;
        let act = lock(&self.script.acts).pop_front().unwrap_or(Act::Answer);
        let reply = match header.op {
            Op::Ping => PingReply { echo: PingRequest::from_bytes(body).unwrap().echo }.to_bytes(),
            Op::Unlink => RemovedReply { parent: None, dir: weft_wire::Added(None) }.to_bytes(),
            Op::Read => read_reply(READ_BYTES).to_bytes(),
            Op::Lock => LockReply { state: LockState::Granted }.to_bytes(),
            Op::FetchAdd => FetchAddReply { before: 5 }.to_bytes(),
            Op::Reopen => OpenReply {
                run: 1,
                capability: None,
                small_bytes: weft_wire::Added(0),
                ..OpenReply::sample(&mut 0)
            }
            .to_bytes(),
            _ => Empty {}.to_bytes(),
        };
        match act {
            Act::Answer => self.answers.push(self.answer(&header, Status::Ok, reply)),
            Act::Refuse(status) => self.answers.push(self.answer(&header, status, Vec::new())),
            Act::Break => self.broken = true,
            Act::Silence => {}
        }
        if !self.must_arm() {
            self.arm();
        }
        Ok(())
    }
    fn progress(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let result = self.take_answers(done);
        self.script.arms.fetch_add(1, Ordering::SeqCst);
        self.arm();
        result
    }
    fn watch(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        if self.must_arm() { self.take_answers(done) } else { self.progress(done) }
    }
    fn must_arm(&self) -> bool {
        self.script.must_arm.load(Ordering::SeqCst)
    }
    fn add_segment(&mut self, _segment: &Segment) -> Result<(), LinkError> {
        Ok(())
    }
    fn drop_segment(&mut self, _id: u16) -> Result<(), LinkError> {
        Ok(())
    }
}

impl ScriptedLink {
    fn take_answers(&mut self, done: &mut Vec<Completion>) -> Result<(), LinkError> {
        let now = Instant::now();
        let asked = lock(&self.script.log).len();
        for Due { completion, .. } in self.answers.extract_if(.., |due| due.at <= now && due.from <= asked) {
            self.credits += completion.header.credit;
            done.push(completion);
        }
        if self.broken { Err(LinkError::Closed { peer: "scripted".into() }) } else { Ok(()) }
    }
}

struct ScriptedDial(Arc<Script>);

impl Dial for ScriptedDial {
    fn dial(&self, server: &ServerInfo, _wish: &Wish, _greet: &mut Greet<'_>) -> Result<Dialled, Error> {
        self.0.dials.fetch_add(1, Ordering::SeqCst);
        let refuse = |left: usize| left.checked_sub(1);
        if self.0.refuse_dials.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refuse).is_ok() {
            return Err(Error::new("connect", ErrorKind::Unreachable, "connection refused"));
        }
        let proven = ProveReply {
            cluster_id: [1; 16],
            server_name: server.name.clone(),
            epoch: 1,
            credits: CREDITS,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        Ok(Dialled::new(Box::new(ScriptedLink::new(&self.0)), proven))
    }
}

/// A client of a server that answers everything.
pub(crate) fn some_client() -> Client {
    client(&[], |_| ()).0
}

fn client(acts: &[Act], change: impl FnOnce(&mut ConnectOptions)) -> (Client, Arc<Script>) {
    let script = Arc::new(Script::default());
    lock(&script.acts).extend(acts);
    let server =
        |name, role| ServerInfo::new(0, name, role, vec![Endpoint::new(endpoint::TCP, "scripted:1")]);
    let map = ClusterMapReply {
        version: 1,
        cluster_id: [1; 16],
        servers: vec![server("meta0", server_role::META), server("io0", server_role::IO)],
        chains: ClusterMapReply::single_chains(1),
        default_layout: Layout::new(65536, 0, 1, 1).unwrap(),
    };
    let mut options = ConnectOptions {
        key: Some(weft_wire::keys::IssuedKey::of_cluster(&Key([1; 32]))),
        retry_timeout_ms: 2000,
        reply_timeout_ms: 100,
        ..ConnectOptions::default()
    };
    change(&mut options);
    (Client::over(map, options, Box::new(ScriptedDial(script.clone()))).unwrap(), script)
}

fn read_reply(filled_bytes: u64) -> ReadReply {
    let work = IoWork { reads: 1, writes: 0, accessed_bytes: filled_bytes, busy_ns: 0, methods: 0 };
    ReadReply { filled_bytes, local_bytes: 1 << 30, work }
}

/// A file that nobody had to open.
fn some_file(client: &Client) -> File {
    some_file_until(client, u64::MAX)
}

/// One whose capability ends then.
fn some_file_until(client: &Client, expires_s: u64) -> File {
    let layout = Layout::new(65536, 0, 1, 1).unwrap();
    let capability =
        Capability { ino: 7, rights: rights::READ, expires_s, layout, ..Capability::sample(&mut 0) };
    let held = Held::new(capability, rights::READ, OpenId { run: 1, number: 1 }, [2; 16]);
    let attr = Attr { ino: 7, layout: Some(layout), ..Attr::sample(&mut 0) };
    File::new(OpenFile::new(&client.inner, &client.caller, held, "/f".into(), (false, false, false), attr))
}

fn start_reads(file: &File, count: u64) -> Vec<Pending> {
    (0..count).map(|at| file.start_read(vec![0; READ_BYTES as usize], at * READ_BYTES)).collect()
}

fn reads(script: &Script) -> usize {
    lock(&script.log).iter().filter(|header| header.op == Op::Read).count()
}

#[test]
fn what_is_started_is_sent_at_once_and_all_are_waited_for_together() {
    const READS: usize = 32;
    let (client, script) = client(&[], |options| options.reply_timeout_ms = 20_000);
    let file = some_file(&client);
    script.answer_from.store(READS, Ordering::SeqCst);
    let pending = start_reads(&file, READS as u64);
    assert_eq!(reads(&script), READS, "requests that were sent before anything was waited for");
    for read in wait_all(pending) {
        assert_eq!(read.unwrap().0, READ_BYTES as usize);
    }

    // Of two parts each, of which the second is sent when the first was answered.
    file.set_access(AccessOptions { method: Method::Multiple, ..AccessOptions::default() });
    let pieces = Regions::list(vec![Extent::new(0, READ_BYTES), Extent::new(1 << 20, READ_BYTES)]);
    let mut memory = vec![0u8; 2 * READ_BYTES as usize];
    let (base, both) = (memory.as_mut_ptr(), Regions::contiguous(0, 2 * READ_BYTES));
    *lock(&script.answer_after) = Duration::from_millis(20);
    // SAFETY: nobody writes to the memory, which is this test's.
    let mut pending: Vec<_> = (0..8).map(|_| unsafe { file.start_read_raw(base, &both, &pieces) }).collect();
    assert_eq!(reads(&script), READS + 8);
    script.answer_from.store(READS + 16, Ordering::SeqCst);
    finish_all(&mut pending);
    assert!(pending.into_iter().all(|read| read.wait().unwrap() == 2 * READ_BYTES));
}

#[test]
fn each_of_many_operations_keeps_its_own_error() {
    let (client, script) = client(&[], |_| {});
    let file = some_file(&client);
    lock(&script.acts).extend([Act::Answer, Act::Refuse(Status::Io), Act::Answer]);
    let results = wait_all(start_reads(&file, 3));
    let errors: Vec<_> = results.iter().map(|read| read.as_ref().err().and_then(Error::status)).collect();
    assert_eq!(errors, [None, Some(Status::Io), None]);
}

#[test]
fn the_time_of_an_operation_counts_from_when_it_is_waited_for() {
    let (client, script) = client(&[Act::Break], |options| options.retry_timeout_ms = 300);
    let file = some_file(&client);
    let pending = start_reads(&file, 1);
    // The program does something else for longer than a server is waited for.
    std::thread::sleep(Duration::from_millis(400));
    assert!(wait_all(pending).remove(0).is_ok());
    assert_eq!(reads(&script), 2, "it was repeated");
}

#[test]
fn some_of_many_are_waited_for_and_the_time_between_the_waits_does_not_count() {
    let (client, script) = client(&[], |options| options.retry_timeout_ms = 300);
    let file = some_file(&client);
    lock(&script.acts).extend([Act::Answer, Act::Break]);
    let mut pending = start_reads(&file, 2);
    assert_eq!(finish_some(&mut pending), [0]);
    assert!(pending.remove(0).wait().is_ok());
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(finish_some(&mut pending), [0]);
    assert!(pending.remove(0).wait().is_ok());
    assert_eq!((reads(&script), finish_some(&mut pending)), (3, Vec::new()), "it was repeated");
}

#[test]
fn an_exported_file_is_imported_with_one_message() {
    let (client, script) = client(&[], |_| {});
    let exported = some_file(&client).export().unwrap();
    let asked = lock(&script.log).len();
    let imported = client.import(&exported).unwrap();
    assert_eq!(lock(&script.log)[asked..].iter().map(|header| header.op).collect::<Vec<_>>(), [Op::Reopen]);
    assert_eq!(imported.ino(), 7);
}

/// What a server is asked while `run` runs.
fn asked(script: &Script, run: impl FnOnce()) -> Vec<Op> {
    let before = lock(&script.log).len();
    run();
    lock(&script.log)[before..].iter().map(|header| header.op).collect()
}

fn read(file: &File) {
    assert!(wait_all(start_reads(file, 1)).remove(0).is_ok());
}

#[test]
fn a_shared_file_is_imported_used_and_closed_without_a_message_to_the_metadata_server() {
    let (client, script) = client(&[], |_| {});
    let file = some_file(&client);
    let used = asked(&script, || {
        let imported = client.import_shared(&file.share().unwrap()).unwrap();
        assert!(imported.is_covered() && imported.ino() == 7);
        read(&imported);
        assert!(imported.flush().unwrap().is_none());
        imported.close().unwrap();
    });
    assert_eq!(used, [Op::Read]);
    let refused = client.import_shared(&file.export().unwrap()).unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("not shared"), "{refused}");
}

#[test]
fn a_lock_or_the_renewal_of_its_capability_makes_a_shared_file_an_open_of_its_own() {
    use crate::{LockKind, LockTarget, LockWait};
    let (client, script) = client(&[], |_| {});
    let shared = some_file(&client).share().unwrap();
    let locked = asked(&script, || {
        let imported = client.import_shared(&shared).unwrap();
        for _ in 0..2 {
            imported.lock(LockTarget::range(..), LockKind::Exclusive, LockWait::Never).unwrap();
        }
        assert!(!imported.is_covered());
        imported.close().unwrap();
        client.ping("meta0", &[]).unwrap();
    });
    assert_eq!(locked, [Op::Reopen, Op::Lock, Op::Lock, Op::Unlock, Op::Close, Op::Ping]);

    let soon = std::time::SystemTime::now() + Duration::from_secs(1800);
    let soon_s = soon.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let shared = some_file_until(&client, soon_s).share().unwrap();
    let renewed = asked(&script, || {
        let imported = client.import_shared(&shared).unwrap();
        read(&imported);
        imported.close().unwrap();
        client.ping("meta0", &[]).unwrap();
    });
    assert_eq!(renewed, [Op::Reopen, Op::Read, Op::Close, Op::Ping]);
}

#[test]
fn a_change_of_a_counter_that_was_lost_is_repeated_with_its_number_and_slot() {
    let (client, script) = client(&[], |_| {});
    let file = some_file(&client);
    lock(&script.acts).extend([Act::Break, Act::Answer]);
    assert_eq!(file.fetch_add(3).unwrap(), 5);
    assert_eq!(file.start_fetch_add(3).wait().unwrap(), 5);
    assert_eq!(file.fetch_set(u64::MAX).unwrap_err().status(), Some(Status::Invalid));
    let log = lock(&script.log);
    let [first, again, next] = &log[..] else { panic!("{log:?}") };
    assert_eq!((first.request_id, first.slot), (again.request_id, again.slot));
    assert_eq!((first.flags, again.flags, next.op), (0, flags::RETRY, Op::FetchAdd));
}

#[test]
fn a_server_of_an_older_release_is_not_asked_what_it_does_not_know() {
    let (client, script) = client(&[], |_| {});
    client.inner.session().server(0).set_version(1);
    let file = some_file(&client);
    let used = asked(&script, || {
        let error = file.fetch_add(1).unwrap_err();
        assert_eq!(error.status(), Some(Status::Unsupported));
        let text = error.to_string();
        assert!(text.contains("version 2 is needed; upgrade it") && text.contains("meta0"), "{text}");
        let options = crate::OpenOptions::new().write(true);
        let error = client.create_unnamed("/", &options).map(drop).unwrap_err();
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    });
    assert_eq!(used, []);
}

#[test]
fn operations_of_several_clients_are_waited_for_together() {
    let (first, _) = client(&[], |_| {});
    let (second, script) = client(&[Act::Silence], |_| {});
    let (one, other) = (some_file(&first), some_file(&second));
    let pending = [start_reads(&one, 1), start_reads(&other, 1)].into_iter().flatten().collect();
    assert!(wait_all(pending).into_iter().all(|read| read.is_ok()));
    assert_eq!(reads(&script), 2, "a connection that was silent was given up, and its request repeated");
}

#[test]
fn a_change_that_was_lost_is_repeated_with_its_number_and_slot() {
    let (client, script) = client(&[Act::Break, Act::Break, Act::Answer, Act::Answer], |_| {});
    client.unlink("/x").unwrap();
    client.unlink("/y").unwrap();
    let log = lock(&script.log);
    assert_eq!(log.len(), 4);
    assert!(
        log[..3].iter().all(|header| (header.request_id, header.slot) == (log[0].request_id, log[0].slot))
    );
    assert_eq!([0, 1, 2].map(|at| log[at].flags), [0, flags::RETRY, flags::RETRY]);
    assert_eq!((log[3].slot, log[3].flags), (log[0].slot, 0), "the slot is free again");
    assert!(log[3].request_id > log[0].request_id, "numbers in a slot rise");
}

#[test]
fn what_may_be_done_twice_is_repeated_without_a_mark() {
    let (client, script) = client(&[Act::Break, Act::Refuse(Status::ShuttingDown)], |_| {});
    client.ping("io0", &[7]).unwrap();
    assert!(lock(&script.log).iter().all(|header| header.flags == 0));
    assert_eq!(lock(&script.log).len(), 3);
}

#[test]
fn trying_ends_in_time_and_the_error_names_server_and_cause() {
    let (client, script) = client(&[], |options| options.retry_timeout_ms = 300);
    script.refuse_dials.store(usize::MAX, Ordering::SeqCst);
    let begin = Instant::now();
    let error = client.unlink("/x").unwrap_err();
    assert!((300..1500).contains(&(begin.elapsed().as_millis() as u64)));
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Unreachable, libc::ETIMEDOUT));
    for part in ["remove /x", "meta0 (scripted:1)", "connection refused"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let dials = script.dials.load(Ordering::SeqCst);
    assert!((4..12).contains(&dials), "pauses grow: {dials} attempts");
}

#[test]
fn a_silent_server_counts_as_lost() {
    let (client, script) = client(&[Act::Silence], |_| {});
    let begin = Instant::now();
    client.ping("io0", &[]).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(100));
    assert_eq!(script.dials.load(Ordering::SeqCst), 2);
}

#[test]
fn a_refusal_is_not_repeated() {
    let (client, script) = client(&[Act::Refuse(Status::Access)], |_| {});
    let error = client.unlink("/x").unwrap_err();
    assert_eq!((error.status(), error.errno()), (Some(Status::Access), libc::EACCES));
    assert_eq!(lock(&script.log).len(), 1);
}

#[test]
fn threads_share_a_bounded_number_of_lanes_and_each_gets_its_own_answer() {
    let (client, script) = client(&[], |options| options.reply_timeout_ms = 20_000);
    *lock(&script.answer_after) = Duration::from_millis(2);
    std::thread::scope(|scope| {
        for thread in 0..40u8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..10u8 {
                    let echo = vec![thread; usize::from(round) + 1];
                    assert_eq!(
                        batch::ask_server(&client.inner, 1, &PingRequest { echo: echo.clone() })
                            .unwrap()
                            .echo,
                        echo
                    );
                }
            });
        }
    });
    let lanes = client.transports().into_iter().map(|used| used.connections).max().unwrap();
    assert!((1..=LANES_PER_SERVER_MAX).contains(&lanes), "{lanes} lanes");
}

#[test]
fn a_descriptor_that_must_be_armed_is_armed_before_every_sleep_and_not_while_watching() {
    let (client, script) = client(&[], |options| options.reply_timeout_ms = 20_000);
    script.must_arm.store(true, Ordering::SeqCst);
    *lock(&script.answer_after) = Duration::from_millis(3);
    let begin = Instant::now();
    for _ in 0..20 {
        client.ping("io0", &[1]).unwrap();
    }
    let arms = script.arms.load(Ordering::SeqCst);
    assert!(begin.elapsed() < Duration::from_secs(5), "an answer to a sleeper was missed");
    assert!((1..=60).contains(&arms), "armed {arms} times for 20 answers");

    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    client.ping("io0", &[2]).unwrap();
                }
            });
        }
    });
    assert!(begin.elapsed() < Duration::from_secs(10), "a wake-up was taken from a sleeper");

    *lock(&script.answer_after) = Duration::ZERO;
    let before = script.arms.load(Ordering::SeqCst);
    for _ in 0..200 {
        client.ping("io0", &[3]).unwrap();
    }
    let arms = script.arms.load(Ordering::SeqCst) - before;
    assert!(arms < 100, "armed {arms} times for 200 answers that came at once");
}
