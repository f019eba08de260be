//! The calls under way at one server, and the connection that carries them.
//!
//! ```text
//!   begin ─► calls ─► link ═══════ server          lost, or silent for too long: connect anew,
//!              ▲        │                          and send all calls again with their numbers
//!   take  ◄────┴─ answer, matched by xid           NFS3ERR_JUKEBOX: send the call again later with a new number
//! ```
//!
//! There is no thread: whoever waits or tests drives all calls. No method waits but [`Session::sleep`] and those that call it.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use weft_onc_rpc::xdr::Writer;
use weft_onc_rpc::{CallHeader, Credential};

use crate::error::{ErrorKind, Failure};
use crate::incoming::Reply;
use crate::link::{Begun, Connecting, Data, Link, Lost, Message, Way};
use crate::options::{ConnectOptions, own_credential};
use crate::rdma::RdmaStatus;
use crate::rpc::{self, Target};
use crate::status::Status;

/// How often timers are looked at.
const TIMERS: Duration = Duration::from_millis(20);
/// Longest sleep at a time.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// Pauses between attempts to connect.
const BACKOFF: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(2);
/// Longest time for one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// When a call is sent again for which the server needs more time.
const JUKEBOX_PAUSE: Duration = Duration::from_millis(500);
/// So often in a row a server may send what makes no sense.
const GARBAGE_MAX: u32 = 3;

/// Several owners on one thread.
pub(crate) type Shared = Rc<RefCell<Session>>;

/// What an answer consists of.
#[derive(Debug)]
pub(crate) struct Answer {
    pub reply: Vec<u8>,
    /// Data of a READ that came into the caller's memory.
    pub data_bytes: Option<usize>,
    /// How often the call was sent.
    pub sends: u32,
}

struct Call {
    xid: u32,
    head: Rc<Vec<u8>>,
    data: Data,
    end: Option<Instant>,
    sends: u32,
    /// The server asked for more time: when it is sent again.
    again_at: Option<Instant>,
    /// Answers of MOUNT and portmap have no such status.
    is_nfs: bool,
    answer: Option<Result<Answer, Failure>>,
}

enum State {
    Connected(Box<dyn Link>),
    Connecting(Box<dyn Connecting>, Instant),
    Broken(Instant),
}

/// Connection and calls.
pub(crate) struct Session {
    address: SocketAddr,
    /// For errors: the name as given, and the address.
    server: String,
    /// The head of all calls, but for their number and procedure.
    header: CallHeader,
    options: ConnectOptions,
    way: Box<dyn Way>,
    state: State,
    calls: FxHashMap<u64, Call>,
    by_xid: FxHashMap<u32, u64>,
    /// Calls without an answer.
    open: usize,
    next_number: u64,
    next_xid: u32,
    replies: Vec<Reply>,
    heard: Instant,
    backoff: Duration,
    garbage: u32,
    why_lost: String,
    timers_at: Instant,
}

impl Session {
    /// Connects to a server; waits for it.
    pub(crate) fn connect(
        host: &str,
        address: SocketAddr,
        options: &ConnectOptions,
        way: Box<dyn Way>,
    ) -> Result<Session, Failure> {
        let now = Instant::now();
        let credential = Credential::Sys(options.credential.clone().unwrap_or_else(own_credential));
        let mut session = Session {
            address,
            server: server_name(host, address),
            header: CallHeader { xid: 0, program: 0, version: 0, procedure: 0, credential },
            options: options.clone(),
            way,
            state: State::Broken(now),
            calls: FxHashMap::default(),
            by_xid: FxHashMap::default(),
            open: 0,
            next_number: 0,
            next_xid: first_xid(),
            replies: Vec::new(),
            heard: now,
            backoff: *BACKOFF.start(),
            garbage: 0,
            why_lost: String::new(),
            timers_at: now,
        };
        let end =
            now + CONNECT_TIMEOUT.min(options.give_up_ms.map_or(CONNECT_TIMEOUT, Duration::from_millis));
        let refused = |why: String| {
            let detail = format!("cannot connect: {why}; check that it is up, and its address and port");
            Failure::new(ErrorKind::Unreachable, detail)
        };
        session.begin_connect(now);
        loop {
            session.check_connect(Instant::now());
            match &session.state {
                State::Connected(_) => return Ok(session),
                State::Broken(_) => return Err(refused(session.why_lost)),
                State::Connecting(..) if Instant::now() >= end => return Err(refused("no answer".into())),
                State::Connecting(..) => session.sleep(),
            }
        }
    }

