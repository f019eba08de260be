//! Memory that this process's adapters know by name: from `weft_mem_alloc`, and what programs register themselves.
//!
//! Whoever comes later is told of what is there: memory may be registered before anything uses RDMA, which costs nothing then.

use std::sync::{Arc, Mutex, Weak};

use super::Adapters;
use crate::error::{Error, ErrorKind};
use crate::fork::PerProcess;
use crate::wait::lock;

/// Makes memory known to every RDMA adapter that this process uses, now or later, until it is unregistered as often as it was
/// registered: no read or write with it registers or looks up anything again. Without RDMA it costs nothing. A forked child begins
/// with nothing registered.
///
/// # Errors
/// [`ErrorKind::Local`] with the errno of an adapter that is in use and refuses, `ENOMEM` where `RLIMIT_MEMLOCK` does not allow to pin so
/// much; nothing is registered then. [`ErrorKind::Invalid`] for no memory.
///
/// # Safety
/// The memory is writable. Until it is unregistered it is neither unmapped nor mapped anew.
pub unsafe fn register_memory(memory: *mut u8, bytes: usize) -> Result<(), Error> {
    let address = memory as usize;
    if memory.is_null() || bytes == 0 || address.checked_add(bytes).is_none() {
        let text = format!("{bytes} bytes at {memory:p} are no memory");
        return Err(Error::new("register memory", ErrorKind::Invalid, text));
    }
    register(address, bytes)
        .map_err(|refusal| Error::new("register memory", ErrorKind::Local(refusal.errno), refusal.text))
}

/// Takes a registration by [`register_memory`] back. Reads and writes that are under way go on.
///
/// # Errors
/// [`ErrorKind::Invalid`]: no memory is registered that begins there.
pub fn unregister_memory(memory: *mut u8) -> Result<(), Error> {
    if unregister(memory as usize) {
        return Ok(());
    }
    let text = format!("no memory is registered that begins at {memory:p}, or it was unregistered before");
    Err(Error::new("unregister memory", ErrorKind::Invalid, text))
}

/// Why an adapter does not take memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub errno: i32,
    pub text: String,
}

/// What is registered, and with whom.
#[derive(Default)]
struct Book {
    memory: Vec<Known>,
    adapters: Vec<Weak<dyn Adapters>>,
    /// The last reason why an adapter did not take memory that nobody was told of.
    refusal: Option<String>,
}

/// A piece of memory, as often as it was registered.
struct Known {
    address: usize,
    bytes: usize,
}

static BOOK: PerProcess<Mutex<Book>> = PerProcess::new();

fn book() -> &'static Mutex<Book> {
    BOOK.get_or_make(Mutex::default)
}

impl Book {
    /// What adapters know of what begins at an address: the longest piece.
    fn longest(&self, address: usize) -> Option<usize> {
        let here = self.memory.iter().filter(|known| known.address == address);
        here.map(|known| known.bytes).max()
    }

