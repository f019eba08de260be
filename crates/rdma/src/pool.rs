//! Slots of which some are free, and tasks that wait for one.

use std::cell::RefCell;
use std::rc::Rc;

use weft_reactor::Semaphore;
use weft_verbs::{Access, Device, MemoryPiece, VerbsError};

use crate::slots::Slots;

/// Registered slots that tasks take and give back.
pub(crate) struct SlotPool<D: Device> {
    slots: Slots<D>,
    free: RefCell<Vec<usize>>,
    turns: Semaphore,
}

impl<D: Device> SlotPool<D> {
    pub(crate) fn new(
        device: &D,
        slot_bytes: usize,
        count: u32,
        access: Access,
    ) -> Result<Rc<Self>, VerbsError> {
        let slots = Slots::new(device, slot_bytes, count as usize, access)?;
        let (free, turns) = (RefCell::new((0..slots.count()).collect()), Semaphore::new(slots.count()));
        Ok(Rc::new(SlotPool { slots, free, turns }))
    }

    /// Waits for a slot.
    pub(crate) async fn take(self: &Rc<Self>) -> Slot<D> {
        self.turns.acquire(1).await.forget();
        let number = self.free.borrow_mut().pop().expect("as many turns as slots");
        Slot { pool: self.clone(), number }
    }

    pub(crate) fn try_take(self: &Rc<Self>) -> Option<Slot<D>> {
        self.turns.try_acquire(1)?.forget();
        let number = self.free.borrow_mut().pop()?;
        Some(Slot { pool: self.clone(), number })
    }
}

/// A slot for a message or a part of a transfer. To be dropped when no work uses it.
pub struct Slot<D: Device> {
    pool: Rc<SlotPool<D>>,
    number: usize,
}

impl<D: Device> Drop for Slot<D> {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.number);
        self.pool.turns.add(1);
    }
}

impl<D: Device> Slot<D> {
    /// The first `bytes` of it, for work requests.
    pub fn piece(&self, bytes: usize) -> MemoryPiece {
        self.pool.slots.piece(self.number, bytes)
    }

    /// To be filled.
    ///
    /// # Safety
    /// No work uses it as long as the slice is used.
    pub unsafe fn fill(&mut self) -> &mut [u8] {
        // SAFETY: the slot is this value's, which is borrowed; of work the caller promises it.
        unsafe { self.pool.slots.fill(self.number) }
    }
}
