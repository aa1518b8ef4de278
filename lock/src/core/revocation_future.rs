//! A request to release a lock, as a future.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::core::lost_future::LostFuture;
use crate::error::Error;
use crate::events::wakers::WakerThread;
use crate::hold::revocation::{Revocation, RevocationSignal};
use crate::model::fork::HomeProcess;

/// A future for a request to release a guard's lock. The future is ready with the first request
/// when a program [requests](crate::Lock::ask) the lock, and with `None` when the guard is gone
/// before.
///
/// Created by `revocation_future` of a [`LockGuard`](crate::LockGuard::revocation_future) or a
/// [`MultiGuard`](crate::MultiGuard::revocation_future).
///
/// The future needs no runtime, and may outlive the guard. The loss of the lock does not make the
/// future ready: await a [`LostFuture`] for the loss. The client's thread `lock-wakers` wakes the
/// task, as for a `LostFuture`. A ready future stays ready, and may be polled again. In the child
/// of a fork the future is ready, with `None`.
///
/// ```
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use wheellock::Client;
///
/// let lock = Client::in_memory().lock("orders:42");
/// let guard = lock.lock()?;
/// let mut asked = pin!(guard.revocation_future()?);
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(asked.as_mut().poll(&mut context).is_pending());
/// lock.ask("deploy")?;
/// let Poll::Ready(Some(revocation)) = asked.as_mut().poll(&mut context) else { panic!() };
/// assert_eq!(revocation.reason, "deploy");
/// # Ok::<(), wheellock::Error>(())
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct RevocationFuture {
    home: HomeProcess,
    end: LostFuture,
    /// `None` in the child of a fork.
    signal: Option<Arc<RevocationSignal>>,
}

impl RevocationFuture {
    /// Makes the future of a guard with `signal`, which is `None` in the child of a fork. Returns
    /// an error if the thread for wakers cannot be started.
    pub(crate) fn of(
        signal: Option<&Arc<RevocationSignal>>,
        wakers: &WakerThread,
    ) -> Result<Self, Error> {
        let Some(signal) = signal else { return Ok(Self::forked()) };
        let end = LostFuture::new(signal.awaited_end(wakers)?);
        Ok(Self { home: HomeProcess::new(), end, signal: Some(Arc::clone(signal)) })
    }

    /// Makes the future of a guard in the child of a fork, which is ready at once.
    fn forked() -> Self {
        Self { home: HomeProcess::new(), end: LostFuture::forked(), signal: None }
    }
}

impl Future for RevocationFuture {
    type Output = Option<Revocation>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { home, end, signal } = self.get_mut();
        match Pin::new(end).poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_) if !home.is_current() => Poll::Ready(None),
            Poll::Ready(_) => {
                Poll::Ready(signal.as_ref().and_then(|signal| signal.asked().cloned()))
            }
        }
    }
}

impl Drop for RevocationFuture {
    fn drop(&mut self) {
        if !self.home.is_current() {
            // The parent owns the signal.
            mem::forget(self.signal.take());
        }
    }
}

impl fmt::Debug for RevocationFuture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RevocationFuture").finish_non_exhaustive()
    }
}
