//! Two futures of one task at once: the network and the disk of one transfer, or a request and the end of the server.

use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// See [`both`].
    pub(crate) struct Both<A: Future, B: Future> {
        #[pin]
        first: A,
        #[pin]
        second: B,
        first_done: Option<A::Output>,
        second_done: Option<B::Output>,
    }
}

/// Drives both to their ends and returns both results. As [`either`] a type of its own, since an `async fn` would hold its
/// arguments twice.
pub(crate) fn both<A: Future, B: Future>(first: A, second: B) -> Both<A, B> {
    Both { first, second, first_done: None, second_done: None }
}

impl<A: Future, B: Future> Future for Both<A, B> {
    type Output = (A::Output, B::Output);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.first_done.is_none()
            && let Poll::Ready(output) = this.first.poll(cx)
        {
            *this.first_done = Some(output);
        }
        if this.second_done.is_none()
            && let Poll::Ready(output) = this.second.poll(cx)
        {
            *this.second_done = Some(output);
        }
        match (this.first_done.take(), this.second_done.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (*this.first_done, *this.second_done) = (first, second);
                Poll::Pending
            }
        }
    }
}

/// The one of two that ended first.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

pin_project! {
    /// See [`either`].
    pub(crate) struct FirstOf<A, B> {
        #[pin]
        first: A,
        #[pin]
        second: B,
    }
}

/// Drives both until one ends; the other is dropped. Where both are ready, the first counts.
pub(crate) fn either<A: Future, B: Future>(first: A, second: B) -> FirstOf<A, B> {
    FirstOf { first, second }
}

impl<A: Future, B: Future> Future for FirstOf<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.first.poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        this.second.poll(cx).map(Either::Second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_reactor::{Reactor, ReactorOptions, sleep};

    #[test]
    fn two_waits_take_as_long_as_the_longer_one() {
        Reactor::new(ReactorOptions::default()).unwrap().run(async {
            let slow = async {
                sleep(Duration::from_millis(5)).await;
                1
            };
            assert_eq!(both(slow, async { 2 }).await, (1, 2));
            let never = std::future::pending::<()>();
            assert!(matches!(either(never, sleep(Duration::from_millis(1))).await, Either::Second(())));
        });
    }
}
