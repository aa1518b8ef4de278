//! The loss of a hold as a future.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::error::LostReason;
use crate::events::wakers::AwaitedEnd;
use crate::model::fork::HomeProcess;

/// A future that is ready when a guard's lock is lost, with the reason, or when that guard is gone,
/// with `None`: from [`LockGuard::lost_future`](crate::LockGuard::lost_future), and from that of a
/// [`MultiGuard`](crate::MultiGuard::lost_future) or a watched
/// [`Permit`](crate::Permit::lost_future).
///
/// It needs no runtime, and works in each. It is independent of the guard: it may be moved to
/// another task and outlive the guard. Each guard may have any number of them. Dropping one leaves
/// nothing behind.
///
/// The task is woken on the client's thread `lock-wakers`, with no lock of the client held. So the
/// waker may block, but delays the other tasks of the client while it does. A panic in it is caught
/// and counted ([`Stats::callback_panics`](crate::Stats::callback_panics)).
///
/// When it has been ready, it stays so. In the child of a fork it is ready, with
/// [`LostReason::Forked`].
///
/// ```
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use wheellock::{Client, LostReason};
///
/// let lock = Client::in_memory().lock("orders:42").sendable();
/// let guard = lock.lock()?;
/// let mut lost = pin!(guard.lost_future()?);
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(lost.as_mut().poll(&mut context).is_pending());
/// lock.force_unlock()?;
/// assert_eq!(lost.as_mut().poll(&mut context), Poll::Ready(Some(LostReason::Deleted)));
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct LostFuture {
    home: HomeProcess,
    /// What it awaits, and its number there. `None` in the child of a fork.
    awaited: Option<(Arc<AwaitedEnd>, u64)>,
}

impl LostFuture {
    pub(crate) fn new(end: &Arc<AwaitedEnd>) -> Self {
        let task = end.join();
        Self { home: HomeProcess::new(), awaited: Some((Arc::clone(end), task)) }
    }

    /// That of a guard in the child of a fork.
    pub(crate) fn forked() -> Self {
        Self { home: HomeProcess::new(), awaited: None }
    }

    /// That of `end`; none in the child of a fork.
    pub(crate) fn of(end: Option<&Arc<AwaitedEnd>>) -> Self {
        end.map_or_else(Self::forked, Self::new)
    }
}

impl Future for LostFuture {
    type Output = Option<LostReason>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.awaited {
            Some((end, task)) if self.home.is_current() => end.poll(*task, context.waker()),
            _ => Poll::Ready(Some(LostReason::Forked)),
        }
    }
}

impl Drop for LostFuture {
    fn drop(&mut self) {
        if !self.home.is_current() {
            // The parent's.
            mem::forget(self.awaited.take());
        }
        if let Some((end, task)) = &self.awaited {
            end.leave(*task);
        }
    }
}

impl fmt::Debug for LostFuture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LostFuture").finish_non_exhaustive()
    }
}
