//! The threads of an I/O server.
//!
//! ```text
//!   weft-io-0, 1, …   connections and data files: thread 0 accepts for all
//!   weft-member       keeps in touch with the metadata server       (member.rs)
//!   weft-sums         checksums of what was written, and scrubs     (caretaker.rs)
//! ```

use crate::caretaker;
use crate::io::IoPart;
use crate::io::work::MethodCounters;
use crate::io_service::IoService;
use crate::listen::{Arrival, Doors, Host, PerThread};
use crate::log;
use crate::map::{endpoints_of, first_map};
use crate::member;
use crate::node::Node;
use crate::run::{End, Run, accept_and_serve, drain};
use crate::service::Service;
use crate::shared::Shared;
use crate::stop::StopFlag;
use crate::storage::IoStorage;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;
use weft_reactor::{Mailbox, Reactor, ReactorOptions, mailbox};
use weft_storage::calibrate::Calibration;
use weft_storage::{BufferPool, DataFiles, Disk};
use weft_verbs::Fabric;

/// How often idle buffers and windows are given back.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Accepted connections on their way to another thread.
const HANDED_OVER_MAX: usize = 1024;

/// Runs an I/O server: threads over the same data files, and two that look after them.
pub(crate) fn run<F: Fabric, D: Disk>(
    run: &Run,
    files: DataFiles<D>,
    storage: IoStorage,
    calibration: Calibration,
    ring_entries: Option<u32>,
    doors: Doors<F>,
) -> io::Result<End> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = run.server.threads.map_or(processors.min(4), usize::from);
    let pool_bytes = run.server.buffers_bytes as usize / threads;
    let options = run.reactor_options(ring_entries);
    let thread = |number| IoThread {
        number,
        options,
        shared: run.shared.clone(),
        files: files.clone(),
        pool_bytes,
        calibration: calibration.clone(),
        stop: run.stop.clone(),
    };
    let care = caretaker_of(run, files.clone());
    let member = member_of(run, files.clone(), storage);
    let ended = std::thread::scope(|scope| {
        let caretaker = std::thread::Builder::new().name("weft-sums".into());
        caretaker.spawn_scoped(scope, || caretaker::run(care))?;
        let members = std::thread::Builder::new().name("weft-member".into());
        let member = members.spawn_scoped(scope, || member::run(member))?;
        let mut others = Vec::new();
        let (ready, all_ready) = std::sync::mpsc::channel();
        for number in 1..threads {
            let (sender, arrivals) = mailbox(HANDED_OVER_MAX);
            let (thread, ready) = (thread(number), ready.clone());
            std::thread::Builder::new()
                .name(format!("weft-io-{number}"))
                .spawn_scoped(scope, move || thread.run_other(arrivals, ready))?;
            others.push(sender);
        }
        let first = thread(0);
        let served = Reactor::new(options)?.run(async {
            run.follow_keys();
            let host = first.host()?;
            // Clients that come before might take the descriptors that the other threads need.
            drop(ready);
            all_ready.into_iter().for_each(drop);
            accept_and_serve(host, &run.stop, doors, others).await
        });
        run.stop.stop();
        let refused = member.join().unwrap_or_default();
        served.map(|()| refused.map_or(End::Asked, End::WrongStorage))
    });
    caretaker::settle_at_stop(&files, &run.shared.name);
    ended
}

fn caretaker_of<D: Disk>(run: &Run, files: DataFiles<D>) -> caretaker::Setup<D> {
    caretaker::Setup {
        files,
        shared: run.shared.clone(),
        stop: run.stop.clone(),
        settle_s: run.config.cluster.data_settle_s,
        scrub_interval_s: run.config.cluster.data_scrub_interval_s,
        scrub_bytes_per_s: run.config.cluster.data_scrub_bytes_per_s,
    }
}

fn member_of<D: Disk>(run: &Run, files: DataFiles<D>, storage: IoStorage) -> member::Setup {
    member::Setup {
        storage: storage.storage,
        state: storage.state,
        run: storage.run,
        directory: run.shared.directory.clone(),
        endpoints: endpoints_of(&run.config, &run.server),
        meta: first_map(&run.config).servers.swap_remove(0),
        cluster_file: run.config.path.clone(),
        keys: run.shared.keys.clone(),
        stop: run.stop.clone(),
        shared: run.shared.clone(),
        lose_below: Box::new(move |ino| files.lose_below(ino)),
    }
}

/// One data-path thread of an I/O server.
struct IoThread<D: Disk> {
    number: usize,
    options: ReactorOptions,
    shared: Arc<Shared>,
    files: DataFiles<D>,
    pool_bytes: usize,
    calibration: Calibration,
    stop: StopFlag,
}

impl<D: Disk> IoThread<D> {
    /// On the current reactor.
    fn host<F: Fabric>(self) -> io::Result<Host<F, IoService<D>>> {
        let pool = BufferPool::new(self.pool_bytes)?;
        let shared = self.shared;
        let transports = PerThread::start(&shared, self.number, self.options.spin_us);
        transports.use_buffers(&pool, &shared.name);
        let methods = MethodCounters::among(&shared.counters);
        let keys = shared.keys.clone();
        let io = IoPart::new(self.files, pool, shared.id, keys, shared.sync, self.calibration, methods);
        let io = io.in_boot(shared.data_boot_id);
        let service = IoService::new(Node::new(shared), io);
        weft_reactor::spawn(keep_house(Rc::downgrade(&service)));
        Ok(Host { service, transports })
    }

    /// Drops `ready` when it has all that it needs, or has failed.
    fn run_other<F: Fabric>(self, mut arrivals: Mailbox<Arrival<F>>, ready: Sender<()>) {
        let (stop, name) = (self.stop.clone(), self.shared.name.clone());
        let served = Reactor::new(self.options).and_then(|reactor| {
            reactor.run(async {
                let host = self.host()?;
                let service = host.service.clone();
                drop(ready);
                weft_reactor::spawn(async move {
                    while let Some(arrival) = arrivals.receive().await {
                        host.serve(arrival);
                    }
                });
                stop.wait().await?;
                drain(&*service).await;
                Ok(())
            })
        });
        if let Err(error) = served {
            log::warning!(&name, "a data-path thread has ended: {error}");
            stop.stop();
        }
    }
}

/// Gives back what idles, and brings the gauges up to date.
async fn keep_house<D: Disk>(service: Weak<IoService<D>>) {
    let mut counted = [0u64; 2];
    loop {
        weft_reactor::sleep(HOUSEKEEPING).await;
        let Some(service) = service.upgrade() else { return };
        let (io, shared) = (&service.io, &service.node().shared);
        io.pool.shrink_idle();
        io.files.shrink_idle();
        let (pool, files) = (io.pool.stats(), io.files.stats());
        let gauge = |name| shared.counters.gauge(name);
        gauge("data_files_open").store(files.open_files as u64, Ordering::Relaxed);
        gauge("windows_mapped").store(files.windows as u64, Ordering::Relaxed);
        // Each thread has a pool of its own and adds what changed in it.
        let now = [pool.used_bytes as u64, pool.waiting as u64];
        for (at, name) in ["buffers_used_bytes", "buffers_waiting_requests"].into_iter().enumerate() {
            gauge(name).fetch_add(now[at].wrapping_sub(counted[at]), Ordering::Relaxed);
        }
        counted = now;
    }
}
