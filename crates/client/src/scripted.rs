//! Tests of lanes, batches and repetition against a server that does what it is told.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_layout::Layout;
use weft_transport::{Bulk, Completion, Link, LinkError, LinkKind, Segment};
use weft_wire::limits::LANES_PER_SERVER_MAX;
use weft_wire::messages::{
    ClusterMapReply, Empty, Endpoint, PingReply, PingRequest, ProveReply, RemovedReply, ServerInfo, endpoint,
    server_role,
};
use weft_wire::security::Key;
use weft_wire::{Header, Op, Status, Wire, flags};

use crate::batch;
use crate::dial::{Dial, Dialled, Greet, Wish};
use crate::error::{Error, ErrorKind};
use crate::wait::lock;
use crate::{Client, ConnectOptions};

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
    /// Descriptors tell of answers only when they were armed.
    must_arm: AtomicBool,
    arms: AtomicUsize,
}

struct ScriptedLink {
    script: Arc<Script>,
    /// Readable when the next answer is due.
    timer: OwnedFd,
    answers: Vec<(Instant, Completion)>,
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
        ScriptedLink { script: script.clone(), timer, answers: Vec::new(), credits: 4, broken: false }
    }

    /// Sets the timer to the next answer.
    fn arm(&self) {
        let next = self.answers.iter().map(|(at, _)| at.saturating_duration_since(Instant::now())).min();
        let after = next.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::timespec { tv_sec: 0, tv_nsec: after.as_nanos() as i64 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: a live specification.
        let set = unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &spec, std::ptr::null_mut()) };
        assert_eq!(set, 0);
    }

    fn answer(&self, header: &Header, status: Status, body: Vec<u8>) -> (Instant, Completion) {
        let at = Instant::now() + *lock(&self.script.answer_after);
        (at, Completion { header: header.reply(status), body, delivered_bytes: 0 })
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
            Op::Unlink => RemovedReply { parent: None }.to_bytes(),
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
        for (_, completion) in self.answers.extract_if(.., |(at, _)| *at <= now) {
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
            credits: 4,
            boot_id: [0; 16],
            loss_epoch: 0,
        };
        Ok(Dialled::new(Box::new(ScriptedLink::new(&self.0)), proven))
    }
}

/// A connection that nobody uses.
pub(crate) fn some_link() -> Box<dyn Link> {
    Box::new(ScriptedLink::new(&Arc::default()))
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
    for part in ["Unlink /x", "meta0 (scripted:1)", "connection refused"] {
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
                        batch::ask(&client.inner, 1, &PingRequest { echo: echo.clone() }).unwrap().echo,
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
