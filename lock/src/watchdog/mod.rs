//! The watchdog: every hold stands on the wheel, at its next renewal or at the end of its validity.
//!
//! The wheel's ticker never touches a socket. What is due for renewal it hands to the renewal thread of the server that
//! has it, and puts the hold back at the end of its validity, so that a loss is told in time even while a renewal
//! hangs. What has come to its end it declares lost. A renewal thread sends the renewals in scripts of many keys,
//! several in flight, and finishes the releases that are owed. There is one for each server, so that one which hangs
//! delays no other.

mod batches;
mod finishing;
mod handing_out;
mod jumps;
mod lanes;
mod moved;
mod owing;
mod placing;
mod releases;
mod renewal;
mod renewer;
mod round_trip;
mod schedule;
mod sweep;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{BatchTimer, Clock, HashedWheelTimer, Parker};
use parking_lot::Mutex;

use crate::config::Settings;
use crate::error::{Error, LostReason};
use crate::hold::{Hold, Place};
use crate::holds::Holds;
use crate::lease::Lease;
use crate::name::LockName;
use crate::report::Warning;
use crate::statistics::Counters;
use crate::store::{Lane, Store};
use crate::teller::Teller;
use jumps::{Jumps, Reading};
use lanes::Lanes;
use moved::Moved;
pub(crate) use releases::{Debt, GivesBack};
use renewer::{Due, Renewer};
use schedule::{Company, Schedule};

/// The wheel with its ticker.
type Timer = BatchTimer<Arc<Hold>>;

/// Renews the holds of one client and says when one is lost.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    timer: Option<Arc<Timer>>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    holds: Arc<Holds>,
    schedule: Schedule,
    teller: Arc<Teller>,
    /// Weak: the timer's handler holds this structure.
    timer: OnceLock<Weak<Timer>>,
    /// For the threads that are started as they are needed.
    this: Weak<Self>,
    lanes: Mutex<Lanes>,
    /// How many servers have a renewal thread.
    servers: AtomicUsize,
    /// The releases that callers send themselves, so that a shutdown knows of all.
    by_callers: Mutex<Vec<Debt>>,
    /// Those who wait for releases to be acknowledged.
    flushers: Mutex<Vec<Parker>>,
    stopping: AtomicBool,
    /// Some renewal thread has ended before it was told to.
    any_gone: AtomicBool,
    moved: Moved,
    counters: Counters,
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
        let shared = Arc::new_cyclic(|this| Shared {
            schedule: Schedule::new(clock.now(), tick, settings.renewal_keys),
            store,
            clock: Arc::clone(&clock),
            settings,
            holds,
            teller,
            timer: OnceLock::new(),
            this: Weak::clone(this),
            lanes: Mutex::new(Lanes::default()),
            servers: AtomicUsize::new(0),
            by_callers: Mutex::new(Vec::new()),
            flushers: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
            any_gone: AtomicBool::new(false),
            moved: Moved::default(),
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
        // Where there is one server its thread will be needed, and whoever builds the client is told if there is none.
        if let Some(only) = shared.store.only_lane() {
            shared.start_renewer(only)?;
        }
        Ok(Self { shared, timer: Some(timer) })
    }

    /// Takes a hold on, granted to a request that was sent at `sent_at`; or moves one that was nested. It may be one of
    /// many that are taken in one burst. It stands in the book of holds already.
    pub(crate) fn watch(&self, hold: &Arc<Hold>, sent_at: Instant) {
        if self.shared.store.only_lane().is_none() {
            hold.set_unsure(true);
        }
        self.shared.place_after_grant(hold, sent_at, Company::Crowd);
        self.shared.check_if_moved_since(hold, sent_at);
        // The thread may have ended since the request was sent. Whoever ends it says so before looking into the book.
        if self.is_gone(&hold.name) && hold.watched_lease().is_some() {
            self.shared.lose(hold, hold.reason_of_end());
        }
    }

    /// Whether nobody renews any more what has that name, although the client has not ended.
    pub(crate) fn is_gone(&self, name: &LockName) -> bool {
        let shared = &self.shared;
        shared.any_gone.load(Ordering::Acquire)
            && shared.is_lane_gone(shared.store.lane_of(name.as_str()))
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
        self.shared.tell_loss(hold, self.shared.clock.now(), reason);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Ends all threads. Renewals that are under way are waited for.
    pub(crate) fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.lanes.lock().wake();
        // The last handle: dropping it ends the ticker.
        drop(self.timer.take());
        let threads = self.shared.lanes.lock().take_threads();
        let own = thread::current().id();
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // It catches its panics, so there is nothing in its result.
            drop(thread.join());
        }
    }

    /// For a forked child, which has the handles of threads that it does not have: lets go without waiting. The handles
    /// of the renewal threads go with what the ticker shares with them, which nobody frees.
    pub(crate) fn abandon(&mut self) {
        std::mem::forget(self.timer.take());
    }
}

impl Shared {
    /// On the ticker: these have come to a renewal or to their end. A panic, which is the clock's, makes no hold
    /// forgotten: it is looked at again in the next tick.
    fn on_due(&self, due: &mut Vec<Arc<Hold>>) {
        let now = self.contained(|| self.clock.now());
        let mut renewals = Vec::new();
        for hold in due.iter() {
            hold.fetch();
        }
        for hold in due.drain(..) {
            let looked = now.and_then(|now| {
                self.contained(|| self.look_at(&hold, now)).map(|due| renewals.extend(due))
            });
            if looked.is_none() {
                self.contained(|| self.look_again(&hold));
            }
        }
        if !renewals.is_empty() {
            self.hand_out(renewals);
        }
    }

