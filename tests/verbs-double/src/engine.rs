//! The adapters at work: what was posted is done, and its ends are reported.
//!
//! ```text
//!   posted ──► begin ──► (read: answered ──► land) ──► ended ──► retire, in order ──► completion queue
//!                │
//!                └── the peer has no receive: waits until one is posted
//! ```

use crate::memory::Place;
use crate::options::{Delivery, NotReady};
use crate::state::{Entry, Frees, Posted, Progress, ReceivesFrom, Standing, State};
use std::io;
use weft_verbs::{
    Access, Counters, DeviceEvent, MemoryPiece, SendWork, Work, WorkDone, WorkKind, WorkStatus,
};

/// Numbers of ends of work (`enum ibv_wc_status`) that the seam has no name for.
pub(crate) mod status {
    use weft_verbs::WorkStatus;
    /// A message longer than the receive.
    pub(crate) const LOCAL_LENGTH: WorkStatus = WorkStatus::Other(1);
    /// The adapter could not do it.
    pub(crate) const LOCAL_OPERATION: WorkStatus = WorkStatus::Other(2);
    /// A window was not bound.
    pub(crate) const WINDOW_BIND: WorkStatus = WorkStatus::Other(6);
    /// The peer's adapter does not take such a request.
    pub(crate) const REMOTE_REQUEST: WorkStatus = WorkStatus::Other(9);
    /// The peer's adapter could not do it.
    pub(crate) const REMOTE_OPERATION: WorkStatus = WorkStatus::Other(11);
}

/// The largest message of InfiniBand.
const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// What came of beginning a piece of work.
enum Outcome {
    Ended(WorkStatus),
    Answered(Vec<u8>),
    NotReady,
}

/// What a message is for the receive that it takes.
struct Message {
    kind: WorkKind,
    bytes: u32,
    /// What goes into the receive's memory.
    data: Option<Vec<u8>>,
}

impl State {
    // ---- posting -------------------------------------------------------------------------------------------------------

    /// Takes one piece of work into the queue.
    ///
    /// # Safety
    /// As [`weft_verbs::Endpoint::post_send`].
    pub(crate) unsafe fn post(&mut self, number: u32, item: &SendWork<'_>) -> io::Result<()> {
        self.check_post(number, item)?;
        let bytes = item.pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        let inline = item.inline.then(|| {
            let mut taken = Vec::with_capacity(bytes as usize);
            for piece in item.pieces.iter().filter(|piece| piece.bytes > 0) {
                // SAFETY: the caller says that the piece is readable.
                let part =
                    unsafe { std::slice::from_raw_parts(piece.address as *const u8, piece.bytes as usize) };
                taken.extend_from_slice(part);
            }
            taken
        });
        count_post(self.counters(number), &item.work, bytes);
        let pieces = if item.inline { Vec::new() } else { item.pieces.to_vec() };
        let posted = Posted {
            id: item.id,
            work: item.work,
            pieces,
            inline,
            bytes,
            signalled: item.signalled,
            fenced: item.fenced,
            progress: Progress::Waits,
        };
        let binds_alone = self.adapters[self.ends[&number].adapter].limits.binds_alone;
        let Some(pair) = self.pair(number) else { return Err(errno(libc::EINVAL)) };
        let is_local = |work: &Work| matches!(work, Work::Bind { .. } | Work::Invalidate { .. });
        if binds_alone && is_local(&posted.work) && pair.sends.iter().any(|other| !is_local(&other.work)) {
            let text =
                format!("queue pair {number} got {:?} behind work that may be sent again", posted.work);
            self.complaints.push(text);
        }
        let Some(pair) = self.pair(number) else { return Err(errno(libc::EINVAL)) };
        pair.sends.push_back(posted);
        pair.places_used += 1;
        let failed = pair.failed;
        match failed {
            true => self.flush(number),
            false => self.may_go_on(number),
        }
        Ok(())
    }