    /// RDMA of its connections, if it is over RDMA.
    pub(crate) fn rdma_status(&self) -> Option<RdmaStatus> {
        self.way.rdma_status()
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The head of a call; arguments follow.
    pub(crate) fn head_of(&mut self, Target { program, version, procedure }: Target) -> Writer {
        (self.header.program, self.header.version, self.header.procedure) = (program, version, procedure);
        self.header.write()
    }

    /// Begins a call; its number. It is sent at once where no other is under way, else with the next step.
    ///
    /// # Safety
    /// The payload stays readable and the sink writable until the answer was taken, or the call cancelled.
    pub(crate) unsafe fn begin(&mut self, mut head: Vec<u8>, data: Data, is_nfs: bool) -> u64 {
        let now = Instant::now();
        let (number, xid) = (self.next_number, self.fresh_xid());
        self.next_number += 1;
        rpc::set_xid(&mut head, xid);
        let end = self.options.give_up_ms.map(|give_up_ms| now + Duration::from_millis(give_up_ms));
        let head = Rc::new(head);
        let call = Call { xid, head, data, end, sends: 0, again_at: None, is_nfs, answer: None };
        self.calls.insert(number, call);
        self.by_xid.insert(xid, number);
        self.open += 1;
        if self.open == 1 {
            self.heard = now;
        }
        self.submit(number);
        if self.open == 1 {
            self.send();
        }
        number
    }

    fn fresh_xid(&mut self) -> u32 {
        while self.by_xid.contains_key(&self.next_xid) {
            self.next_xid = self.next_xid.wrapping_add(1);
        }
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid.wrapping_sub(1)
    }

    /// Gives a call to the link, if there is one.
    fn submit(&mut self, number: u64) {
        let (State::Connected(link), Some(call)) = (&mut self.state, self.calls.get_mut(&number)) else {
            return;
        };
        call.sends += 1;
        let message = Message { xid: call.xid, head: call.head.clone(), data: call.data };
        // SAFETY: as who began the call has promised; a call that ends is cancelled before.
        unsafe { link.submit(message) };
    }

    /// Whether a call has its answer.
    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.calls.get(&number).is_none_or(|call| call.answer.is_some())
    }

    /// The answer of a call that is done, which is over then.
    pub(crate) fn take(&mut self, number: u64) -> Option<Result<Answer, Failure>> {
        self.calls.get(&number)?.answer.as_ref()?;
        self.calls.remove(&number)?.answer
    }

    /// Ends a call; its memory is not touched from here on.
    pub(crate) fn cancel(&mut self, number: u64) {
        if let Some(call) = self.calls.get(&number)
            && call.answer.is_none()
        {
            self.answer(number, Err(Failure::new(ErrorKind::Invalid, "cancelled")));
        }
        self.calls.remove(&number);
    }

    fn answer(&mut self, number: u64, answer: Result<Answer, Failure>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        self.by_xid.remove(&call.xid);
        if let State::Connected(link) = &mut self.state {
            link.cancel(call.xid);
        }
        call.answer = Some(answer);
        self.open -= 1;
    }

    /// Sends what can be sent.
    pub(crate) fn send(&mut self) {
        if let State::Connected(link) = &mut self.state
            && let Err(lost) = link.send()
        {
            self.lose(lost);
        }
    }

    /// Goes on without waiting: connects, sends, receives, looks at timers.
    pub(crate) fn progress(&mut self) {
        let now = Instant::now();
        if self.open > 0 {
            self.check_connect(now);
        }
        self.send();
        self.receive(now);
        if now.duration_since(self.timers_at) >= TIMERS {
            self.timers_at = now;
            self.look_at_timers(now);
        }
    }

