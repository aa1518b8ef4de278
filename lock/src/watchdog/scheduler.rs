//! The wheel with its ticker, and the place of each hold on the wheel: at the next renewal, at an
//! inspection, or at the end of the validity, whichever is first. An inspection reports a long
//! hold, or ends a cached hold.

use std::borrow::Borrow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::error::{Error, Reason};
use crate::hold::hold::Hold;
use crate::hold::state::WheelEntry;
use crate::model::BatchTimer;
use crate::model::kind::Layout;
use crate::model::lease::Lease;
use crate::watchdog::context::Context;
use crate::watchdog::renewal_schedule::{RenewalSchedule, Spreading, WindowQuota};

/// The wheel with its ticker.
pub(crate) type Timer = BatchTimer<Arc<Hold>>;

/// Schedules each hold on the wheel, at the time when the hold needs the next step.
#[derive(Debug)]
pub(crate) struct Scheduler {
    context: Arc<Context>,
    schedule: RenewalSchedule,
    /// Weak: the timer's handler owns this scheduler.
    timer: OnceLock<Weak<Timer>>,
    /// The number of servers with a renewal thread.
    servers: AtomicUsize,
}

/// Buckets of the wheel. At 10 ms a tick one lap is ten seconds, the renewal interval of the
/// default lease.
const BUCKETS: usize = 1024;
/// The shortest pause between two attempts to renew one hold.
const MIN_PAUSE: Duration = Duration::from_millis(50);