    fn check_post(&self, number: u32, item: &SendWork<'_>) -> io::Result<()> {
        let end = &self.ends[&number];
        let adapter = &self.adapters[end.adapter];
        if adapter.removed {
            return Err(errno(libc::ENODEV));
        }
        let Some(pair) = end.pair.as_ref().filter(|pair| end.has_stood() || pair.failed) else {
            return Err(errno(libc::EINVAL));
        };
        if pair.places_used >= pair.options.send_depth {
            return Err(errno(libc::ENOMEM));
        }
        let is_read = matches!(item.work, Work::Read { .. });
        let bytes: u64 = item.pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        let has_no_pieces = matches!(item.work, Work::Bind { .. } | Work::Invalidate { .. });
        let mistaken = item.pieces.len() > pair.options.pieces as usize
            || (is_read && item.pieces.len() > adapter.limits.read_pieces_max)
            || bytes > MESSAGE_BYTES_MAX
            || (item.inline && (is_read || bytes > u64::from(pair.options.inline_bytes)))
            || (has_no_pieces && !item.pieces.is_empty());
        if mistaken { Err(errno(libc::EINVAL)) } else { Ok(()) }
    }

    // ---- going on ------------------------------------------------------------------------------------------------------

    /// Lets happen what is to happen now.
    pub(crate) fn run(&mut self) {
        const STEPS_BELOW: u64 = 4;
        match self.delivery {
            Delivery::AtOnce => self.settle(),
            Delivery::Shuffled if self.queues.values().any(|queue| queue.armed) => self.settle(),
            Delivery::Shuffled => {
                for _ in 0..self.random.below(STEPS_BELOW) {
                    self.step();
                }
            }
        }
    }

