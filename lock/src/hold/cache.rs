//! The holds between two uses, cached by their client. Pure: time is an argument.
//!
//! The time of a cached hold counts from its first caching. Use does not prolong the time. So a
//! client with permanent use still gives the lock up once in this time, and other clients wait for
//! this time and one use.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use crate::events::stats::{CacheStats, Gauge};
use crate::hold::hold::Hold;
use crate::model::name::LockName;
use crate::model::sync::Mutex;

/// A client's cached holds, and the names requested by other clients.
#[derive(Debug)]
pub(crate) struct HoldCache {
    /// The largest length of the list.
    limit: usize,
    /// Whether an acquire has requested a cacheable lock.
    is_used: AtomicBool,
    /// The holds cached now, or earlier since their grant, by the beginning of their idle time.
    listed: Mutex<BinaryHeap<Listed>>,
    /// The length of the list. Acquires search no further if the length is zero.
    count: Gauge,
    wanted: Mutex<Wanted>,
    /// How many names are wanted. Releases search no further if the number is zero.
    wanted_count: Gauge,
    /// How many acquires took a cached hold.
    hits: AtomicU64,
    /// How many cached holds ended, by [`CacheEnd`].
    ended: [AtomicU64; CacheEnd::COUNT],
}

/// The wanted names, and when another client requested each.
#[derive(Debug, Default)]
struct Wanted {
    by_name: HashMap<LockName, Instant>,
    latest: Option<Instant>,
}

/// How a cached hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheEnd {
    /// The time was over.
    Expired,
    /// Another client has requested the lock, or an acquire of this client could not take the hold.
    Revoked,
    /// Too many were cached.
    Evicted,
    /// The hold was lost.
    Lost,
    /// The client has ended.
    ClientEnded,
}

impl CacheEnd {
    const COUNT: usize = 5;
}

/// For how long a name is not cached after a request of another client. The requests of waiters are
/// repeated after the same time.
const WANTED_FOR: Duration = Duration::from_secs(1);
/// The largest number of remembered names.
const MAX_WANTED: usize = 1024;

/// A hold in the list, with the beginning of its idle time, or the last time found in use.
#[derive(Debug)]
struct Listed {
    since: Instant,
    hold: Arc<Hold>,
}