    fn receive(&mut self, now: Instant) {
        let State::Connected(link) = &mut self.state else { return };
        let mut replies = std::mem::take(&mut self.replies);
        let received = link.receive(&mut replies);
        if *received.as_ref().unwrap_or(&false) {
            self.heard = now;
        }
        for reply in replies.drain(..) {
            self.complete(reply, now);
        }
        self.replies = replies;
        if let Err(lost) = received {
            self.lose(lost);
        }
    }

    fn complete(&mut self, reply: Reply, now: Instant) {
        let Some(number) = self.by_xid.get(&reply.xid).copied() else { return };
        let Some(call) = self.calls.get_mut(&number) else { return };
        (self.garbage, self.backoff) = (0, *BACKOFF.start());
        if let Some(failure) = reply.failure {
            return self.answer(number, Err(failure));
        }
        if call.is_nfs && is_jukebox(&reply.head) {
            call.again_at = Some(now + JUKEBOX_PAUSE);
            return;
        }
        let answer = Answer { reply: reply.head, data_bytes: reply.data_bytes, sends: call.sends };
        self.answer(number, Ok(answer));
    }

    fn lose(&mut self, lost: Lost) {
        let now = Instant::now();
        self.why_lost = lost.why;
        self.state = State::Broken(now + self.backoff);
        self.backoff = (self.backoff * 2).min(*BACKOFF.end());
        self.garbage += u32::from(lost.is_garbage);
        if self.garbage >= GARBAGE_MAX {
            self.garbage = 0;
            let failure = Failure::protocol(&self.why_lost);
            self.open_calls().into_iter().for_each(|number| self.answer(number, Err(failure.clone())));
        }
    }

    /// Calls without an answer, in the order in which they began.
    fn open_calls(&self) -> Vec<u64> {
        let open = self.calls.iter().filter(|(_, call)| call.answer.is_none());
        let mut numbers: Vec<u64> = open.map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers
    }

    fn begin_connect(&mut self, now: Instant) {
        let longest = self.options.give_up_ms.map_or(CONNECT_TIMEOUT, Duration::from_millis);
        match self.way.begin(self.address, CONNECT_TIMEOUT.min(longest)) {
            Ok(Begun::Made(link)) => self.connected(link, Instant::now()),
            Ok(Begun::Connecting(connecting)) => {
                self.state = State::Connecting(connecting, now + CONNECT_TIMEOUT);
            }
            Err(lost) => self.lose(lost),
        }
    }

    fn check_connect(&mut self, now: Instant) {
        match std::mem::replace(&mut self.state, State::Broken(now)) {
            State::Broken(retry_at) if now >= retry_at => self.begin_connect(now),
            State::Connecting(mut connecting, end) => match connecting.finish() {
                Some(Ok(link)) => self.connected(link, now),
                Some(Err(lost)) => self.lose(lost),
                None if now >= end => self.lose(Lost::new("no answer to the attempt to connect")),
                None => self.state = State::Connecting(connecting, end),
            },
            state => self.state = state,
        }
    }

    /// A new connection: everything that is under way is sent again.
    fn connected(&mut self, link: Box<dyn Link>, now: Instant) {
        self.state = State::Connected(link);
        self.heard = now;
        for number in self.open_calls() {
            if self.calls[&number].again_at.is_none() {
                self.submit(number);
            }
        }
    }

    fn look_at_timers(&mut self, now: Instant) {
        for number in self.open_calls() {
            let call = &self.calls[&number];
            if call.end.is_some_and(|end| now >= end) {
                let failure = self.given_up(call.again_at.is_some());
                self.answer(number, Err(failure));
            } else if call.again_at.is_some_and(|again_at| now >= again_at) {
                self.send_again(number);
            }
        }
        let silence = Duration::from_millis(self.options.silence_ms);
        let is_owed = || self.calls.values().any(|call| call.answer.is_none() && call.again_at.is_none());
        let is_silent =
            matches!(self.state, State::Connected(_)) && now.duration_since(self.heard) >= silence;
        if is_silent && is_owed() {
            self.lose(Lost::new(format!("it was silent for {} ms", self.options.silence_ms)));
        }
    }