impl Scheduler {
    /// Makes a scheduler without a wheel: until [`start`](Self::start), nothing is scheduled.
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let settings = &context.settings;
        let schedule = RenewalSchedule::new(context.now(), settings.tick, settings.renewal_keys);
        Self { context, schedule, timer: OnceLock::new(), servers: AtomicUsize::new(0) }
    }

    /// Starts the ticker, which calls `on_due` with due holds. The ticker runs until the returned
    /// handle is dropped.
    ///
    /// Returns [`Error::Thread`] if the thread cannot be started.
    pub(crate) fn start(
        &self,
        on_due: impl FnMut(&mut Vec<Arc<Hold>>) + Send + 'static,
    ) -> Result<Arc<Timer>, Error> {
        let timer = BatchTimer::builder()
            .tick_duration(self.context.settings.tick)
            .ticks_per_wheel(BUCKETS)
            .thread_name("lock-ticker")
            .clock(Arc::clone(&self.context.clock))
            .build_batch(on_due)
            .map_err(|error| Error::Thread { reason: Reason::caused_by(error) })?;
        let timer = Arc::new(timer);
        // Only set here.
        drop(self.timer.set(Arc::downgrade(&timer)));
        Ok(timer)
    }

    /// Returns the instant from which windows are counted.
    pub(crate) fn origin(&self) -> Instant {
        self.schedule.origin()
    }

    /// Sets the number of servers with a renewal thread, by which renewals are spread.
    pub(crate) fn set_servers(&self, servers: usize) {
        self.servers.store(servers, Ordering::Relaxed);
    }

    /// Schedules a hold after a grant of a request sent at `sent_at`, perhaps one of many in a
    /// burst. Returns false if the hold is over.
    pub(crate) fn schedule_granted(&self, hold: &Arc<Hold>, sent_at: Instant) -> bool {
        let Some(end) = hold.valid_until() else { return false };
        let renewed_at = hold.renewal_lease(self.context.settings.foreign_watchdog).map(|lease| {
            // A shorter nested lease has not moved the end. The next renewal counts from the
            // request which set the end, or frequent nesting would put off the renewal forever.
            let valid_for = lease.valid_until(sent_at).saturating_duration_since(sent_at);
            let counts_from = end.checked_sub(valid_for).map_or(sent_at, |at| at.min(sent_at));
            let spreading =
                if counts_from < sent_at { Spreading::Retain } else { Spreading::Redistribute };
            self.schedule.renew_at(lease, counts_from, self.holds_per_server(), spreading)
        });
        // A reader's end can be far beyond the next renewal, so the earlier place on the wheel
        // stays a bound.
        let is_reader = hold.kind.layout() == Layout::Reader;
        let before = is_reader.then(|| hold.wheel_entry()).and_then(|entry| match entry {
            WheelEntry::Scheduled(_, due) => Some(hold.at_nanos(due)),
            WheelEntry::Unscheduled | WheelEntry::Removed => None,
        });
        let at = [renewed_at, self.long_hold_at(hold), before].into_iter().flatten().min();
        let at = at.map_or(end, |at| at.min(end));
        self.move_to(hold, self.by_cache_end(hold, at, sent_at));
        true
    }

    /// Schedules the next renewal of a hold whose renewal for `lease` was sent at `sent_at`. If the
    /// hold retains its place in the interval, the hold counts against `quota`.
    pub(crate) fn schedule_renewed(
        &self,
        hold: &Arc<Hold>,
        lease: Lease,
        sent_at: Instant,
        quota: &mut WindowQuota,
    ) {
        let per_server = self.holds_per_server();
        let renewal_lease = hold.renewal_lease_after(lease, self.context.settings.foreign_watchdog);
        let spreading = self.schedule.spreading(renewal_lease, sent_at, per_server, quota);
        let at = self.schedule.renew_at(renewal_lease, sent_at, per_server, spreading);
        let at = self.long_hold_at(hold).map_or(at, |long| long.min(at));
        let at = at.min(lease.valid_until(sent_at));
        self.move_to(hold, self.by_cache_end(hold, at, sent_at));
    }

    /// Schedules another attempt for holds whose renewals failed. Attempts go on until the validity
    /// ends, in ever shorter pauses as the end comes near.
    pub(crate) fn retry_later(&self, holds: impl ExactSizeIterator<Item: Borrow<Arc<Hold>>>) {
        self.retry(holds, |left, lease| (left / 8).min(lease.duration() / 10));
    }

    /// Schedules another attempt for holds that have moved to another server, which the store may
    /// not know yet. The attempt is soon, but not at once: while servers disagree, each may name
    /// the other server.
    pub(crate) fn retry_elsewhere(&self, holds: impl ExactSizeIterator<Item: Borrow<Arc<Hold>>>) {
        self.retry(holds, |left, _| left / 64);
    }

    /// Schedules another attempt for holds whose renewals failed, after `pause` of the remaining
    /// validity and the lease, at the latest at the end of the validity. Counts the holds as
    /// retries.
    fn retry(
        &self,
        holds: impl ExactSizeIterator<Item: Borrow<Arc<Hold>>>,
        pause: impl Fn(Duration, Lease) -> Duration,
    ) {
        let (now, count) = (self.context.now(), holds.len());
        for hold in holds {
            let hold = hold.borrow();
            hold.set_unanswered();
            let lease = hold.renewal_lease(self.context.settings.foreign_watchdog);
            if let (Some(end), Some(lease)) = (hold.valid_until(), lease) {
                let left = end.saturating_duration_since(now);
                let pause = pause(left, lease).max(MIN_PAUSE);
                self.move_to(hold, self.by_cache_end(hold, (now + pause).min(end), now));
            }
        }
        self.context.counters.retries(count);
    }

    /// Puts a hold back at its previous place. The place is in the past, so the hold is due in the
    /// next tick.
    pub(crate) fn repeat(&self, hold: &Arc<Hold>) {
        if let WheelEntry::Scheduled(_, due) = hold.wheel_entry() {
            self.move_to(hold, hold.at_nanos(due));
        }
    }

    /// Moves the next inspection of a hold forward, in time for the end of its cache at `until`.
    /// Leaves an earlier inspection in place.
    pub(crate) fn look_by_cache_end(&self, hold: &Arc<Hold>, until: Instant, now: Instant) {
        let at = self.before_cache_end(until).max(now);
        if let WheelEntry::Scheduled(_, due) = hold.wheel_entry()
            && at < hold.at_nanos(due)
        {
            self.move_to(hold, at);
        }
    }

    /// Returns when to inspect a hold that is due at `at`: in time for the end of its cache if
    /// sooner. The cache counts while the hold is cached, or while its end is after `now`.
    pub(crate) fn by_cache_end(&self, hold: &Hold, at: Instant, now: Instant) -> Instant {
        if !self.context.holds.cache.is_used() {
            return at;
        }
        match hold.cache_until() {
            Some((until, is_cached)) if is_cached || self.before_cache_end(until) > now => {
                at.min(self.before_cache_end(until))
            }
            _ => at,
        }
    }

    /// Returns a tick before `until`, as the ticker is late by up to one tick.
    fn before_cache_end(&self, until: Instant) -> Instant {
        until.checked_sub(self.context.settings.tick).unwrap_or(until)
    }

    /// Moves a hold to `at` on the wheel, or puts the hold there for the first time. No effect on a
    /// hold removed for good, or once the client has ended.
    pub(crate) fn move_to(&self, hold: &Arc<Hold>, at: Instant) {
        let Some(timer) = self.timer() else { return };
        hold.change_wheel_entry(|entry| {
            let due = match *entry {
                WheelEntry::Removed => return,
                // An unanswered renewal has been due since its first attempt.
                WheelEntry::Scheduled(_, due) if hold.is_unanswered() => due,
                WheelEntry::Scheduled(..) | WheelEntry::Unscheduled => hold.nanos_at(at),
            };
            let rescheduled = match *entry {
                WheelEntry::Scheduled(key, _) if timer.reschedule(key, at) => Some(key),
                _ => None,
            };
            // The wheel has no capacity limit. Only the end of the client stops the wheel; then
            // validity ends by itself.
            let key = rescheduled.or_else(|| timer.schedule_at(at, Arc::clone(hold)).ok());
            if let Some(key) = key {
                *entry = WheelEntry::Scheduled(key, due);
            }
        });
    }

    /// Removes a hold from the wheel for good. No renewal of the hold starts from now on, and a
    /// renewal in flight extends nothing.
    pub(crate) fn remove(&self, hold: &Hold) {
        let entry = hold.change_wheel_entry(|entry| std::mem::replace(entry, WheelEntry::Removed));
        if let (WheelEntry::Scheduled(key, _), Some(timer)) = (entry, self.timer()) {
            drop(timer.cancel(key));
        }
    }

    /// Returns when to inspect an unwatched hold to report its long duration. `None` for a watched
    /// hold, after the report, or if long holds are not reported.
    fn long_hold_at(&self, hold: &Hold) -> Option<Instant> {
        let long = self.context.settings.long_hold?;
        hold.long_at(Some(long)).filter(|_| hold.watched_lease().is_none())
    }

    /// Returns the average number of holds on each server with a renewal thread, rounded up.
    fn holds_per_server(&self) -> usize {
        // Relaxed: the number only affects how renewals are spread in time.
        self.context.holds.len().div_ceil(self.servers.load(Ordering::Relaxed).max(1))
    }

    /// Returns the wheel with its ticker; `None` before the start and after the end of the ticker.
    fn timer(&self) -> Option<Arc<Timer>> {
        self.timer.get()?.upgrade()
    }
}