    /// Lets everything happen that can.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    fn step(&mut self) -> bool {
        if self.ready.is_empty() {
            return false;
        }
        let place = match self.delivery {
            Delivery::AtOnce => 0,
            Delivery::Shuffled => self.random.below(self.ready.len() as u64) as usize,
        };
        let number = self.ready[place];
        if !self.act(number) {
            self.ready.retain(|other| *other != number);
        }
        true
    }

    /// One thing happens on a connection, if anything can.
    fn act(&mut self, number: u32) -> bool {
        let Some(end) = self.ends.get(&number).filter(|end| end.has_stood()) else { return false };
        let Some(pair) = end.pair.as_ref().filter(|pair| !pair.failed) else { return false };
        let peer_reads = end.other.and_then(|other| self.ends.get(&other)?.pair.as_ref());
        let reads_max = peer_reads.map_or(0, |peer| peer.options.reads_in).min(pair.options.reads_out).max(1);
        let can_land = pair.reads_under_way > 0;
        let can_begin = pair.sends.get(pair.begun).is_some_and(|next| {
            let is_read = matches!(next.work, Work::Read { .. });
            let held = (next.fenced && can_land) || (is_read && pair.reads_under_way >= reads_max);
            !pair.waits && !pair.failing && !held
        });
        let overtake = self.delivery == Delivery::Shuffled && self.random.below(2) == 0;
        match (can_land, can_begin) {
            (false, false) => return false,
            (true, false) => self.land(number),
            (false, true) => self.begin(number),
            (true, true) if overtake => self.begin(number),
            (true, true) => self.land(number),
        }
        true
    }

    fn begin(&mut self, number: u32) {
        let Some(pair) = self.pair(number) else { return };
        let item = pair.sends[pair.begun].clone();
        let first_try = matches!(item.progress, Progress::Waits);
        let outcome = match first_try.then(|| self.fault(number)).flatten() {
            Some(status) => Outcome::Ended(status),
            None => self.execute(number, &item),
        };
        if let Outcome::NotReady = outcome {
            return self.wait_for_receive(number, first_try);
        }
        let costs = self.costs;
        let adapter = self.ends[&number].adapter;
        self.adapters[adapter].charged.moving(&costs, item.bytes);
        let Some(pair) = self.pair(number) else { return };
        let place = pair.begun;
        pair.begun += 1;
        match outcome {
            Outcome::Answered(data) => {
                pair.sends[place].progress = Progress::Answered(data);
                pair.reads_under_way += 1;
            }
            Outcome::Ended(status) => self.end(number, place, status),
            Outcome::NotReady => {}
        }
    }

    /// What the options want to go wrong with the work that begins now.
    fn fault(&mut self, number: u32) -> Option<WorkStatus> {
        self.works_begun += 1;
        let begun = self.works_begun;
        if self.faults.broken_connections.strikes(begun, &mut self.random) {
            self.sever(number);
            return Some(WorkStatus::RetriesExceeded);
        }
        let (when, status) = self.faults.failed_work.as_ref()?;
        when.strikes(begun, &mut self.random).then_some(*status)
    }

    /// Breaks the network between the two ends.
    pub(crate) fn sever(&mut self, number: u32) {
        let other = self.ends.get(&number).and_then(|end| end.other);
        for number in [Some(number), other].into_iter().flatten() {
            if let Some(end) = self.ends.get_mut(&number) {
                end.severed = true;
            }
        }
    }

    fn wait_for_receive(&mut self, number: u32, first_try: bool) {
        if first_try {
            Counters::add(&self.counters(number).receiver_not_ready, 1);
        }
        let fails = self.not_ready == NotReady::Fail;
        let Some(other) = self.ends[&number].other else { return };
        let Some(pair) = self.pair(number) else { return };
        let place = pair.begun;
        if fails {
            pair.begun += 1;
            return self.end(number, place, WorkStatus::ReceiverNotReady);
        }
        pair.sends[place].progress = Progress::NotReady;
        pair.waits = true;
        let Some(ReceivesFrom::Shared(shared)) = self.pair(other).map(|peer| &peer.receives) else { return };
        let shared = *shared;
        if let Some(shared) = self.shared.get_mut(&shared) {
            shared.waiting.push_back(number);
        }
    }

    /// A receive was posted: the messages of `number` need not wait.
    pub(crate) fn receive_came(&mut self, number: u32) {
        if let Some(pair) = self.pair(number).filter(|pair| pair.waits) {
            pair.waits = false;
            self.may_go_on(number);
        }
    }

    /// The answer to the oldest read arrives.
    fn land(&mut self, number: u32) {
        let adapter = self.ends[&number].adapter;
        let Some(pair) = self.pair(number) else { return };
        let answered = |posted: &Posted| matches!(posted.progress, Progress::Answered(_));
        let Some(place) = pair.sends.iter().position(answered) else { return };
        pair.reads_under_way -= 1;
        let pieces = pair.sends[place].pieces.clone();
        let taken = std::mem::replace(&mut pair.sends[place].progress, Progress::Waits);
        let Progress::Answered(mut data) = taken else { return };
        let places = self.memory.local(adapter, &pieces, true);
        let landed = places.is_some_and(|places| self.memory.scatter(&mut data, &places).is_ok());
        let status = if landed { WorkStatus::Ok } else { WorkStatus::LocalProtection };
        self.end(number, place, status);
    }

    // ---- doing it ------------------------------------------------------------------------------------------------------

    fn execute(&mut self, number: u32, item: &Posted) -> Outcome {
        let adapter = self.ends[&number].adapter;
        match item.work {
            Work::Bind { window_key, local_key, address, bytes, access } => {
                let keys = (window_key, local_key);
                let bound = self.memory.bind(adapter, number, keys, (address, bytes), access);
                return Outcome::Ended(if bound { WorkStatus::Ok } else { status::WINDOW_BIND });
            }
            Work::Invalidate { key } => {
                let ended = self.memory.invalidate(adapter, number, key);
                return Outcome::Ended(if ended { WorkStatus::Ok } else { status::LOCAL_OPERATION });
            }
            _ => {}
        }
        let Some(peer) = self.live_peer(number) else { return Outcome::Ended(WorkStatus::RetriesExceeded) };
        if let Work::Read { remote_address, remote_key } = item.work {
            let range = (remote_key, remote_address, item.bytes);
            return self.read(adapter, peer, item, range);
        }
        let data = match &item.inline {
            Some(data) => Some(data.clone()),
            None => self.gather(adapter, &item.pieces),
        };
        let Some(data) = data else { return Outcome::Ended(WorkStatus::LocalProtection) };
        match item.work {
            Work::SendInvalidate { remote_key } => self.send(peer, data, Some(remote_key)),
            Work::Write { remote_address, remote_key } => {
                Outcome::Ended(self.write(peer, data, (remote_key, remote_address, item.bytes)))
            }
            Work::WriteImmediate { remote_address, remote_key, immediate } => {
                self.write_immediate(peer, data, (remote_key, remote_address, item.bytes), immediate)
            }
            _ => self.send(peer, data, None),
        }
    }

    fn gather(&mut self, adapter: usize, pieces: &[MemoryPiece]) -> Option<Vec<u8>> {
        let places = self.memory.local(adapter, pieces, false)?;
        self.memory.gather(&places).ok()
    }

    fn read(&mut self, adapter: usize, peer: u32, item: &Posted, range: (u32, u64, u64)) -> Outcome {
        if self.memory.local(adapter, &item.pieces, true).is_none() {
            return Outcome::Ended(WorkStatus::LocalProtection);
        }
        let place = self.remote(peer, range, Access::REMOTE_READ);
        match place.and_then(|place| self.memory.gather(&[place]).ok()) {
            Some(data) => Outcome::Answered(data),
            None => Outcome::Ended(self.refuse(peer)),
        }
    }

    fn write(&mut self, peer: u32, mut data: Vec<u8>, range: (u32, u64, u64)) -> WorkStatus {
        let place = self.remote(peer, range, Access::REMOTE_WRITE);
        let written = place.is_some_and(|place| self.memory.scatter(&mut data, &[place]).is_ok());
        if written { WorkStatus::Ok } else { self.refuse(peer) }
    }

    fn write_immediate(
        &mut self,
        peer: u32,
        data: Vec<u8>,
        range: (u32, u64, u64),
        immediate: u32,
    ) -> Outcome {
        if !self.has_receive(peer) {
            return Outcome::NotReady;
        }
        let bytes = data.len() as u32;
        let written = self.write(peer, data, range);
        if written != WorkStatus::Ok {
            return Outcome::Ended(written);
        }
        let kind = WorkKind::ReceivedImmediate(immediate);
        Outcome::Ended(self.receive(peer, Message { kind, bytes, data: None }))
    }

    fn send(&mut self, peer: u32, data: Vec<u8>, invalidates: Option<u32>) -> Outcome {
        if !self.has_receive(peer) {
            return Outcome::NotReady;
        }
        let bytes = data.len() as u32;
        let kind = match invalidates {
            Some(key) if !self.memory.invalidate(self.ends[&peer].adapter, peer, key) => {
                return Outcome::Ended(self.refuse(peer));
            }
            Some(key) => WorkKind::ReceivedInvalidate(key),
            None => WorkKind::Received,
        };
        Outcome::Ended(self.receive(peer, Message { kind, bytes, data: Some(data) }))
    }

    /// A message takes the next receive of `peer`, which has one. Gives how the work ended that sent it.
    fn receive(&mut self, peer: u32, message: Message) -> WorkStatus {
        let Some((id, piece, frees)) = self.take_receive(peer) else { return WorkStatus::ReceiverNotReady };
        let adapter = self.ends[&peer].adapter;
        let (received, sent) = match message.data {
            Some(data) if data.len() > piece.bytes as usize => (status::LOCAL_LENGTH, status::REMOTE_REQUEST),
            Some(mut data) => {
                let used = MemoryPiece { bytes: data.len() as u32, ..piece };
                let places = self.memory.local(adapter, &[used], true);
                match places.is_some_and(|places| self.memory.scatter(&mut data, &places).is_ok()) {
                    true => (WorkStatus::Ok, WorkStatus::Ok),
                    false => (WorkStatus::LocalProtection, status::REMOTE_OPERATION),
                }
            }
            None => (WorkStatus::Ok, WorkStatus::Ok),
        };
        let kind = if received == WorkStatus::Ok { message.kind } else { WorkKind::Sent };
        self.report(peer, id, kind, received, message.bytes, frees);
        if received != WorkStatus::Ok {
            self.fail(peer);
        }
        sent
    }

    fn remote(&self, peer: u32, range: (u32, u64, u64), access: Access) -> Option<Place> {
        self.memory.remote(self.ends[&peer].adapter, peer, range, access)
    }

    /// The peer's adapter refuses a request, and ends its side with that.
    fn refuse(&mut self, peer: u32) -> WorkStatus {
        self.fail(peer);
        WorkStatus::RemoteAccess
    }

    /// The other end, if work can reach it.
    fn live_peer(&self, number: u32) -> Option<u32> {
        let end = self.ends.get(&number)?;
        let other = self.ends.get(&end.other?)?;
        let reached = !end.severed
            && other.stands()
            && other.pair.as_ref().is_some_and(|pair| !pair.failed)
            && self.adapters[end.adapter].works()
            && self.adapters[other.adapter].works();
        reached.then_some(end.other?)
    }

    fn has_receive(&mut self, number: u32) -> bool {
        let shared = match self.pair(number).map(|pair| &pair.receives) {
            Some(ReceivesFrom::Own { posted, .. }) => return !posted.is_empty(),
            Some(ReceivesFrom::Shared(shared)) => *shared,
            None => return false,
        };
        self.shared.get(&shared).is_some_and(|shared| !shared.posted.is_empty())
    }

    fn take_receive(&mut self, number: u32) -> Option<(u64, MemoryPiece, Frees)> {
        let shared = match &mut self.pair(number)?.receives {
            ReceivesFrom::Own { posted, .. } => {
                let (id, piece) = posted.pop_front()?;
                return Some((id, piece, Frees::Receive { end: number }));
            }
            ReceivesFrom::Shared(shared) => *shared,
        };
        let (id, piece) = self.shared.get_mut(&shared)?.posted.pop_front()?;
        Some((id, piece, Frees::Shared { shared }))
    }

    // ---- ends ----------------------------------------------------------------------------------------------------------

    fn end(&mut self, number: u32, place: usize, status: WorkStatus) {
        if status == WorkStatus::LocalProtection {
            let complaint =
                format!("queue pair {number}: work with memory that is not as its local keys say");
            self.complaints.push(complaint);
        }
        let Some(pair) = self.pair(number) else { return };
        pair.sends[place].progress = Progress::Ended(status);
        pair.failing |= status != WorkStatus::Ok;
        self.retire(number);
    }

    /// Reports what has ended, up to the first that has not.
    fn retire(&mut self, number: u32) {
        while let Some(pair) = self.pair(number) {
            let Some(Progress::Ended(status)) = pair.sends.front().map(|first| &first.progress) else {
                return;
            };
            let status = *status;
            let Some(item) = pair.sends.pop_front() else { return };
            pair.begun -= 1;
            pair.unreported += 1;
            if item.signalled || status != WorkStatus::Ok {
                let bytes = if matches!(item.work, Work::Read { .. }) { item.bytes as u32 } else { 0 };
                let frees = Frees::Sends { end: number, places: std::mem::take(&mut pair.unreported) };
                self.report(number, item.id, WorkKind::Sent, status, bytes, frees);
            }
            if status != WorkStatus::Ok {
                return self.fail(number);
            }
        }
    }

    /// Puts a queue pair into the error state.
    pub(crate) fn fail(&mut self, number: u32) {
        if let Some(pair) = self.pair(number).filter(|pair| !pair.failed) {
            pair.failed = true;
            self.flush(number);
        }
    }

    /// Ends all that is posted to a failed queue pair.
    pub(crate) fn flush(&mut self, number: u32) {
        let Some(pair) = self.pair(number) else { return };
        let sends = std::mem::take(&mut pair.sends);
        pair.begun = 0;
        pair.reads_under_way = 0;
        let mut unreported = std::mem::take(&mut pair.unreported);
        let receives = match &mut pair.receives {
            ReceivesFrom::Own { posted, .. } => std::mem::take(posted),
            ReceivesFrom::Shared(_) => Default::default(),
        };
        for item in sends {
            let frees = Frees::Sends { end: number, places: 1 + std::mem::take(&mut unreported) };
            self.report(number, item.id, WorkKind::Sent, WorkStatus::Flushed, 0, frees);
        }
        for (id, _) in receives {
            let frees = Frees::Receive { end: number };
            self.report(number, id, WorkKind::Sent, WorkStatus::Flushed, 0, frees);
        }
    }

    /// Puts an end of work into the completion queue, which must have room.
    fn report(&mut self, number: u32, id: u64, kind: WorkKind, status: WorkStatus, bytes: u32, frees: Frees) {
        let Some(queue_number) = self.pair(number).map(|pair| pair.queue) else { return };
        let Some(queue) = self.queues.get_mut(&queue_number) else { return };
        if queue.entries.len() >= queue.depth as usize {
            if !queue.overrun {
                self.overrun(queue_number);
            }
            return;
        }
        queue
            .entries
            .push_back(Entry { done: WorkDone { id, queue_pair: number, kind, status, bytes }, frees });
        if std::mem::take(&mut queue.armed) {
            queue.wakeup.ring();
        }
    }

    /// More ended than a completion queue has room for: it and everything that reports to it is unusable.
    fn overrun(&mut self, queue_number: u32) {
        let Some(queue) = self.queues.get_mut(&queue_number) else { return };
        queue.overrun = true;
        queue.wakeup.ring();
        self.complaints.push(format!("completion queue of depth {} overrun", queue.depth));
        let adapter = queue.adapter;
        self.adapters[adapter].happened(DeviceEvent::Other("completion queue overrun".to_string()));
        for end in self.ends.values_mut() {
            if let Some(pair) = end.pair.as_mut().filter(|pair| pair.queue == queue_number) {
                pair.failed = true;
                pair.sends.clear();
                pair.begun = 0;
            }
        }
    }

    /// The end of a connection at one side, for a reason. Its queue pair does not know; work finds nobody at the other side.
    pub(crate) fn hang_up(&mut self, number: u32, reason: &str) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.stands() || matches!(end.standing, Standing::Asked | Standing::Asking) {
            end.standing = Standing::Ended(reason.to_string());
            end.wakeup.ring();
        }
        if let Some(pair) = &mut end.pair {
            pair.waits = false;
            self.may_go_on(number);
        }
    }

    pub(crate) fn pair(&mut self, number: u32) -> Option<&mut crate::state::Pair> {
        self.ends.get_mut(&number)?.pair.as_mut()
    }
}

pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn count_post(counters: &Counters, work: &Work, bytes: u64) {
    let (counter, sent, read) = match work {
        Work::Send | Work::SendInvalidate { .. } => (&counters.sends, bytes, 0),
        Work::Write { .. } => (&counters.writes, bytes, 0),
        Work::WriteImmediate { .. } => (&counters.writes_immediate, bytes, 0),
        Work::Read { .. } => (&counters.reads, 0, bytes),
        Work::Bind { .. } | Work::Invalidate { .. } => (&counters.binds, 0, 0),
    };
    Counters::add(counter, 1);
    Counters::add(&counters.sent_bytes, sent);
    Counters::add(&counters.read_bytes, read);
}