    /// Sends a call again, as a new one, for the server has answered the old one.
    fn send_again(&mut self, number: u64) {
        let xid = self.fresh_xid();
        let Some(call) = self.calls.get_mut(&number) else { return };
        self.by_xid.remove(&call.xid);
        self.by_xid.insert(xid, number);
        (call.xid, call.again_at) = (xid, None);
        let head: &mut Vec<u8> = Rc::make_mut(&mut call.head);
        rpc::set_xid(head, xid);
        self.submit(number);
        self.send();
    }

    fn given_up(&self, is_jukebox: bool) -> Failure {
        if is_jukebox {
            return Failure::of_status(Status::JUKEBOX);
        }
        let waited_s = self.options.give_up_ms.unwrap_or_default() as f64 / 1e3;
        let last = match &self.state {
            State::Connected(_) => String::new(),
            _ => format!(" (the connection is lost: {})", self.why_lost),
        };
        Failure::new(ErrorKind::Unreachable, format!("no answer for {waited_s} s{last}; is it up?"))
    }

    /// What to wait for, and how long at most.
    pub(crate) fn before_poll(&self) -> (Option<libc::pollfd>, Duration) {
        let entry = |fd: RawFd, events| Some(libc::pollfd { fd, events, revents: 0 });
        match &self.state {
            State::Connected(link) => {
                let events = libc::POLLIN | if link.wants_write() { libc::POLLOUT } else { 0 };
                (entry(link.fd(), events), if link.is_ready() { Duration::ZERO } else { SLEEP_MAX })
            }
            State::Connecting(connecting, _) => (entry(connecting.fd(), libc::POLLOUT), SLEEP_MAX),
            State::Broken(retry_at) => {
                (None, retry_at.saturating_duration_since(Instant::now()).min(SLEEP_MAX))
            }
        }
    }

    /// Sleeps until something may have happened.
    pub(crate) fn sleep(&self) {
        let (entry, longest) = self.before_poll();
        poll(&mut entry.into_iter().collect::<Vec<_>>(), longest);
    }

    /// Waits for a call.
    pub(crate) fn wait(&mut self, number: u64) {
        self.send();
        while !self.is_done(number) {
            self.sleep();
            self.progress();
        }
    }
}

/// Waits until something happens to one of the descriptors, or for so long.
pub(crate) fn poll(entries: &mut [libc::pollfd], longest: Duration) {
    let longest_ms = longest.as_millis() as i32 + 1;
    // SAFETY: the entries are live. An interrupted wait is a short one.
    unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, longest_ms) };
}

fn is_jukebox(reply: &[u8]) -> bool {
    rpc::decode_reply(reply).is_ok_and(|results| results.starts_with(&Status::JUKEBOX.0.to_be_bytes()))
}

/// Numbers of this process must differ from those that another one, or an earlier one, has used a moment ago: servers take
/// an equal number for a repetition.
fn first_xid() -> u32 {
    weft_host::random().map_or_else(|_| std::process::id().rotate_left(16), u32::from_ne_bytes)
}

/// A server's name for errors.
fn server_name(host: &str, address: SocketAddr) -> String {
    if host == address.ip().to_string() { address.to_string() } else { format!("{host} ({address})") }
}

/// Connects to the first address of a host that answers.
pub(crate) fn connect_any(
    host: &str,
    port: u16,
    options: &ConnectOptions,
    way: &dyn Fn() -> Box<dyn Way>,
) -> Result<Session, (Failure, String)> {
    use std::net::ToSocketAddrs;
    let named = format!("{host}:{port}");
    let unknown = |error: io::Error| {
        (Failure::new(ErrorKind::Unreachable, format!("no address is known for it: {error}")), named.clone())
    };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unknown)?.collect();
    let mut last = unknown(io::ErrorKind::NotFound.into());
    for address in addresses {
        match Session::connect(host, address, options, way()) {
            Ok(session) => return Ok(session),
            Err(failure) => last = (failure, server_name(host, address)),
        }
    }
    Err(last)
}
