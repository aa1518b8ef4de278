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

/// A future for the loss of a guard's lock. The future is ready with the reason when the lock is
/// lost, and with `None` when the guard is gone.
///
/// Created by `lost_future` of a [`LockGuard`](crate::LockGuard::lost_future), a
/// [`MultiGuard`](crate::MultiGuard::lost_future) or a watched
/// [`Permit`](crate::Permit::lost_future).
///
/// The future works in each runtime, and without any runtime. The future is independent of the
/// guard: a program may move the future to another task, and the future may outlive the guard. Each
/// guard may have any number of futures. A future may be dropped at any time.
///
/// The client's thread `lock-wakers` wakes the task, with no lock of the client held. So the waker
/// may block, but delays the client's other tasks meanwhile. A panic of the waker is caught and
/// counted ([`Stats::callback_panics`](crate::Stats::callback_panics)).
///
/// A ready future stays ready, and may be polled again. In the child of a fork the future is ready,
/// with [`LostReason::Forked`].
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
    /// The awaited end, and the number of this future there. `None` in the child of a fork.
    awaited: Option<(Arc<AwaitedEnd>, u64)>,
}

impl LostFuture {
    /// Makes a future that waits for `end`, as one of the tasks of `end`.
    pub(crate) fn new(end: &Arc<AwaitedEnd>) -> Self {
        let task = end.join();
        Self { home: HomeProcess::new(), awaited: Some((Arc::clone(end), task)) }
    }

    /// Makes the future of a guard in the child of a fork, which is ready at once.
    pub(crate) fn forked() -> Self {
        Self { home: HomeProcess::new(), awaited: None }
    }

    /// Makes a future that waits for `end`. `end` is `None` in the child of a fork.
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
            // The parent owns the end.
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
