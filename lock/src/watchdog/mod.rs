//! The watchdog: every hold stands on the wheel, at its next renewal or at the end of its validity.
//!
//! The wheel's ticker never touches a socket. What is due for renewal it hands to the renewal thread, and puts the hold
//! back at the end of its validity, so that a loss is told in time even while a renewal hangs. What has come to its end
//! it declares lost. The renewal thread sends the renewals in scripts of many keys, several in flight, and finishes
//! the releases that are owed.

mod finishing;
mod jumps;
mod placing;
mod releases;
mod renewal;
mod round_trip;
mod schedule;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hashed_wheel::{Clock, HashedWheelTimer, Parker};
use parking_lot::Mutex;

use crate::claim::Claim;
use crate::config::Settings;
use crate::error::{Error, LostReason};
use crate::hold::{Hold, Place};
use crate::holds::Holds;
use crate::lease::Lease;
use crate::statistics::Counters;
use crate::store::Store;
use crate::teller::Teller;
use crate::value::ServerTime;
use jumps::{Jumps, Reading};
use placing::Timer;
use releases::Releases;
use round_trip::RoundTrip;
use schedule::{Company, Schedule};

/// Renews the holds of one client and says when one is lost.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    timer: Option<Arc<Timer>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    holds: Arc<Holds>,
    schedule: Schedule,
    round_trip: RoundTrip,
    teller: Arc<Teller>,
    jumps: Mutex<Jumps>,
    /// Weak: the timer's handler holds this structure.
    timer: OnceLock<Weak<Timer>>,
    /// What the renewal thread has to renew.
    due: Mutex<Vec<Due>>,
    releases: Mutex<Releases>,
    /// What the renewal thread sleeps on.
    renewal: Parker,
    /// Those who wait for releases to be acknowledged.
    flushers: Mutex<Vec<Parker>>,
    stopping: AtomicBool,
    counters: Counters,
}

/// A hold that is to be renewed.
#[derive(Clone, Debug)]
struct Due {
    hold: Arc<Hold>,
    /// When that was due.
    at: Instant,
    /// When it ends if it is not.
    end: Instant,
}

/// Buckets of the wheel: at ten milliseconds a tick one lap is ten seconds, the renewal interval of the default lease.
const BUCKETS: usize = 1024;

impl Watchdog {
    pub(crate) fn start(
        store: Arc<Store>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        holds: Arc<Holds>,
        teller: Arc<Teller>,
    ) -> Result<Self, Error> {
        let tick = settings.tick;
        let shared = Arc::new(Shared {
            schedule: Schedule::new(clock.now(), tick, settings.renewal_keys),
            round_trip: RoundTrip::default(),
            store,
            clock: Arc::clone(&clock),
            settings,
            holds,
            teller,
            jumps: Mutex::new(Jumps::default()),
            timer: OnceLock::new(),
            due: Mutex::new(Vec::new()),
            releases: Mutex::new(Releases::default()),
            renewal: Parker::new(),
            flushers: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
        });
        let handler = Arc::clone(&shared);
        let timer = HashedWheelTimer::builder()
            .tick_duration(tick)
            .ticks_per_wheel(BUCKETS)
            .thread_name("lock-ticker")
            .clock(clock)
            .build_batch(move |due: &mut Vec<Arc<Hold>>| handler.on_due(due))
            .map_err(|error| Error::Thread { reason: error.to_string() })?;
        let timer = Arc::new(timer);
        // Set once, here.
        drop(shared.timer.set(Arc::downgrade(&timer)));
        // A park that returns at once: a manual clock knows the thread before it runs, and does not go on without it.
        shared.clock.park(&shared.renewal, Some(shared.clock.now()), &crossbeam_channel::never());
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("lock-renewal".to_owned())
            .spawn(move || renewal::run(&worker))
            .map_err(|error| Error::Thread { reason: error.to_string() })?;
        Ok(Self { shared, timer: Some(timer), thread: Some(thread) })
    }

