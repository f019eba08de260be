//! The bridge from operations of `weft-client` that are under way to futures of the reactor.
//!
//! ```text
//!   a handler          weft.finish(client.start_stat(…)).await
//!      │ sent already                        ▲ woken
//!      ▼                                     │
//!   the list of what is under way ──► the driver, one task
//!                                      │ before_poll of all: which descriptors, how long at most
//!                                      │ an epoll of its own is made equal to that, and waited for
//!                                      └ after_poll; advance of each: is it over?
//! ```
//!
//! No thread stands behind an operation. Hundreds are under way on one reactor thread. One whose future is
//! dropped goes on to its end, since memory may be lent to it; the driver keeps it until then.
//!
//! A call that waits must not be made on the reactor's thread: it may wait for one of the metadata server's
//! exactly-once slots, which operations have that nobody moves on meanwhile. [`Workers`](crate::Workers) do
//! such calls.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};

use weft_client::{Progress, after_poll, before_poll, hold_requests};
use weft_reactor::{Notify, sleep, spawn};

use crate::descriptors::Descriptors;

/// An operation, and who waits for it.
struct Slot<P: ?Sized> {
    over: bool,
    waker: Option<Waker>,
    operation: P,
}

type Shared = Rc<RefCell<Slot<dyn Progress>>>;

#[derive(Default)]
struct Inner {
    under_way: RefCell<Vec<Shared>>,
    added: Notify,
}

/// Drives operations of `weft-client` on the current reactor. Clones share the driver.
#[derive(Clone)]
pub struct Weft {
    inner: Rc<Inner>,
}

/// What ended a wait of the driver.
enum Woken {
    /// Something may have come, or a server has been silent for some time.
    Look,
    /// There are more operations.
    Added,
}

impl Weft {
    /// Starts the driver, a task of the current reactor.
    ///
    /// # Errors
    /// Those of `epoll_create1`.
    pub fn new() -> io::Result<Weft> {
        let descriptors = Descriptors::new()?;
        let inner = Rc::new(Inner::default());
        hold_requests(true);
        spawn(drive(inner.clone(), descriptors));
        Ok(Weft { inner })
    }

    /// Waits for the end of an operation, so that its `wait` does not wait any more.
    pub fn finish<P: Progress + 'static>(&self, mut operation: P) -> impl Future<Output = P> + use<P> {
        let slot = if operation.advance() {
            Err(operation)
        } else {
            let slot = Rc::new(RefCell::new(Slot { over: false, waker: None, operation }));
            self.inner.under_way.borrow_mut().push(slot.clone());
            self.inner.added.notify();
            Ok(slot)
        };
        async {
            let slot = match slot {
                Ok(slot) => slot,
                Err(operation) => return operation,
            };
            std::future::poll_fn(|context| {
                let mut slot = slot.borrow_mut();
                if slot.over {
                    return Poll::Ready(());
                }
                slot.waker.get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
                Poll::Pending
            })
            .await;
            let slot = Rc::into_inner(slot).expect("the driver lets go of what is over");
            slot.into_inner().operation
        }
    }

    /// How many operations are under way.
    pub fn under_way(&self) -> usize {
        self.inner.under_way.borrow().len()
    }
}

/// The driver.
async fn drive(inner: Rc<Inner>, mut descriptors: Descriptors) {
    let mut wanted = Vec::new();
    loop {
        if inner.under_way.borrow().is_empty() {
            inner.added.notified().await;
            continue;
        }
        wanted.clear();
        let longest = with_operations(&inner, |operations| before_poll(operations, &mut wanted));
        let woken = if longest.is_zero() {
            Woken::Look
        } else {
            descriptors.watch(&wanted);
            let mut ready = pin!(descriptors.ready());
            let mut added = pin!(inner.added.notified());
            let mut over = pin!(sleep(longest));
            std::future::poll_fn(|context| {
                if ready.as_mut().poll(context).is_ready() || over.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Woken::Look);
                }
                added.as_mut().poll(context).map(|()| Woken::Added)
            })
            .await
        };
        if matches!(woken, Woken::Look) {
            with_operations(&inner, |operations| after_poll(operations));
            take_finished(&inner);
        }
    }
}

fn with_operations<R>(inner: &Inner, call: impl FnOnce(&mut [&mut dyn Progress]) -> R) -> R {
    let under_way = inner.under_way.borrow();
    let mut slots: Vec<_> = under_way.iter().map(|slot| slot.borrow_mut()).collect();
    let mut operations: Vec<&mut dyn Progress> =
        slots.iter_mut().map(|slot| &mut slot.operation as _).collect();
    call(&mut operations)
}

