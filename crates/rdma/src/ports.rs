//! The adapters of a thread: opened when the first connection over them comes, let go of when they are dead;
//! and the zones that all of them know.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_reactor::{JoinHandle, spawn};
use weft_verbs::{CompletionQueue, Device, Fabric, VerbsError};

use crate::options::{PortOptions, SPIN_US_MAX};
use crate::port::{Port, poll, watch};
use crate::watched::Watched;

/// The adapters of a thread. Clones are the same; when the last is dropped, its connections end.
pub struct Ports<F: Fabric> {
    inner: Rc<Inner<F>>,
}

impl<F: Fabric> Clone for Ports<F> {
    fn clone(&self) -> Self {
        Ports { inner: self.inner.clone() }
    }
}

struct Inner<F: Fabric> {
    options: PortOptions,
    ports: RefCell<Vec<Entry<F>>>,
    /// Registered memory that data is in: address and bytes.
    zones: RefCell<BTreeMap<u64, u64>>,
}

struct Entry<F: Fabric> {
    port: Rc<Port<F>>,
    tasks: Vec<JoinHandle<()>>,
}

impl<F: Fabric> Drop for Inner<F> {
    fn drop(&mut self) {
        for entry in self.ports.take() {
            entry.port.fail_all("the server stops");
            entry.tasks.into_iter().for_each(JoinHandle::cancel);
        }
    }
}

impl<F: Fabric> Ports<F> {
    /// Adapters are opened when the first connection over them comes.
    pub fn new(options: PortOptions) -> Ports<F> {
        let (ports, zones) = (RefCell::default(), RefCell::default());
        Ports { inner: Rc::new(Inner { options, ports, zones }) }
    }

    /// Their sizes and times.
    pub fn options(&self) -> &PortOptions {
        &self.inner.options
    }

    /// Registers memory with every adapter that connections come over: what lies in it moves without a copy.
    ///
    /// # Errors
    /// An adapter refused. With the others it is registered; data in it is copied over that one.
    ///
    /// # Safety
    /// It stays mapped until [`Ports::remove_zone`], and nobody but its users minds that peers' data appears
    /// in it.
    pub unsafe fn add_zone(&self, address: *mut u8, bytes: usize) -> Result<(), VerbsError> {
        let (address, bytes) = (address as u64, bytes as u64);
        self.inner.zones.borrow_mut().insert(address, bytes);
        let ports = self.all();
        // SAFETY: as the caller promises.
        let add = |port: &Rc<Port<F>>| unsafe { port.zones.add(port.device(), address, bytes) };
        ports.iter().map(add).fold(Ok(()), Result::and)
    }

    /// Ends that. Nothing may be under way in it.
    pub fn remove_zone(&self, address: *mut u8) {
        self.inner.zones.borrow_mut().remove(&(address as u64));
        for entry in self.inner.ports.borrow().iter() {
            entry.port.zones.remove(address as u64);
        }
    }

    /// The adapters that connections came over and that still work.
    pub fn live(&self) -> Vec<Rc<Port<F>>> {
        self.let_go();
        self.all()
    }

    fn all(&self) -> Vec<Rc<Port<F>>> {
        self.inner.ports.borrow().iter().map(|entry| entry.port.clone()).collect()
    }

    /// Lets go of adapters that are of no more use: some systems do not take one away before.
    fn let_go(&self) {
        let dead: Vec<_> =
            self.inner.ports.borrow_mut().extract_if(.., |entry| entry.port.is_dead()).collect();
        dead.into_iter().flat_map(|entry| entry.tasks).for_each(JoinHandle::cancel);
    }

    /// The port of an adapter, made when its first connection comes.
    pub(crate) fn port(&self, device: Arc<F::Device>) -> Result<Rc<Port<F>>, VerbsError> {
        self.let_go();
        let mut ports = self.inner.ports.borrow_mut();
        if let Some(entry) = ports.iter().find(|entry| Arc::ptr_eq(&entry.port.device, &device)) {
            return Ok(entry.port.clone());
        }
        let failed = |what: &'static str| {
            let name = device.name().to_string();
            move |source: io::Error| VerbsError::Device { device: name, what, source }
        };
        let port: Rc<Port<F>> = Rc::new(Port::new(device.clone(), &self.inner.options)?);
        for (address, bytes) in self.inner.zones.borrow().iter() {
            // SAFETY: as the caller of `add_zone` promises.
            unsafe { port.zones.add(&device, *address, *bytes) }?;
        }
        let queue = Watched::new(port.queue.borrow().fd()).map_err(failed("watch its completion queue"))?;
        let events = Watched::new(device.event_fd()).map_err(failed("watch its events"))?;
        let spin = Duration::from_micros(self.inner.options.spin_us.min(SPIN_US_MAX).into());
        let tasks = vec![spawn(poll(port.clone(), queue, spin)), spawn(watch(port.clone(), events))];
        ports.push(Entry { port: port.clone(), tasks });
        Ok(port)
    }
}
