//! A bounded queue into a reactor from any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Creates a mailbox for at most `capacity` messages that have not been received.
///
/// Senders can be cloned and moved to any thread. Sending never blocks. It wakes the receiving task's reactor
/// only if that sleeps.
pub fn mailbox<T>(capacity: usize) -> (MailSender<T>, Mailbox<T>) {
    let inner = Arc::new(Inner {
        capacity,
        state: Mutex::new(State { messages: VecDeque::new(), waker: None, senders: 1, receiving: true }),
    });
    (MailSender { inner: inner.clone() }, Mailbox { inner })
}

struct Inner<T> {
    capacity: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    messages: VecDeque<T>,
    waker: Option<Waker>,
    senders: usize,
    receiving: bool,
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that could not be sent, returned to the sender.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox is full.
    Full(T),
    /// The mailbox was dropped.
    Closed(T),
}

impl<T> std::fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SendError::Full(_) => f.write_str("the receiving thread's mailbox is full"),
            SendError::Closed(_) => f.write_str("the receiving thread has closed its mailbox"),
        }
    }
}

impl<T: std::fmt::Debug> std::error::Error for SendError<T> {}

/// The sending side; see [`mailbox`].
pub struct MailSender<T> {
    inner: Arc<Inner<T>>,
}

impl<T> MailSender<T> {
    /// Puts a message into the mailbox.
    ///
    /// # Errors
    /// Returns the message if the mailbox is full or closed.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        let mut state = self.inner.lock();
        if !state.receiving {
            return Err(SendError::Closed(message));
        }
        if state.messages.len() >= self.inner.capacity {
            return Err(SendError::Full(message));
        }
        state.messages.push_back(message);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether the receiving side is dropped.
    pub fn is_closed(&self) -> bool {
        !self.inner.lock().receiving
    }
}

impl<T> Clone for MailSender<T> {
    fn clone(&self) -> Self {
        self.inner.lock().senders += 1;
        MailSender { inner: self.inner.clone() }
    }
}

impl<T> Drop for MailSender<T> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.senders -= 1;
        let waker = if state.senders == 0 { state.waker.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The receiving side, for one task; see [`mailbox`].
pub struct Mailbox<T> {
    inner: Arc<Inner<T>>,
}

impl<T> Mailbox<T> {
    /// The next message; `None` when the mailbox is empty and every sender is dropped.
    pub async fn receive(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let mut state = self.inner.lock();
            if let Some(message) = state.messages.pop_front() {
                return Poll::Ready(Some(message));
            }
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            state.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// The next message, if there is one now.
    pub fn try_receive(&mut self) -> Option<T> {
        self.inner.lock().messages.pop_front()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.receiving = false;
        let messages = std::mem::take(&mut state.messages);
        let waker = state.waker.take();
        drop(state);
        drop((messages, waker));
    }
}