/// Wakes those whose operations are over.
fn take_finished(inner: &Inner) {
    let finished: Vec<Shared> = inner
        .under_way
        .borrow_mut()
        .extract_if(.., |slot| {
            let mut slot = slot.borrow_mut();
            slot.over = slot.operation.advance();
            slot.over
        })
        .collect();
    for slot in finished {
        let waker = slot.borrow_mut().waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Two futures, driven together until both are over.
pub async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        poll_into(one.as_mut(), &mut first, context);
        poll_into(other.as_mut(), &mut second, context);
        match (first.is_some(), second.is_some()) {
            (true, true) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
    .await;
    (first.expect("it is over"), second.expect("it is over"))
}

fn poll_into<F: Future>(
    future: Pin<&mut F>,
    output: &mut Option<F::Output>,
    context: &mut std::task::Context<'_>,
) {
    if output.is_none()
        && let Poll::Ready(value) = future.poll(context)
    {
        *output = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::workers::Workers;
    use weft_client::OpenOptions;
    use weft_reactor::{JoinHandle, Reactor, ReactorOptions};

    /// More than there are exactly-once slots, and credits of a connection.
    const CALLS: usize = 600;

    #[test]
    fn one_thread_has_hundreds_of_operations_under_way() {
        let cluster = Cluster::start(2, 4096);
        let client = cluster.client();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async {
            let weft = Weft::new().unwrap();
            let create = |at: usize| {
                let (weft, client) = (weft.clone(), client.clone());
                spawn(async move {
                    let options = OpenOptions::new().read(true).write(true).create(true);
                    let path = format!("/file-{at}");
                    let file = weft.finish(client.start_open(path.as_str(), &options)).await.wait().unwrap();
                    let data = vec![at as u8; 10_000];
                    let (bytes, _) = weft.finish(file.start_write(data, 0)).await.wait().unwrap();
                    assert_eq!(bytes, 10_000);
                    let (bytes, data) =
                        weft.finish(file.start_read(vec![0; 20_000], 5)).await.wait().unwrap();
                    assert_eq!((bytes, data[0], data[9_994]), (9_995, at as u8, at as u8));
                    let size =
                        weft.finish(client.start_stat(path.as_str(), false)).await.wait().unwrap().size;
                    // Not here, where it would wait for what this thread is to move on.
                    Workers::default().run(move || file.close().unwrap()).await;
                    size
                })
            };
            let tasks: Vec<JoinHandle<u64>> = (0..CALLS).map(create).collect();
            weft_reactor::yield_now().await;
            assert!(weft.under_way() > 100, "{}", weft.under_way());
            for task in tasks {
                assert_eq!(task.await, 10_000);
            }
            assert_eq!(weft.under_way(), 0);
        });
        assert_eq!(client.read_dir("/").unwrap().count(), CALLS);
    }

    #[test]
    fn an_operation_that_nobody_waits_for_goes_on_to_its_end() {
        let cluster = Cluster::start(1, 4096);
        let client = cluster.client();
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        reactor.run(async {
            let weft = Weft::new().unwrap();
            for at in 0..50 {
                drop(weft.finish(client.start_mkdir(format!("/{at}").as_str(), 0o755)));
            }
            while weft.under_way() > 0 {
                sleep(std::time::Duration::from_millis(1)).await;
            }
        });
        assert_eq!(client.read_dir("/").unwrap().count(), 50);
    }

    #[test]
    fn operations_survive_a_restart_of_the_metadata_server() {
        let mut cluster = Cluster::start(1, 4096);
        let client = cluster.client();
        client.mkdir("/d", 0o755).unwrap();
        cluster.stop_server(0);
        let reactor = Reactor::new(ReactorOptions::default()).unwrap();
        let begin = |weft: &Weft, at| {
            let (weft, client) = (weft.clone(), client.clone());
            let call = move || client.start_mkdir(format!("/d/{at}").as_str(), 0o755);
            spawn(async move { weft.finish(call()).await.wait().unwrap() })
        };
        let (cluster, made) = reactor.run(async {
            let weft = Weft::new().unwrap();
            let calls: Vec<_> = (0..100).map(|at| begin(&weft, at)).collect();
            weft_reactor::yield_now().await;
            let workers = Workers::default();
            let restart = workers.run(move || {
                cluster.start_server(0, [1; 16]);
                cluster
            });
            let cluster = restart.await;
            let mut made = 0;
            for call in calls {
                call.await;
                made += 1;
            }
            (cluster, made)
        });
        assert_eq!((made, cluster.client().read_dir("/d").unwrap().count()), (100, 100));
    }
}
