//! A request to let a lock go, as the guards of its hold learn of it.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::{Error, LostReason};
use crate::events::wakers::{AwaitedEnd, WakerThread};
use crate::hold::listener::HoldListener;
use crate::lock::lost_future::LostFuture;
use crate::model::fork::HomeProcess;
use crate::model::sync::Mutex;

/// A request to let a lock go, by [`Lock::ask`](crate::Lock::ask): what
/// [`LockGuard::revocation`](crate::LockGuard::revocation) receives.
///
/// The name is that of Apache Curator's revocable locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// Why, as the asking program says. It may be empty.
    pub reason: String,
}

/// Whom a request to let a lock go has reached: what [`Lock::ask`](crate::Lock::ask) returns.
///
/// ```
/// use wheellock::Client;
///
/// let lock = Client::in_memory().lock("orders:42");
/// let asked = lock.ask("deploy")?;
/// assert_eq!((asked.holders, asked.heard), (0, 0)); // nobody holds it
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Asked {
    /// How many clients hold the lock, Redisson's among them.
    pub holders: usize,
    /// How many of these clients hear requests, as far as the server knows. A client does once it has
    /// called [`revocation`](crate::LockGuard::revocation) or used a lock
    /// [with a cache](crate::Lock::with_cache). In memory all of them count; behind the one address of
    /// a cluster, the server may count too few.
    pub heard: usize,
}

impl Asked {
    pub(crate) const NOBODY: Self = Self { holders: 0, heard: 0 };

    /// One more client holds the lock, and hears requests or not.
    pub(crate) fn add(&mut self, hears: bool) {
        self.holders += 1;
        self.heard += usize::from(hears);
    }
}

/// A request for a guard's hold: as a flag, as a channel, and as what tasks await.
#[derive(Debug)]
pub(crate) struct RevocationSignal {
    asked: OnceLock<Revocation>,
    /// Until a request has come, or the guard is gone.
    sender: Mutex<Option<Sender<Revocation>>>,
    receiver: Receiver<Revocation>,
    awaited: OnceLock<Arc<AwaitedEnd>>,
}

impl RevocationSignal {
    pub(crate) fn new() -> Arc<Self> {
        let (sender, receiver) = bounded(1);
        let sender = Mutex::new(Some(sender));
        Arc::new(Self { asked: OnceLock::new(), sender, receiver, awaited: OnceLock::new() })
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.get().is_some()
    }

    /// A future of the request. An error if the thread that wakes its task cannot be started.
    pub(crate) fn future(
        self: &Arc<Self>,
        wakers: &WakerThread,
    ) -> Result<RevocationFuture, Error> {
        if self.awaited.get().is_none() {
            let end = wakers.awaited_end()?;
            self.awaited.get_or_init(|| end);
            // A request that came just now has seen no end to wake.
            if self.is_asked() {
                self.end_wait();
            }
        }
        let end = LostFuture::of(self.awaited.get());
        Ok(RevocationFuture { home: HomeProcess::new(), end, signal: Some(Arc::clone(self)) })
    }

    /// The guard is gone.
    pub(crate) fn close(&self) {
        drop(self.sender.lock().take());
        self.end_wait();
    }

    fn end_wait(&self) {
        if let Some(end) = self.awaited.get() {
            end.come(None);
        }
    }
}

impl HoldListener for RevocationSignal {
    fn on_lost(&self, _reason: LostReason) {}

    fn on_revocation(&self, revocation: &Revocation) {
        let sender = self.sender.lock().take();
        if let Some(sender) = sender
            && self.asked.set(revocation.clone()).is_ok()
        {
            // There is room, and this has a receiver.
            drop(sender.try_send(revocation.clone()));
            self.end_wait();
        }
    }
}

/// The channel of a guard. In the child of a fork, where there is no signal, the channel is closed: it
/// is made for each call, and leaked, as the channel of the loss is.
pub(crate) fn channel_of(signal: Option<&Arc<RevocationSignal>>) -> &Receiver<Revocation> {
    match signal {
        Some(signal) => &signal.receiver,
        None => Box::leak(Box::new(bounded(0).1)),
    }
}

/// A future that is ready when somebody asks for a guard's lock, with the request, or when that guard
/// is gone, with `None`: from [`LockGuard::revocation_future`](crate::LockGuard::revocation_future)
/// and from that of a [`MultiGuard`](crate::MultiGuard::revocation_future).
///
/// It needs no runtime, and is woken as a [`LostFuture`](crate::LostFuture) is. When it has been
/// ready, it stays so. In the child of a fork it is ready, with `None`.
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
    /// That of a guard in the child of a fork.
    pub(crate) fn forked() -> Self {
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
                Poll::Ready(signal.as_ref().and_then(|signal| signal.asked.get().cloned()))
            }
        }
    }
}

impl Drop for RevocationFuture {
    fn drop(&mut self) {
        if !self.home.is_current() {
            // The parent's.
            mem::forget(self.signal.take());
        }
    }
}

impl fmt::Debug for RevocationFuture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RevocationFuture").finish_non_exhaustive()
    }
}