    /// Takes a hold on, granted to a request that was sent at `sent_at`; or moves one that was nested. It may be one of
    /// many that are taken in one burst.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent_at: Instant) {
        self.shared.place_after_grant(hold, sent_at, Company::Crowd);
    }

    /// Forgets a hold. Before its release is sent: from now on no renewal of it is begun, and one that is under way
    /// finds nothing to extend.
    pub(crate) fn forget(&self, hold: &Hold) {
        self.shared.take_off(hold);
    }

    /// A hold turned out to be lost.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        self.shared.lose(hold, reason);
    }

    /// Counts a loss that the watchdog was not the first to see, and tells of it.
    pub(crate) fn tell_loss(&self, hold: &Hold, reason: LostReason) {
        self.shared.tell_loss(hold, reason);
    }

    /// Owes the server a release, which the renewal thread finishes. False if so many are owed that the lease has to
    /// end by itself.
    pub(crate) fn owe_release(
        &self,
        claim: Claim,
        lease: Lease,
        doubt: Option<ServerTime>,
    ) -> bool {
        self.shared.owe(claim, lease, doubt)
    }

    /// Notes that a caller releases this itself, or will if it is not granted, until [`released`](Self::released).
    pub(crate) fn releasing(&self, claim: Claim) {
        self.shared.releases.lock().begin(claim);
    }

    pub(crate) fn released(&self, claim: &Claim) {
        self.shared.releases.lock().end(claim);
        self.shared.wake_flushers();
    }

    /// Waits for the releases that are under way or owed, until `deadline`. Answers those that no server has
    /// acknowledged.
    pub(crate) fn finish_releases(&self, deadline: Instant) -> Vec<Claim> {
        let parker = Parker::new();
        self.shared.flushers.lock().push(parker.clone());
        // Wakes come at the end of a round of the renewal thread's, and of a caller's release. The first round may have
        // begun before this call; the second has not.
        let mut wakes = 0;
        let unacknowledged = loop {
            let (open, by_callers) = {
                let book = self.shared.releases.lock();
                (book.unacknowledged(), book.are_by_callers())
            };
            // What callers send ends by itself, on any store.
            let patient = self.shared.store.may_recover_by_itself() || wakes < 2 || by_callers;
            if open.is_empty() || !patient || self.shared.clock.now() >= deadline {
                break open;
            }
            if wakes < 2 {
                self.shared.renewal.unpark();
            }
            self.shared.clock.park(&parker, Some(deadline), &crossbeam_channel::never());
            wakes += 1;
        };
        self.shared.flushers.lock().retain(|other| !other.is(&parker));
        unacknowledged
    }

    pub(crate) fn owed_releases(&self) -> usize {
        self.shared.releases.lock().len()
    }

    pub(crate) fn abandoned_releases(&self) -> u64 {
        self.shared.releases.lock().abandoned
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends both threads. A renewal that is under way is waited for.
    pub(crate) fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.renewal.unpark();
        // The last handle: dropping it ends the ticker.
        drop(self.timer.take());
        let own = thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != own) {
            // It catches its panics, so there is nothing in its result.
            drop(thread.join());
        }
    }

    /// For a forked child, which has the handles of threads that it does not have: lets go without waiting.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(self.timer.take());
        std::mem::forget(self.thread.take());
    }
}