    fn adapters(&mut self) -> Vec<Arc<dyn Adapters>> {
        self.adapters.retain(|one| one.strong_count() > 0);
        self.adapters.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Makes memory known to all adapters until it was unregistered as often as registered.
///
/// # Errors
/// An adapter refused, and says why; nothing is registered then.
fn register(address: usize, bytes: usize) -> Result<(), Refusal> {
    let mut book = lock(book());
    let before = book.longest(address);
    if before.is_none_or(|before| before < bytes) {
        let adapters = book.adapters();
        for (at, one) in adapters.iter().enumerate() {
            if let Err(refusal) = change(&**one, address, before, Some(bytes)) {
                for told in &adapters[..=at] {
                    // What was there before may be refused as well now; it is used like any memory then.
                    let _ = change(&**told, address, Some(bytes), before);
                }
                return Err(refusal);
            }
        }
    }
    book.memory.push(Known { address, bytes });
    Ok(())
}

/// Takes the last registration of the memory that begins at `address` back. Says whether there was one.
pub(crate) fn unregister(address: usize) -> bool {
    let mut book = lock(book());
    let before = book.longest(address);
    let Some(at) = book.memory.iter().rposition(|known| known.address == address) else { return false };
    book.memory.remove(at);
    let after = book.longest(address);
    if after != before {
        for one in book.adapters() {
            if let Err(refusal) = change(&*one, address, before, after) {
                book.refusal = Some(refusal.text);
            }
        }
    }
    true
}

/// Has an adapter know other bytes than before of what begins at an address.
fn change(
    adapters: &dyn Adapters,
    address: usize,
    before: Option<usize>,
    after: Option<usize>,
) -> Result<(), Refusal> {
    if before.is_some() {
        adapters.unregister(address);
    }
    after.map_or(Ok(()), |bytes| adapters.register(address, bytes))
}

/// As [`register`], for memory that is as good as any other where an adapter refuses; [`refusal`] tells why.
pub(crate) fn register_arena(address: usize, bytes: usize) {
    if let Err(refusal) = register(address, bytes) {
        lock(book()).refusal = Some(refusal.text);
    }
}

/// Why memory was not registered that was to be, for status.
pub(crate) fn refusal() -> Option<String> {
    lock(book()).refusal.clone()
}

/// Tells new adapters of all memory there is, and from now on of what is added.
pub(super) fn join(adapters: &Arc<dyn Adapters>) {
    let mut book = lock(book());
    let mut addresses: Vec<usize> = book.memory.iter().map(|known| known.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    for address in addresses {
        if let Err(refusal) = change(&**adapters, address, None, book.longest(address)) {
            book.refusal = Some(refusal.text);
        }
    }
    book.adapters.push(Arc::downgrade(adapters));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::time::Duration;

    use weft_transport::{Link, LinkError};
    use weft_transport::{VerbsOptions, VerbsStatus};

    /// What adapters know is one for the process, and so for tests that run at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// Takes memory up to a size.
    struct Picky {
        bytes_max: usize,
        known: Mutex<Vec<(usize, usize)>>,
    }

    impl Adapters for Picky {
        fn names(&self) -> Result<Vec<String>, String> {
            unreachable!("nobody asks")
        }
        fn connect(
            &self,
            _address: SocketAddr,
            _options: &VerbsOptions,
            _timeout: Duration,
        ) -> Result<Box<dyn Link>, LinkError> {
            unreachable!("nobody connects")
        }
        fn register(&self, address: usize, bytes: usize) -> Result<(), Refusal> {
            if bytes > self.bytes_max {
                return Err(Refusal { errno: libc::ENOMEM, text: "too much".into() });
            }
            lock(&self.known).push((address, bytes));
            Ok(())
        }
        fn unregister(&self, address: usize) {
            lock(&self.known).retain(|(known, _)| *known != address);
        }
        fn status(&self) -> VerbsStatus {
            unreachable!("nobody asks")
        }
    }

    fn picky(bytes_max: usize) -> (Arc<Picky>, Arc<dyn Adapters>) {
        let picky = Arc::new(Picky { bytes_max, known: Mutex::default() });
        (picky.clone(), picky)
    }

    #[test]
    fn everyone_knows_what_is_registered_whenever_they_came() {
        // Addresses of nothing: nobody reads them here.
        const BASE: usize = 1 << 60;
        let _alone = lock(&ONE_AT_A_TIME);
        let ours = |picky: &Picky| {
            let known = lock(&picky.known);
            known.iter().filter(|(address, _)| *address >= BASE).copied().collect::<Vec<_>>()
        };
        let (first, adapters) = picky(1000);
        join(&adapters);
        register(BASE, 10).unwrap();
        register(BASE, 10).unwrap();
        let (second, others) = picky(100);
        join(&others);
        assert_eq!((ours(&first), ours(&second)), (vec![(BASE, 10)], vec![(BASE, 10)]));

        let refusal = register(BASE + 4096, 500).unwrap_err();
        assert_eq!(refusal.errno, libc::ENOMEM);
        assert_eq!(ours(&first).len(), 1, "either all take it, or none");
        register_arena(BASE + 4096, 500);
        assert_eq!(super::refusal().as_deref(), Some("too much"));
        drop((second, others));
        register(BASE + 4096, 500).unwrap();

        assert!(unregister(BASE) && ours(&first).contains(&(BASE, 10)), "it was registered twice");
        assert!(unregister(BASE) && !unregister(BASE));
        assert_eq!(ours(&first), [(BASE + 4096, 500)]);
        assert!(unregister(BASE + 4096) && ours(&first).is_empty());
    }

    #[test]
    fn of_pieces_that_begin_together_the_longest_is_known() {
        const BASE: usize = 3 << 59;
        let _alone = lock(&ONE_AT_A_TIME);
        let (picky, adapters) = picky(1000);
        join(&adapters);
        let known = || {
            lock(&picky.known)
                .iter()
                .filter(|(at, _)| *at == BASE)
                .map(|(_, bytes)| *bytes)
                .collect::<Vec<_>>()
        };
        register(BASE, 100).unwrap();
        register(BASE, 300).unwrap();
        register(BASE, 200).unwrap();
        assert_eq!(known(), [300]);
        register(BASE, 2000).unwrap_err();
        assert_eq!(known(), [300], "what was known stays so");
        assert!(unregister(BASE));
        assert_eq!(known(), [300]);
        assert!(unregister(BASE));
        assert_eq!(known(), [100], "the end of the longer one may be unmapped now");
        assert!(unregister(BASE) && known().is_empty() && !unregister(BASE));
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        for (memory, bytes) in [(0, 4096), (4096, 0), (usize::MAX - 5, 4096)] {
            // SAFETY: it is refused before it is used.
            let error = unsafe { register_memory(memory as *mut u8, bytes) }.unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{error}");
        }
        let error = unregister_memory(8 as *mut u8).unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::Invalid, libc::EINVAL));
    }
}
