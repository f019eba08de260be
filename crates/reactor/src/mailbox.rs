//! A bounded queue into a reactor from any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Makes a mailbox that holds at most `capacity` letters that have not been received.
///
/// The senders may be cloned and moved to any thread; sending never blocks, and wakes the reactor on
/// which the receiving task waits only if that sleeps.
pub fn mailbox<T>(capacity: usize) -> (MailSender<T>, Mailbox<T>) {
    let inner = Arc::new(Inner {
        capacity,
        state: Mutex::new(State { letters: VecDeque::new(), waker: None, senders: 1, receiving: true }),
    });
    (MailSender { inner: inner.clone() }, Mailbox { inner })
}

struct Inner<T> {
    capacity: usize,
    state: Mutex<State<T>>,
}

struct State<T> {
    letters: VecDeque<T>,
    waker: Option<Waker>,
    senders: usize,
    receiving: bool,
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A letter that could not be sent, given back.
#[derive(Debug, PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox holds as many letters as it may.
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
    /// Puts a letter into the mailbox.
    ///
    /// # Errors
    /// Gives the letter back if the mailbox is full or gone.
    pub fn send(&self, letter: T) -> Result<(), SendError<T>> {
        let mut state = self.inner.lock();
        if !state.receiving {
            return Err(SendError::Closed(letter));
        }
        if state.letters.len() >= self.inner.capacity {
            return Err(SendError::Full(letter));
        }
        state.letters.push_back(letter);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Whether the receiving side is gone.
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
    /// The next letter, or `None` when the mailbox is empty and every sender is gone.
    pub async fn receive(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let mut state = self.inner.lock();
            if let Some(letter) = state.letters.pop_front() {
                return Poll::Ready(Some(letter));
            }
            if state.senders == 0 {
                return Poll::Ready(None);
            }
            state.waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            Poll::Pending
        })
        .await
    }

    /// The next letter if there is one now.
    pub fn try_receive(&mut self) -> Option<T> {
        self.inner.lock().letters.pop_front()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.receiving = false;
        let letters = std::mem::take(&mut state.letters);
        let waker = state.waker.take();
        drop(state);
        drop((letters, waker));
    }
}