    /// What is to be renewed, if it is the hold's time for that.
    fn look_at(&self, hold: &Arc<Hold>, now: Instant) -> Option<Due> {
        // If it was moved since the wheel gave it out, it is renewed a little early.
        let at = match *hold.place() {
            Place::On(_, at) => hold.at_nanos(at).min(now),
            Place::Nowhere => now,
            // Released or lost.
            Place::Off => return None,
        };
        let Some(end) = hold.valid_until().filter(|_| hold.is_held(now)) else {
            self.lose_at(hold, now, hold.reason_of_end());
            return None;
        };
        self.tell_if_long(hold, now);
        let renews = hold.lease_to_renew(now, self.settings.max_hold).is_some();
        if renews {
            // Until an answer says otherwise. Not only once it is sent: while the server hangs, it waits behind
            // attempts at others.
            hold.unanswered.store(true, Ordering::Relaxed);
        }
        // What is not renewed needs no look before its end, but perhaps it is to be told of.
        let long_at = hold.long_at(self.settings.long_hold).filter(|_| !renews);
        self.place(hold, long_at.map_or(end, |long_at| long_at.min(end)));
        renews.then(|| Due { hold: Arc::clone(hold), at, end })
    }

    /// Puts a hold back where it was. That is past, so it is due in the next tick.
    fn look_again(&self, hold: &Arc<Hold>) {
        let at = match *hold.place() {
            Place::On(_, at) => hold.at_nanos(at),
            Place::Nowhere | Place::Off => return,
        };
        self.place(hold, at);
    }

    /// Does something in which the clock may panic. That is counted, and there is no result.
    fn contained<T>(&self, action: impl FnOnce() -> T) -> Option<T> {
        // What it changes is changed under locks that know no poison, or not at all.
        let result = catch_unwind(AssertUnwindSafe(action)).ok();
        if result.is_none() {
            self.counters.panicked();
        }
        result
    }

    fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        self.lose_at(hold, self.clock.now(), reason);
    }

    fn lose_at(&self, hold: &Arc<Hold>, now: Instant, reason: LostReason) {
        self.take_off(hold);
        self.holds.remove(hold);
        if !hold.lose(now, reason) {
            return;
        }
        self.tell_loss(hold, now, reason);
        let gone = matches!(reason, LostReason::Deleted | LostReason::TakenOver);
        let ends_by_itself = !hold.may_outlive();
        if hold.doubt().is_some() || !(gone || ends_by_itself) {
            // If too many are owed already, that is counted, and the lease ends by itself.
            self.owe(now, &hold.claim(), hold.longest_lease(), hold.doubt());
        }
    }

    fn tell_loss(&self, hold: &Hold, now: Instant, reason: LostReason) {
        self.counters.lost(reason);
        self.teller.lost(|| hold.as_lost(now, reason));
    }

    /// An answered renewal told of the server's time.
    fn look_at_clock(&self, jumps: &mut Jumps, reading: Reading) {
        let lease = self.settings.watchdog_lease.duration();
        let warning = jumps.look(lease, reading);
        if let Some(warning) = warning {
            self.teller.warn(warning);
        }
    }

    /// The renewals' connection may lead to another server than before, or to one that was started anew.
    fn look_at_eviction(&self, lane: Lane) {
        if let Some(policy) = self.store.eviction_of_new_server(lane, self.release_timeout()) {
            self.teller.warn_once(Warning::Eviction { policy });
        }
    }

    fn tell_if_long(&self, hold: &Hold, now: Instant) {
        if let Some(held) = hold.tell_long(now, self.settings.long_hold) {
            self.teller.long_hold(|| held);
        }
    }

    /// Nobody renews on that server any more. A panic of the clock spares no hold: what it would have said matters only
    /// to a report.
    fn lose_all_watched(&self, renewer: &Renewer) {
        // Before the book is looked at: who enters a hold later sees it.
        renewer.set_gone();
        self.any_gone.store(true, Ordering::Release);
        let is_here = |hold: &Hold| self.store.lane_of(hold.name.as_str()) == renewer.lane;
        let all = self.holds.all();
        for hold in all.iter().filter(|hold| hold.watched_lease().is_some() && is_here(hold)) {
            let reason = hold.reason_of_end();
            if self.contained(|| self.lose(hold, reason)).is_none() {
                self.contained(|| self.lose_at(hold, hold.since(), reason));
            }
        }
        // Nobody finishes what is owed either.
        self.wake_flushers();
    }

    /// How long one attempt at renewals may take: a tenth of the shortest lease, and at least some round trips as they
    /// were of late, and what a slow one takes. Not less for those that end sooner: an attempt that is given up costs
    /// all others the connection, while an answer that comes too late costs nothing.
    fn attempt_timeout(&self, shortest: Lease, round_trip: Duration) -> Duration {
        const SLOW: Duration = Duration::from_millis(250);
        const LONGEST: Duration = Duration::from_secs(3);
        let patient = (round_trip * 4).max(SLOW);
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
