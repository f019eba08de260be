//! What posted work needs until its end.

use std::any::Any;
use std::rc::Rc;

use weft_verbs::Fabric;

use crate::pool::Slot;
use crate::schedule::Turn;

/// What is dropped once a piece of work has ended.
pub enum Held<F: Fabric> {
    /// A message, or data in a buffer of the port.
    Slot(Slot<F::Device>),
    /// Whatever keeps memory alive.
    Keeper(Rc<dyn Any>),
    /// The turn of a transfer.
    Turn(Turn),
    /// What several posts need.
    Shared(Rc<Vec<Held<F>>>),
}