impl HoldCache {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            is_used: AtomicBool::new(false),
            listed: Mutex::default(),
            count: Gauge::default(),
            wanted: Mutex::default(),
            wanted_count: Gauge::default(),
            hits: AtomicU64::new(0),
            ended: Default::default(),
        }
    }

    pub(crate) fn count_hit(&self) {
        // Relaxed, as all counts: nothing depends on these numbers.
        self.hits.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_end(&self, end: CacheEnd) {
        self.ended[end as usize].fetch_add(1, Relaxed);
    }

    /// Returns the counts for the client's statistics.
    pub(crate) fn stats(&self) -> CacheStats {
        let ended = |end: CacheEnd| self.ended[end as usize].load(Relaxed);
        CacheStats {
            cached: self.cached().len(),
            hits: self.hits.load(Relaxed),
            expired: ended(CacheEnd::Expired),
            revoked: ended(CacheEnd::Revoked),
            evicted: ended(CacheEnd::Evicted),
            lost: ended(CacheEnd::Lost),
        }
    }

    /// Notes that an acquire requests a cacheable lock.
    pub(crate) fn set_used(&self) {
        // Usually the flag is set, and the threads share the cache line.
        if !self.is_used() {
            self.is_used.store(true, Relaxed);
        }
    }

    /// Whether an acquire has requested a cacheable lock.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Relaxed)
    }

    /// Whether the list of present and former cached holds is empty, so that no hold is cached.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.now() == 0
    }

    /// Lists `hold`, cached since `now`, unless listed. If the list is too long, removes and
    /// returns the hold with the longest idle time, perhaps `hold`.
    pub(crate) fn list(&self, hold: &Arc<Hold>, now: Instant) -> Option<Arc<Hold>> {
        let mut listed = self.listed.lock();
        if hold.set_listed(true) {
            return None;
        }
        listed.push(Listed { since: now, hold: Arc::clone(hold) });
        let (mut excess, mut in_use) = (None, Vec::new());
        // A hold that was used since its listing goes back once with its new time, so a release
        // visits few entries. A full list is rare.
        while excess.is_none()
            && listed.len() + in_use.len() > self.limit
            && let Some(Listed { since, hold }) = listed.pop()
        {
            match hold.cached_since() {
                Some(idle_since) if idle_since > since => {
                    listed.push(Listed { since: idle_since, hold });
                }
                Some(_) => {
                    hold.set_listed(false);
                    excess = Some(hold);
                }
                None => in_use.push(Listed { since: now, hold }),
            }
        }
        listed.extend(in_use);
        self.count.set(listed.len());
        excess
    }

    /// Removes an ended hold from the list.
    pub(crate) fn unlist(&self, hold: &Arc<Hold>) {
        if self.is_empty() || !hold.is_listed() {
            return;
        }
        let mut listed = self.listed.lock();
        if hold.set_listed(false) {
            listed.retain(|listed| !Arc::ptr_eq(&listed.hold, hold));
            self.count.set(listed.len());
        }
    }

    /// Returns the holds in the cache, without holds in use.
    pub(crate) fn cached(&self) -> Vec<Arc<Hold>> {
        let listed = self.listed.lock();
        let all = listed.iter().map(|listed| &listed.hold);
        all.filter(|hold| hold.is_cached()).cloned().collect()
    }

    /// Notes that another client requested `name` at `now`. Too many names are not remembered.
    pub(crate) fn set_wanted(&self, name: &LockName, now: Instant) {
        let mut wanted = self.wanted.lock();
        let Wanted { by_name, latest } = &mut *wanted;
        if by_name.len() >= MAX_WANTED {
            by_name.retain(|_, since| is_fresh(*since, now));
        }
        if by_name.len() < MAX_WANTED {
            by_name.insert(name.clone(), now);
            *latest = Some(now);
        }
        self.wanted_count.set(by_name.len());
    }

    /// Whether another client has requested `name` within [`WANTED_FOR`].
    pub(crate) fn is_wanted(&self, name: &LockName, now: Instant) -> bool {
        if self.wanted_count.now() == 0 {
            return false;
        }
        let mut wanted = self.wanted.lock();
        if wanted.latest.is_none_or(|latest| !is_fresh(latest, now)) {
            wanted.by_name.clear();
            self.wanted_count.set(0);
        }
        wanted.by_name.get(name).is_some_and(|since| is_fresh(*since, now))
    }
}

/// Whether a request of the time `since` counts at `now`: the request is younger than
/// [`WANTED_FOR`].
pub(crate) fn is_fresh(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < WANTED_FOR
}

/// The top of the heap is the hold with the longest idle time.
impl Ord for Listed {
    fn cmp(&self, other: &Self) -> Ordering {
        Reverse(self.since).cmp(&Reverse(other.since))
    }
}

impl PartialOrd for Listed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Listed {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;

    #[test]
    fn name_requested_again_is_wanted_for_as_long_as_at_first() {
        let (cache, now) = (HoldCache::new(8), origin());
        let (name, other) = (LockName::parse("a").unwrap(), LockName::parse("b").unwrap());
        for requested in [now, now + WANTED_FOR * 2] {
            cache.set_wanted(&name, requested);
            assert!(cache.is_wanted(&name, requested + WANTED_FOR / 2));
            assert!(!cache.is_wanted(&other, requested + WANTED_FOR / 2));
            // Nothing has searched for the name since its time was over.
        }
        assert!(!cache.is_wanted(&name, now + WANTED_FOR * 3));
    }
}