impl Shared {
    /// On the ticker: these have come to a renewal or to their end.
    fn on_due(&self, due: &mut Vec<Arc<Hold>>) {
        let now = self.clock.now();
        let mut renewals = Vec::new();
        for hold in due.drain(..) {
            // If it was moved since the wheel gave it out, it is renewed a little early.
            let at = match *hold.place() {
                Place::On(_, at) => hold.at_nanos(at).min(now),
                Place::Nowhere => now,
                // Released or lost.
                Place::Off => continue,
            };
            match hold.valid_until().filter(|_| hold.is_held(now)) {
                None => self.lose(&hold, hold.reason_of_end()),
                Some(end) => {
                    self.tell_if_long(&hold, now);
                    let renews = hold.lease_to_renew(now, self.settings.max_hold).is_some();
                    // What is not renewed needs no look before its end, but perhaps it is to be told of.
                    let long_at = hold.long_at(self.settings.long_hold).filter(|_| !renews);
                    self.place(&hold, long_at.map_or(end, |long_at| long_at.min(end)));
                    if renews {
                        // Until an answer says otherwise. Not only once it is sent: while the server hangs, it waits
                        // behind attempts at others.
                        hold.unanswered.store(true, Ordering::Relaxed);
                        renewals.push(Due { hold, at, end });
                    }
                }
            }
        }
        if !renewals.is_empty() {
            self.due.lock().append(&mut renewals);
            self.renewal.unpark();
        }
    }

    fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        self.take_off(hold);
        self.holds.remove(hold);
        if !hold.lose(self.clock.now(), reason) {
            return;
        }
        self.tell_loss(hold, reason);
        let gone = matches!(reason, LostReason::Deleted | LostReason::TakenOver);
        let ends_by_itself = !hold.may_outlive();
        if hold.doubt().is_some() || !(gone || ends_by_itself) {
            // If too many are owed already, that is counted, and the lease ends by itself.
            self.owe(hold.claim(), hold.longest_lease(), hold.doubt());
        }
    }

    fn tell_loss(&self, hold: &Hold, reason: LostReason) {
        self.counters.lost(reason);
        self.teller.lost(|| hold.as_lost(self.clock.now(), reason));
    }

    /// An answered renewal told of the server's time.
    fn look_at_clock(&self, reading: Reading) {
        let lease = self.settings.watchdog_lease.duration();
        let warning = self.jumps.lock().look(lease, reading);
        if let Some(warning) = warning {
            self.teller.warn(warning);
        }
    }

    fn tell_if_long(&self, hold: &Hold, now: Instant) {
        if let Some(held) = hold.tell_long(now, self.settings.long_hold) {
            self.teller.long_hold(|| held);
        }
    }

    fn owe(&self, claim: Claim, lease: Lease, doubt: Option<ServerTime>) -> bool {
        // A copy of a command may be under way for as long as its attempt may take.
        let lease_and_copies = lease.duration() + self.settings.patience();
        let now = self.clock.now();
        let owed = self.releases.lock().owe(now, claim, lease_and_copies, doubt);
        self.renewal.unpark();
        owed
    }

    fn wake_flushers(&self) {
        self.flushers.lock().iter().for_each(Parker::unpark);
    }

    /// Nobody renews any more.
    fn lose_all_watched(&self) {
        for hold in self.holds.all() {
            if hold.watched_lease().is_some() {
                self.lose(&hold, hold.reason_of_end());
            }
        }
    }

    /// How long one attempt at renewals may take: a tenth of the shortest lease, and at least some round trips as they
    /// were of late, and what a slow one takes. Not less for those that end sooner: an attempt that is given up costs
    /// all others the connection, while an answer that comes too late costs nothing.
    fn attempt_timeout(&self, shortest: Lease) -> Duration {
        const SLOW: Duration = Duration::from_millis(250);
        const LONGEST: Duration = Duration::from_secs(3);
        let patient = (self.round_trip.recent() * 4).max(SLOW);
        let timeout = (shortest.duration() / 10).max(patient).min(LONGEST);
        timeout.min(self.settings.command_timeout).min(shortest.duration())
    }

    /// How long the releases that are owed may take together. Renewals wait for them, so it is a small part of a lease.
    fn release_timeout(&self) -> Duration {
        const LONGEST: Duration = Duration::from_secs(1);
        let part = self.settings.watchdog_lease.duration() / 12;
        part.max(self.settings.tick).min(LONGEST).min(self.settings.command_timeout)
    }
}
