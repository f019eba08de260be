//! Two futures of one task at once: the network and the disk of one transfer, or a request and the end of the server.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Drives both to their ends and returns both results.
pub(crate) async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (None, None);
    std::future::poll_fn(move |cx| {
        if first_done.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(cx)
        {
            first_done = Some(output);
        }
        if second_done.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(cx)
        {
            second_done = Some(output);
        }
        match (first_done.take(), second_done.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (first_done, second_done) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// The one of two that ended first.
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

/// Drives both until one ends; the other is dropped. Where both are ready, the first counts.
pub(crate) async fn either<A: Future, B: Future>(first: A, second: B) -> Either<A::Output, B::Output> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(output) = first.as_mut().poll(cx) {
            return Poll::Ready(Either::First(output));
        }
        second.as_mut().poll(cx).map(Either::Second)
    })
    .await
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
