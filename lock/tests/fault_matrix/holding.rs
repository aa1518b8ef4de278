//! Anything that can be held, of any type: whether it is valid, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;
use wheellock::{
    Client, Error, FencedGuard, Guard, LockGuard, LostReason, MultiGuard, Permit, RedGuard,
    SemaphoreGuard,
};

use crate::common::{now, pause};
use crate::place::Place;

/// Something that is held.
pub(crate) trait Holding {
    /// Whether its holder may rely on being alone.
    fn is_held(&self) -> bool;

    /// Tells of its loss.
    fn lost(&self) -> Option<&Receiver<LostReason>>;

    fn release(self: Box<Self>) -> Result<(), Error>;
}

macro_rules! guards_are_holdings {
    ($($guard:ty),*) => {
        $(impl Holding for $guard {
            fn is_held(&self) -> bool {
                Guard::is_held(self)
            }

            fn lost(&self) -> Option<&Receiver<LostReason>> {
                Some(Guard::lost(self))
            }

            fn release(self: Box<Self>) -> Result<(), Error> {
                Guard::unlock(*self)
            }
        })*
    };
}

guards_are_holdings!(LockGuard, FencedGuard);

impl Holding for Permit {
    fn is_held(&self) -> bool {
        self.is_valid()
    }

    fn lost(&self) -> Option<&Receiver<LostReason>> {
        Self::lost(self)
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        Self::release(*self)
    }
}

impl Holding for MultiGuard {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    fn lost(&self) -> Option<&Receiver<LostReason>> {
        Some(Self::lost(self))
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        Self::unlock(*self)
    }
}

impl Holding for RedGuard {
    fn is_held(&self) -> bool {
        Self::is_held(self)
    }

    fn lost(&self) -> Option<&Receiver<LostReason>> {
        Some(Self::lost(self))
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        Self::unlock(*self)
    }
}

/// Nobody is alone with permits without ids.
impl Holding for SemaphoreGuard {
    fn is_held(&self) -> bool {
        false
    }

    fn lost(&self) -> Option<&Receiver<LostReason>> {
        None
    }

    fn release(self: Box<Self>) -> Result<(), Error> {
        Self::release(*self)
    }
}

/// For how long a client has held for certain: what is false once is false forever, so from
/// the grant until it was last seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldInterval {
    pub(crate) since: Instant,
    pub(crate) last: Instant,
}

impl HeldInterval {
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let is_some = |interval: Self| interval.since <= interval.last;
        is_some(self) && is_some(other) && self.since <= other.last && other.since <= self.last
    }
}

/// What a rival tries to acquire in the meantime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RivalKind {
    Lock,
    SimpleLock,
    WriteLock,
    Permit,
}

/// A rival that connects to the server directly and acquires the same thing when it can.
pub(crate) struct Rival {
    grants: Arc<AtomicUsize>,
    intervals: Arc<Mutex<Vec<HeldInterval>>>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Its leases end by themselves.
const LEASE: Duration = Duration::from_secs(2);
/// How long it holds.
const HOLDS: Duration = Duration::from_millis(15);
/// The pause after each of its tries.
const PAUSE: Duration = Duration::from_millis(50);

impl Rival {
    pub(crate) fn start(place: &Place, name: &str, kind: RivalKind) -> Self {
        let builder = Client::builder().url(&place.url()).command_timeout(Duration::from_secs(1));
        let grants = Arc::new(AtomicUsize::new(0));
        let intervals = Arc::new(Mutex::new(Vec::new()));
        let stopping = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("rival".to_owned()).spawn({
            let (grants, intervals) = (Arc::clone(&grants), Arc::clone(&intervals));
            let (stopping, name) = (Arc::clone(&stopping), name.to_owned());
            move || {
                let mut client = None;
                while !stopping.load(Ordering::Acquire) {
                    if client.is_none() {
                        // The server may be restarting.
                        client = builder.clone().build().ok();
                    }
                    if let Some(held) = client.as_ref().and_then(|client| take(client, &name, kind))
                    {
                        let interval = interval_of(&*held);
                        intervals.lock().push(interval);
                        grants.fetch_add(1, Ordering::Release);
                        // In the middle of a fault it may fail. Then it ends with its lease.
                        drop(held.release());
                    }
                    pause(PAUSE);
                }
            }
        });
        Self { grants, intervals, stopping, thread: thread.unwrap() }
    }

    pub(crate) fn grants(&self) -> usize {
        self.grants.load(Ordering::Acquire)
    }

    /// Ends it, and returns when it was valid.
    pub(crate) fn stop(self) -> Vec<HeldInterval> {
        self.stopping.store(true, Ordering::Release);
        self.thread.join().unwrap();
        std::mem::take(&mut self.intervals.lock())
    }
}

fn take(client: &Client, name: &str, kind: RivalKind) -> Option<Box<dyn Holding>> {
    fn boxed<H: Holding + 'static>(held: Option<H>) -> Option<Box<dyn Holding>> {
        held.map(|held| Box::new(held) as Box<dyn Holding>)
    }
    // During a fault the server may refuse the rival too.
    match kind {
        RivalKind::Lock => boxed(client.lock(name).with_lease(LEASE).try_lock().ok()?),
        RivalKind::SimpleLock => boxed(client.simple_lock(name).with_lease(LEASE).try_lock().ok()?),
        RivalKind::WriteLock => {
            let lock = client.read_write_lock(name).write_lock();
            boxed(lock.with_lease(LEASE).try_lock().ok()?)
        }
        RivalKind::Permit => {
            boxed(client.expirable_semaphore(name).with_lease(LEASE).try_acquire().ok()?)
        }
    }
}

fn interval_of(held: &dyn Holding) -> HeldInterval {
    let since = now();
    let mut last = since;
    while last < since + HOLDS && held.is_held() {
        pause(Duration::from_millis(3));
        if held.is_held() {
            last = now();
        } else {
            break;
        }
    }
    HeldInterval { since, last }
}
